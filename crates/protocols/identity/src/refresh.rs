//! When to ask for the next certificate. Pure: the time and a random number are arguments.

use std::time::{Duration, SystemTime};

/// The share of the life after which a certificate is renewed: half, so that one failed day of control plane
/// still leaves half a life to recover in.
pub const REFRESH_AT: f64 = 0.5;
/// Spread of renewals around [`REFRESH_AT`], as a share of the life: a mesh started at once must not renew at once.
pub const REFRESH_SPREAD: f64 = 0.1;
/// The shortest wait between renewals: an authority with absurd lifetimes must not be hammered.
pub const MIN_REFRESH: Duration = Duration::from_secs(1);
/// The first wait after a failure.
pub const FIRST_RETRY: Duration = Duration::from_millis(250);
/// The longest wait after failures.
pub const MAX_RETRY: Duration = Duration::from_secs(15);

/// Wait before the renewal of a certificate that was received at `received`: half of the life it then had, give or take
/// [`REFRESH_SPREAD`] / 2. The beginning of its validity does not count: authorities set it back for skewed clocks,
/// which would eat a short life. `rand` is in 0..1.
pub fn next_refresh(received: SystemTime, not_after: SystemTime, rand: f64) -> Duration {
    let life = not_after.duration_since(received).unwrap_or_default();
    let share = REFRESH_AT + REFRESH_SPREAD * (rand.clamp(0.0, 1.0) - 0.5);
    life.mul_f64(share).max(MIN_REFRESH)
}

/// Wait after the `failures`-th failure in a row (from 1): doubling, capped, and the upper half random, so that proxies
/// do not come back together. `rand` is in 0..1.
pub fn retry_delay(failures: u32, rand: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let whole = FIRST_RETRY.saturating_mul(1 << doublings).min(MAX_RETRY);
    whole.mul_f64(0.5 + 0.5 * rand.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_due_around_half_of_the_life_left() {
        let received = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (life_seconds, rand, wanted_seconds) in [
            (86_400, 0.5, 43_200.0),
            (86_400, 0.0, 38_880.0),
            (86_400, 1.0, 47_520.0),
            (10, 0.5, 5.0),
            (1, 0.5, 1.0),
            (0, 0.5, 1.0),
        ] {
            let dies = received + Duration::from_secs(life_seconds);
            let found = next_refresh(received, dies, rand).as_secs_f64();
            assert!(
                (found - wanted_seconds).abs() < 0.5,
                "{life_seconds} {rand}: {found}"
            );
        }
        let dead = received - Duration::from_secs(1);
        assert_eq!(next_refresh(received, dead, 0.3), MIN_REFRESH);
    }

    #[test]
    fn retries_double_and_stop_doubling() {
        for (failures, rand, wanted_millis) in [
            (1, 1.0, 250),
            (1, 0.0, 125),
            (2, 1.0, 500),
            (5, 1.0, 4_000),
            (7, 1.0, 15_000),
            (u32::MAX, 0.0, 7_500),
        ] {
            let found = retry_delay(failures, rand);
            assert_eq!(
                found,
                Duration::from_millis(wanted_millis),
                "{failures} {rand}"
            );
        }
    }
}

//! When to ask for the next certificate. Pure: the time and a random number are arguments.

use std::time::{Duration, SystemTime};

/// The share of the life after which a certificate is renewed: half, so that one failed day of control plane
/// still leaves half a life to recover in.
pub const REFRESH_AT: f64 = 0.5;
/// How far around [`REFRESH_AT`] renewals are spread, as a share of the life: a mesh started at once must not renew
/// at once.
pub const REFRESH_SPREAD: f64 = 0.1;
/// The shortest wait between renewals: an authority with absurd lifetimes must not be hammered.
pub const MIN_REFRESH: Duration = Duration::from_secs(1);
/// The first wait after a failure.
pub const FIRST_RETRY: Duration = Duration::from_millis(250);
/// The longest wait after failures.
pub const MAX_RETRY: Duration = Duration::from_secs(15);

/// How long to wait before renewing: until half life, give or take [`REFRESH_SPREAD`] / 2. `rand` is in 0..1.
pub fn next_refresh(
    not_before: SystemTime,
    not_after: SystemTime,
    now: SystemTime,
    rand: f64,
) -> Duration {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    let share = REFRESH_AT + REFRESH_SPREAD * (rand.clamp(0.0, 1.0) - 0.5);
    let due = not_before + life.mul_f64(share);
    due.duration_since(now).unwrap_or_default().max(MIN_REFRESH)
}

/// How long to wait after the `failures`-th failure in a row (from 1): doubling, capped, and the upper half
/// random, so that proxies do not come back together. `rand` is in 0..1.
pub fn retry_delay(failures: u32, rand: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let whole = FIRST_RETRY.saturating_mul(1 << doublings).min(MAX_RETRY);
    whole.mul_f64(0.5 + 0.5 * rand.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_due_around_half_life() {
        let born = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let day = Duration::from_secs(86_400);
        for (age_seconds, rand, wanted_seconds) in [
            (0, 0.5, 43_200),
            (0, 0.0, 38_880),
            (0, 1.0, 47_520),
            (40_000, 0.5, 3_200),
            (43_200, 0.5, 1),
            (90_000, 0.5, 1),
        ] {
            let now = born + Duration::from_secs(age_seconds);
            let wait = next_refresh(born, born + day, now, rand);
            let found = wait.as_secs_f64().round();
            assert!(
                (found - f64::from(wanted_seconds)).abs() < 0.5,
                "{age_seconds} {rand}: {found}"
            );
        }
        assert_eq!(
            next_refresh(born + day, born, born + day * 2, 0.3),
            MIN_REFRESH
        );
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

//! When a key server is asked again. Pure: the outcome so far and chance in, a pause out.

use std::time::Duration;

/// The first pause after a failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after failures: keys that are missing are asked for as long as somebody wants them.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// The pause before the next question. `failures` in a row up to now; `chance` is in `0..1`. It is spread by a tenth
/// either way after a success, so that a thousand issuers are not asked in one moment, and by up to half after failures,
/// so that many control planes do not ask a server together that just came back.
pub(super) fn pause(failures: u32, refresh: Duration, chance: f64) -> Duration {
    if failures == 0 {
        return refresh.mul_f64(0.9 + 0.2 * chance);
    }
    let doubled = FIRST_PAUSE.saturating_mul(1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX));
    let whole = doubled.min(LONGEST_PAUSE).min(refresh);
    whole.mul_f64(1.0 - chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_spread() {
        let refresh = Duration::from_secs(1200);
        for (failures, chance, seconds) in [
            (0, 0.0, 1080.0),
            (0, 0.5, 1200.0),
            (1, 0.0, 1.0),
            (1, 0.999, 0.5),
            (2, 0.0, 2.0),
            (5, 0.0, 16.0),
            (9, 0.0, 256.0),
            (10, 0.0, 300.0),
            (40, 0.0, 300.0),
            (u32::MAX, 0.0, 300.0),
        ] {
            let pause = pause(failures, refresh, chance).as_secs_f64();
            assert!((pause - seconds).abs() < 0.01, "{failures}: {pause}");
        }
        // A refresh interval below the pause shortens the pause after failures as well.
        let short = Duration::from_millis(200);
        assert_eq!(pause(7, short, 0.0), short);
    }
}

//! Pauses of a watch that the API server refuses or does not answer. They are shorter than kube's, which grow to a minute: after an
//! outage a mesh must follow its cluster at once. Every watch of this crate has them.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use kube::runtime::utils::Backoff;

/// Pause after the first failure.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause. About thirty watches of a replica ask six times a second then.
const LONGEST: Duration = Duration::from_secs(5);

/// The pauses of one watch. They double, and each is cut by up to a half at random, so that watches do not ask at the same moment.
#[derive(Debug)]
pub(crate) struct WatchBackoff {
    next: Duration,
}

impl Default for WatchBackoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let full = self.next;
        self.next = (full * 2).min(LONGEST);
        // The standard hasher's keys are random, and this needs no more.
        let random = RandomState::new().hash_one(0_u8) % 1000;
        Some(full - full.mul_f64(random as f64 / 2000.0))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_begin_anew_after_success() {
        let mut backoff = WatchBackoff::default();
        let pauses: Vec<Duration> = backoff.by_ref().take(10).collect();
        assert!((FIRST / 2..=FIRST).contains(&pauses[0]), "{pauses:?}");
        assert!((LONGEST / 2..=LONGEST).contains(&pauses[9]), "{pauses:?}");
        backoff.reset();
        assert!(backoff.next().is_some_and(|pause| pause <= FIRST));
    }
}

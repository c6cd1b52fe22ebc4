//! Wait before the next connection attempt: 10 ms, doubling to 15 s (ztunnel's numbers), each with jitter. So a
//! thousand proxies that lost one control plane do not come back in the same millisecond.

use std::time::Duration;

/// First wait.
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
/// Longest wait.
const BACKOFF_LONGEST: Duration = Duration::from_secs(15);

/// The next wait.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            next: BACKOFF_FIRST,
        }
    }
}

impl Backoff {
    /// The wait before the next attempt; `random` is 0 to 1 and picks from the upper half of the wait.
    pub fn wait(&mut self, random: f64) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(BACKOFF_LONGEST);
        full.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }

    /// It worked: start small again.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_again_after_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..13).map(|_| backoff.wait(1.0).as_millis()).collect();
        assert_eq!(
            waits,
            [
                10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240, 15000, 15000
            ]
        );
        backoff.reset();
        assert_eq!(backoff.wait(0.0).as_millis(), 5);
    }
}

//! What happened during a slice: a slice's time line in short intervals, and for each event that the lab made on it, how soon
//! it took effect, what failed and what was slow, and when all was as before.
//!
//! ```text
//!   before (its median) ──┬─ event ─── effect ───────── recovered ── … next event or end
//!                         └─ failed and slow are counted from here to there ─┘
//! ```

use serde::{Deserialize, Serialize};

/// One interval of a slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interval {
    /// When it began, in seconds of the measured part.
    pub at_seconds: f64,
    /// How long it is.
    pub seconds: f64,
    /// Requests that were due in it.
    pub requests: u64,
    /// Of these, failed ones.
    pub errors: u64,
    /// Percentiles of the latency of all of them, failures included; none where none was due.
    pub p50_us: Option<f64>,
    /// As `p50_us`.
    pub p90_us: Option<f64>,
    /// As `p50_us`.
    pub p99_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

/// One event of a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// `push-policy`, `move-endpoints`, `restart-proxy`, `upgrade-proxy`, `kill-control-plane`, `hook`, …
    pub action: String,
    /// When it was to happen, in seconds of the measured part.
    pub planned_seconds: f64,
    /// When it did.
    pub at_seconds: f64,
    /// How long until it took effect; none when it did not before the next event or the end.
    pub effect_seconds: Option<f64>,
    /// How the effect was observed, in words.
    pub observed: String,
    /// Requests that failed, of those due from the event to the next one or the end.
    pub failed: u64,
    /// Of the same, those that took longer than `slow_factor` times the median before the first event.
    pub slow: u64,
    /// See `slow`.
    pub slow_factor: f64,
    /// The median before the first event.
    pub median_before_us: f64,
    /// How long until a third of a second began in which nothing failed and the median was below `slow_factor` times the one
    /// before; none when that did not come.
    pub recovery_seconds: Option<f64>,
    /// Why it could not be done.
    pub failure: Option<String>,
}

impl Event {
    /// Its figures, by name: `event-1-push-policy.effect_ms`, …; the number tells events of one action apart.
    pub(crate) fn figures(&self, number: usize) -> Vec<(String, f64)> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let named = |name: &str| format!("event-{number}-{}.{name}", self.action);
        let milliseconds =
            |name: &str, seconds: Option<f64>| seconds.map(|seconds| (named(name), seconds * 1e3));
        [
            milliseconds("effect_ms", self.effect_seconds),
            milliseconds("recovery_ms", self.recovery_seconds),
            Some((named("failed"), self.failed as f64)),
            Some((named("slow"), self.slow as f64)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_done_has_no_figures_and_what_took_no_effect_has_no_time() {
        let event = Event {
            action: "push-policy".to_owned(),
            recovery_seconds: Some(0.25),
            failed: 3,
            ..Event::default()
        };
        let expected = [
            ("event-2-push-policy.recovery_ms".to_owned(), 250.0),
            ("event-2-push-policy.failed".to_owned(), 3.0),
            ("event-2-push-policy.slow".to_owned(), 0.0),
        ];
        assert_eq!(event.figures(2), expected);
        let failed = Event {
            failure: Some("no".to_owned()),
            ..event
        };
        assert!(failed.figures(1).is_empty());
    }
}

//! Time line of a slice as it is recorded: intervals, and events of the lab.

use serde::{Deserialize, Serialize};

/// One interval of a slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interval {
    /// When it began, in seconds of the measured part.
    pub at_seconds: f64,
    /// Length of the interval.
    pub seconds: f64,
    /// Requests that were due in it.
    pub requests: u64,
    /// Of these, failed requests.
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
pub struct SliceEvent {
    /// `push-policy`, `move-endpoints`, `restart-proxy`, `upgrade-proxy`, `kill-control-plane`, `hook`, …
    pub action: String,
    /// When it was to happen, in seconds of the measured part.
    pub planned_seconds: f64,
    /// When it did.
    pub at_seconds: f64,
    /// Time until the event took effect; none if it did not before the next event or the end.
    pub effect_seconds: Option<f64>,
    /// Method of observing the effect, in words.
    pub observed: String,
    /// Requests that failed from the event to the next one or the end, whenever they were due.
    pub failed: u64,
    /// Of those due from the event to the next one or the end, those that took longer than `slow_factor` times the median before the first event.
    pub slow: u64,
    /// See `slow`.
    pub slow_factor: f64,
    /// The median before the first event.
    pub median_before_us: f64,
    /// Time until recovery; none if recovery did not come. Recovery begins with a third of a second in which nothing failed and
    /// the median was below `slow_factor` times the median before.
    pub recovery_seconds: Option<f64>,
    /// Reason why the event could not be made.
    pub failure: Option<String>,
}

impl SliceEvent {
    /// Figures of the event, by name: `event-1-push-policy.effect_ms`, …; the number distinguishes events of one action.
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

//! A histogram of seconds, in Prometheus' text format.

use std::fmt::Write as _;
use std::time::Duration;

/// Counts by upper bound, in seconds.
#[derive(Debug)]
pub(super) struct LatencyHistogram {
    bounds: &'static [f64],
    buckets: Vec<u64>,
    count: u64,
    seconds: f64,
}

impl LatencyHistogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            buckets: vec![0; bounds.len()],
            count: 0,
            seconds: 0.0,
        }
    }

    pub(super) fn observe(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.count += 1;
        self.seconds += seconds;
        for (bound, count) in self.bounds.iter().zip(&mut self.buckets) {
            *count += u64::from(seconds <= *bound);
        }
    }

    pub(super) fn render(&self, name: &str, help: &str) -> String {
        let mut page = format!("# HELP {name} {help}\n# TYPE {name} histogram\n");
        // Writing to a String cannot fail.
        for (bound, count) in self.bounds.iter().zip(&self.buckets) {
            let _ = writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(
            page,
            "{name}_sum {}\n{name}_count {}",
            self.seconds, self.count
        );
        page
    }
}

//! What a DNS proxy counts, by ztunnel's names.

use std::time::Duration;

use crate::exposition::Family;

/// What was asked so far.
#[derive(Debug, Clone, Copy)]
pub struct DnsFigures {
    /// Questions received.
    pub requests: u64,
    /// Passed on to a resolver.
    pub upstream_requests: u64,
    /// That no resolver answered.
    pub upstream_failures: u64,
    /// Time spent waiting for resolvers.
    pub upstream_time: Duration,
    /// Names asked of the control plane.
    pub names: usize,
}

impl DnsFigures {
    /// For the metrics page.
    #[must_use]
    pub fn families(&self) -> [Family; 5] {
        let counter = |name, help, value: f64| Family::single(name, "counter", help, value);
        [
            counter(
                "istio_dns_requests_total",
                "DNS questions received.",
                self.requests as f64,
            ),
            counter(
                "istio_dns_upstream_requests_total",
                "DNS questions passed on to the resolver.",
                self.upstream_requests as f64,
            ),
            counter(
                "istio_dns_upstream_failures_total",
                "DNS questions that no resolver answered.",
                self.upstream_failures as f64,
            ),
            counter(
                "istio_dns_upstream_request_duration_seconds_sum",
                "Time spent waiting for the resolver.",
                self.upstream_time.as_secs_f64(),
            ),
            Family::single(
                "voile_dns_names",
                "gauge",
                "Names asked of the control plane for DNS.",
                self.names as f64,
            ),
        ]
    }
}

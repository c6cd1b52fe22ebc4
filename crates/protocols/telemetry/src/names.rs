//! Counters of name resolution, by ztunnel's words where it has any: queries by applications, and names of endpoints.

use std::time::Duration;

use crate::exposition::MetricFamily;

/// Counters of DNS queries.
#[derive(Debug, Default, Clone, Copy)]
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
    pub fn families(&self) -> [MetricFamily; 5] {
        let counter = |name, help, value: f64| MetricFamily::single(name, "counter", help, value);
        [
            counter(
                "istio_dns_requests_total",
                "DNS queries received.",
                self.requests as f64,
            ),
            counter(
                "istio_dns_upstream_requests_total",
                "DNS queries forwarded to the resolver.",
                self.upstream_requests as f64,
            ),
            counter(
                "istio_dns_upstream_failures_total",
                "DNS queries that no resolver answered.",
                self.upstream_failures as f64,
            ),
            // A counter's name ends in `_total` in OpenMetrics; this is Istio's name.
            MetricFamily::single(
                "istio_dns_upstream_request_duration_seconds_sum",
                "untyped",
                "Time spent waiting for the resolver.",
                self.upstream_time.as_secs_f64(),
            ),
            MetricFamily::single(
                "voile_dns_names",
                "gauge",
                "Names looked up at the control plane for DNS.",
                self.names as f64,
            ),
        ]
    }
}

/// Endpoints that are known by a name, and looked up when they are called.
#[derive(Debug, Default, Clone, Copy)]
pub struct OnDemandFigures {
    /// Lookups begun.
    pub lookups: u64,
    /// Those that found no address.
    pub failures: u64,
    /// Names whose last answer was good.
    pub current: usize,
    /// Names that cannot be resolved anew, and whose last good answer serves.
    pub stale: usize,
    /// Names that never could be.
    pub failed: usize,
}

impl OnDemandFigures {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.lookups += other.lookups;
        self.failures += other.failures;
        self.current += other.current;
        self.stale += other.stale;
        self.failed += other.failed;
    }

    /// For the metrics page.
    #[must_use]
    pub fn families(&self) -> [MetricFamily; 3] {
        let state = |state: &str, count: usize| (vec![("state", state.to_owned())], count as f64);
        [
            MetricFamily::single(
                "istio_on_demand_dns_total",
                "counter",
                "DNS lookups of endpoints that have a DNS name.",
                self.lookups as f64,
            ),
            MetricFamily::single(
                "voile_on_demand_dns_failures_total",
                "counter",
                "Such lookups that found no address.",
                self.failures as f64,
            ),
            MetricFamily {
                name: "voile_on_demand_dns_names",
                kind: "gauge",
                help: "DNS names of endpoints: current, stale (the last good addresses are in use because the name cannot be resolved again), and failed (never resolved).",
                samples: vec![
                    state("current", self.current),
                    state("stale", self.stale),
                    state("failed", self.failed),
                ],
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_ends_as_openmetrics_wants() {
        let dns = DnsFigures::default().families();
        let on_demand = OnDemandFigures::default().families();
        for family in dns.iter().chain(&on_demand) {
            let is_counter = family.kind == "counter";
            assert_eq!(is_counter, family.name.ends_with("_total"), "{family:?}");
        }
        let page =
            crate::open_metrics("# TYPE a untyped\na 1\n# TYPE b_total counter\nb_total 2\n");
        assert_eq!(
            page,
            "# TYPE a unknown\na 1\n# TYPE b counter\nb_total 2\n# EOF\n"
        );
    }
}

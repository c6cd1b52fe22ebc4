//! From the text of a proxy's metrics page to rates, errors and latencies. Pure: pages in, figures out.

use std::time::Duration;

use voile_pages::{Buckets, Sample};

/// Envoy's flag of what an authorization policy refused.
pub const DENIED: &str = "UAEX";
/// Envoy's flag of what a rate limit refused.
pub const LIMITED: &str = "RL";

/// Traffic, as counted since the start of a proxy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrafficCounters {
    /// Requests, and TCP connections, which count as one each.
    pub requests: f64,
    /// Answers with status 500 and above, or none.
    pub errors: f64,
    /// Requests and connections that an authorization policy refused.
    pub denied: f64,
    /// Requests that a rate limit refused.
    pub limited: f64,
    /// Requests over mutual TLS.
    pub mutual_tls: f64,
    /// Requests of which the counting proxy does not know whether they were over mutual TLS: a caller's never does.
    pub unknown_tls: f64,
    /// Bytes of bodies and connections to the server.
    pub bytes_to_server: f64,
    /// Bytes of bodies and connections to the client.
    pub bytes_to_client: f64,
    /// Requests at most so many milliseconds long.
    buckets: Buckets,
}

/// Figures between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ScrapedRates {
    /// Requests a second.
    pub rate: f64,
    /// Errors a second.
    pub errors: f64,
    /// Requests and connections that policies refused, a second.
    pub denied: f64,
    /// Requests that rate limits refused, a second.
    pub limited: f64,
    /// Median in milliseconds, from histogram buckets; `None` when nothing was counted.
    pub p50: Option<f64>,
    /// 99th percentile in milliseconds, from histogram buckets.
    pub p99: Option<f64>,
    /// Share of requests over mutual TLS, of those of which it is known.
    pub mutual_tls: Option<f64>,
}

impl TrafficCounters {
    pub(crate) fn count(&mut self, sample: &Sample<'_>) {
        let value = sample.value;
        let flagged = |flag: &str| is_flagged(sample, flag);
        match sample.name {
            "istio_requests_total" | "istio_tcp_connections_opened_total" => {
                self.requests += value;
                match sample.label("connection_security_policy") {
                    Some("mutual_tls") => self.mutual_tls += value,
                    Some("unknown") => self.unknown_tls += value,
                    _ => {}
                }
                let code = sample.label("response_code");
                let code: Option<u16> = code.and_then(|code| code.parse().ok());
                if code.is_some_and(|code| code >= 500 || code == 0) {
                    self.errors += value;
                }
                // An opened connection is flagged when it is closed.
                if code.is_some() && flagged(DENIED) {
                    self.denied += value;
                }
                if flagged(LIMITED) {
                    self.limited += value;
                }
            }
            "istio_tcp_connections_closed_total" if flagged(DENIED) => self.denied += value,
            "istio_request_duration_milliseconds_bucket" => self.buckets.add(sample),
            "istio_request_bytes_sum" | "istio_tcp_received_bytes_total" => {
                self.bytes_to_server += value;
            }
            "istio_response_bytes_sum" | "istio_tcp_sent_bytes_total" => {
                self.bytes_to_client += value;
            }
            _ => {}
        }
    }

    /// Both, combined number by number.
    fn combine(&self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            requests: combine(self.requests, other.requests),
            errors: combine(self.errors, other.errors),
            denied: combine(self.denied, other.denied),
            limited: combine(self.limited, other.limited),
            mutual_tls: combine(self.mutual_tls, other.mutual_tls),
            unknown_tls: combine(self.unknown_tls, other.unknown_tls),
            bytes_to_server: combine(self.bytes_to_server, other.bytes_to_server),
            bytes_to_client: combine(self.bytes_to_client, other.bytes_to_client),
            buckets: self.buckets.combine(&other.buckets, &combine),
        }
    }

    /// Returns the counts since `earlier`. A counter that went back began anew with its process.
    pub fn since(&self, earlier: &Self) -> Self {
        match self.requests < earlier.requests {
            true => self.clone(),
            false => self.combine(earlier, |now, before| (now - before).max(0.0)),
        }
    }

    /// Adds another proxy's counters.
    pub fn add(&mut self, other: &Self) {
        *self = self.combine(other, |one, other| one + other);
    }

    /// As figures, when this was counted within `span`.
    pub fn over(&self, span: Duration) -> ScrapedRates {
        let seconds = span.as_secs_f64().max(0.001);
        let known = self.requests - self.unknown_tls;
        ScrapedRates {
            rate: self.requests / seconds,
            errors: self.errors / seconds,
            denied: self.denied / seconds,
            limited: self.limited / seconds,
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            mutual_tls: (known > 0.0).then(|| (self.mutual_tls / known).min(1.0)),
        }
    }

    /// Of the latencies in milliseconds, as Prometheus' `histogram_quantile`.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        self.buckets.quantile(quantile)
    }
}

/// Returns true if a sample is of what ended with this one of Envoy's flags.
pub(crate) fn is_flagged(sample: &Sample<'_>, flag: &str) -> bool {
    let flags = sample.label("response_flags").unwrap_or_default();
    flags.split(',').any(|one| one == flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the server's proxy counted.
    fn parse(page: &str) -> TrafficCounters {
        let mut counters = TrafficCounters::default();
        voile_pages::samples(page)
            .filter(|sample| sample.label("reporter") == Some("destination"))
            .for_each(|sample| counters.count(&sample));
        counters
    }

    const PAGE: &str = r#"
# TYPE istio_requests_total counter
istio_requests_total{reporter="destination",response_code="200",connection_security_policy="mutual_tls"} 90
istio_requests_total{reporter="destination",response_code="503",response_flags="a\"b,}",connection_security_policy="none"} 10 1700000000
istio_requests_total{reporter="source",response_code="200",connection_security_policy="unknown"} 1000
istio_request_duration_milliseconds_bucket{reporter="destination",le="1"} 50
istio_request_duration_milliseconds_bucket{reporter="destination",le="5"} 90
istio_request_duration_milliseconds_bucket{reporter="destination",le="+Inf"} 100
istio_request_duration_milliseconds_bucket{reporter="destination",le="nonsense"} 7
istio_requests_total{reporter="destination
istio_requests_total{reporter="destination"} many
other{} 3
"#;

    #[test]
    fn only_the_inbound_side_is_counted_and_nonsense_is_skipped() {
        let counters = parse(PAGE);
        assert_eq!(
            (counters.requests, counters.errors, counters.mutual_tls),
            (100.0, 10.0, 90.0)
        );
    }

    #[test]
    fn figures_are_counts_by_the_second_and_percentiles() {
        let figures = parse(PAGE).over(Duration::from_secs(10));
        assert_eq!(
            (figures.rate, figures.errors, figures.mutual_tls),
            (10.0, 1.0, Some(0.9))
        );
        assert_eq!((figures.p50, figures.p99), (Some(1.0), Some(5.0)));
        assert_eq!(
            TrafficCounters::default().over(Duration::ZERO),
            ScrapedRates::default()
        );
    }

    #[test]
    fn a_restarted_sidecar_counts_from_zero() {
        let now = parse(PAGE);
        assert_eq!(now.since(&now).requests, 0.0);
        assert_eq!(now.since(&now).over(Duration::from_secs(1)).p50, None);
        let restarted = TrafficCounters {
            requests: 3.0,
            ..TrafficCounters::default()
        };
        assert_eq!(restarted.since(&now).requests, 3.0);
        let mut sum = now.clone();
        sum.add(&now);
        assert_eq!((sum.requests, sum.buckets.total()), (200.0, 200.0));
    }
}

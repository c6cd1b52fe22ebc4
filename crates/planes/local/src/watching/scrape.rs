//! From the text of a proxy's metrics page to rates, errors and latencies. Pure: pages in, figures out.

use std::collections::BTreeMap;
use std::time::Duration;

/// Envoy's flag of what an authorization policy refused.
const DENIED: &str = "UAEX";
/// Envoy's flag of what a rate limit refused.
const LIMITED: &str = "RL";

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
    /// Requests at most this long, by the bits of the upper bound in milliseconds (`f64::INFINITY` is the last). Bit patterns
    /// of positive floats sort as the numbers do.
    buckets: BTreeMap<u64, f64>,
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

/// A line of a page.
#[derive(Debug)]
pub(crate) struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl<'a> Sample<'a> {
    /// Reads a line with labels; `None` if it is another.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let (name, mut rest) = line.split_once('{')?;
        let mut labels = Vec::new();
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                let value = after.split_ascii_whitespace().next()?.parse().ok()?;
                return Some(Self {
                    name,
                    labels,
                    value,
                });
            }
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((key, value));
            rest = after;
        }
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        let found = labels.find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Up to the closing quote; `\\`, `\"` and `\n` are escapes.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            _ => value.push(c),
        }
    }
    None
}

impl TrafficCounters {
    pub(crate) fn count(&mut self, sample: &Sample<'_>) {
        let value = sample.value;
        let flagged = |flag: &str| {
            let mut flags = sample
                .label("response_flags")
                .unwrap_or_default()
                .split(',');
            flags.any(|one| one == flag)
        };
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
            "istio_request_duration_milliseconds_bucket" => {
                let bound: Option<f64> = sample.label("le").and_then(|le| le.parse().ok());
                if let Some(bound) = bound.filter(|bound| *bound >= 0.0) {
                    *self.buckets.entry(bound.to_bits()).or_default() += value;
                }
            }
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
        let bounds = self.buckets.keys().chain(other.buckets.keys());
        let bucket = |of: &Self, bound: &u64| of.buckets.get(bound).copied().unwrap_or_default();
        let buckets = bounds.map(|bound| {
            let both = combine(bucket(self, bound), bucket(other, bound));
            (*bound, both)
        });
        Self {
            requests: combine(self.requests, other.requests),
            errors: combine(self.errors, other.errors),
            denied: combine(self.denied, other.denied),
            limited: combine(self.limited, other.limited),
            mutual_tls: combine(self.mutual_tls, other.mutual_tls),
            unknown_tls: combine(self.unknown_tls, other.unknown_tls),
            bytes_to_server: combine(self.bytes_to_server, other.bytes_to_server),
            bytes_to_client: combine(self.bytes_to_client, other.bytes_to_client),
            buckets: buckets.collect(),
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

    /// Interpolated linearly within the bucket, as Prometheus' `histogram_quantile` does; in the last bucket, its lower bound.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = *self.buckets.last_key_value()?.1;
        if total <= 0.0 {
            return None;
        }
        let rank = quantile * total;
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            let bound = f64::from_bits(*bound);
            if *count >= rank {
                let inside = (count - below).max(f64::MIN_POSITIVE);
                let share = ((rank - below) / inside).clamp(0.0, 1.0);
                return Some(if bound.is_finite() {
                    lower + (bound - lower) * share
                } else {
                    lower
                });
            }
            (lower, below) = (bound, *count);
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the server's proxy counted.
    fn parse(page: &str) -> TrafficCounters {
        let mut counters = TrafficCounters::default();
        let samples = page.lines().filter_map(Sample::parse);
        samples
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
        let buckets = counters.buckets.iter();
        let buckets: Vec<_> = buckets
            .map(|(bound, n)| (f64::from_bits(*bound), *n))
            .collect();
        assert_eq!(buckets, [(1.0, 50.0), (5.0, 90.0), (f64::INFINITY, 100.0)]);
    }

    #[test]
    fn percentiles_are_interpolated_in_their_bucket_and_never_beyond_the_last_bound() {
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
        let first = sum.buckets.first_key_value().map(|(_, count)| *count);
        assert_eq!((sum.requests, first), (200.0, Some(100.0)));
    }
}

//! From the text of a sidecar's metrics page to rates, errors and latencies. Pure: pages in, figures out.

use std::collections::BTreeMap;
use std::time::Duration;

/// Sums of one sidecar's inbound side, as counted since its start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InboundCounters {
    /// Requests, and TCP connections, which count as one each.
    pub requests: f64,
    /// Answers with status 500 and above, or none.
    pub errors: f64,
    /// Requests over mutual TLS.
    pub mutual_tls: f64,
    /// Requests at most this long, by upper bound in milliseconds (`f64::INFINITY` is the last).
    pub buckets: Vec<(f64, f64)>,
}

/// Figures between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ScrapedRates {
    /// Requests a second.
    pub rate: f64,
    /// Errors a second.
    pub errors: f64,
    /// Median in milliseconds, from histogram buckets; `None` when nothing was counted.
    pub p50: Option<f64>,
    /// 99th percentile in milliseconds, from histogram buckets.
    pub p99: Option<f64>,
    /// Share of requests over mutual TLS.
    pub mutual_tls: Option<f64>,
}

/// Reads the inbound side (`reporter="destination"`) of a page in Prometheus' text format. Lines that are no samples are skipped.
pub fn parse(page: &str) -> InboundCounters {
    let mut counters = InboundCounters::default();
    let mut buckets: BTreeMap<u64, f64> = BTreeMap::new();
    for line in page.lines() {
        let Some((name, labels, value)) = sample(line) else {
            continue;
        };
        let label = |wanted: &str| {
            labels
                .iter()
                .find(|(key, _)| *key == wanted)
                .map(|(_, value)| value.as_str())
        };
        if label("reporter") != Some("destination") {
            continue;
        }
        match name {
            "istio_requests_total" | "istio_tcp_connections_opened_total" => {
                counters.requests += value;
                if label("connection_security_policy") == Some("mutual_tls") {
                    counters.mutual_tls += value;
                }
                let code: Option<u16> = label("response_code").and_then(|code| code.parse().ok());
                if code.is_some_and(|code| code >= 500 || code == 0) {
                    counters.errors += value;
                }
            }
            "istio_request_duration_milliseconds_bucket" => {
                let bound: Option<f64> = label("le").and_then(|le| le.parse().ok());
                // Bit patterns of positive floats sort as the numbers do.
                if let Some(bound) = bound.filter(|bound| *bound >= 0.0) {
                    *buckets.entry(bound.to_bits()).or_default() += value;
                }
            }
            _ => {}
        }
    }
    counters.buckets = buckets
        .into_iter()
        .map(|(bound, count)| (f64::from_bits(bound), count))
        .collect();
    counters
}

type Sample<'a> = (&'a str, Vec<(&'a str, String)>, f64);

fn sample(line: &str) -> Option<Sample<'_>> {
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
            return Some((name, labels, value));
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.push((key, value));
        rest = after;
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

impl InboundCounters {
    /// Returns the counts since `earlier`. A counter that went back began anew with its process.
    pub fn since(&self, earlier: &Self) -> Self {
        if self.requests < earlier.requests {
            return self.clone();
        }
        let before: BTreeMap<u64, f64> = earlier
            .buckets
            .iter()
            .map(|(bound, count)| (bound.to_bits(), *count))
            .collect();
        Self {
            requests: self.requests - earlier.requests,
            errors: (self.errors - earlier.errors).max(0.0),
            mutual_tls: (self.mutual_tls - earlier.mutual_tls).max(0.0),
            buckets: self
                .buckets
                .iter()
                .map(|(bound, count)| {
                    (
                        *bound,
                        (count - before.get(&bound.to_bits()).unwrap_or(&0.0)).max(0.0),
                    )
                })
                .collect(),
        }
    }

    /// Adds another sidecar's counters.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.mutual_tls += other.mutual_tls;
        let mut sums: BTreeMap<u64, f64> = self
            .buckets
            .iter()
            .map(|(bound, count)| (bound.to_bits(), *count))
            .collect();
        for (bound, count) in &other.buckets {
            *sums.entry(bound.to_bits()).or_default() += count;
        }
        self.buckets = sums
            .into_iter()
            .map(|(bound, count)| (f64::from_bits(bound), count))
            .collect();
    }

    /// As figures, when this was counted within `span`.
    pub fn over(&self, span: Duration) -> ScrapedRates {
        let seconds = span.as_secs_f64().max(0.001);
        ScrapedRates {
            rate: self.requests / seconds,
            errors: self.errors / seconds,
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            mutual_tls: (self.requests > 0.0).then(|| (self.mutual_tls / self.requests).min(1.0)),
        }
    }

    /// Interpolated linearly within the bucket, as Prometheus' `histogram_quantile` does; in the last bucket, its lower bound.
    fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.buckets.last()?.1;
        if total <= 0.0 {
            return None;
        }
        let rank = quantile * total;
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            if *count >= rank {
                let inside = (count - below).max(f64::MIN_POSITIVE);
                let share = ((rank - below) / inside).clamp(0.0, 1.0);
                return Some(if bound.is_finite() {
                    lower + (bound - lower) * share
                } else {
                    lower
                });
            }
            (lower, below) = (*bound, *count);
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            counters.buckets,
            [(1.0, 50.0), (5.0, 90.0), (f64::INFINITY, 100.0)]
        );
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
            InboundCounters::default().over(Duration::ZERO),
            ScrapedRates::default()
        );
    }

    #[test]
    fn a_restarted_sidecar_counts_from_zero() {
        let now = parse(PAGE);
        assert_eq!(now.since(&now).requests, 0.0);
        assert_eq!(now.since(&now).over(Duration::from_secs(1)).p50, None);
        let restarted = InboundCounters {
            requests: 3.0,
            ..InboundCounters::default()
        };
        assert_eq!(restarted.since(&now).requests, 3.0);
        let mut sum = now.clone();
        sum.add(&now);
        assert_eq!((sum.requests, sum.buckets[0].1), (200.0, 100.0));
    }
}

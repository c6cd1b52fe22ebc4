//! Reads the metrics pages of services and sidecars: counters, and differences between two readings.

use std::collections::BTreeMap;

use voile_pages::{Buckets, Sample, samples};

/// A percentile needs this many samples beyond it.
const BEYOND: f64 = 10.0;

/// A histogram as it is exposed: the count at or below each bound (in seconds), the sum and the count.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ExposedHistogram {
    buckets: Buckets,
    sum: f64,
    count: f64,
}

impl ExposedHistogram {
    fn take(&mut self, other: &Self, sign: f64) {
        let sum = |own, other| own + sign * other;
        self.buckets = self.buckets.combine(&other.buckets, sum);
        self.sum += sign * other.sum;
        self.count += sign * other.count;
    }

    pub(super) fn count(&self) -> u64 {
        self.count.max(0.0) as u64
    }

    pub(super) fn times(&self) -> LatencySummary {
        LatencySummary {
            mean_us: if self.count > 0.0 {
                self.sum / self.count * 1e6
            } else {
                0.0
            },
            p50_us: self.quantile(0.5),
            p99_us: self.quantile(0.99),
        }
    }

    /// In microseconds.
    fn quantile(&self, share: f64) -> Option<f64> {
        let seconds = self.buckets.bounded_quantile(share, BEYOND);
        seconds.map(|seconds| seconds * 1e6)
    }
}

/// Durations, in µs. The mean is exact. Percentiles are read between the bounds of a histogram, which are at most a quarter apart
/// below 10 ms; none where one is above all bounds, or with under 10 samples beyond it.
#[derive(Debug)]
pub(super) struct LatencySummary {
    mean_us: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl LatencySummary {
    /// The figures of that part of the graph.
    pub(super) fn figures(&self, part: &str) -> Vec<(String, Option<f64>)> {
        let figures = [
            ("mean_us", Some(self.mean_us)),
            ("p50_us", self.p50_us),
            ("p99_us", self.p99_us),
        ];
        let named = figures.map(|(name, value)| (format!("{part}.took.{name}"), value));
        named.into()
    }
}

/// Counters of a service, or their growth.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ServiceCounters {
    pub(super) requests: f64,
    pub(super) took: ExposedHistogram,
    /// By destination.
    pub(super) calls: BTreeMap<String, Calls>,
}

/// Calls to one destination.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Calls {
    pub(super) failed: f64,
    pub(super) took: ExposedHistogram,
}

impl ServiceCounters {
    /// Adds the counters of another replica.
    pub(super) fn plus(&mut self, other: &Self) {
        self.take(other, 1.0);
    }

    /// Growth of the counters since an earlier reading.
    pub(super) fn since(mut self, earlier: &Self) -> Self {
        self.take(earlier, -1.0);
        self
    }

    fn take(&mut self, other: &Self, sign: f64) {
        self.requests += sign * other.requests;
        self.took.take(&other.took, sign);
        for (destination, calls) in &other.calls {
            let own = self.calls.entry(destination.clone()).or_default();
            own.failed += sign * calls.failed;
            own.took.take(&calls.took, sign);
        }
    }

    fn calls_to(&mut self, sample: &Sample<'_>) -> &mut Calls {
        let destination = sample.label("destination_service").unwrap_or_default();
        self.calls.entry(destination.to_owned()).or_default()
    }

    /// Reads a page of `voile graph serve`.
    pub(super) fn read(page: &str) -> Self {
        let mut told = Self::default();
        for sample in samples(page) {
            let (name, value) = (sample.name, sample.value);
            let (histogram, part) = match name {
                "service_incoming_requests_total" => {
                    told.requests = value;
                    continue;
                }
                "service_outgoing_failures_total" => {
                    told.calls_to(&sample).failed = value;
                    continue;
                }
                _ => {
                    if let Some(part) = name.strip_prefix("service_request_duration_seconds_") {
                        (&mut told.took, part)
                    } else if let Some(part) =
                        name.strip_prefix("service_outgoing_request_duration_seconds_")
                    {
                        (&mut told.calls_to(&sample).took, part)
                    } else {
                        continue;
                    }
                }
            };
            // Answers of all codes together.
            match part {
                "sum" => histogram.sum += value,
                "count" => histogram.count += value,
                "bucket" => histogram.buckets.add(&sample),
                _ => {}
            }
        }
        told
    }
}

/// Requests that a sidecar took by mutual TLS, from its page.
pub(super) fn by_mutual_tls(page: &str) -> u64 {
    let ours = samples(page).filter(|sample| {
        sample.name == "istio_requests_total"
            && sample.label("reporter") == Some("destination")
            && sample.label("connection_security_policy") == Some("mutual_tls")
    });
    ours.map(|sample| sample.value).sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(requests: u32, fast: u32, slow: u32) -> String {
        let all = fast + slow;
        format!(
            "# HELP service_incoming_requests_total Number.\n# TYPE service_incoming_requests_total counter\nservice_incoming_requests_total {requests}\n\
             service_outgoing_requests_total{{destination_service=\"b:8080\"}} {all}\n\
             service_outgoing_failures_total{{destination_service=\"b:8080\"}} 3\n\
             service_outgoing_request_duration_seconds_bucket{{destination_service=\"b:8080\",le=\"0.001\"}} 0\n\
             service_outgoing_request_duration_seconds_bucket{{destination_service=\"b:8080\",le=\"0.002\"}} {fast}\n\
             service_outgoing_request_duration_seconds_bucket{{destination_service=\"b:8080\",le=\"+Inf\"}} {all}\n\
             service_outgoing_request_duration_seconds_sum{{destination_service=\"b:8080\"}} {}\n\
             service_outgoing_request_duration_seconds_count{{destination_service=\"b:8080\"}} {all}\n\
             service_request_duration_seconds_count{{code=\"200\"}} 5\nservice_request_duration_seconds_count{{code=\"500\"}} 2\n",
            f64::from(all) * 0.0015
        )
    }

    #[test]
    fn what_grew_between_two_looks_is_told_and_no_more() {
        let earlier = ServiceCounters::read(&page(10, 50, 0));
        let mut later = ServiceCounters::read(&page(40, 1050, 0));
        later.plus(&ServiceCounters::default());
        let grew = later.since(&earlier);
        assert_eq!((grew.requests, grew.took.count()), (30.0, 0));
        let calls = &grew.calls["b:8080"];
        assert_eq!((calls.took.count(), calls.failed), (1000, 0.0));
        let times = calls.took.times();
        assert!((times.mean_us - 1500.0).abs() < 1e-6, "{times:?}");
        // Half of the way between 1 and 2 ms, and 99 hundredths of it.
        assert!(times.p50_us.is_some_and(|us| (us - 1500.0).abs() < 1e-6));
        assert!(times.p99_us.is_some_and(|us| (us - 1990.0).abs() < 1e-6));
    }

    #[test]
    fn a_percentile_above_all_bounds_or_of_few_samples_is_not_told() {
        let times = |fast, slow| {
            ServiceCounters::read(&page(0, fast, slow)).calls["b:8080"]
                .took
                .times()
        };
        assert_eq!(times(10, 990).p50_us, None);
        assert_eq!(times(19, 0).p50_us, None);
        assert!(times(20, 0).p50_us.is_some() && times(999, 0).p99_us.is_none());
    }

    #[test]
    fn only_what_a_sidecar_took_by_mutual_tls_counts() {
        let line = |reporter: &str, policy: &str, count: u32| {
            format!(
                "istio_requests_total{{reporter=\"{reporter}\",response_code=\"200\",connection_security_policy=\"{policy}\"}} {count}\n"
            )
        };
        let page = line("destination", "mutual_tls", 7)
            + &line("destination", "none", 100)
            + &line("source", "unknown", 1000)
            + &line("destination", "mutual_tls", 2);
        assert_eq!(by_mutual_tls(&page), 9);
        assert_eq!(by_mutual_tls("<html>no metrics</html>"), 0);
    }
}

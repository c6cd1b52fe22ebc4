//! Isotope's metrics, under its names and labels, and two of ours: calls that failed, and how long calls took. Histograms have
//! isotope's buckets, and finer ones below 7 ms, where its own begin: every `le` that a dashboard asks for is there.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of duration buckets.
const STEPS: usize = 60;
/// Upper bounds in microseconds. Below isotope's first, 7 ms, each is at most a quarter above the last, so that a value
/// between two of them is not far from the truth.
const DURATIONS: [u64; STEPS] = [
    50, 60, 75, 90, 100, 120, 150, 180, 220, 250, 300, 370, 450, 500, 600, 750, 900, 1_000, 1_200,
    1_500, 1_800, 2_200, 2_500, 3_000, 3_700, 4_500, 5_000, 6_000, 7_000, 8_000, 9_000, 10_000,
    11_000, 12_000, 14_000, 16_000, 18_000, 20_000, 25_000, 30_000, 35_000, 40_000, 45_000, 50_000,
    60_000, 70_000, 80_000, 90_000, 100_000, 120_000, 140_000, 160_000, 180_000, 200_000, 250_000,
    300_000, 350_000, 400_000, 450_000, 500_000,
];
/// Upper bounds in bytes: powers of ten.
const SIZES: [u64; 10] = [
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];
/// The statuses that we answer with.
const CODES: [u16; 4] = [200, 413, 500, 503];

#[derive(Debug)]
struct FixedHistogram<const N: usize> {
    bounds: &'static [u64; N],
    /// One more than bounds: what is above all.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl<const N: usize> FixedHistogram<N> {
    fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            counts: (0..=N).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// `fine` is the value in the unit of the sum, which may be finer than that of the bounds.
    fn observe(&self, value: u64, fine: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(fine, Ordering::Relaxed);
    }

    fn write(&self, text: &mut String, name: &str, label: &str, unit: f64, sum_unit: f64) {
        let mut total = 0;
        for (count, bound) in self.counts.iter().zip(self.bounds) {
            total += count.load(Ordering::Relaxed);
            let bound = *bound as f64 / unit;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name}_bucket{{{label},le=\"{bound}\"}} {total}");
        }
        total += self.counts[N].load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed) as f64 / sum_unit;
        let _ = writeln!(text, "{name}_bucket{{{label},le=\"+Inf\"}} {total}");
        let _ = writeln!(
            text,
            "{name}_sum{{{label}}} {sum}\n{name}_count{{{label}}} {total}"
        );
    }

    fn is_empty(&self) -> bool {
        self.counts
            .iter()
            .all(|count| count.load(Ordering::Relaxed) == 0)
    }
}

#[derive(Debug)]
struct Outgoing {
    /// Host and port, as isotope labels it.
    destination: String,
    requests: AtomicU64,
    failed: AtomicU64,
    size: FixedHistogram<10>,
    duration: FixedHistogram<STEPS>,
}

/// The series of one process, shared by its threads.
#[derive(Debug)]
pub(crate) struct Metrics {
    incoming: AtomicU64,
    outgoing: Vec<Outgoing>,
    durations: Vec<FixedHistogram<STEPS>>,
    sizes: Vec<FixedHistogram<10>>,
}

impl Metrics {
    pub(crate) fn new(destinations: Vec<String>) -> Self {
        let outgoing = destinations.into_iter().map(|destination| Outgoing {
            destination,
            requests: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            size: FixedHistogram::new(&SIZES),
            duration: FixedHistogram::new(&DURATIONS),
        });
        Self {
            incoming: AtomicU64::new(0),
            outgoing: outgoing.collect(),
            durations: CODES
                .iter()
                .map(|_| FixedHistogram::new(&DURATIONS))
                .collect(),
            sizes: CODES.iter().map(|_| FixedHistogram::new(&SIZES)).collect(),
        }
    }

    /// A request came; its number, from 0.
    pub(crate) fn came(&self) -> u64 {
        self.incoming.fetch_add(1, Ordering::Relaxed)
    }

    /// An answer goes out.
    pub(crate) fn answered(&self, code: u16, took: Duration, bytes: u64) {
        let Some(place) = CODES.iter().position(|known| *known == code) else {
            return;
        };
        let nanos = took.as_nanos() as u64;
        self.durations[place].observe(nanos.div_ceil(1000), nanos);
        self.sizes[place].observe(bytes, bytes);
    }

    /// A call goes out.
    pub(crate) fn called(&self, destination: usize, bytes: u64) {
        let outgoing = &self.outgoing[destination];
        outgoing.requests.fetch_add(1, Ordering::Relaxed);
        outgoing.size.observe(bytes, bytes);
    }

    /// A call has ended, with a good answer or none.
    pub(crate) fn returned(&self, destination: usize, took: Duration, good: bool) {
        let outgoing = &self.outgoing[destination];
        let nanos = took.as_nanos() as u64;
        outgoing.duration.observe(nanos.div_ceil(1000), nanos);
        outgoing
            .failed
            .fetch_add(u64::from(!good), Ordering::Relaxed);
    }

    /// The text format of Prometheus, version 0.0.4.
    pub(crate) fn page(&self) -> String {
        let mut text = String::new();
        head(
            &mut text,
            "service_incoming_requests_total",
            "counter",
            "Number of requests sent to this service.",
        );
        let incoming = self.incoming.load(Ordering::Relaxed);
        let _ = writeln!(text, "service_incoming_requests_total {incoming}");
        self.outgoing_page(&mut text);
        let (name, help) = (
            "service_request_duration_seconds",
            "Duration in seconds it took to serve requests to this service.",
        );
        head(&mut text, name, "histogram", help);
        for (code, histogram) in CODES
            .iter()
            .zip(&self.durations)
            .filter(|(_, h)| !h.is_empty())
        {
            histogram.write(&mut text, name, &format!("code=\"{code}\""), 1e6, 1e9);
        }
        let (name, help) = (
            "service_response_size",
            "Size in bytes of responses sent from this service.",
        );
        head(&mut text, name, "histogram", help);
        for (code, histogram) in CODES.iter().zip(&self.sizes).filter(|(_, h)| !h.is_empty()) {
            histogram.write(&mut text, name, &format!("code=\"{code}\""), 1.0, 1.0);
        }
        text
    }

    fn outgoing_page(&self, text: &mut String) {
        // Host names have no character that needs escaping; `read` sees to it.
        let label =
            |outgoing: &Outgoing| format!("destination_service=\"{}\"", outgoing.destination);
        let name = "service_outgoing_requests_total";
        head(
            text,
            name,
            "counter",
            "Number of requests sent from this service.",
        );
        for outgoing in &self.outgoing {
            let _ = writeln!(
                text,
                "{name}{{{}}} {}",
                label(outgoing),
                outgoing.requests.load(Ordering::Relaxed)
            );
        }
        let name = "service_outgoing_failures_total";
        head(
            text,
            name,
            "counter",
            "Number of requests sent from this service that failed.",
        );
        for outgoing in &self.outgoing {
            let _ = writeln!(
                text,
                "{name}{{{}}} {}",
                label(outgoing),
                outgoing.failed.load(Ordering::Relaxed)
            );
        }
        let name = "service_outgoing_request_size";
        head(
            text,
            name,
            "histogram",
            "Size in bytes of requests sent from this service.",
        );
        for outgoing in self
            .outgoing
            .iter()
            .filter(|outgoing| !outgoing.size.is_empty())
        {
            outgoing.size.write(text, name, &label(outgoing), 1.0, 1.0);
        }
        let (name, help) = (
            "service_outgoing_request_duration_seconds",
            "Duration in seconds from the start of a call of this service to the end of its answer, connecting included.",
        );
        head(text, name, "histogram", help);
        let called = self.outgoing.iter().filter(|one| !one.duration.is_empty());
        for outgoing in called {
            outgoing
                .duration
                .write(text, name, &label(outgoing), 1e6, 1e9);
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Isotope's own bounds of durations, in ms: dashboards ask for these.
    const ISOTOPES: [u64; 32] = [
        7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100, 120, 140,
        160, 180, 200, 250, 300, 350, 400, 450, 500,
    ];

    #[test]
    fn durations_have_isotopes_bounds_and_finer_ones() {
        for bound in ISOTOPES {
            assert!(DURATIONS.contains(&(bound * 1000)), "{bound} ms");
        }
        for pair in DURATIONS.windows(2) {
            assert!(
                pair[0] < pair[1] && pair[1] * 4 <= pair[0] * 5 + 1,
                "{pair:?}"
            );
        }
    }

    #[test]
    fn calls_are_counted_when_made_and_timed_when_ended() {
        let metrics = Metrics::new(vec!["b:8080".to_owned()]);
        metrics.called(0, 128);
        metrics.called(0, 128);
        metrics.returned(0, Duration::from_micros(90), true);
        metrics.returned(0, Duration::from_millis(3), false);
        let page = metrics.page();
        for line in [
            "service_outgoing_requests_total{destination_service=\"b:8080\"} 2",
            "service_outgoing_failures_total{destination_service=\"b:8080\"} 1",
            "service_outgoing_request_duration_seconds_bucket{destination_service=\"b:8080\",le=\"0.000075\"} 0",
            "service_outgoing_request_duration_seconds_bucket{destination_service=\"b:8080\",le=\"0.0001\"} 1",
            "service_outgoing_request_duration_seconds_bucket{destination_service=\"b:8080\",le=\"0.003\"} 2",
            "service_outgoing_request_duration_seconds_sum{destination_service=\"b:8080\"} 0.00309",
            "service_outgoing_request_duration_seconds_count{destination_service=\"b:8080\"} 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}:\n{page}");
        }
    }
}

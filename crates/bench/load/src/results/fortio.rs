//! The result as Fortio writes it, so that tools made for Fortio's files read ours. Durations in `DurationHistogram`
//! are seconds; bucket edges are Fortio's, at its resolution of 1 ms; the percentiles are ours, from the finer
//! HDR histogram, since linear interpolation in those buckets errs by up to a half.

use serde_json::{Map, Value, json};

use crate::outcome::LoadResult;
use crate::samples::Samples;

/// Fortio's default resolution: its edges are multiples of 1 ms.
const RESOLUTION_US: u64 = 1_000;
/// Microseconds in a second.
const SECOND_US: f64 = 1e6;
/// Nanoseconds in a second.
const SECOND_NS: f64 = 1e9;
/// The most characters that Fortio puts in an ID.
const MAX_ID: usize = 96;

/// Fortio's upper edges of buckets, in units of the resolution.
#[must_use]
pub fn edges() -> Vec<u64> {
    let mut edges: Vec<u64> = (0..=12).collect();
    let mut to = |last: u64, step: u64| {
        while edges.last().is_some_and(|edge| edge + step <= last) {
            edges.push(edges[edges.len() - 1] + step);
        }
    };
    to(20, 2);
    to(50, 5);
    to(100, 10);
    to(200, 20);
    to(500, 50);
    to(1_000, 100);
    to(5_000, 1_000);
    to(10_000, 2_500);
    to(50_000, 10_000);
    to(100_000, 25_000);
    edges
}

/// Fields of Fortio's file that come from its flags.
#[derive(Debug, Clone)]
pub struct FortioForm {
    /// `-labels`.
    pub labels: String,
    /// `-runid`.
    pub run_id: i64,
    /// `-n`.
    pub exactly: u64,
    /// `-p`, in percent.
    pub percentiles: Vec<f64>,
    /// `-r`, in µs.
    pub resolution_us: u64,
    /// `-offset`, in µs.
    pub offset_us: u64,
}

impl Default for FortioForm {
    fn default() -> Self {
        Self {
            labels: String::new(),
            run_id: 0,
            exactly: 0,
            percentiles: vec![50.0, 75.0, 90.0, 99.0, 99.9],
            resolution_us: RESOLUTION_US,
            offset_us: 0,
        }
    }
}

impl LoadResult {
    /// The JSON text.
    #[must_use]
    pub fn to_fortio(&self, form: &FortioForm) -> String {
        let options = &self.options;
        let requested = if self.requested_rps > 0.0 {
            self.requested_rps.to_string()
        } else {
            "max".to_owned()
        };
        let run_type = match options.protocol {
            "grpc" => "GRPC",
            "tcp-rr" => "TCP",
            "udp" => "UDP",
            _ => "HTTP",
        };
        let value = json!({
            "RunType": run_type,
            "Labels": form.labels,
            "StartTime": self.start_time,
            "RequestedQPS": requested,
            "RequestedDuration": go_duration(options.duration_s),
            "ActualQPS": self.achieved_rps,
            "ActualDuration": (self.duration_s * SECOND_NS) as u64,
            "NumThreads": options.connections,
            "Version": concat!("voile ", env!("CARGO_PKG_VERSION")),
            "DurationHistogram": histogram(&self.latency, form),
            "ErrorsDurationHistogram": histogram(&self.error_latency, form),
            "Exactly": form.exactly,
            "Jitter": false,
            "Uniform": options.arrival == "uniform",
            "NoCatchUp": false,
            "RunID": form.run_id,
            "AccessLoggerInfo": "",
            "ID": id(&self.start_time, &form.labels),
            "RetCodes": self.codes(),
            "URL": options.url,
            "NumConnections": 1,
            "DisableKeepAlive": !options.keepalive,
            "SocketCount": self.connects,
            "Sizes": Value::Null,
            "HeaderSizes": Value::Null,
            "AbortOn": 0,
            "VoileValid": self.valid,
            "VoileInvalidReasons": self.invalid_reasons,
        });
        serde_json::to_string_pretty(&value).expect("invariant: a JSON value serialises")
    }

    /// Counts of the requests by outcome, under Fortio's names. HTTP: the status, and -1 without one. gRPC: SERVING or ERROR.
    /// Bytes: OK or the error.
    fn codes(&self) -> Map<String, Value> {
        let mut codes = Map::new();
        let mut count = |name: &str, more: u64| {
            let before = codes.get(name).and_then(Value::as_u64).unwrap_or(0);
            if more > 0 {
                codes.insert(name.to_owned(), json!(before + more));
            }
        };
        let without: u64 = self.scheduled - self.status.values().sum::<u64>();
        match self.options.protocol {
            "http1" | "http2" => {
                for (status, more) in &self.status {
                    count(status, *more);
                }
                count("-1", without);
            }
            "grpc" => {
                for (status, more) in &self.status {
                    count(if status == "0" { "SERVING" } else { "ERROR" }, *more);
                }
                count("ERROR", without);
            }
            _ => {
                count("OK", self.ok);
                for (kind, more) in &self.errors {
                    count(kind, *more);
                }
            }
        }
        codes
    }
}

fn histogram(samples: &Samples, form: &FortioForm) -> Value {
    let seconds = |us: u64| us as f64 / SECOND_US;
    let summary = samples.summary();
    let minimum = samples.buckets().next().map_or(0, |(lowest, _, _)| lowest);
    let percentiles = form.percentiles.iter().map(|at| {
        let us = samples.quantile_us(at / 100.0);
        json!({"Percentile": at, "Value": seconds(us)})
    });
    let percentiles: Vec<_> = percentiles.collect();
    json!({
        "Count": summary.count,
        "Min": seconds(minimum),
        "Max": seconds(summary.max),
        "Sum": summary.mean * summary.count as f64 / SECOND_US,
        "Avg": summary.mean / SECOND_US,
        "StdDev": samples.deviation_us() / SECOND_US,
        "Data": buckets(samples, minimum, summary.max, form),
        "Percentiles": percentiles,
    })
}

/// The non-empty buckets, each from exclusive `Start` to inclusive `End`; the first starts at the minimum and the
/// last ends at the maximum, as Fortio's do.
fn buckets(samples: &Samples, minimum: u64, maximum: u64, form: &FortioForm) -> Vec<Value> {
    let edges = edges().into_iter();
    let edges = edges.map(|edge| form.offset_us + edge * form.resolution_us);
    let edges: Vec<u64> = edges.collect();
    let mut counts = vec![0u64; edges.len() + 1];
    for (_, highest, count) in samples.buckets() {
        let value = highest.min(maximum);
        counts[edges.partition_point(|edge| *edge < value)] += count;
    }
    let (total, mut below) = (samples.count().max(1), 0);
    let mut data = Vec::new();
    for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        below += count;
        let start = if index == 0 { 0 } else { edges[index - 1] };
        let end = edges.get(index).copied().unwrap_or(maximum).min(maximum);
        data.push(json!({
            "Start": start.max(minimum) as f64 / SECOND_US,
            "End": end as f64 / SECOND_US,
            "Percent": 100.0 * below as f64 / total as f64,
            "Count": count,
        }));
    }
    data
}

/// Seconds as Go prints a duration of at least a second's grain; fractions stay decimal.
fn go_duration(seconds: f64) -> String {
    let (minutes, rest) = ((seconds / 60.0).floor(), seconds % 60.0);
    match minutes as u64 {
        0 => format!("{rest}s"),
        minutes if minutes < 60 => format!("{minutes}m{rest}s"),
        minutes => format!("{}h{}m{rest}s", minutes / 60, minutes % 60),
    }
}

/// Date, time and labels, with everything but letters and digits as `_`.
fn id(start_time: &str, labels: &str) -> String {
    let date = start_time
        .get(..19)
        .unwrap_or_default()
        .replace('T', "-")
        .replace(':', "");
    let labels: String = labels
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    let mut id = if labels.is_empty() {
        date
    } else {
        format!("{date}_{labels}")
    };
    id.truncate(MAX_ID);
    id
}

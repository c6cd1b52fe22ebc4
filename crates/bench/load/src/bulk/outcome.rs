//! The result of a bulk run: the figures, whether they may be believed, JSON and table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::worker::BulkCount;
use crate::clock::SECOND;
use crate::options::{Bulk, LoadOptions};
use crate::outcome::rfc3339;
use crate::table::{write_failures, write_verdict};
use crate::tally::Failures;
use crate::worker::Timeline;

/// A finished bulk run, in the shape of its JSON.
#[derive(Debug, Clone, Serialize)]
pub struct BulkResult {
    /// Version of this format.
    pub version: u32,
    /// Options of the run.
    pub options: BulkOptions,
    /// Unix time at which the measured part began, in nanoseconds.
    pub start_unix_ns: u64,
    /// The same in RFC 3339, UTC.
    pub start_time: String,
    /// Length of the measured part, in seconds.
    pub duration_s: f64,
    /// Bytes that arrived in the measured part.
    pub bytes: u64,
    /// The same as a rate.
    pub gbit_per_s: f64,
    /// Source of the count: `sink` (our server at the far end), `kernel` (acknowledged at the next hop), or `reader` (we read the
    /// bytes).
    pub counted_by: &'static str,
    /// By second.
    pub per_second: Vec<BulkSecond>,
    /// The connections with the fewest and the most bytes.
    pub connection_bytes: [u64; 2],
    /// Connections that failed, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// All of them.
    pub errors_total: u64,
    /// Of these, connections whose cause of failure is known, by its words.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub causes: BTreeMap<String, u64>,
    /// CPU time of the generator's threads per megabyte (10^6) that arrived.
    pub cpu_us_per_megabyte: f64,
    /// True if the figures may be believed.
    pub valid: bool,
    /// Reasons why the figures are invalid.
    pub invalid_reasons: Vec<String>,
    /// The run was ended before its time.
    pub interrupted: bool,
    #[serde(skip)]
    failures: Failures,
}

/// The options as run.
#[derive(Debug, Clone, Serialize)]
pub struct BulkOptions {
    /// Target.
    pub url: String,
    /// `tcp-bulk`.
    pub protocol: &'static str,
    /// `push` or `pull`.
    pub direction: &'static str,
    /// Connections.
    pub connections: usize,
    /// Threads.
    pub threads: usize,
    /// Seconds.
    pub duration_s: f64,
    /// Seconds.
    pub warmup_s: f64,
    /// Source address.
    pub bind: Option<String>,
}

/// One second of a bulk run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BulkSecond {
    /// Seconds since the measurement began.
    pub t: usize,
    /// Bytes that arrived.
    pub bytes: u64,
}

/// Bytes in so many seconds, as Gbit/s.
pub(super) fn gigabits(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8.0 / 1e9 / seconds.max(1e-9)
}

impl BulkResult {
    pub(super) fn new(
        options: &LoadOptions,
        count: &BulkCount,
        planned: Timeline,
        start_unix_ns: u64,
    ) -> Self {
        let span = count.end.saturating_sub(planned.measure);
        let duration_s = span as f64 / SECOND as f64;
        let seconds = count.seconds.iter().enumerate();
        let mut result = Self {
            version: 1,
            options: BulkOptions {
                url: options.target.url.clone(),
                protocol: options.protocol.name(),
                direction: options.bulk.name(),
                connections: options.connections,
                threads: options.threads,
                duration_s: options.duration.as_secs_f64(),
                warmup_s: options.warmup.as_secs_f64(),
                bind: options.bind.map(|source| source.to_string()),
            },
            start_unix_ns,
            start_time: rfc3339(start_unix_ns),
            duration_s,
            bytes: count.arrived,
            gbit_per_s: gigabits(count.arrived, duration_s),
            counted_by: match options.bulk {
                Bulk::Pull => "reader",
                Bulk::Push if count.by_sink == count.connections => "sink",
                Bulk::Push => "kernel",
            },
            per_second: seconds
                .map(|(t, bytes)| BulkSecond { t, bytes: *bytes })
                .collect(),
            connection_bytes: [
                count.each.iter().min().copied().unwrap_or(0),
                count.each.iter().max().copied().unwrap_or(0),
            ],
            errors: count.errors.by_kind(),
            errors_total: count.errors.total(),
            causes: count.errors.by_cause(),
            cpu_us_per_megabyte: match count.arrived {
                0 => 0.0,
                bytes => count.cpu_ns as f64 / 1e3 / (bytes as f64 / 1e6),
            },
            valid: true,
            invalid_reasons: Vec::new(),
            interrupted: count.interrupted,
            failures: count.errors.clone(),
        };
        result.judge(count);
        result
    }

    fn judge(&mut self, count: &BulkCount) {
        let mut reasons = Vec::new();
        if self.bytes == 0 {
            reasons.push("no bytes arrived".to_owned());
        }
        if let Some((_, _, cause)) = self.failures.in_words().first() {
            let (errors, connections) = (self.errors_total, count.connections);
            reasons.push(format!(
                "{errors} of {connections} connections failed: {cause}"
            ));
        }
        if self.options.direction == "push"
            && count.by_sink > 0
            && count.by_sink < count.connections
        {
            let (by_sink, connections) = (count.by_sink, count.connections);
            reasons.push(format!(
                "only {by_sink} of {connections} connections were acknowledged by the sink"
            ));
        }
        if self.interrupted {
            reasons.push("the run was interrupted".to_owned());
        }
        self.valid = reasons.is_empty();
        self.invalid_reasons = reasons;
    }

    /// The JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("invariant: the result has string keys only")
    }

    /// The table that `voile load` prints, ending with VALID or INVALID.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        let options = &self.options;
        writeln!(
            text,
            "{} {} ({})\n{} connections, {} thread(s), {:.1} s after {:.1} s of warm-up\n",
            options.direction,
            options.url,
            options.protocol,
            options.connections,
            options.threads,
            self.duration_s,
            options.warmup_s
        )?;
        writeln!(text, "{:<12}{:>12.3} Gbit/s", "arrived", self.gbit_per_s)?;
        writeln!(
            text,
            "{:<12}{:>12} (counted by the {})",
            "bytes", self.bytes, self.counted_by
        )?;
        let seconds: Vec<_> = self.per_second.iter().map(|second| second.bytes).collect();
        // The last second may be a part of one.
        let whole = &seconds[..seconds.len().min(self.duration_s as usize)];
        let each = |bytes: Option<&u64>| gigabits(bytes.copied().unwrap_or(0), 1.0);
        writeln!(
            text,
            "{:<12}{:>12.3} to {:.3} Gbit/s",
            "by second",
            each(whole.iter().min()),
            each(whole.iter().max())
        )?;
        let [fewest, most] = self.connection_bytes;
        writeln!(text, "{:<12}{fewest:>12} to {most} bytes", "each")?;
        write_failures(text, &self.failures)?;
        writeln!(
            text,
            "\ngenerator CPU {:.1} µs per MB",
            self.cpu_us_per_megabyte
        )?;
        write_verdict(text, &self.invalid_reasons)
    }
}

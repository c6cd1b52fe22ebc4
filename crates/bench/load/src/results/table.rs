//! The result for people.

use std::fmt::Write as _;

use crate::outcome::LoadResult;
use crate::samples::Summary;
use crate::tally::Failures;
use crate::units::{bytes, count, rate, time};
use crate::view::histogram;

impl LoadResult {
    /// The table that `voile load` prints, ending with VALID or INVALID.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_heading(&self, text: &mut String) -> std::fmt::Result {
        let options = &self.options;
        let wanted = match self.requested_rps {
            rate if rate > 0.0 => match &options.rate_profile {
                Some(profile) => format!("{profile} requests/s"),
                None => format!("{rate} requests/s"),
            },
            _ => "maximum rate (closed loop)".to_owned(),
        };
        let streams = match options.streams {
            1 => String::new(),
            streams => format!(" of {streams} streams"),
        };
        let method = match options.method.as_str() {
            "" => String::new(),
            method => format!("{method} "),
        };
        let warmup = match options.warmup_s {
            0.0 => String::new(),
            seconds => format!(" after {seconds:.1} s of warm-up"),
        };
        writeln!(
            text,
            "{method}{} ({})\n{wanted}, {}{streams}, {}, arrival {}, {:.1} s{warmup}\n",
            options.url,
            options.protocol,
            plural(options.connections, "connection"),
            plural(options.threads, "thread"),
            options.arrival,
            self.duration_s,
        )
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        self.write_heading(text)?;
        writeln!(
            text,
            "{:<12}{:>12}   {} sent, {} answered",
            "due",
            count(self.scheduled),
            count(self.sent),
            rate(self.achieved_rps)
        )?;
        writeln!(text, "{:<12}{:>12}", "ok", count(self.ok))?;
        write_failures(text, &self.failures)?;
        let statuses = self.status.iter();
        let statuses: Vec<_> = statuses
            .map(|(status, number)| format!("{status}{}: {}", named(status), count(*number)))
            .collect();
        if !statuses.is_empty() {
            writeln!(text, "{:<12}{:>12}   {}", "status", "", statuses.join(", "))?;
        }
        if self.ok > 0 {
            self.write_figures(text)?;
        }
        for one in &self.thresholds {
            let mark = if one.holds { '✓' } else { '✗' };
            writeln!(text, "{mark} {:<22}{}", one.threshold, one.found)?;
        }
        for caveat in &self.caveats {
            writeln!(text, "caveat: {caveat}; {LATE_ADVICE}")?;
        }
        write_verdict(text, &self.invalid_reasons)
    }

    /// Figures of the requests that were answered as expected. How long failures took is told apart.
    fn write_figures(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "\n{:<12}", "")?;
        for name in ["p50", "p75", "p90", "p99", "p99.9", "max", "mean"] {
            write!(text, "{name:>9}")?;
        }
        text.push('\n');
        row(text, "latency", &self.ok_latency_us)?;
        row(text, "service", &self.good.service)?;
        row(text, "first byte", &self.good.first_byte)?;
        row(text, "connect", &self.connect_us)?;
        row(text, "TLS", &self.tls_us)?;
        let late = &self.lateness_us;
        if late.count > 0 {
            let (p50, p99, max) = (time(late.p50), time(late.p99), time(late.max));
            writeln!(
                text,
                "{:<12}{p50:>9}{:>27}{:>18}   (the generator's own)",
                "lateness", p99, max
            )?;
        }
        if self.errors_total > 0 {
            let failed = &self.error_latency_us;
            let (half, most) = (time(failed.p50), time(failed.max));
            writeln!(text, "failures took {half} in the median, {most} at most")?;
        }
        for target in &self.targets {
            let (ok, errors) = (count(target.ok), count(target.errors));
            writeln!(
                text,
                "\n{} (weight {}): {ok} ok, {errors} failed",
                target.url, target.weight
            )?;
            row(text, "latency", &target.ok_latency_us)?;
        }
        text.push('\n');
        for line in histogram(&self.good.latency, WIDTH) {
            writeln!(text, "{}", line.trim_end())?;
        }
        let moved = self.bytes.received as f64;
        writeln!(
            text,
            "\nsent {}, received {} ({}/s); generator CPU {:.1} µs per request\n",
            bytes(self.bytes.sent as f64),
            bytes(moved),
            bytes(moved / self.duration_s.max(f64::MIN_POSITIVE)),
            self.cpu_us_per_request
        )
    }
}

/// Columns of the histogram.
const WIDTH: usize = 80;
/// What helps against a late generator.
const LATE_ADVICE: &str =
    "give it a core of its own, more --threads, or fewer requests and connections";

fn plural(number: usize, what: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {what}{many}")
}

/// Returns the name of a gRPC status. An HTTP status, from 100 on, has its number alone. Targets of one run may be of both
/// protocols.
fn named(status: &str) -> String {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let code = status.parse::<usize>().ok();
    let name = code.and_then(|code| NAMES.get(code));
    name.map(|name| format!(" {name}")).unwrap_or_default()
}

/// All failures, and each cause with its number.
pub(crate) fn write_failures(text: &mut String, failures: &Failures) -> std::fmt::Result {
    writeln!(text, "{:<12}{:>12}", "failed", count(failures.total()))?;
    for (number, kind, cause) in failures.in_words() {
        writeln!(text, "{:<12}{:>12}   {kind}: {cause}", "", count(number))?;
    }
    Ok(())
}

/// The last line: whether the figures may be believed.
pub(crate) fn write_verdict(text: &mut String, reasons: &[String]) -> std::fmt::Result {
    match reasons {
        [] => writeln!(text, "VALID"),
        reasons => writeln!(text, "INVALID: {}", reasons.join("; ")),
    }
}

fn row(text: &mut String, name: &str, summary: &Summary) -> std::fmt::Result {
    if summary.count == 0 {
        return Ok(());
    }
    let of = summary;
    write!(text, "{name:<12}")?;
    for us in [
        of.p50,
        of.p75,
        of.p90,
        of.p99,
        of.p999,
        of.max,
        of.mean.round() as u64,
    ] {
        write!(text, "{:>9}", time(us))?;
    }
    text.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_grpc_have_names_and_those_of_http_beside_them_have_none() {
        let all = ["0", "14", "17", "100", "200", "503", ""];
        let wanted = [" OK", " UNAVAILABLE", "", "", "", "", ""];
        assert_eq!(all.map(named), wanted);
    }
}

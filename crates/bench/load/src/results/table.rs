//! The result for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::outcome::LoadResult;
use crate::samples::Summary;

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
        writeln!(
            text,
            "{method}{} ({})\n{wanted}, {} connections{streams}, {} thread(s), arrival {}, {:.1} s after {:.1} s of warm-up",
            options.url,
            options.protocol,
            options.connections,
            options.threads,
            options.arrival,
            self.duration_s,
            options.warmup_s
        )
    }

    fn write_table(&self, text: &mut String) -> std::fmt::Result {
        self.write_heading(text)?;
        writeln!(
            text,
            "\n{:<12}{:>12} /s",
            "achieved",
            format!("{:.1}", self.achieved_rps)
        )?;
        writeln!(
            text,
            "{:<12}{:>12} of {} due",
            "sent", self.sent, self.scheduled
        )?;
        writeln!(text, "{:<12}{:>12}", "ok", self.ok)?;
        write_errors(text, &self.errors, self.errors_total)?;
        for (reason, connections) in &self.causes {
            writeln!(text, "{:<12}{connections:>12} connections: {reason}", "")?;
        }
        if self.status.is_empty() && self.ok == 0 {
            // There are no figures of answers, and those of failures would be taken for them.
            return write_verdict(text, &self.invalid_reasons);
        }
        let statuses: Vec<_> = self
            .status
            .iter()
            .map(|(status, count)| format!("{status}{}: {count}", named(status)))
            .collect();
        writeln!(text, "{:<12}{:>12}", "status", statuses.join(", "))?;
        writeln!(
            text,
            "\n{:<12}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>11}",
            "µs", "p50", "p75", "p90", "p99", "p99.9", "max", "mean"
        )?;
        row(text, "latency", &self.latency_us)?;
        row(text, "service", &self.service_us)?;
        row(text, "first byte", &self.first_byte_us)?;
        if self.connect_us.count > 0 {
            row(text, "connect", &self.connect_us)?;
        }
        if self.tls_us.count > 0 {
            row(text, "TLS", &self.tls_us)?;
        }
        if self.errors_total > 0 {
            row(text, "errors", &self.error_latency_us)?;
        }
        let late = &self.lateness_us;
        writeln!(
            text,
            "{:<12}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}   (the generator's own)",
            "lateness", late.p50, "", "", late.p99, "", late.max
        )?;
        for target in &self.targets {
            let (good, bad) = (target.ok, target.errors);
            writeln!(
                text,
                "\n{} (weight {}): {good} ok, {bad} errors",
                target.url, target.weight
            )?;
            row(text, "latency", &target.latency_us)?;
        }
        writeln!(
            text,
            "\ngenerator CPU {:.1} µs per request",
            self.cpu_us_per_request
        )?;
        write_verdict(text, &self.invalid_reasons)
    }
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

/// All errors, and how many of each kind.
pub(crate) fn write_errors(
    text: &mut String,
    errors: &BTreeMap<&'static str, u64>,
    total: u64,
) -> std::fmt::Result {
    let kinds: Vec<_> = errors
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    let kinds = if kinds.is_empty() {
        String::new()
    } else {
        format!("   ({})", kinds.join(", "))
    };
    writeln!(text, "{:<12}{total:>12}{kinds}", "errors")
}

/// The last line: whether the figures may be believed.
pub(crate) fn write_verdict(text: &mut String, reasons: &[String]) -> std::fmt::Result {
    match reasons {
        [] => writeln!(text, "VALID"),
        reasons => writeln!(text, "INVALID: {}", reasons.join("; ")),
    }
}

fn row(text: &mut String, name: &str, summary: &Summary) -> std::fmt::Result {
    let Summary {
        p50,
        p75,
        p90,
        p99,
        p999,
        max,
        mean,
        ..
    } = summary;
    writeln!(
        text,
        "{name:<12}{p50:>9}{p75:>9}{p90:>9}{p99:>9}{p999:>9}{max:>9}{mean:>11.1}"
    )
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

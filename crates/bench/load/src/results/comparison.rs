//! Results that were written before, ours or Fortio's, set beside each other: a table, and bars by percentile on one scale. Fortio's
//! percentiles are its own, read from its buckets; ours are counted from when requests were due, and its from when they were sent.

use std::fmt::Write as _;

use serde_json::Value;

/// Percentiles that are shown, and how ours are named.
const SHOWN: [(f64, &str); 5] = [
    (50.0, "p50"),
    (75.0, "p75"),
    (90.0, "p90"),
    (99.0, "p99"),
    (99.9, "p999"),
];
/// Microseconds in a second.
const SECOND_US: f64 = 1e6;
/// Cells of the longest bar.
const BAR_CELLS: f64 = 40.0;

/// One result.
#[derive(Debug, Clone, PartialEq)]
pub struct PastResult {
    /// Name of the file, or another name of the result.
    pub name: String,
    /// Program that wrote the file.
    pub by: String,
    /// URL of the requests.
    pub url: String,
    /// Answers per second.
    pub rate: f64,
    /// Requests, and those that failed.
    pub requests: u64,
    /// See `requests`.
    pub errors: u64,
    /// Mean latency in µs.
    pub mean_us: f64,
    /// Percentiles in the order of [`SHOWN`]; none if the file lacks one.
    pub percentiles_us: [Option<f64>; SHOWN.len()],
    /// Largest latency in µs.
    pub max_us: f64,
}

/// Reads a result of `voile load --json`, or in Fortio's form.
///
/// # Errors
/// Says why the text is neither.
pub fn parse(name: &str, text: &str) -> Result<PastResult, String> {
    let json: Value =
        serde_json::from_str(text).map_err(|error| format!("{name}: not JSON: {error}"))?;
    let found = if json.get("DurationHistogram").is_some() {
        fortio(name, &json)
    } else if json.get("latency_us").is_some() {
        voile(name, &json)
    } else {
        return Err(format!(
            "{name}: neither a result of `voile load --json` nor one of Fortio's"
        ));
    };
    found.ok_or_else(|| format!("{name}: a result with fields missing"))
}

fn voile(name: &str, json: &Value) -> Option<PastResult> {
    // Earlier results have no figures of the successes alone.
    let latency = json
        .get("ok_latency_us")
        .or_else(|| json.get("latency_us"))?;
    Some(PastResult {
        name: name.to_owned(),
        by: "voile load".to_owned(),
        url: text(json.get("options")?, "url"),
        rate: json.get("achieved_rps")?.as_f64()?,
        requests: json.get("latency_us")?.get("count")?.as_u64()?,
        errors: json.get("errors_total")?.as_u64()?,
        mean_us: latency.get("mean")?.as_f64()?,
        percentiles_us: SHOWN.map(|(_, name)| latency.get(name)?.as_f64()),
        max_us: latency.get("max")?.as_f64()?,
    })
}

fn fortio(name: &str, json: &Value) -> Option<PastResult> {
    let histogram = json.get("DurationHistogram")?;
    let seconds = |name: &str| Some(histogram.get(name)?.as_f64()? * SECOND_US);
    let written = histogram.get("Percentiles").and_then(Value::as_array);
    let percentile = |at: f64| {
        let mut each = written?.iter();
        let found = each.find(|each| {
            each.get("Percentile")
                .and_then(Value::as_f64)
                .is_some_and(|p| (p - at).abs() < 1e-6)
        })?;
        Some(found.get("Value")?.as_f64()? * SECOND_US)
    };
    let failed = json
        .get("ErrorsDurationHistogram")
        .and_then(|errors| errors.get("Count")?.as_u64());
    Some(PastResult {
        name: name.to_owned(),
        by: match json.get("VoileValid") {
            Some(_) => "voile load".to_owned(),
            None => format!("fortio {}", text(json, "Version")),
        },
        url: text(json, "URL"),
        rate: json.get("ActualQPS")?.as_f64()?,
        requests: histogram.get("Count")?.as_u64()?,
        errors: failed.unwrap_or(0),
        mean_us: seconds("Avg")?,
        percentiles_us: SHOWN.map(|(at, _)| percentile(at)),
        max_us: seconds("Max")?,
    })
}

fn text(json: &Value, name: &str) -> String {
    json.get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Results beside each other.
#[must_use]
pub fn table(results: &[PastResult]) -> String {
    let mut text = String::new();
    let wide = results
        .iter()
        .map(|past| past.name.chars().count())
        .max()
        .unwrap_or(0)
        .max(6);
    let _ = write!(
        text,
        "{:<wide$}  {:<14} {:>10} {:>8}",
        "result", "written by", "answers/s", "errors"
    );
    for name in ["mean", "p50", "p75", "p90", "p99", "p99.9", "max"] {
        let _ = write!(text, " {name:>9}");
    }
    text.push_str("  ms\n");
    for past in results {
        let (name, by, errors) = (&past.name, &past.by, past.errors);
        let _ = write!(
            text,
            "{name:<wide$}  {by:<14} {:>10.1} {errors:>8}",
            past.rate
        );
        let all = std::iter::once(Some(past.mean_us))
            .chain(past.percentiles_us)
            .chain([Some(past.max_us)]);
        for us in all {
            let shown = us.map_or_else(|| "–".to_owned(), |us| format!("{:.3}", us / 1e3));
            let _ = write!(text, " {shown:>9}");
        }
        text.push('\n');
    }
    let most = results
        .iter()
        .flat_map(|past| past.percentiles_us)
        .flatten()
        .fold(0.0, f64::max);
    for (at, (percentile, _)) in SHOWN.iter().enumerate() {
        let _ = writeln!(text, "\np{percentile}");
        for past in results {
            let Some(us) = past.percentiles_us[at] else {
                continue;
            };
            let cells = (us / most.max(1e-9) * BAR_CELLS).round() as usize;
            let _ = writeln!(
                text,
                "  {:<wide$} {} {:.3} ms",
                past.name,
                "█".repeat(cells),
                us / 1e3
            );
        }
    }
    text
}

//! The table that the terminal shows: one block per mode, contestants below each other, ratios against a reference.

use std::fmt::Write as _;

use crate::record::{Estimate, Record, Summary};
use crate::words::{bytes, interval, micro, mode_title, ratio};

/// Draws it.
#[must_use]
pub fn render(record: &Record) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for summary in &record.summary {
        let title = mode_title(&summary.mode, summary.tls, &summary.arrival);
        if title != last {
            let _ = writeln!(text, "\n{title}");
            let _ = writeln!(
                text,
                "  {:<10} {:>17} {:>17} {:>9} {:>9} {:>16} {:>10} {:>7}",
                "", "p50 µs", "p99 µs", "+p50", "+p99", "CPU µs/sidecar", "RSS", "rounds"
            );
            last = title;
        }
        line(&mut text, summary);
    }
    ratios(&mut text, record);
    text
}

fn line(text: &mut String, summary: &Summary) {
    let figure = |name: &str| summary.figures.get(name);
    let with_interval =
        |name: &str| figure(name).map_or_else(|| "–".to_owned(), |f| interval(f, micro));
    let median = |name: &str, show: fn(f64) -> String| {
        figure(name).map_or_else(|| "–".to_owned(), |f| show(f.median))
    };
    let invalid = if summary.runs_invalid > 0 {
        format!(" ({} invalid)", summary.runs_invalid)
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "  {:<10} {:>17} {:>17} {:>9} {:>9} {:>16} {:>10} {:>7}{invalid}",
        summary.contestant,
        with_interval("latency_us.p50"),
        with_interval("latency_us.p99"),
        median("added_us.p50", micro),
        median("added_us.p99", micro),
        with_interval("sidecar.cpu_us_per_request"),
        median("sidecar.rss_bytes", bytes),
        summary.runs_valid
    );
}

fn ratios(text: &mut String, record: &Record) {
    let ours = record
        .summary
        .iter()
        .filter(|summary| summary.contestant == "voile");
    let lines: Vec<String> = ours
        .flat_map(|summary| {
            summary.ratios.iter().map(move |(against, figures)| {
                let show = |name: &str| {
                    figures
                        .get(name)
                        .map_or_else(|| "–".to_owned(), |f: &Estimate| interval(f, ratio))
                };
                format!(
                    "  {:<44} {:>17} {:>17} {:>17} {:>17}",
                    format!(
                        "{against}, {}",
                        mode_title(&summary.mode, summary.tls, &summary.arrival)
                    ),
                    show("sidecar.cpu_us_per_request"),
                    show("added_us.p50"),
                    show("added_us.p99"),
                    show("sidecar.rss_bytes"),
                )
            })
        })
        .collect();
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\nVoile divided by, paired within rounds\n  {:<44} {:>17} {:>17} {:>17} {:>17}",
        "", "CPU/sidecar", "added p50", "added p99", "RSS/sidecar"
    );
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
}

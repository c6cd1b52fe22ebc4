//! The plots of the report, each chosen so that it answers one question.

use std::fmt::Write as _;

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

use crate::record::{Latency, Merged, Record, Summary};
use crate::svg::{Bar, Curve, bars, curves, dots};
use crate::words::{self, bytes, escape, micro};

/// Points of a percentile curve per factor of ten of rarity: smooth to the eye at this size.
const POINTS_PER_DECADE: f64 = 20.0;

pub(super) fn write(page: &mut String, record: &Record) {
    let groups = groups(record);
    section(
        page,
        "Latency",
        "Percentiles over rounds with their intervals, in µs from when each request was due.",
        |plots| {
            for (title, cells) in &groups {
                let rows = rows(
                    cells,
                    &[
                        ("p50", "latency_us.p50"),
                        ("p90", "latency_us.p90"),
                        ("p99", "latency_us.p99"),
                    ],
                );
                figure(plots, title, &rows, micro);
            }
        },
    );
    section(
        page,
        "CPU",
        "µs of CPU per request of each sidecar, from its processes' CPU clocks.",
        |plots| {
            for (title, cells) in &groups {
                let rows = rows(
                    cells,
                    &[
                        ("client", "client-sidecar.cpu_us_per_request"),
                        ("server", "server-sidecar.cpu_us_per_request"),
                    ],
                );
                figure(plots, title, &rows, micro);
            }
        },
    );
    section(
        page,
        "Memory",
        "Resident memory of each sidecar at the end of a slice.",
        |plots| {
            if let Some((title, cells)) = groups
                .iter()
                .rfind(|(_, cells)| cells.iter().any(|s| s.mode == "both"))
            {
                let rows = rows(
                    cells,
                    &[
                        ("client", "client-sidecar.rss_bytes"),
                        ("server", "server-sidecar.rss_bytes"),
                    ],
                );
                figure(plots, title, &rows, bytes);
            }
        },
    );
    section(
        page,
        "Whole distributions",
        "All valid slices merged, for display only; drawn as far as ten samples lie beyond.",
        |plots| {
            for (title, cells) in &groups {
                distribution(plots, record, title, cells);
            }
        },
    );
    control(page, record);
}

/// Cells by heading, in the order of the summary.
fn groups(record: &Record) -> Vec<(String, Vec<&Summary>)> {
    let mut groups: Vec<(String, Vec<&Summary>)> = Vec::new();
    for summary in record
        .summary
        .iter()
        .filter(|summary| summary.runs_valid > 0)
    {
        let title = words::title(&summary.key());
        match groups.last_mut().filter(|(last, _)| *last == title) {
            Some((_, cells)) => cells.push(summary),
            None => groups.push((title, vec![summary])),
        }
    }
    groups
}

fn section(page: &mut String, title: &str, words: &str, fill: impl FnOnce(&mut String)) {
    let mut plots = String::new();
    fill(&mut plots);
    if !plots.is_empty() {
        let _ = writeln!(
            page,
            "<h2>{title}</h2>\n<p class=\"soft\">{words}</p>\n<div class=\"plots\">\n{plots}</div>"
        );
    }
}

fn rows(cells: &[&Summary], figures: &[(&str, &str)]) -> Vec<Bar> {
    figures
        .iter()
        .flat_map(|(word, name)| {
            cells.iter().filter_map(move |summary| {
                Some(Bar {
                    label: format!("{} {word}", summary.contestant),
                    contestant: summary.contestant.clone(),
                    value: *summary.figures.get(*name)?,
                })
            })
        })
        .collect()
}

fn figure(plots: &mut String, title: &str, rows: &[Bar], show: fn(f64) -> String) {
    if !rows.is_empty() {
        let _ = writeln!(
            plots,
            "<figure><h3>{}</h3>{}</figure>",
            escape(title),
            bars(title, rows, show)
        );
    }
}

fn distribution(plots: &mut String, record: &Record, title: &str, cells: &[&Summary]) {
    let lines: Vec<Curve> = cells
        .iter()
        .filter_map(|summary| {
            let key = summary.key();
            let merged = record.histograms.iter().find(|m| m.cell == key)?;
            Some(Curve {
                contestant: summary.contestant.clone(),
                points: points(merged)?,
            })
        })
        .collect();
    if !lines.is_empty() {
        let _ = writeln!(
            plots,
            "<figure><h3>{}</h3>{}</figure>",
            escape(title),
            curves(title, &lines)
        );
    }
}

/// A histogram that cannot be read has no curve; the record may come from anywhere.
fn points(merged: &Merged) -> Option<Vec<(f64, f64)>> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(merged.hdr.trim())
        .ok()?;
    let histogram: Histogram<u64> = Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .ok()?;
    let decades = (histogram.len() as f64 / Latency::BEYOND).log10();
    if decades <= 0.0 {
        return None;
    }
    let steps = (decades * POINTS_PER_DECADE).floor() as u32;
    let points = (0..=steps).map(|step| {
        let share = 1.0 - 10f64.powf(-f64::from(step) / POINTS_PER_DECADE);
        (share, histogram.value_at_quantile(share) as f64)
    });
    Some(points.collect())
}

fn control(page: &mut String, record: &Record) {
    let Some(control) = &record.control else {
        return;
    };
    let title = format!(
        "{}, {}",
        control.cell.contestant,
        words::title(&control.cell)
    );
    let rows: Vec<_> = control
        .ratios
        .iter()
        .map(|(name, ratio)| (short(name), *ratio))
        .collect();
    let verdict = if control.alarms.is_empty() {
        "No interval misses 1: the two halves do not differ by more than their interval.".to_owned()
    } else {
        format!(
            "Alarm: {} differ by more than their interval. Trust differences of that size less.",
            control.alarms.join(", ")
        )
    };
    section(
        page,
        "A/A control",
        "One cell measured twice in every round under two labels. Second divided by first; 1 where only noise differs.",
        |plots| {
            let _ = writeln!(
                plots,
                "<figure><h3>{}</h3>{}<figcaption>{}</figcaption></figure>",
                escape(&title),
                dots(&title, &rows),
                escape(&verdict)
            );
        },
    );
}

fn short(name: &str) -> String {
    match name {
        "machine_cpu_us_per_request" => "machine CPU",
        "sidecar.cpu_us_per_request" => "CPU per sidecar",
        "sidecar.rss_bytes" => "RSS per sidecar",
        other => other.rsplit('.').next().unwrap_or(other),
    }
    .to_owned()
}

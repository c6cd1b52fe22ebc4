//! `report.html`: one file that opens offline, on a phone, in the dark and on paper. Words first, then figures, then
//! plots, then everything needed to doubt them.

mod evidence;
mod plots;

use std::fmt::Write as _;

use crate::findings;
use crate::record::{Estimate, Record, Summary};
use crate::words::{self, bytes, duration, escape, micro, range, ratio};

const STYLE: &str = include_str!("page.css");

/// Draws the report.
#[must_use]
pub fn render(record: &Record) -> String {
    let experiment = &record.experiment;
    let name = escape(&experiment.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Voile lab: {name}</title><style>{STYLE}</style></head><body>\n<h1>What the mesh costs: {name}</h1>\n"
    );
    let rate = record.summary.first().map_or(0.0, |summary| summary.rate);
    let connections = record
        .summary
        .first()
        .map_or(0, |summary| summary.connections);
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} · {} · {} cores · {} · HTTP/1.1, {} bytes, {rate} requests/s, {connections} connections, \
         {} rounds of {} s slices, {} workers per proxy, profile <b>{}</b></p>",
        escape(&experiment.started_at),
        escape(&record.environment.cpu),
        record.environment.cores,
        escape(&record.environment.kernel),
        experiment.size_bytes,
        experiment.rounds_done,
        experiment.slice_seconds,
        experiment.workers,
        escape(&record.environment.profile),
    );
    for note in &record.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
    }
    words(&mut page, record);
    table(&mut page, record);
    ratios(&mut page, record);
    plots::write(&mut page, record);
    evidence::write(&mut page, record);
    page.push_str("</body></html>\n");
    page
}

/// The answer in sentences.
fn words(page: &mut String, record: &Record) {
    page.push_str("<h2>In words</h2>\n<ul class=\"lead\">\n");
    for sentence in findings::sentences(record) {
        let _ = writeln!(page, "<li>{}</li>", escape(&sentence));
    }
    page.push_str("</ul>\n");
}

fn cell(estimate: Option<&Estimate>, show: fn(f64) -> String) -> String {
    let Some(estimate) = estimate else {
        return "<td>–</td>".to_owned();
    };
    let middle = show(estimate.median);
    match range(estimate, show) {
        Some(range) => format!("<td>{middle}<small>{range}</small></td>"),
        None => format!("<td>{middle}</td>"),
    }
}

/// Heading, figure, and how it is written.
type Column = (&'static str, &'static str, fn(f64) -> String);

const COLUMNS: [Column; 9] = [
    ("p50", "latency_us.p50", duration),
    ("p90", "latency_us.p90", duration),
    ("p99", "latency_us.p99", duration),
    ("added p50", "added_us.p50", duration),
    ("added p99", "added_us.p99", duration),
    (
        "CPU/request per sidecar",
        "sidecar.cpu_us_per_request",
        duration,
    ),
    (
        "machine CPU/request",
        "machine_cpu_us_per_request",
        duration,
    ),
    ("RSS per sidecar", "sidecar.rss_bytes", bytes),
    ("switches/req", "sidecar.ctx_switches_per_request", micro),
];

fn table(page: &mut String, record: &Record) {
    page.push_str("<h2>Figures</h2>\n<p class=\"soft\">Median over rounds; below it the 95 % interval over rounds, where there are at least six. \
        Latency counts from when a request was due. Added: over the baseline of the same arrival, within rounds.</p>\n\
        <div class=\"scroll\"><table><thead><tr><th>contestant</th>");
    for (title, ..) in COLUMNS {
        let _ = write!(page, "<th>{title}</th>");
    }
    page.push_str("<th>rounds</th></tr></thead><tbody>\n");
    let mut last = String::new();
    for summary in &record.summary {
        let title = words::title(&summary.key());
        if title != last {
            let _ = writeln!(
                page,
                "<tr class=\"head\"><td colspan=\"{}\">{}</td></tr>",
                COLUMNS.len() + 2,
                escape(&title)
            );
            last = title;
        }
        let _ = write!(page, "<tr><td>{}</td>", escape(&summary.contestant));
        for (_, name, show) in COLUMNS {
            page.push_str(&cell(summary.figures.get(name), show));
        }
        let invalid = if summary.runs_invalid > 0 {
            format!(
                "<small class=\"bad\">{} invalid</small>",
                summary.runs_invalid
            )
        } else {
            String::new()
        };
        let _ = writeln!(page, "<td>{}{invalid}</td></tr>", summary.runs_valid);
    }
    page.push_str("</tbody></table></div>\n");
}

fn ratios(page: &mut String, record: &Record) {
    let ours: Vec<&Summary> = record
        .summary
        .iter()
        .filter(|s| s.contestant == "voile" && !s.ratios.is_empty())
        .collect();
    if ours.is_empty() {
        return;
    }
    page.push_str("<h2>Voile divided by others</h2>\n<p class=\"soft\">Paired within rounds; below 1 Voile costs less. \
        Ratios of added latency are ratios of medians, resampled together.</p>\n<div class=\"scroll\"><table><thead><tr>\
        <th>cell</th><th class=\"t\">against</th><th>CPU per sidecar</th><th>added p50</th><th>added p99</th><th>p50</th><th>p99</th><th>RSS per sidecar</th></tr></thead><tbody>\n");
    for summary in ours {
        for (against, figures) in &summary.ratios {
            let title = words::title(&summary.key());
            let _ = write!(
                page,
                "<tr><td>{}</td><td class=\"t\">{}</td>",
                escape(&title),
                escape(against)
            );
            for name in [
                "sidecar.cpu_us_per_request",
                "added_us.p50",
                "added_us.p99",
                "latency_us.p50",
                "latency_us.p99",
                "sidecar.rss_bytes",
            ] {
                page.push_str(&cell(figures.get(name), ratio));
            }
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</tbody></table></div>\n");
}

//! Forecasts as text: a line for each service and one for all, each figure with its interval.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::budget::{Budget, Held};
use crate::lookup::Figure;
use crate::predict::{Costs, Forecast};

const HEADS: [&str; 8] = [
    "SERVICE",
    "IN/S",
    "OUT/S",
    "VCPU",
    "MEMORY MB",
    "P50 MS",
    "P90 MS",
    "P99 MS",
];

/// One forecast.
#[must_use]
pub fn forecast(forecast: &Forecast) -> String {
    let mut rows: Vec<Vec<String>> = vec![HEADS.map(str::to_owned).to_vec()];
    for service in &forecast.services {
        let rates = [service.served, service.sent].map(|rate| format!("{rate:.1}"));
        rows.push(cells(&service.name, rates, &service.costs));
    }
    let rates = [format!("{:.1}", forecast.rate), String::new()];
    rows.push(cells("in all", rates, &forecast.total));
    let mut text = format!("with {}\n{}", forecast.with, aligned(&rows));
    text.push_str(&legend(&[forecast]));
    text
}

/// Two choices, and what the second adds in all.
#[must_use]
pub fn what_if(one: &Forecast, other: &Forecast) -> String {
    let mut text = totals(&[one, other], None);
    let figures = [
        (Some(&one.total.vcpu), Some(&other.total.vcpu), 1.0, "vCPU"),
        (
            Some(&one.total.memory_bytes),
            Some(&other.total.memory_bytes),
            1e-6,
            "MB",
        ),
        (
            one.total.p50_us.as_ref(),
            other.total.p50_us.as_ref(),
            1e-3,
            "ms of p50",
        ),
        (
            one.total.p99_us.as_ref(),
            other.total.p99_us.as_ref(),
            1e-3,
            "ms of p99",
        ),
    ];
    let more = figures.into_iter().filter_map(|(one, other, unit, word)| {
        let more = (other?.value - one?.value) * unit;
        Some(format!("{more:+.3} {word}"))
    });
    let more: Vec<String> = more.collect();
    let _ = writeln!(
        text,
        "{} instead of {}: {}",
        other.with,
        one.with,
        more.join(", ")
    );
    text.push_str(&legend(&[one, other]));
    text
}

/// Several choices in all, each with its verdict.
#[must_use]
pub fn budget(budget: &Budget, forecasts: &[Forecast], best: Option<&Forecast>) -> String {
    let all: Vec<&Forecast> = forecasts.iter().collect();
    let mut text = totals(&all, Some(budget));
    let _ = match best {
        Some(best) => writeln!(text, "cheapest that holds it: {}", best.with),
        None => writeln!(text, "none holds it"),
    };
    text.push_str(&legend(&all));
    text
}

fn totals(forecasts: &[&Forecast], budget: Option<&Budget>) -> String {
    let mut heads: Vec<String> = HEADS.map(str::to_owned).to_vec();
    heads.drain(1..3);
    "WITH".clone_into(&mut heads[0]);
    heads.extend(budget.map(|_| "HOLDS".to_owned()));
    let mut rows = vec![heads];
    for one in forecasts {
        let mut row = cells(&one.with, [String::new(), String::new()], &one.total);
        row.drain(1..3);
        row.extend(budget.map(|budget| {
            match budget.judge(&one.total) {
                Held::Yes => "yes",
                Held::Perhaps => "perhaps",
                Held::No => "no",
            }
            .to_owned()
        }));
        rows.push(row);
    }
    aligned(&rows)
}

fn cells(name: &str, rates: [String; 2], costs: &Costs) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    cells.extend(rates);
    cells.push(shown(Some(&costs.vcpu), 1.0, 3));
    cells.push(shown(Some(&costs.memory_bytes), 1e-6, 1));
    for latency in [&costs.p50_us, &costs.p90_us, &costs.p99_us] {
        cells.push(shown(latency.as_ref(), 1e-3, 3));
    }
    cells
}

/// `0.120 (0.110–0.140)*`: value, interval, and a star if it is extrapolated.
fn shown(figure: Option<&Figure>, unit: f64, digits: usize) -> String {
    let Some(figure) = figure else {
        return "-".to_owned();
    };
    let mut text = format!("{:.digits$}", figure.value * unit);
    if let (Some(low), Some(high)) = (figure.low, figure.high) {
        let _ = write!(text, " ({:.digits$}–{:.digits$})", low * unit, high * unit);
    }
    if !figure.extrapolated.is_empty() {
        text.push('*');
    }
    text
}

/// What the stars mean, and the notes.
fn legend(forecasts: &[&Forecast]) -> String {
    let mut text = String::new();
    let mut axes: [(&str, BTreeSet<&str>); 3] = [
        ("CPU", BTreeSet::new()),
        ("memory", BTreeSet::new()),
        ("latency", BTreeSet::new()),
    ];
    let mut notes = BTreeSet::new();
    for one in forecasts {
        let total = &one.total;
        let figures = [
            Some(&total.vcpu),
            Some(&total.memory_bytes),
            total.p50_us.as_ref(),
        ];
        for ((_, axes), figure) in axes.iter_mut().zip(figures) {
            let names = figure.into_iter().flat_map(|figure| &figure.extrapolated);
            axes.extend(names.map(|axis| axis.as_str()));
        }
        notes.extend(one.notes.iter());
    }
    for (what, axes) in axes.iter().filter(|(_, axes)| !axes.is_empty()) {
        let axes: Vec<&str> = axes.iter().copied().collect();
        let _ = writeln!(
            text,
            "* {what}: extrapolated beyond what was measured by {}",
            axes.join(", ")
        );
    }
    for note in notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

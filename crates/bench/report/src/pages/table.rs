//! Text for the terminal: the three figures of the page's first screen, the findings in words, a table per mode with contestants below each other, and the ratios of Voile's
//! figures to the others'. Columns are as wide as their widest cell.

use std::fmt::Write as _;

use crate::columns::{Column, columns, divided};
use crate::record::target_verdicts::TargetResult;
use crate::record::{Estimate, Record, Summary};
use crate::words::{self, interval, ratio};
use crate::{claims, events, findings, headline};

/// Between two columns.
const GAP: &str = "   ";

/// Draws it.
#[must_use]
pub fn render(record: &Record) -> String {
    let mut text = headline::render(record);
    for sentence in findings::sentences(record) {
        let _ = writeln!(text, "{sentence}");
    }
    let shown = columns(record, false);
    let titles = shown.iter().map(|column| column.title);
    let titles: Vec<&str> = [""].into_iter().chain(titles).chain(["rounds"]).collect();
    let mut rows = vec![heading(&titles)];
    let mut last = String::new();
    for summary in &record.summary {
        let title = words::title(&summary.key());
        if title != last {
            rows.push(Row::Title(title.clone()));
            last = title;
        }
        rows.push(Row::Cells(line(summary, &shown)));
    }
    if !record.summary.is_empty() {
        text.push('\n');
        text.push_str(&aligned(&rows));
    }
    text.push_str(&ratios(record));
    text.push_str(&events::table(record));
    if !record.experiment.claims.is_empty() {
        text.push('\n');
        text.push_str(&claims::render(record));
    }
    if !record.verdicts.is_empty() {
        text.push('\n');
        text.push_str(&targets(std::slice::from_ref(record)));
    }
    text
}

/// Columns for the longest verdict and a gap.
const VERDICT_WIDTH: usize = 14;

/// Table of these records' targets, each with its verdict.
#[must_use]
pub fn targets(records: &[Record]) -> String {
    let mut text = String::new();
    let mut last = "";
    for verdict in records.iter().flat_map(|record| &record.verdicts) {
        if verdict.row != last {
            let _ = writeln!(text, "{}", verdict.row);
            last = &verdict.row;
        }
        // The verdict first, then what it is about, each on lines that a terminal has room for.
        let outcome = verdict.outcome.in_words();
        let _ = writeln!(text, "  {outcome:<VERDICT_WIDTH$}{}", verdict.cell);
        for (word, said) in [
            ("wanted", &verdict.wanted),
            ("seen", &verdict.seen),
            ("beside", &verdict.beside),
        ] {
            if !said.is_empty() {
                let _ = writeln!(text, "  {:VERDICT_WIDTH$}{word:<8}{said}", "");
            }
        }
    }
    let of = |outcome| {
        let all = records.iter().flat_map(|record| &record.verdicts);
        all.filter(|verdict| verdict.outcome == outcome).count()
    };
    let count: Vec<String> = [
        TargetResult::Reached,
        TargetResult::Missed,
        TargetResult::CannotTell,
        TargetResult::NotMeasured,
    ]
    .into_iter()
    .filter(|outcome| of(*outcome) > 0)
    .map(|outcome| format!("{} {}", of(outcome), outcome.in_words()))
    .collect();
    format!("{text}Targets: {}.\n", count.join(", "))
}

/// A line of a table.
pub(crate) enum Row {
    /// Across all columns.
    Title(String),
    /// One per column.
    Cells(Vec<String>),
}

pub(crate) fn heading(titles: &[&str]) -> Row {
    Row::Cells(titles.iter().map(|title| (*title).to_owned()).collect())
}

/// The first column to the left, the others to the right.
pub(crate) fn aligned(rows: &[Row]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        if let Row::Cells(cells) = row {
            widths.resize(widths.len().max(cells.len()), 0);
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        match row {
            Row::Title(title) => text.push_str(title),
            Row::Cells(cells) => {
                let mut line = String::new();
                for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                    if at == 0 {
                        let _ = write!(line, "  {cell:<width$}");
                    } else {
                        let _ = write!(line, "{GAP}{cell:>width$}");
                    }
                }
                text.push_str(line.trim_end());
            }
        }
        text.push('\n');
    }
    text
}

fn line(summary: &Summary, shown: &[&Column]) -> Vec<String> {
    let rounds = match summary.runs_invalid {
        0 => summary.runs_valid.to_string(),
        invalid => format!("{} (+{invalid} invalid)", summary.runs_valid),
    };
    let figures = shown
        .iter()
        .map(|column| cell(column.of(summary), column.show));
    [summary.contestant.clone()]
        .into_iter()
        .chain(figures)
        .chain([rounds])
        .collect()
}

fn cell(estimate: Option<&Estimate>, show: fn(f64) -> String) -> String {
    estimate.map_or_else(|| "–".to_owned(), |estimate| interval(estimate, show))
}

fn ratios(record: &Record) -> String {
    let shown = divided(record);
    let titles = shown.iter().map(|column| column.title);
    let titles: Vec<&str> = [""].into_iter().chain(titles).collect();
    let mut rows = vec![heading(&titles)];
    let mut last = String::new();
    for summary in record.summary.iter().filter(|s| s.contestant == "voile") {
        for against in summary.ratios.keys() {
            let title = words::title(&summary.key());
            if title != last {
                rows.push(Row::Title(title.clone()));
                last = title;
            }
            let figures = shown
                .iter()
                .map(|column| cell(column.ratio(summary, against), ratio));
            rows.push(Row::Cells(
                [against.clone()].into_iter().chain(figures).collect(),
            ));
        }
    }
    if rows.len() == 1 || shown.is_empty() {
        return String::new();
    }
    format!(
        "\nVoile divided by, paired within rounds\n{}",
        aligned(&rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            heading(&["", "p50", "p99"]),
            Row::Title("a title wider than any column".to_owned()),
            Row::Cells(vec![
                "voile".to_owned(),
                "42.0 µs".to_owned(),
                "–".to_owned(),
            ]),
            Row::Cells(vec![
                "a long name".to_owned(),
                "1.00 ms".to_owned(),
                "2.00 ms".to_owned(),
            ]),
        ];
        assert_eq!(
            aligned(&rows),
            "                    p50       p99\n\
             a title wider than any column\n  \
               voile         42.0 µs         –\n  \
               a long name   1.00 ms   2.00 ms\n"
        );
    }
}

//! Time line of a slice in short intervals, and the effect of each lab event on it: the delay until the effect, failed and slow
//! requests, and the time until recovery.
//!
//! ```text
//!   before (its median) ──┬─ event ─── effect ───────── recovered ── … next event or end
//!                         └─ failed and slow are counted from here to there ─┘
//! ```

use std::collections::BTreeSet;

pub use crate::record::events::Interval;
pub use crate::record::events::SliceEvent;
use crate::record::{Record, Summary};
use crate::table::{Row, aligned, heading};
use crate::words::{self, duration, interval};

const MICROSECONDS: f64 = 1e3;

/// Table of the effects of a record's events, for the terminal; empty without events.
pub(crate) fn table(record: &Record) -> String {
    let titles = ["", "effect after", "failed", "slow", "recovered after"];
    let mut rows = vec![heading(&titles)];
    for summary in &record.summary {
        let lines = lines(summary);
        if !lines.is_empty() {
            let title = words::title(&summary.key());
            rows.push(Row::Title(format!("{}, {title}", summary.contestant)));
            rows.extend(lines);
        }
    }
    match rows.len() {
        1 => String::new(),
        _ => format!("\nEffects of the events\n{}", aligned(&rows)),
    }
}

/// Requests; the median over an even number of rounds may be half of one.
fn count(requests: f64) -> String {
    format!("{requests}")
}

fn lines(summary: &Summary) -> Vec<Row> {
    let names = summary.figures.keys().filter_map(|figure| {
        let (event, _) = figure.strip_prefix("event-")?.split_once('.')?;
        let (number, action) = event.split_once('-')?;
        Some((number.parse::<usize>().ok()?, action))
    });
    let names: BTreeSet<(usize, &str)> = names.collect();
    let line = |(number, action): (usize, &str)| {
        let cell = |figure: &str, show| {
            let name = format!("event-{number}-{action}.{figure}");
            let found = summary.figures.get(&name);
            found.map_or_else(|| "–".to_owned(), |found| interval(found, show))
        };
        Row::Cells(vec![
            format!("{number} {action}"),
            cell("effect_ms", |ms| duration(ms * MICROSECONDS)),
            cell("failed", count),
            cell("slow", count),
            cell("recovery_ms", |ms| duration(ms * MICROSECONDS)),
        ])
    };
    names.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Estimate;

    #[test]
    fn the_table_has_a_line_for_each_event_in_the_order_of_their_numbers() {
        let figure = |name: &str, median| {
            let estimate = Estimate {
                median,
                ..Estimate::default()
            };
            (name.to_owned(), estimate)
        };
        let summary = Summary {
            contestant: "voile".to_owned(),
            figures: [
                figure("event-10-restart-proxy.failed", 2.5),
                figure("event-2-push-policy.effect_ms", 12.0),
                figure("event-2-push-policy.failed", 0.0),
            ]
            .into(),
            ..Summary::default()
        };
        let mut record = Record::default();
        assert_eq!(table(&record), "");
        record.summary.push(summary);
        let text = table(&record);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[4], ["2", "push-policy", "12.0", "ms", "0", "–", "–"]);
        assert_eq!(lines[5], ["10", "restart-proxy", "–", "2.5", "–", "–"]);
    }

    #[test]
    fn what_was_not_done_has_no_figures_and_what_took_no_effect_has_no_time() {
        let event = SliceEvent {
            action: "push-policy".to_owned(),
            recovery_seconds: Some(0.25),
            failed: 3,
            ..SliceEvent::default()
        };
        let expected = [
            ("event-2-push-policy.recovery_ms".to_owned(), 250.0),
            ("event-2-push-policy.failed".to_owned(), 3.0),
            ("event-2-push-policy.slow".to_owned(), 0.0),
        ];
        assert_eq!(event.figures(2), expected);
        let failed = SliceEvent {
            failure: Some("no".to_owned()),
            ..event
        };
        assert!(failed.figures(1).is_empty());
    }
}

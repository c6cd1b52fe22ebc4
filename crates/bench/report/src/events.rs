//! Time line of a slice in short intervals, and the effect of each lab event on it: the delay until the effect, failed and slow
//! requests, and the time until recovery.
//!
//! ```text
//!   before (its median) ──┬─ event ─── effect ───────── recovered ── … next event or end
//!                         └─ failed and slow are counted from here to there ─┘
//! ```

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::record::{Record, Summary};
use crate::table::{Row, aligned, heading};
use crate::words::{self, duration, interval};

/// One interval of a slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interval {
    /// When it began, in seconds of the measured part.
    pub at_seconds: f64,
    /// Length of the interval.
    pub seconds: f64,
    /// Requests that were due in it.
    pub requests: u64,
    /// Of these, failed requests.
    pub errors: u64,
    /// Percentiles of the latency of all of them, failures included; none where none was due.
    pub p50_us: Option<f64>,
    /// As `p50_us`.
    pub p90_us: Option<f64>,
    /// As `p50_us`.
    pub p99_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

/// One event of a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SliceEvent {
    /// `push-policy`, `move-endpoints`, `restart-proxy`, `upgrade-proxy`, `kill-control-plane`, `hook`, …
    pub action: String,
    /// When it was to happen, in seconds of the measured part.
    pub planned_seconds: f64,
    /// When it did.
    pub at_seconds: f64,
    /// Time until the event took effect; none if it did not before the next event or the end.
    pub effect_seconds: Option<f64>,
    /// Method of observing the effect, in words.
    pub observed: String,
    /// Requests that failed from the event to the next one or the end, whenever they were due.
    pub failed: u64,
    /// Of those due from the event to the next one or the end, those that took longer than `slow_factor` times the median before the first event.
    pub slow: u64,
    /// See `slow`.
    pub slow_factor: f64,
    /// The median before the first event.
    pub median_before_us: f64,
    /// Time until recovery; none if recovery did not come. Recovery begins with a third of a second in which nothing failed and
    /// the median was below `slow_factor` times the median before.
    pub recovery_seconds: Option<f64>,
    /// Reason why the event could not be made.
    pub failure: Option<String>,
}

impl SliceEvent {
    /// Figures of the event, by name: `event-1-push-policy.effect_ms`, …; the number distinguishes events of one action.
    pub(crate) fn figures(&self, number: usize) -> Vec<(String, f64)> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let named = |name: &str| format!("event-{number}-{}.{name}", self.action);
        let milliseconds =
            |name: &str, seconds: Option<f64>| seconds.map(|seconds| (named(name), seconds * 1e3));
        [
            milliseconds("effect_ms", self.effect_seconds),
            milliseconds("recovery_ms", self.recovery_seconds),
            Some((named("failed"), self.failed as f64)),
            Some((named("slow"), self.slow as f64)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

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

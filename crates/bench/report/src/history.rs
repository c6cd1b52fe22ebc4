//! History of one experiment over many records: each figure of each cell as a line, and its changes. Pettitt's test (1979) finds
//! a change; it uses ranks only and so bears outliers. The test runs again on each side of a change. Benjamini and Hochberg's
//! procedure at 5 % decides which changes of all series together are reported.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::plots::plot::Plot;
use crate::ranks::{change, discovered};
use crate::record::{CellKey, Estimate, Record};
use crate::side_by_side::{
    ComparedFigure, FIGURES, cells, comparable, depends_on_speed, measure, same_machine, values,
};
use crate::statistics::{estimate, median};
use crate::svg::{Colours, Frame, PlotMark, PlotPoint, Scale, Series};
use crate::words::{escape, load_title, path_title, unit};

/// Accepted share of false changes among the reported ones.
pub const LEVEL: f64 = 0.05;

/// One figure of one cell over the records.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureHistory {
    /// The cell.
    pub cell: CellKey,
    /// The figure.
    pub figure: ComparedFigure,
    /// Number of the record, from 1, and the value of the figure.
    pub points: Vec<(usize, Estimate)>,
    /// Records at which the figure changed.
    pub changes: Vec<Change>,
}

/// A step of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The first record after it.
    pub record: usize,
    /// Median after it divided by median before it, each as far as the next change.
    pub times: f64,
    /// The chance of as great a change in a shuffled series.
    pub chance: f64,
}

/// History of a figure over many records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Start time and description of each record, in order.
    pub records: Vec<String>,
    /// Records and figures that were left out, and the reasons.
    pub left_out: Vec<String>,
    /// The lines.
    pub lines: Vec<FigureHistory>,
    /// True if figures are multiples of each machine's speed. Records of several machines need it.
    pub multiples: bool,
}

/// Lays records out by the time they began. Those of another build profile or load than the newest are left out; so are those
/// of other machines, unless all know how fast theirs was.
#[must_use]
pub fn history(records: &[Record]) -> History {
    let mut sorted: Vec<&Record> = records.iter().collect();
    sorted.sort_by(|a, b| a.experiment.started_at.cmp(&b.experiment.started_at));
    let Some(newest) = sorted.last().copied() else {
        return History::default();
    };
    let mut history = History::default();
    let calibrated = sorted
        .iter()
        .all(|record| record.environment.calibration.is_some());
    let same = |record: &Record| same_machine(&record.environment, &newest.environment);
    history.multiples = calibrated && !sorted.iter().all(|record| same(record));
    let mut kept: Vec<&Record> = Vec::new();
    for record in sorted {
        let name = format!(
            "{} {}",
            record.experiment.started_at, record.experiment.name
        );
        let why = match comparable(record, newest) {
            Err(why) => Some(why),
            Ok(()) if !same(record) && !history.multiples => {
                Some("of another machine, and not all records have a calibration".to_owned())
            }
            Ok(()) => None,
        };
        match why {
            Some(why) => history.left_out.push(format!("{name}: {why}")),
            None => {
                history.records.push(name);
                kept.push(record);
            }
        }
    }
    history.lines = draw(&kept, history.multiples);
    find_changes(&mut history.lines);
    history
}

fn draw(records: &[&Record], multiples: bool) -> Vec<FigureHistory> {
    let mut all: BTreeMap<(CellKey, usize), Vec<(usize, Estimate)>> = BTreeMap::new();
    for (number, record) in records.iter().enumerate() {
        for (cell, rounds) in cells(record) {
            for (at, figure) in FIGURES.iter().enumerate() {
                let by = match multiples && depends_on_speed(figure.name) {
                    true => measure(&record.environment, figure.name),
                    false => Some(1.0),
                };
                let Some(by) = by else { continue };
                let values: Vec<f64> = values(&cell, &rounds, figure.name)
                    .into_iter()
                    .map(|value| value / by)
                    .collect();
                if let Some(found) = estimate(&values) {
                    all.entry((cell.clone(), at))
                        .or_default()
                        .push((number + 1, found));
                }
            }
        }
    }
    all.into_iter()
        .filter(|(_, points)| points.len() > 1)
        .map(|((cell, figure), points)| FigureHistory {
            cell,
            figure: FIGURES[figure],
            points,
            changes: Vec::new(),
        })
        .collect()
}

/// Finds the most likely change of each line, and keeps those that are significant together. Then finds the changes on both
/// sides.
fn find_changes(lines: &mut [FigureHistory]) {
    let medians = |line: &FigureHistory| -> Vec<f64> {
        line.points.iter().map(|point| point.1.median).collect()
    };
    let first: Vec<_> = lines
        .iter()
        .enumerate()
        .map(|(seed, line)| change(&medians(line), seed as u64))
        .collect();
    let chances: Vec<f64> = first
        .iter()
        .map(|found| found.map_or(1.0, |found| found.chance))
        .collect();
    for ((line, stands), seed) in lines.iter_mut().zip(discovered(&chances, LEVEL)).zip(0..) {
        if !stands {
            continue;
        }
        let values = medians(line);
        let mut steps = Vec::new();
        within(&values, 0, seed, &mut steps);
        steps.sort_by_key(|step| step.0);
        let mut edges: Vec<usize> = steps.iter().map(|step| step.0).collect();
        edges.insert(0, 0);
        edges.push(values.len());
        line.changes = steps
            .iter()
            .zip(edges.windows(3))
            .filter_map(|((at, chance), edges)| {
                let (before, after) = (
                    median(&values[edges[0]..*at])?,
                    median(&values[*at..edges[2]])?,
                );
                Some(Change {
                    record: line.points[*at].0,
                    times: after / before,
                    chance: *chance,
                })
            })
            .collect();
    }
}

fn within(values: &[f64], offset: usize, seed: u64, steps: &mut Vec<(usize, f64)>) {
    let Some(found) = change(values, seed).filter(|found| found.chance <= LEVEL) else {
        return;
    };
    steps.push((offset + found.at, found.chance));
    within(&values[..found.at], offset, seed, steps);
    within(&values[found.at..], offset + found.at, seed, steps);
}

impl History {
    fn words(&self, line: &FigureHistory) -> String {
        format!(
            "{} of {}, {}, {}",
            line.figure.title,
            line.cell.contestant,
            path_title(&line.cell.mode, line.cell.tls),
            load_title(&line.cell)
        )
    }

    /// The changes, newest first, for the terminal and the head of the page.
    #[must_use]
    pub fn in_words(&self) -> Vec<String> {
        let mut told = vec![format!(
            "{} records, {} lines. Changes are found by Pettitt's test on ranks, at a false discovery rate of {:.0} % over all lines (Benjamini and Hochberg).",
            self.records.len(),
            self.lines.len(),
            LEVEL * 100.0
        )];
        if self.multiples {
            told.push("The records are of several machines: figures are multiples of each machine's calibration; memory is absolute.".to_owned());
        }
        told.extend(self.left_out.iter().map(|why| format!("Left out: {why}.")));
        let mut changes: Vec<(&FigureHistory, &Change)> = self
            .lines
            .iter()
            .flat_map(|line| line.changes.iter().map(move |change| (line, change)))
            .collect();
        changes.sort_by_key(|(_, change)| std::cmp::Reverse(change.record));
        told.extend(changes.iter().map(|(line, change)| {
            let better = (change.times < 1.0) != line.figure.more_is_better;
            format!(
                "{}: {:.2} times from record {} ({}) on, {}; chance {:.4}.",
                self.words(line),
                change.times,
                change.record,
                self.records
                    .get(change.record - 1)
                    .map_or("", String::as_str),
                if better { "better" } else { "worse" },
                change.chance
            )
        }));
        if changes.is_empty() {
            told.push("No change found.".to_owned());
        }
        told
    }

    /// A line plot for each line, those that changed first.
    #[must_use]
    pub fn plots(&self) -> Vec<Plot> {
        let colours = Colours::of(self.lines.iter().map(|line| line.cell.contestant.as_str()));
        let mut lines: Vec<&FigureHistory> = self.lines.iter().collect();
        lines.sort_by_key(|line| {
            (
                line.changes.is_empty(),
                line.cell.contestant != "voile",
                line.cell.is_baseline(),
            )
        });
        lines
            .into_iter()
            .map(|line| self.plot(line, &colours))
            .collect()
    }

    fn plot(&self, line: &FigureHistory, colours: &Colours) -> Plot {
        let title = self.words(line);
        let series = Series {
            label: crate::plots::plot::brief(&line.cell),
            class: colours.class(&line.cell.contestant),
            dash: 0,
            points: line
                .points
                .iter()
                .map(|(record, found)| PlotPoint {
                    x: *record as f64,
                    y: *found,
                    invalid: false,
                })
                .collect(),
        };
        let marks: Vec<PlotMark> = line
            .changes
            .iter()
            .map(|change| PlotMark {
                at: change.record as f64 - 0.5,
                sign: format!("{:.2}×", change.times),
                words: format!("changed here: {:.2} times", change.times),
            })
            .collect();
        let multiple = self.multiples && depends_on_speed(line.figure.name);
        let frame = Frame {
            title: &title,
            across: "record",
            x: Scale::Linear,
            y: Scale::Linear,
            show: if multiple {
                crate::words::ratio
            } else {
                unit(line.figure.name).show
            },
            joined: true,
            each: true,
        };
        let svg = crate::svg::lines(&frame, &[series], &marks);
        Plot::new("history", title, svg)
    }

    /// A page of its own.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = crate::html::head("Voile lab: history");
        page.push_str("<ul class=\"lead\">\n");
        for sentence in self.in_words() {
            let _ = writeln!(page, "<li>{}</li>", escape(&sentence));
        }
        page.push_str("</ul>\n<h2>Records</h2>\n<ol>\n");
        for record in &self.records {
            let _ = writeln!(page, "<li>{}</li>", escape(record));
        }
        page.push_str("</ol>\n<h2>Lines</h2>\n<p class=\"soft\">Changed lines come first. Medians with 95 % intervals over each record's rounds; a dashed vertical line is a change, with its factor.</p>\n<div class=\"plots\">\n");
        for plot in self.plots() {
            let _ = writeln!(
                page,
                "<figure id=\"{}\"><h3>{}</h3>{}</figure>",
                plot.id,
                escape(&plot.title),
                plot.svg
            );
        }
        page.push_str("</div>\n</body></html>\n");
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SliceRun;

    /// `count` records of six rounds; from record `step` on everything takes `times` as long.
    fn records(random: &mut fastrand::Rng, count: usize, step: usize, times: f64) -> Vec<Record> {
        (1..=count)
            .map(|number| {
                let mut record = Record::default();
                record.experiment.started_at = format!("2026-01-{number:02}T00:00:00Z");
                let mut noise = |spread: f64| {
                    let gauss = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                    let spoiled = if random.f64() < 0.05 { 1.3 } else { 1.0 };
                    (gauss * spread).exp() * spoiled
                };
                for connections in [2, 16, 64] {
                    let own = noise(0.03);
                    for round in 1..=6 {
                        let mut run = SliceRun {
                            contestant: "voile".to_owned(),
                            mode: "both".to_owned(),
                            rate: 1000.0,
                            connections,
                            round,
                            valid: true,
                            ..SliceRun::default()
                        };
                        let longer = if number >= step { times } else { 1.0 };
                        run.latency_us.p50 = Some(100.0 * own * noise(0.02) * longer);
                        run.latency_us.p99 = Some(500.0 * own * noise(0.2) * longer);
                        record.runs.push(run);
                    }
                }
                record
            })
            .collect()
    }

    #[test]
    fn histories_in_which_nothing_changed_tell_a_change_at_most_five_times_in_a_hundred() {
        for count in [6, 10, 16] {
            let mut random = fastrand::Rng::with_seed(7);
            let alarms = (0..60)
                .filter(|_| {
                    let history = history(&records(&mut random, count, 99, 1.0));
                    history.lines.iter().any(|line| !line.changes.is_empty())
                })
                .count();
            // Three are expected at most; six or more of sixty happen in 8 of 100 such tests, seven in 3.
            assert!(alarms <= 6, "{count} records: {alarms} of 60");
        }
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let mut random = fastrand::Rng::with_seed(8);
        let history = history(&records(&mut random, 14, 8, 1.4));
        let p50: Vec<&FigureHistory> = history
            .lines
            .iter()
            .filter(|line| line.figure.name == "latency_us.p50")
            .collect();
        let found = p50.iter().filter(|line| {
            line.changes
                .iter()
                .any(|c| (7..=9).contains(&c.record) && c.times > 1.1)
        });
        assert!(found.count() >= 2, "{:#?}", history.in_words());
        let words = history.in_words().join("\n");
        assert!(
            words.contains("worse") && words.contains("Pettitt"),
            "{words}"
        );
        let page = history.page();
        assert!(page.contains("<svg") && !page.contains("NaN"));
    }

    #[test]
    fn what_cannot_stand_in_one_line_is_left_out_and_named() {
        let mut random = fastrand::Rng::with_seed(9);
        let mut records = records(&mut random, 4, 99, 1.0);
        records[0].environment.profile = "debug".to_owned();
        records[1].environment.cpu = "another".to_owned();
        let history = history(&records);
        assert_eq!((history.records.len(), history.left_out.len()), (2, 2));
        assert!(
            history.left_out[0].contains("profiles")
                && history.left_out[1].contains("another machine")
        );
        assert_eq!(super::history(&[]), History::default());
    }
}

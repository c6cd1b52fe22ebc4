//! Plot of the experiment on its time axis: each slice at its time, invalid ones as crosses, and the events on the mesh. Only
//! this plot shows a machine or a contestant that slows down.

use crate::plots::plot::{Plot, Section, who};
use crate::record::{CellKey, Estimate, Record, SliceRun, ValueKind};
use crate::svg::{Colours, Frame, PlotMark, PlotPoint, Scale, Series, lines};
use crate::words::{self, duration};

/// Largest number of drawn cells: more lines cannot be distinguished. The heaviest path comes first.
const CELLS: usize = 6;

pub(super) fn section(record: &Record, colours: &Colours) -> Option<Section> {
    let plots: Vec<Plot> = [("p50", false), ("p99", true)]
        .into_iter()
        .filter_map(|(word, p99)| plot(record, colours, word, p99))
        .collect();
    Some(Section {
        title: "Over time",
        words: "Each slice where it ran in the experiment; crosses are slices that do not count. A machine that changed shows here.",
        plots,
        folded: false,
    })
}

fn plot(record: &Record, colours: &Colours, word: &str, p99: bool) -> Option<Plot> {
    // One load only: that of the A/A control, or of the heaviest path.
    let load = load(record)?;
    let runs: Vec<(CellKey, &SliceRun)> = record
        .runs
        .iter()
        .filter(|run| run.kind == ValueKind::Latency && !run.control)
        .map(|run| (run.key(), run))
        .filter(|(key, _)| key.same_load(&load))
        .collect();
    let mut series: Vec<Series> = Vec::new();
    for cell in cells(&runs) {
        let class = colours.class(&cell.contestant);
        let of_cell = runs.iter().filter(|(key, _)| *key == cell);
        let points: Vec<PlotPoint> = of_cell.filter_map(|(_, run)| point(run, p99)).collect();
        if points.is_empty() {
            continue;
        }
        series.push(Series {
            label: who(&cell),
            class,
            dash: series.iter().filter(|s| s.class == class).count(),
            points,
        });
    }
    // Older records have no start times of slices: all are zero.
    let ran = |series: &Series| series.points.iter().any(|point| point.x > 0.0);
    if !series.iter().any(ran) {
        return None;
    }
    let title = format!("{word} of each slice: {}", words::load_title(&load));
    let frame = Frame {
        title: &title,
        across: "seconds since the experiment began",
        x: Scale::Linear,
        y: Scale::Log,
        show: duration,
        joined: false,
        each: false,
    };
    let svg = lines(&frame, &series, &repeats(record));
    Some(Plot::new("time", title, svg))
}

/// Those that are drawn, the heaviest path first.
fn cells(runs: &[(CellKey, &SliceRun)]) -> Vec<CellKey> {
    let mut cells: Vec<CellKey> = Vec::new();
    for (key, _) in runs {
        if !cells.contains(key) {
            cells.push(key.clone());
        }
    }
    let order = |mode: &str| {
        let known = ["both", "baseline", "serveronly"];
        known
            .iter()
            .position(|known| *known == mode)
            .unwrap_or(known.len())
    };
    cells.sort_by_key(|cell| (order(&cell.mode), !cell.tls, cell.contestant != "voile"));
    cells.truncate(CELLS);
    cells
}

fn point(run: &SliceRun, p99: bool) -> Option<PlotPoint> {
    let latency = &run.latency_us;
    let median = if p99 { latency.p99 } else { latency.p50 }?;
    Some(PlotPoint {
        x: run.started_seconds,
        y: Estimate {
            median,
            ..Estimate::default()
        },
        invalid: !run.valid,
    })
}

/// Marks at the times when all processes were started anew.
fn repeats(record: &Record) -> Vec<PlotMark> {
    let mut marks: Vec<PlotMark> = Vec::new();
    let mut last = 1;
    for run in record.runs.iter().filter(|run| run.repeat > 1) {
        if run.repeat != last {
            last = run.repeat;
            marks.push(PlotMark {
                at: run.started_seconds,
                sign: String::new(),
                words: format!("run {last}: processes started anew"),
            });
        }
    }
    marks
}

fn load(record: &Record) -> Option<CellKey> {
    let control = record.control.as_ref().map(|control| control.cell.clone());
    let of_runs = || {
        let latency = record
            .runs
            .iter()
            .filter(|run| run.kind == ValueKind::Latency);
        latency
            .map(SliceRun::key)
            .max_by_key(|key| (key.mode == "both", key.tls, key.connections))
    };
    control
        .filter(|cell| cell.kind == ValueKind::Latency)
        .or_else(of_runs)
}

//! Plots of changes under load: a slice's time line with the events on the mesh, and their effect on users.

use crate::plots::plot::{Plot, Section, who};
use crate::record::events::{Interval, SliceEvent};
use crate::record::{CellKey, Estimate, Record, SliceRun};
use crate::svg::{Colours, Frame, PlotMark, PlotPoint, Scale, Series, lines};
use crate::words::{duration, load_title};

pub(super) fn section(record: &Record, colours: &Colours) -> Option<Section> {
    let mut cells: Vec<CellKey> = Vec::new();
    let mut plots = Vec::new();
    let lined = record
        .runs
        .iter()
        .filter(|run| !run.series.is_empty() && !run.control);
    // One slice of each cell: the first that counts, or the first at all.
    let (valid, rest): (Vec<&SliceRun>, Vec<&SliceRun>) = lined.partition(|run| run.valid);
    for run in valid.into_iter().chain(rest) {
        let cell = run.key();
        if !cells.contains(&cell) {
            plots.push(plot(run, &cell, colours));
            cells.push(cell);
        }
    }
    (!plots.is_empty()).then_some(Section {
        title: "Change under load",
        words: "One slice of each path: latencies of the requests that were due in each short interval, failures included, and the events. The figures of all slices are in the record.",
        plots,
        folded: false,
    })
}

fn plot(run: &SliceRun, cell: &CellKey, colours: &Colours) -> Plot {
    let class = colours.class(&cell.contestant);
    let series = |label: &str, dash, value: fn(&Interval) -> Option<f64>| Series {
        label: label.to_owned(),
        class,
        dash,
        points: run
            .series
            .iter()
            .filter_map(|interval| {
                Some(PlotPoint {
                    x: interval.at_seconds + interval.seconds / 2.0,
                    y: Estimate {
                        median: value(interval)?,
                        ..Estimate::default()
                    },
                    invalid: interval.errors > 0,
                })
            })
            .collect(),
    };
    let all = [
        series("p50", 0, |interval| interval.p50_us),
        series("longest", 1, |interval| interval.max_us),
    ];
    let marks: Vec<PlotMark> = run
        .events
        .iter()
        .enumerate()
        .map(|(number, event)| PlotMark {
            at: event.at_seconds,
            sign: (number + 1).to_string(),
            words: event.action.clone(),
        })
        .collect();
    let title = format!("{}: {}", who(cell), load_title(cell));
    let frame = Frame {
        title: &title,
        across: "seconds; crosses are intervals in which a request failed",
        x: Scale::Linear,
        y: Scale::Log,
        show: duration,
        joined: true,
        each: false,
    };
    let mut plot = Plot::new("change", title.clone(), lines(&frame, &all, &marks));
    let told = run.events.iter().enumerate();
    let told: Vec<String> = told
        .map(|(number, event)| told_of(number + 1, event))
        .collect();
    plot.caption = told.join(" ");
    plot
}

fn told_of(number: usize, event: &SliceEvent) -> String {
    if let Some(why) = &event.failure {
        return format!("{number}: {} could not be done: {why}.", event.action);
    }
    let after = |seconds: Option<f64>, none: &str| {
        seconds.map_or_else(
            || none.to_owned(),
            |seconds| format!("after {}", duration(seconds * 1e6)),
        )
    };
    format!(
        "{number}: {}; effect {}; {} failed, {} slow (over {} times the median before); recovered {}.",
        event.action,
        after(event.effect_seconds, "not seen"),
        event.failed,
        event.slow,
        event.slow_factor,
        after(event.recovery_seconds, "not again")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_drawn_and_told() {
        let interval = |at: u32| Interval {
            at_seconds: f64::from(at) / 10.0,
            seconds: 0.1,
            requests: 100,
            errors: u64::from(at == 5),
            p50_us: Some(120.0),
            max_us: Some(if at == 5 { 90_000.0 } else { 400.0 }),
            ..Interval::default()
        };
        let done = SliceEvent {
            action: "restart-proxy".to_owned(),
            at_seconds: 0.5,
            effect_seconds: Some(0.012),
            failed: 3,
            slow: 9,
            slow_factor: 10.0,
            ..SliceEvent::default()
        };
        let mut record = Record::default();
        record.runs.push(SliceRun {
            contestant: "voile".to_owned(),
            mode: "both".to_owned(),
            valid: true,
            series: (0..10).map(interval).collect(),
            events: vec![done],
            ..SliceRun::default()
        });
        let colours = Colours::of(std::iter::empty());
        let section = section(&record, &colours).expect("it has a time line");
        let plot = &section.plots[0];
        assert!(plot.svg.contains("restart-proxy") && plot.svg.contains("class=\"x\""));
        assert!(
            plot.caption
                .contains("effect after 12.0 ms; 3 failed, 9 slow")
                && plot.caption.contains("not again"),
            "{}",
            plot.caption
        );
        record.runs[0].series.clear();
        assert!(super::section(&record, &colours).is_none());
    }
}

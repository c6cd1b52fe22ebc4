//! The plots of a record, each chosen so that it answers one question: the same for the page and for files of their own.

mod bars;
mod distributions;
mod events;
pub(crate) mod paths;
pub(crate) mod plot;
mod sweeps;
mod time;

use crate::headline::headline;
pub use crate::plots::plot::Plot;
pub use crate::plots::plot::Section;
use crate::plots::plot::name_once;
use crate::record::{Control, Record};
use crate::svg::{Colours, PlotBar, dots};
use crate::words;

/// More plots than this of single cells are folded where lines tell the same.
const MANY: usize = 4;

/// All plots of a record, by the question they answer; no section is empty.
#[must_use]
pub fn sections(record: &Record) -> Vec<Section> {
    let colours = Colours::of(record.summary.iter().map(|s| s.contestant.as_str()));
    let mut sections = sweeps::sections(record, &colours);
    let swept = !sections.is_empty();
    let mut single = bars::sections(record, &colours);
    single.extend(distributions::sections(record, &colours));
    // The first plot, or curves, tell what these say in more detail.
    let told = headline(record).is_some_and(|first| paths::paths(record, &first).is_some());
    for section in &mut single {
        section.folded = told || (swept && section.plots.len() > MANY);
    }
    sections.extend(single);
    sections.extend(events::section(record, &colours));
    let mut proofs: Vec<Section> = time::section(record, &colours).into_iter().collect();
    proofs.extend(record.control.as_ref().map(|one| control(one, &colours)));
    for section in &mut proofs {
        section.folded = told;
    }
    sections.extend(proofs);
    sections.retain(|section| !section.plots.is_empty());
    name_once(&mut sections);
    sections
}

fn control(control: &Control, colours: &Colours) -> Section {
    let class = colours.class(&control.cell.contestant);
    let title = format!(
        "{}, {}",
        control.cell.contestant,
        words::title(&control.cell)
    );
    let rows: Vec<_> = control
        .ratios
        .iter()
        .map(|(name, ratio)| PlotBar {
            label: short(name),
            class,
            value: *ratio,
        })
        .collect();
    let caption = if control.alarms.is_empty() {
        "No interval misses 1: the two halves do not differ by more than their interval.".to_owned()
    } else {
        format!(
            "Alarm: {} differ by more than their interval. Trust differences of that size less.",
            control.alarms.join(", ")
        )
    };
    let svg = dots(&title, &rows);
    Section {
        title: "A/A control",
        words: "One cell measured twice in every round under two labels. Second divided by first; 1 where only noise differs.",
        plots: vec![Plot {
            caption,
            ..Plot::new("aa", title, svg)
        }],
        folded: false,
    }
}

fn short(name: &str) -> String {
    match name {
        "machine_cpu_us_per_request" => "machine CPU",
        "sidecar.cpu_us_per_request" => "CPU per proxy",
        "sidecar.rss_bytes" => "RSS per proxy",
        other => other.rsplit('.').next().unwrap_or(other),
    }
    .to_owned()
}

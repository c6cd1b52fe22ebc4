//! Bars of a record's figures: values beside their bounds, one measure of several actions, and the measures of one action.

use super::page::shower;
use super::{ControlPlaneRecord, Figure};
use crate::page::with_plots;
use crate::plots::plot::{Plot, Section};
use crate::record::Estimate;
use crate::svg::{PlotBar, bars};

/// Values that are so many times apart are not drawn by one scale: the small one would be no bar.
const APART: f64 = 50.0;
/// More plots than this are folded: the table has the same figures.
const MANY: usize = 6;

impl ControlPlaneRecord {
    /// Bars first, then curves where there are several sizes.
    pub(super) fn plots(&self) -> Vec<Section> {
        let several = self.several();
        let each = self.each();
        with_plots(vec![
            Section {
                title: "Targets and measured values",
                words: "Each figure as a share of its target: a bar shorter than the first one reaches the target. For minimum targets the share is inverted.",
                plots: self.as_asked().into_iter().collect(),
                folded: false,
            },
            Section {
                title: "Comparison",
                words: "One figure of everything that has it. One run each.",
                folded: several.len() > MANY,
                plots: several,
            },
            Section {
                title: "Figures of each",
                words: "All figures of one subject that share a scale.",
                folded: each.len() > MANY,
                plots: each,
            },
            Section {
                title: "Cost curves",
                words: "Each curve varies one dimension of the mesh; everything else is as in the record's own mesh. One run each: lines only join measured points.",
                plots: self.curves(),
                folded: false,
            },
        ])
    }

    /// Plots the share of each bound that is used. A figure whose bound is 0 has no share.
    fn as_asked(&self) -> Option<Plot> {
        let share = |figure: &Figure| {
            let asked = figure.asked.filter(|asked| *asked > 0.0)?;
            let share = match figure.at_least {
                true if figure.seen > 0.0 => asked / figure.seen,
                true => return None,
                false => figure.seen / asked,
            };
            let class = match figure.holds() {
                Some(false) => "c-other",
                _ => "c-voile",
            };
            let label = format!("{}, {}", figure.measure, figure.what);
            Some(bar(label, class, share))
        };
        let shares: Vec<PlotBar> = self.figures.iter().filter_map(share).collect();
        if shares.is_empty() {
            return None;
        }
        let asked = bar("the target".to_owned(), "c-other", 1.0);
        let rows: Vec<PlotBar> = std::iter::once(asked).chain(shares).collect();
        let title = "Measured value, as a share of the target".to_owned();
        let svg = bars(&title, &rows, |share| format!("{share:.2}"));
        Some(Plot::new("asked", title, svg))
    }

    /// A plot for each measure that several things have.
    fn several(&self) -> Vec<Plot> {
        let mut plots = Vec::new();
        for (measure, unit) in once(self.drawable().map(|f| (&*f.measure, &*f.unit))) {
            let own = self.drawable();
            let own = own.filter(|f| (&*f.measure, &*f.unit) == (measure, unit));
            let rows = own.map(|figure| (&*figure.what, figure.seen)).collect();
            plots.extend(drawn("several", measure, unit, rows));
        }
        plots
    }

    /// A plot for each thing that has several measures of a unit.
    fn each(&self) -> Vec<Plot> {
        let mut plots = Vec::new();
        for (what, unit) in once(self.drawable().map(|f| (&*f.what, &*f.unit))) {
            let own = self.drawable();
            let own = own.filter(|f| (&*f.what, &*f.unit) == (what, unit));
            let rows = own.map(|figure| (&*figure.measure, figure.seen)).collect();
            plots.extend(drawn("each", what, unit, rows));
        }
        plots
    }

    /// Figures that have a unit: counts of different things share no scale.
    fn drawable(&self) -> impl Iterator<Item = &Figure> {
        let all = self.figures.iter();
        all.filter(|figure| !["", "%"].contains(&&*figure.unit))
    }
}

/// Each once, in the order of their first.
fn once<'a>(all: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

fn bar(label: String, class: &'static str, value: f64) -> PlotBar {
    let value = Estimate {
        median: value,
        low: None,
        high: None,
        rounds: 1,
    };
    PlotBar {
        label,
        class,
        value,
    }
}

/// Plots of at least two bars each, parted where values are far apart.
fn drawn(kind: &str, title: &str, unit: &str, mut rows: Vec<(&str, f64)>) -> Vec<Plot> {
    let mut plots = Vec::new();
    while rows.len() > 1 {
        let most = rows.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let (near, rest): (Vec<_>, Vec<_>) = rows
            .into_iter()
            .partition(|(_, value)| *value * APART >= most);
        rows = if near.is_empty() { Vec::new() } else { rest };
        if near.len() < 2 {
            continue;
        }
        let all = near.into_iter();
        let all: Vec<PlotBar> = all
            .map(|(label, value)| bar(label.to_owned(), "c-voile", value))
            .collect();
        let svg = bars(title, &all, shower(unit));
        plots.push(Plot::new(kind, title.to_owned(), svg));
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_that_goes_by_a_scale_is_a_bar_beside_its_like() {
        let mut record = ControlPlaneRecord::default();
        for (what, measure, seen, asked) in [
            ("an edit", "p50", (20.0, "ms"), Some(50.0)),
            ("an edit", "p99", (60.0, "ms"), Some(50.0)),
            ("a policy", "p99", (90.0, "ms"), None),
            ("a policy", "told", (2_000.0, ""), None),
            ("a policy", "not told", (1_000.0, ""), None),
            ("memory", "of all", (4_000.0, "MB"), None),
            ("memory", "of the kernel", (400.0, "MB"), None),
            ("memory", "of each", (2.0, "MB"), None),
            ("memory", "of the largest", (8.0, "MB"), None),
            ("the end", "failed", (0.0, ""), Some(0.0)),
        ] {
            record.add(what, measure, seen, asked);
        }
        let signed = record.add("certificates", "signed", (4_000.0, ""), Some(2_000.0));
        signed.at_least();
        let sections = record.plots();
        let titles: Vec<(&str, Vec<&str>)> = sections
            .iter()
            .map(|s| (s.title, s.plots.iter().map(|p| &*p.title).collect()))
            .collect();
        let asked = "Measured value, as a share of the target";
        assert_eq!(
            titles,
            [
                ("Targets and measured values", vec![asked]),
                ("Comparison", vec!["p99"]),
                ("Figures of each", vec!["an edit", "memory", "memory"]),
            ]
        );
        let shares = &sections[0].plots[0].svg;
        for share in [">1.00<", ">0.40<", ">1.20<", ">0.50<"] {
            assert!(shares.contains(share), "{share}: {shares}");
        }
        assert_eq!(shares.matches("<rect").count(), 4, "{shares}");
        let parted: Vec<usize> = sections[2].plots[1..]
            .iter()
            .map(|plot| plot.svg.matches("<rect").count())
            .collect();
        assert_eq!(parted, [2, 2], "what is far apart is drawn apart");
        let page = record.page();
        assert!(page.contains("<svg") && page.contains("Targets and measured values"));
    }

    #[test]
    fn a_page_names_the_file_that_it_is_drawn_from() {
        for (sidecars, nodes, file) in [
            (0, 0, "control-plane.json"),
            (2_000, 0, "sidecars.json"),
            (0, 100, "nodes.json"),
        ] {
            let record = ControlPlaneRecord {
                sidecars,
                nodes,
                ..ControlPlaneRecord::default()
            };
            let page = record.page();
            assert!(page.contains(&format!("<code>{file}</code>")), "{file}");
            let others = page.contains("istiod, as published");
            assert_eq!(others, file == "control-plane.json", "{file}");
        }
    }
}

//! Plots of a graph's record: end to end, then each service, then each call, with the mesh beside without.

use super::super::data::SceneFigures;
use super::super::view::{Sides, bar, bar_plot, by_round, section};
use super::{GraphPart, PairedFigure};
use crate::plots::plot::{Plot, Section};
use crate::record::scene::{BARE, MESH, ServiceGraph};
use crate::record::{Estimate, Record};
use crate::svg::PlotBar;
use crate::words::{bytes, duration, micro};

/// Largest number of services or calls in a plot. Longer plots are unreadable: the dearest are drawn, the table has all.
const MOST: usize = 20;
const WITHOUT: &str = "c-baseline";
const WITH: &str = "c-voile";
const SIDECAR: &str = "c-other";
const SIDES: Sides = [(BARE, "without", WITHOUT), (MESH, "with the mesh", WITH)];

/// The plots, by the question they answer.
pub(super) fn sections(
    record: &Record,
    graph: &ServiceGraph,
    figures: &SceneFigures,
    (services, calls): (&[GraphPart<'_>], &[GraphPart<'_>]),
) -> Vec<Section> {
    let of_services = [
        (
            "mean time of an answer, by service",
            "took.mean_us",
            duration as fn(f64) -> String,
        ),
        ("CPU of a service for a request, µs", "cpu_us", micro),
        (
            "CPU of its sidecar for a request, µs",
            "sidecar_cpu_us",
            micro,
        ),
        ("memory (RSS) of its sidecar", "sidecar_rss_bytes", bytes),
    ];
    let of_services = of_services
        .iter()
        .filter_map(|(title, figure, show)| dearest("service", title, services, figure, *show));
    let of_calls = [
        ("mean time of a call", "took.mean_us"),
        ("p99 of a call", "took.p99_us"),
    ];
    let of_calls = of_calls
        .iter()
        .filter_map(|(title, figure)| dearest("call", title, calls, figure, duration));
    let rounds = ["p50", "p99"].map(|word| {
        let title = format!("{word} end to end, by round");
        by_round(record, title, ("", &format!("{word}_us")), &SIDES)
    });
    vec![
        section(
            "End to end",
            "From when a request was due to the end of its answer, at the entry point; medians over rounds with 95 % intervals.",
            end_to_end(graph, figures),
        ),
        section(
            "Services",
            "Mean time to answer of each service, its own calls included; the mean is exact. CPU for each request that it served.",
            of_services.collect(),
        ),
        section(
            "Calls",
            "Mean time of a call, measured at the caller. With the mesh it passes two sidecars.",
            of_calls.collect(),
        ),
        section(
            "Rounds",
            "Every slice in the order of rounds; crosses do not count.",
            rounds.into(),
        ),
    ]
}

fn end_to_end(graph: &ServiceGraph, figures: &SceneFigures) -> Vec<Plot> {
    let bars = |names: &[(&str, &str)]| -> Vec<Option<PlotBar>> {
        let both = |(word, figure): &(&str, &str)| {
            let PairedFigure { without, with, .. } = PairedFigure::of(figures, figure);
            let seen = |side: Option<Estimate>| side.filter(|side| side.median > 0.0);
            [
                bar(&format!("{word} without"), WITHOUT, seen(without)),
                bar(&format!("{word} with mesh"), WITH, seen(with)),
            ]
        };
        names.iter().flat_map(both).collect()
    };
    let latency = bars(&[("p50", "p50_us"), ("p90", "p90_us"), ("p99", "p99_us")]);
    let cpu = bars(&[
        ("services", "cpu_us.service"),
        ("sidecars", "cpu_us.sidecar"),
        ("runner", "cpu_us.runner"),
        ("machine", "machine_us"),
    ]);
    let title = format!("latency at the entry point, {}/s", graph.rate);
    let latency = bar_plot("end-to-end", title, latency, duration);
    let title = "CPU for one request at the entry point".to_owned();
    let cpu = bar_plot("cpu", title, cpu, duration);
    [latency, cpu].into_iter().flatten().collect()
}

/// One figure of the dearest parts, both sides under each other.
fn dearest(
    kind: &str,
    title: &str,
    parts: &[GraphPart<'_>],
    figure: &str,
    show: fn(f64) -> String,
) -> Option<Plot> {
    let weight = |found: &PairedFigure| {
        let middle = |side: Option<Estimate>| side.map_or(0.0, |side| side.median);
        middle(found.without).max(middle(found.with))
    };
    let found = parts.iter().map(|part| (part.name, part.figure(figure)));
    let mut chosen: Vec<(&str, PairedFigure)> =
        found.filter(|(_, found)| weight(found) > 0.0).collect();
    let all = chosen.len();
    if all > MOST {
        chosen.sort_by(|one, other| weight(&other.1).total_cmp(&weight(&one.1)));
        chosen.truncate(MOST);
    }
    let of_sidecar = figure.starts_with("sidecar");
    let bars = chosen.iter().flat_map(|(name, found)| {
        let second = if found.without.is_some() { "" } else { name };
        let class = if of_sidecar { SIDECAR } else { WITH };
        [
            bar(name, WITHOUT, found.without),
            bar(second, class, found.with),
        ]
    });
    let plot = bar_plot(kind, title.to_owned(), bars, show)?;
    let mut caption = match of_sidecar {
        true => String::new(),
        false => "Above without a mesh (green), below with it (blue).".to_owned(),
    };
    if all > MOST {
        caption = format!("The {MOST} highest of {all}; the table has all. {caption}");
    }
    Some(Plot {
        caption: caption.trim_end().to_owned(),
        ..plot
    })
}

//! Plots of a graph's record: end to end, then each service, then each call, with the mesh beside without.

use super::parts::{GraphFigures, PairedFigure};
use super::{GraphRecord, GraphSlice};
use crate::page::with_plots;
use crate::plots::plot::{Plot, Section};
use crate::record::Estimate;
use crate::statistics::estimate;
use crate::svg::{Frame, PlotBar, PlotPoint, Scale, Series, bars, lines};
use crate::words::{bytes, duration, micro};

/// Largest number of services or calls in a plot. Longer plots are unreadable: the dearest are drawn, the table has all.
const MOST: usize = 20;
const WITHOUT: &str = "c-baseline";
const WITH: &str = "c-voile";
const SIDECAR: &str = "c-other";

type Read = fn(&GraphSlice) -> f64;

impl GraphRecord {
    /// Its plots, by the question they answer.
    pub(super) fn plots(&self) -> Vec<Section> {
        let services = self.service_parts();
        with_plots(vec![
            section(
                "End to end",
                "From when a request was due to the end of its answer, at the entry point; medians over rounds with 95 % intervals.",
                self.end_to_end(),
            ),
            section(
                "Services",
                "Mean time to answer of each service, its own calls included; the mean is exact. CPU for each request that it served.",
                of_services(&services),
            ),
            section(
                "Calls",
                "Mean time of a call, measured at the caller. With the mesh it passes two sidecars.",
                of_calls(&self.edge_parts()),
            ),
            section(
                "Rounds",
                "Every slice in the order of rounds; crosses do not count.",
                self.over_rounds(),
            ),
        ])
    }

    fn end_to_end(&self) -> Vec<Plot> {
        let figures: [(&str, Read); 3] = [
            ("p50", |slice| slice.p50_us),
            ("p90", |slice| slice.p90_us),
            ("p99", |slice| slice.p99_us),
        ];
        let latency = figures.iter().flat_map(|(word, read)| {
            let pairs = self.pairs(&|slice| Some(read(slice)));
            sides(word, &pairs)
        });
        let cpu: [(&str, &str); 3] = [
            ("services", "service"),
            ("sidecars", "sidecar"),
            ("runner", "runner"),
        ];
        let cpu = cpu.iter().flat_map(|(word, who)| {
            let of = |slice: &GraphSlice| Some(slice.cpu_us.get(*who).copied().unwrap_or(0.0));
            sides(word, &self.pairs(&of))
        });
        let machine = sides("machine", &self.pairs(&|slice| Some(slice.machine_us)));
        let cpu: Vec<PlotBar> = cpu
            .chain(machine)
            .filter(|bar| bar.value.median > 0.0)
            .collect();
        let latency: Vec<PlotBar> = latency.collect();
        let mut plots = Vec::new();
        if !latency.is_empty() {
            let title = format!("latency at the entry point, {}/s", self.rate);
            let svg = bars(&title, &latency, duration);
            plots.push(Plot::new("end-to-end", title, svg));
            let title = "CPU for one request at the entry point".to_owned();
            let svg = bars(&title, &cpu, duration);
            plots.push(Plot::new("cpu", title, svg));
        }
        plots
    }

    fn over_rounds(&self) -> Vec<Plot> {
        let figures: [(&str, Read); 2] =
            [("p50", |slice| slice.p50_us), ("p99", |slice| slice.p99_us)];
        let drawn = figures.iter().map(|(word, read)| {
            let side = |mesh: bool| Series {
                label: if mesh { "with the mesh" } else { "without" }.to_owned(),
                class: if mesh { WITH } else { WITHOUT },
                dash: 0,
                points: self
                    .slices
                    .iter()
                    .filter(|slice| slice.mesh == mesh && read(slice) > 0.0)
                    .map(|slice| PlotPoint {
                        x: f64::from(slice.round),
                        y: Estimate {
                            median: read(slice),
                            ..Estimate::default()
                        },
                        invalid: !slice.invalid_reasons.is_empty(),
                    })
                    .collect(),
            };
            let title = format!("{word} end to end, by round");
            let frame = Frame {
                title: &title,
                across: "round",
                x: Scale::Linear,
                y: Scale::Linear,
                show: duration,
                joined: false,
                each: true,
            };
            let svg = lines(&frame, &[side(false), side(true)], &[]);
            Plot::new("rounds", title.clone(), svg)
        });
        drawn.collect()
    }
}

fn section(title: &'static str, words: &'static str, plots: Vec<Plot>) -> Section {
    Section {
        title,
        words,
        plots,
        folded: false,
    }
}

/// A bar for each side, over rounds.
fn sides(word: &str, pairs: &[(f64, f64)]) -> Vec<PlotBar> {
    let side = |label: &str, class, pick: fn(&(f64, f64)) -> f64| {
        let value = estimate(&pairs.iter().map(pick).collect::<Vec<_>>())?;
        Some(PlotBar {
            label: format!("{word} {label}"),
            class,
            value,
        })
    };
    let both = [
        side("without", WITHOUT, |pair| pair.1),
        side("with mesh", WITH, |pair| pair.0),
    ];
    both.into_iter().flatten().collect()
}

/// One figure of the dearest parts, both sides under each other.
fn drawn(
    kind: &str,
    title: &str,
    parts: &[GraphFigures],
    figure: &str,
    show: fn(f64) -> String,
) -> Option<Plot> {
    let weight = |part: &&GraphFigures| {
        let PairedFigure { without, with, .. } = part.figure(figure);
        let middle = |side: Option<Estimate>| side.map_or(0.0, |side| side.median);
        middle(without).max(middle(with))
    };
    let mut chosen: Vec<&GraphFigures> = parts.iter().filter(|part| weight(part) > 0.0).collect();
    let all = chosen.len();
    if all > MOST {
        chosen.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
        chosen.truncate(MOST);
    }
    let rows = chosen.iter().flat_map(|part| {
        let both = part.figure(figure);
        let bar = |value: Option<Estimate>, class, label: String| {
            Some(PlotBar {
                label,
                class,
                value: value?,
            })
        };
        let second = if both.without.is_some() {
            String::new()
        } else {
            part.name.clone()
        };
        [
            bar(both.without, WITHOUT, part.name.clone()),
            bar(
                both.with,
                if figure.starts_with("sidecar") {
                    SIDECAR
                } else {
                    WITH
                },
                second,
            ),
        ]
    });
    let rows: Vec<PlotBar> = rows.flatten().collect();
    if rows.is_empty() {
        return None;
    }
    let mut plot = Plot::new(kind, title.to_owned(), bars(title, &rows, show));
    let mut caption = match figure.starts_with("sidecar") {
        true => String::new(),
        false => "Above without a mesh (green), below with it (blue).".to_owned(),
    };
    if all > MOST {
        caption = format!("The {MOST} highest of {all}; the table has all. {caption}");
    }
    plot.caption = caption.trim_end().to_owned();
    Some(plot)
}

fn of_services(parts: &[GraphFigures]) -> Vec<Plot> {
    let plots = [
        drawn(
            "service",
            "mean time of an answer, by service",
            parts,
            "mean_us",
            duration,
        ),
        drawn(
            "service",
            "CPU of a service for a request, µs",
            parts,
            "cpu_us",
            micro,
        ),
        drawn(
            "service",
            "CPU of its sidecar for a request, µs",
            parts,
            "sidecar_cpu_us",
            micro,
        ),
        drawn(
            "service",
            "memory (RSS) of its sidecar",
            parts,
            "sidecar_rss_bytes",
            bytes,
        ),
    ];
    plots.into_iter().flatten().collect()
}

fn of_calls(parts: &[GraphFigures]) -> Vec<Plot> {
    let plots = [
        drawn("call", "mean time of a call", parts, "mean_us", duration),
        drawn("call", "p99 of a call", parts, "p99_us", duration),
    ];
    plots.into_iter().flatten().collect()
}

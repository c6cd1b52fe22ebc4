//! Plots of figures against connections and against rate, as in the articles whose claims are tested. A plot has one line for
//! each contestant on each path that the record measures at two loads or more.

use std::collections::{BTreeMap, BTreeSet};

use crate::plots::plot::{Plot, Section, who};
use crate::record::{CellKey, Record, Summary, ValueKind};
use crate::svg::{Colours, Frame, PlotPoint, Scale, Series, lines};
use crate::words::{bytes, cores, duration, protocol};

/// A plotted figure of latency, CPU or memory: a word for the title, the figure, the formatter.
type Drawn = (&'static str, &'static str, fn(f64) -> String);
const LATENCY: [Drawn; 4] = [
    ("p50", "latency_us.p50", duration),
    ("p90", "latency_us.p90", duration),
    ("p99", "latency_us.p99", duration),
    ("p99.9", "latency_us.p999", duration),
];
const ADDED: [Drawn; 2] = [
    ("p50 added over no proxy", "added_us.p50", duration),
    ("p99 added over no proxy", "added_us.p99", duration),
];
const CPU: [Drawn; 2] = [
    (
        "cores of the client's sidecar",
        "client-sidecar.vcpu",
        cores,
    ),
    (
        "cores of the server's sidecar",
        "server-sidecar.vcpu",
        cores,
    ),
];
const MEMORY: [Drawn; 2] = [
    (
        "RSS of the client's sidecar",
        "client-sidecar.rss_bytes",
        bytes,
    ),
    (
        "RSS of the server's sidecar",
        "server-sidecar.rss_bytes",
        bytes,
    ),
];

const CONTROL: [Drawn; 1] = [("RSS of the control plane", "control.rss_bytes", bytes)];

/// Dimension of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SweepAxis {
    Connections,
    Rate,
    /// Along generated objects of the mesh.
    Generated(String),
}

pub(super) fn sections(record: &Record, colours: &Colours) -> Vec<Section> {
    let mut sections = Vec::new();
    let kinds: BTreeSet<&String> = record
        .summary
        .iter()
        .flat_map(|summary| summary.shape.generated.keys())
        .collect();
    let meshes = kinds
        .into_iter()
        .map(|kind| SweepAxis::Generated(kind.clone()));
    for along in [SweepAxis::Connections, SweepAxis::Rate]
        .into_iter()
        .chain(meshes)
    {
        let along = &along;
        let sweeps = sweeps(record, along);
        let (latency, costs) = match along {
            SweepAxis::Connections => (
                "Latency against connections",
                "CPU and memory against connections",
            ),
            SweepAxis::Rate => ("Latency against rate", "CPU and memory against rate"),
            SweepAxis::Generated(_) => (
                "Latency against the size of the configuration",
                "CPU and memory against the size of the configuration",
            ),
        };
        let draw = |drawn: &[Drawn]| -> Vec<Plot> {
            let each = sweeps.iter().flat_map(|(load, cells)| {
                let plot = |drawn| plot(drawn, along, load, cells, colours);
                drawn.iter().filter_map(plot).collect::<Vec<_>>()
            });
            each.collect()
        };
        sections.push(Section {
            title: latency,
            words: "Medians over rounds with 95 % intervals, from when each request was due; lines only join measured points.",
            plots: draw(&[&LATENCY[..], &ADDED[..]].concat()),
            folded: false,
        });
        sections.push(Section {
            title: costs,
            words: "Of each sidecar by itself: cores from its processes' CPU clocks, resident memory at the end of a slice.",
            plots: draw(&match along {
                SweepAxis::Generated(_) => [&CPU[..], &MEMORY[..], &CONTROL[..]].concat(),
                _ => [&CPU[..], &MEMORY[..]].concat(),
            }),
            folded: false,
        });
    }
    sections.retain(|section| !section.plots.is_empty());
    sections
}

/// Groups of cells that differ only in path and in the swept property, by their common properties, in words.
fn sweeps<'a>(record: &'a Record, along: &SweepAxis) -> BTreeMap<String, Vec<&'a Summary>> {
    let mut groups: BTreeMap<String, Vec<&Summary>> = BTreeMap::new();
    let cells = record.summary.iter();
    for summary in cells.filter(|s| s.kind == ValueKind::Latency && s.runs_valid > 0) {
        let key = summary.key();
        let fixed = match along {
            SweepAxis::Connections => format!("{}/s", key.rate),
            SweepAxis::Rate => format!("{} connections", key.connections),
            SweepAxis::Generated(_) => format!("{}/s, {} connections", key.rate, key.connections),
        };
        let load = format!(
            "{}, {fixed}, {} arrival",
            protocol(&key.protocol),
            key.arrival
        );
        groups.entry(load).or_default().push(summary);
    }
    groups
}

/// Numbers that lie so many times apart are drawn by their logarithms.
const WIDE: f64 = 50.0;

/// Position of a cell along the sweep, and the key that it shares with the other cells of its line.
fn placed(along: &SweepAxis, key: CellKey) -> (f64, CellKey) {
    let x = match along {
        SweepAxis::Connections => f64::from(key.connections),
        SweepAxis::Rate => f64::from(key.rate),
        SweepAxis::Generated(kind) => {
            f64::from(key.shape.generated.get(kind).copied().unwrap_or(0))
        }
    };
    let mut path = match along {
        SweepAxis::Connections | SweepAxis::Rate => CellKey {
            rate: 0,
            connections: 0,
            ..key
        },
        SweepAxis::Generated(_) => key,
    };
    if let SweepAxis::Generated(kind) = along {
        path.shape.generated.remove(kind);
    }
    (x, path)
}

/// Selects a logarithmic axis for a wide sweep over generated objects, and then removes the point of 0. Reports if the axis is
/// logarithmic.
fn widened(along: &SweepAxis, paths: &mut [(CellKey, Series)]) -> bool {
    let along_mesh = matches!(along, SweepAxis::Generated(_));
    let wide = along_mesh && is_wide(paths.iter().flat_map(|(_, series)| &series.points));
    for (_, series) in paths.iter_mut().filter(|_| wide) {
        series.points.retain(|point| point.x > 0.0);
    }
    wide
}

fn is_wide<'a>(points: impl Iterator<Item = &'a PlotPoint>) -> bool {
    let numbers = points.map(|point| point.x).filter(|x| *x > 0.0);
    let (low, high) = numbers.fold((f64::INFINITY, 0.0_f64), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    high > low * WIDE
}

/// One figure of one sweep; none if no path has the figure at two positions.
fn plot(
    (word, figure, show): &Drawn,
    along: &SweepAxis,
    load: &str,
    cells: &[&Summary],
    colours: &Colours,
) -> Option<Plot> {
    let mut paths: Vec<(CellKey, Series)> = Vec::new();
    for summary in cells {
        let Some(estimate) = summary.figures.get(*figure) else {
            continue;
        };
        let key = summary.key();
        let (x, path) = placed(along, key);
        let point = PlotPoint {
            x,
            y: *estimate,
            invalid: false,
        };
        match paths.iter_mut().find(|(known, _)| *known == path) {
            Some((_, series)) => series.points.push(point),
            None => {
                let class = colours.class(&path.contestant);
                let dash = paths.iter().filter(|(_, s)| s.class == class).count();
                let series = Series {
                    label: who(&path),
                    class,
                    dash,
                    points: vec![point],
                };
                paths.push((path, series));
            }
        }
    }
    let wide = widened(along, &mut paths);
    paths.retain(|(_, series)| series.points.len() > 1);
    // A sweep without a proxy in it says nothing of one.
    if paths.iter().all(|(path, _)| path.is_baseline()) {
        return None;
    }
    let mut series: Vec<Series> = paths.into_iter().map(|(_, series)| series).collect();
    for series in &mut series {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let (across, x) = match along {
        SweepAxis::Connections => ("connections", Scale::Log),
        SweepAxis::Rate => ("requests per second", Scale::Linear),
        SweepAxis::Generated(kind) if wide => (kind.as_str(), Scale::Log),
        SweepAxis::Generated(kind) => (kind.as_str(), Scale::Linear),
    };
    let title = format!("{word}: {load}");
    let frame = Frame {
        title: &title,
        across,
        x,
        y: Scale::Linear,
        show: *show,
        joined: true,
        each: true,
    };
    let svg = lines(&frame, &series, &[]);
    let kind = format!("by {across}");
    Some(Plot::new(&kind, title, svg))
}

//! One cell's figures beside each other: latency, CPU and memory as bars with intervals.

use crate::plots::plot::{Plot, Section, groups};
use crate::record::{Record, Summary, ValueKind};
use crate::svg::{Colours, PlotBar, bars, bars_to, reach};
use crate::words::{bytes, core_share, gigabits, micro, per_second, small_bytes};

pub(super) fn sections(record: &Record, colours: &Colours) -> Vec<Section> {
    let mut groups = groups(record);
    let others = groups.clone();
    groups.retain(|(_, cells)| cells.iter().any(|cell| cell.kind == ValueKind::Latency));
    let each = |kind: &str, figures: &[(&str, &str)], show: fn(f64) -> String| -> Vec<Plot> {
        let all = groups
            .iter()
            .map(|(title, cells)| (title, rows(cells, figures, colours)));
        let all: Vec<_> = all.filter(|(_, rows)| !rows.is_empty()).collect();
        let most = reach(all.iter().flat_map(|(_, rows)| rows));
        let drawn = all.iter().map(|(title, rows)| {
            Plot::new(kind, (*title).clone(), bars_to(title, rows, show, most))
        });
        drawn.collect()
    };
    let latency = each(
        "latency",
        &[
            ("p50", "latency_us.p50"),
            ("p90", "latency_us.p90"),
            ("p99", "latency_us.p99"),
        ],
        micro,
    );
    let cpu = each(
        "cpu",
        &[
            ("client", "client-sidecar.cpu_us_per_request"),
            ("server", "server-sidecar.cpu_us_per_request"),
        ],
        micro,
    );
    let mut memory = each(
        "memory",
        &[
            ("client", "client-sidecar.rss_bytes"),
            ("server", "server-sidecar.rss_bytes"),
        ],
        bytes,
    );
    // Memory hardly depends on the path; the fullest one says it.
    memory = memory.pop().into_iter().collect();
    let section = |title, words, plots| Section {
        title,
        words,
        plots,
        folded: false,
    };
    vec![
        other_kinds(&others, colours),
        section(
            "Latency",
            "Percentiles over rounds with their intervals, in µs from when each request was due. All plots have one scale.",
            latency,
        ),
        section(
            "CPU",
            "µs of CPU per request of each sidecar, from its processes' CPU clocks.",
            cpu,
        ),
        section(
            "Memory",
            "Resident memory of each sidecar at the end of a slice.",
            memory,
        ),
    ]
}

/// Plots of the cells that do not measure latency: throughput, and idle cost.
fn other_kinds(groups: &[(String, Vec<&Summary>)], colours: &Colours) -> Section {
    type Drawn = (&'static str, &'static str, fn(f64) -> String);
    let saturation: [Drawn; 1] = [("requests per second", "achieved_rps", per_second)];
    let bulk: [Drawn; 2] = [
        ("throughput", "gigabits_per_second", gigabits),
        (
            "throughput per core of the sidecars",
            "gigabits_per_core",
            gigabits,
        ),
    ];
    let idle: [Drawn; 3] = [
        ("RSS of a sidecar", "sidecar.idle_rss_bytes", bytes),
        ("CPU of a sidecar", "sidecar.idle_cpu", core_share),
        (
            "bytes per connection (PSS)",
            "sidecar.bytes_per_connection",
            small_bytes,
        ),
    ];
    let mut plots = Vec::new();
    for (title, cells) in groups {
        let drawn: &[Drawn] = match cells.first().map(|cell| cell.kind) {
            Some(ValueKind::Saturation) => &saturation,
            Some(ValueKind::Bulk) => &bulk,
            Some(ValueKind::Idle) => &idle,
            Some(ValueKind::Latency) | None => &[],
        };
        for (word, figure, show) in drawn {
            let rows = rows(cells, &[("", figure)], colours);
            if !rows.is_empty() {
                let title = format!("{word}: {title}");
                let svg = bars(&title, &rows, *show);
                plots.push(Plot::new("much", title, svg));
            }
        }
    }
    Section {
        title: "How much",
        words: "Throughput, and resources while idle; bars with 95 % intervals over rounds.",
        plots,
        folded: false,
    }
}

fn rows(cells: &[&Summary], figures: &[(&str, &str)], colours: &Colours) -> Vec<PlotBar> {
    figures
        .iter()
        .flat_map(|(word, name)| {
            cells.iter().filter_map(move |summary| {
                Some(PlotBar {
                    label: format!("{} {word}", summary.contestant)
                        .trim_end()
                        .to_owned(),
                    class: colours.class(&summary.contestant),
                    value: *summary.figures.get(*name)?,
                })
            })
        })
        .collect()
}

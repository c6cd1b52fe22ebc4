//! The first plot of a report: latency by path under one load, on one scale. No proxy, one sidecar, two, two with mutual TLS, and another
//! mesh beside them where it was measured.

use crate::headline::{Headline, PEERS};
use crate::plots::plot::Plot;
use crate::record::{CellKey, Record, Summary, ValueKind};
use crate::svg::{Colours, PlotBar, bars};
use crate::words::{duration, load_title};

/// None where there is no latency of two paths to set beside each other.
pub(crate) fn paths(record: &Record, headline: &Headline<'_>) -> Option<Plot> {
    let (ours, key) = (&headline.cell.contestant, headline.cell.key());
    if key.kind != ValueKind::Latency {
        return None;
    }
    let same = record.summary.iter().filter(|summary| {
        let other = summary.key();
        summary.runs_valid > 0
            && other.same_load(&key)
            && (other.is_baseline() || other.shape == key.shape)
    });
    let same: Vec<&Summary> = same.collect();
    let peer = PEERS.iter().map(|(name, _)| *name);
    let peer = peer
        .filter(|name| name != ours)
        .find(|name| same.iter().any(|s| s.contestant == *name));
    let mut cells: Vec<&Summary> = same
        .into_iter()
        .filter(|s| {
            s.key().is_baseline() || s.contestant == *ours || Some(s.contestant.as_str()) == peer
        })
        .collect();
    cells.sort_by_key(|s| (hops(&s.mode), s.tls, s.contestant != *ours));
    if cells.len() < 2 {
        return None;
    }
    let colours = Colours::of(record.summary.iter().map(|s| s.contestant.as_str()));
    let mut rows = Vec::new();
    for (word, figure) in [("p50", "latency_us.p50"), ("p99", "latency_us.p99")] {
        rows.extend(cells.iter().filter_map(|cell| {
            Some(PlotBar {
                label: format!("{word}, {}", label(&cell.key(), ours)),
                class: colours.class(&cell.contestant),
                value: *cell.figures.get(figure)?,
            })
        }));
    }
    let title = format!("Latency by path: {}", load_title(&key));
    let svg = bars(&title, &rows, duration);
    Some(Plot::new("paths", title, svg))
}

fn hops(mode: &str) -> usize {
    let modes = [
        "baseline",
        "clientonly",
        "serveronly",
        "both",
        "gateway",
        "node",
        "node+waypoint",
    ];
    let known = modes.iter().position(|known| *known == mode);
    known.unwrap_or(modes.len())
}

/// Short enough for the margin.
fn label(cell: &CellKey, ours: &str) -> String {
    let path = match cell.mode.as_str() {
        "baseline" => return "no proxy".to_owned(),
        "clientonly" => "one sidecar",
        "serveronly" => "one, at the server",
        "both" => "two sidecars",
        "node" => "node proxies",
        "node+waypoint" => "waypoint",
        other => other,
    };
    let tls = if cell.tls { " mTLS" } else { "" };
    match cell.contestant == ours {
        true => format!("{path}{tls}"),
        false => format!("{path}{tls}, {}", cell.contestant),
    }
}

//! The parts of a graph over rounds: each service and each call, with the mesh and without; and the same as a table for
//! spreadsheets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{EdgeSlice, GraphRecord, GraphSlice, ServiceSlice};
use crate::record::Estimate;
use crate::statistics::estimate;
use crate::words::{duration, interval};

/// A figure on both sides, over the rounds that are valid on both.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PairedFigure {
    pub(super) without: Option<Estimate>,
    pub(super) with: Option<Estimate>,
    /// Within rounds.
    pub(super) added: Option<Estimate>,
}

/// One service or one call over rounds, by its figures.
pub(super) struct GraphFigures {
    pub(super) name: String,
    figures: BTreeMap<&'static str, PairedFigure>,
}

impl GraphFigures {
    pub(super) fn figure(&self, name: &str) -> PairedFigure {
        self.figures.get(name).copied().unwrap_or_default()
    }
}

type Figure<T> = (&'static str, fn(&T) -> Option<f64>);

const OF_SERVICES: [Figure<ServiceSlice>; 8] = [
    ("requests", |one| Some(one.requests as f64)),
    ("mean_us", |one| Some(one.took.mean_us)),
    ("p50_us", |one| one.took.p50_us),
    ("p99_us", |one| one.took.p99_us),
    ("cpu_us", |one| Some(one.cpu_us)),
    ("rss_bytes", |one| Some(one.rss_bytes)),
    ("sidecar_cpu_us", |one| one.sidecar_cpu_us),
    ("sidecar_rss_bytes", |one| one.sidecar_rss_bytes),
];

const OF_EDGES: [Figure<EdgeSlice>; 5] = [
    ("calls", |one| Some(one.calls as f64)),
    ("failed", |one| Some(one.failed as f64)),
    ("mean_us", |one| Some(one.took.mean_us)),
    ("p50_us", |one| one.took.p50_us),
    ("p99_us", |one| one.took.p99_us),
];

impl GraphRecord {
    /// Every service, those first that the graph names first.
    pub(super) fn service_parts(&self) -> Vec<GraphFigures> {
        self.parts(&|slice| &slice.services, &OF_SERVICES)
    }

    /// Every call.
    pub(super) fn edge_parts(&self) -> Vec<GraphFigures> {
        self.parts(&|slice| &slice.edges, &OF_EDGES)
    }

    fn parts<T>(
        &self,
        of: &dyn Fn(&GraphSlice) -> &BTreeMap<String, T>,
        figures: &[Figure<T>],
    ) -> Vec<GraphFigures> {
        let names: BTreeSet<&String> = self.slices.iter().flat_map(|one| of(one).keys()).collect();
        let mut names: Vec<&String> = names.into_iter().collect();
        // `svc-10` after `svc-9`.
        names.sort_by_key(|name| natural(name));
        let part = |name: &String| GraphFigures {
            name: name.clone(),
            figures: figures
                .iter()
                .map(|(figure, read)| {
                    (
                        *figure,
                        self.both(&|slice| of(slice).get(name).and_then(read)),
                    )
                })
                .collect(),
        };
        names.into_iter().map(part).collect()
    }

    /// Returns the figure on both sides. A figure that only one side has (sidecars) has a value for that side alone.
    fn both(&self, figure: &dyn Fn(&GraphSlice) -> Option<f64>) -> PairedFigure {
        let over = |mesh: bool| {
            let valid = self.valid_rounds();
            let slices = self.slices.iter().filter(|one| one.mesh == mesh);
            let values: Vec<f64> = slices
                .filter(|one| valid.contains(&one.round))
                .filter_map(figure)
                .collect();
            estimate(&values)
        };
        let added: Vec<f64> = self
            .pairs(figure)
            .iter()
            .map(|(with, without)| with - without)
            .collect();
        PairedFigure {
            without: over(false),
            with: over(true),
            added: estimate(&added),
        }
    }

    /// Rounds that count on both sides.
    fn valid_rounds(&self) -> BTreeSet<u32> {
        let of = |mesh: bool| -> BTreeSet<u32> {
            let valid = self
                .slices
                .iter()
                .filter(|one| one.mesh == mesh && one.invalid_reasons.is_empty());
            valid.map(|one| one.round).collect()
        };
        of(true).intersection(&of(false)).copied().collect()
    }

    /// A sentence about the cost that the mesh adds to one call: the middle of all calls of the graph.
    pub(super) fn calls(&self, text: &mut String) {
        let mut added: Vec<(f64, String)> = self
            .edge_parts()
            .iter()
            .filter_map(|part| {
                let added = part.figure("mean_us").added?;
                let words = format!("{} ({})", interval(&added, duration), part.name);
                Some((added.median, words))
            })
            .collect();
        added.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (Some(least), Some(most)) = (added.first(), added.last()) else {
            return;
        };
        let middle = added[added.len() / 2].0;
        // Writing to a String cannot fail.
        let _ = match added.len() {
            1 => writeln!(
                text,
                "Added to the mean of its one kind of call: {}.",
                least.1
            ),
            kinds => writeln!(
                text,
                "Added to the mean of a call, over {kinds} pairs of services: {} in the middle, from {} to {}.",
                duration(middle),
                least.1,
                most.1
            ),
        };
    }

    /// One line for each side of each service and call, medians over rounds: times in µs.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = "what,name,mesh,requests,failed,mean_us,p50_us,p99_us,cpu_us,rss_bytes,sidecar_cpu_us,sidecar_rss_bytes\n".to_owned();
        let kinds = [
            ("service", self.service_parts(), "requests"),
            ("call", self.edge_parts(), "calls"),
        ];
        for (what, parts, count) in &kinds {
            for part in parts {
                for mesh in [false, true] {
                    let columns = [
                        *count,
                        "failed",
                        "mean_us",
                        "p50_us",
                        "p99_us",
                        "cpu_us",
                        "rss_bytes",
                        "sidecar_cpu_us",
                        "sidecar_rss_bytes",
                    ];
                    let values = columns.map(|name| {
                        let both = part.figure(name);
                        let side = if mesh { both.with } else { both.without };
                        side.map_or_else(String::new, |found| format!("{:.1}", found.median))
                    });
                    let _ = writeln!(text, "{what},{},{mesh},{}", part.name, values.join(","));
                }
            }
        }
        text
    }
}

/// A name in pieces that sort as people count.
fn natural(name: &str) -> Vec<(u64, String)> {
    let mut pieces = Vec::new();
    for piece in name.split('-') {
        let number = piece.parse::<u64>().map_or(u64::MAX, |number| number);
        pieces.push((number, piece.to_owned()));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_people_count() {
        let mut names = vec!["svc-0-10", "svc-0-9", "svc-0", "front", "svc-0-9-1"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(
            names,
            ["front", "svc-0", "svc-0-9", "svc-0-9-1", "svc-0-10"]
        );
    }
}

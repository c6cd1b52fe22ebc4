//! Cost of a mesh for a whole graph of services. Holds the record of interleaved slices with and without the mesh, and the
//! results per request at the entry point, per service and per call. Extrapolated figures are marked.

mod page;
mod parts;
mod plots;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::head::RecordHead;
use crate::plots::plot::Section;
use crate::record::Estimate;
use crate::side_record::SideRecord;
use crate::statistics::{estimate, paired_ratio};
use crate::words::{bytes, cores, duration, interval, ratio};

/// Istio's published load: service requests a second over the whole mesh.
pub const CLAIMED_RATE: f64 = 70_000.0;
/// Number of sidecars in Istio's published load.
const CLAIMED_SIDECARS: f64 = 2_000.0;

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GraphRecord {
    /// Environment, time and command of the measurement.
    #[serde(flatten)]
    pub head: RecordHead,
    /// The graph's file name.
    pub graph: String,
    /// The graph itself.
    pub graph_text: String,
    /// Number of services of the graph.
    pub services: u32,
    /// Requests at all services that one at the entry point makes, the entry's own counted.
    pub requests: f64,
    /// Longest way of calls, in services.
    pub depth: u32,
    /// Requests a second at the entry point.
    pub rate: f64,
    /// Connections of the generator.
    pub connections: u32,
    /// `loopback`, or `netns`: each service in a network namespace of its own on both sides. Empty in older records, which
    /// are of loopback, with one hop more with the mesh.
    #[serde(default)]
    pub isolation: String,
    /// Requests at each service for one at the entry point.
    #[serde(default)]
    pub by_service: BTreeMap<String, f64>,
    /// The graph's picture: an SVG document.
    #[serde(default)]
    pub picture: String,
    /// The most that either side carried, where it was searched for.
    #[serde(default)]
    pub carried: Option<SustainedRates>,
    /// Every slice in order, invalid ones included.
    pub slices: Vec<GraphSlice>,
}

/// The highest rates at the entry point at which the bounds held.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SustainedRates {
    /// Bounds of the search, in the form of `voile load --find-capacity`.
    pub bounds: String,
    /// Without a mesh, requests a second.
    pub without: f64,
    /// With it.
    pub with: f64,
    /// Share of the lower rate at which both sides were then measured.
    pub share: f64,
}

/// A slice of one side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GraphSlice {
    /// From 1.
    pub round: u32,
    /// True if the mesh was between the services.
    pub mesh: bool,
    /// Requests answered as expected.
    pub ok: u64,
    /// Latency at the entry point from the intended time, in µs.
    pub p50_us: f64,
    /// As above.
    pub p90_us: f64,
    /// As above.
    pub p99_us: f64,
    /// CPU time in µs per request at the entry point, by kind of process: `service`, `sidecar`, `control`, `runner`.
    pub cpu_us: BTreeMap<String, f64>,
    /// CPU time of the whole machine, interrupts and other programs included.
    pub machine_us: f64,
    /// Proportional memory of one process, the middle of all of its kind.
    pub memory_bytes: BTreeMap<String, f64>,
    /// Calls that sidecars took by mutual TLS, as they count them; only with the mesh.
    #[serde(default)]
    pub by_mutual_tls: Option<u64>,
    /// Work and cost of each service, by name.
    #[serde(default)]
    pub services: BTreeMap<String, ServiceSlice>,
    /// Duration of each call as its caller saw it, by `caller → callee`.
    #[serde(default)]
    pub edges: BTreeMap<String, EdgeSlice>,
    /// Reasons why the slice does not count; empty if it counts.
    pub invalid_reasons: Vec<String>,
}

/// One service in one slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceSlice {
    /// Requests that it took.
    pub requests: u64,
    /// Time from the request's head to the answer, its calls included, by the service's own metrics.
    pub took: LatencySummary,
    /// CPU time of its processes for each of these requests, in µs.
    pub cpu_us: f64,
    /// Resident memory of one of its processes.
    pub rss_bytes: f64,
    /// CPU time of its sidecars for each of these requests, in µs: of the request, and of the calls that it made.
    #[serde(default)]
    pub sidecar_cpu_us: Option<f64>,
    /// Resident memory of one of its sidecars.
    #[serde(default)]
    pub sidecar_rss_bytes: Option<f64>,
}

/// One service's calls to another in one slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EdgeSlice {
    /// Calls that ended.
    pub calls: u64,
    /// Those of them that brought no good answer.
    pub failed: u64,
    /// Time from the call to the end of its answer, by the caller's own metrics.
    pub took: LatencySummary,
}

/// Durations, in µs. The mean is exact. Percentiles are read between the bounds of a histogram, which are at most a quarter apart
/// below 10 ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Sum by count.
    pub mean_us: f64,
    /// None where it is above all bounds.
    pub p50_us: Option<f64>,
    /// As above; none with under 10 samples beyond it.
    pub p99_us: Option<f64>,
}

impl GraphRecord {
    /// Values of a figure, paired by round: with the mesh, without.
    fn pairs(&self, figure: &dyn Fn(&GraphSlice) -> Option<f64>) -> Vec<(f64, f64)> {
        let of = |mesh: bool| -> BTreeMap<u32, f64> {
            let valid = self
                .slices
                .iter()
                .filter(|slice| slice.invalid_reasons.is_empty());
            valid
                .filter(|slice| slice.mesh == mesh)
                .filter_map(|slice| Some((slice.round, figure(slice)?)))
                .collect()
        };
        let without = of(false);
        let paired = of(true).into_iter();
        paired
            .filter_map(|(round, with)| Some((with, *without.get(&round)?)))
            .collect()
    }

    /// A figure with the mesh and without, each over rounds, the difference, and the ratio.
    fn line(
        &self,
        text: &mut String,
        what: &str,
        figure: &dyn Fn(&GraphSlice) -> Option<f64>,
    ) -> Option<Estimate> {
        let pairs = self.pairs(figure);
        let side = |pick: &dyn Fn(&(f64, f64)) -> f64| {
            estimate(&pairs.iter().map(pick).collect::<Vec<_>>())
        };
        let (with, without) = (side(&|pair| pair.0)?, side(&|pair| pair.1)?);
        let added = side(&|pair| pair.0 - pair.1)?;
        let times = paired_ratio(&pairs).map(|times| interval(&times, ratio));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{what}: without a mesh {}, with {}; added {} ({})",
            interval(&without, duration),
            interval(&with, duration),
            interval(&added, duration),
            times.unwrap_or_else(|| "–".to_owned()),
        );
        Some(added)
    }

    /// A figure of the slices with the mesh.
    fn in_mesh(&self, figure: &dyn Fn(&GraphSlice) -> Option<f64>) -> Option<Estimate> {
        let pairs = self.pairs(figure);
        estimate(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>())
    }

    fn sidecars(&self, text: &mut String) {
        let sidecars = |slice: &GraphSlice| slice.cpu_us.get("sidecar").copied();
        // Pairs need both sides; without a mesh sidecars cost nothing.
        let of = |slice: &GraphSlice| Some(if slice.mesh { sidecars(slice)? } else { 0.0 });
        let Some(cost) = self.in_mesh(&of) else {
            return;
        };
        let per_request = |slice: &GraphSlice| Some(of(slice)? / self.requests);
        let Some(each) = self.in_mesh(&per_request) else {
            return;
        };
        let _ = writeln!(
            text,
            "CPU of all sidecars per request at the entry point: {}; per request at a service, its two sidecars together: {}.",
            interval(&cost, duration),
            interval(&each, duration)
        );
        let memory =
            |slice: &GraphSlice| Some(slice.memory_bytes.get("sidecar").copied().unwrap_or(0.0));
        if let Some(memory) = self.in_mesh(&memory) {
            let _ = writeln!(text, "Memory of a sidecar: {}.", interval(&memory, bytes));
        }
        let measured = self.rate * self.requests;
        let _ = writeln!(
            text,
            "Measured: {measured:.0} service requests a second. EXTRAPOLATED in a straight line, not measured: {CLAIMED_RATE:.0} a second, Istio's published \
             load test, would take {} cores for all sidecars{}.",
            cores(each.median * CLAIMED_RATE / 1e6),
            self.in_mesh(&memory)
                .map_or_else(String::new, |memory| format!(
                    ", and its {CLAIMED_SIDECARS:.0} sidecars {:.1} GiB of memory",
                    memory.median * CLAIMED_SIDECARS / f64::from(1 << 30)
                ))
        );
    }

    /// Reports if any round counts on both sides.
    fn holds(&self) -> bool {
        !self.pairs(&|slice| Some(slice.p50_us)).is_empty()
    }
}

impl SideRecord for GraphRecord {
    const FILES: &'static [&'static str] = &["graph.json"];

    fn head(&self) -> &RecordHead {
        &self.head
    }

    fn in_words(&self) -> String {
        let mut text = format!(
            "{}: {} services, {:.2} requests for each at the entry point, {} deep; {}/s at the entry point.\n",
            self.graph, self.services, self.requests, self.depth, self.rate
        );
        if let Some(carried) = &self.carried {
            let _ = writeln!(
                text,
                "This machine carries {:.0}/s at the entry point without a mesh, {:.0}/s with it ({}): {:.0} and {:.0} requests a second at services. Measured at {:.0} % of the lower.",
                carried.without,
                carried.with,
                carried.bounds,
                carried.without * self.requests,
                carried.with * self.requests,
                carried.share * 100.0
            );
        }
        let p50 = self.line(&mut text, "p50 end to end", &|slice| Some(slice.p50_us));
        self.line(&mut text, "p90 end to end", &|slice| Some(slice.p90_us));
        self.line(&mut text, "p99 end to end", &|slice| Some(slice.p99_us));
        self.line(
            &mut text,
            "CPU of the machine per request at the entry point",
            &|slice| Some(slice.machine_us),
        );
        self.line(
            &mut text,
            "CPU of the services per request at the entry point",
            &|slice| slice.cpu_us.get("service").copied(),
        );
        if let Some(p50) = p50 {
            let _ = writeln!(
                text,
                "Added to the median per level of calls: {}.",
                duration(p50.median / f64::from(self.depth.max(1)))
            );
        }
        self.calls(&mut text);
        self.sidecars(&mut text);
        let invalid: Vec<&GraphSlice> = self
            .slices
            .iter()
            .filter(|slice| !slice.invalid_reasons.is_empty())
            .collect();
        for slice in &invalid {
            let side = if slice.mesh { "with" } else { "without" };
            let _ = writeln!(
                text,
                "Invalid: round {} {side} the mesh: {}",
                slice.round,
                slice.invalid_reasons.join("; ")
            );
        }
        text
    }

    fn to_markdown(&self) -> String {
        let title = format!("Cost of a mesh for {}", self.graph);
        let mut text = self.head.to_markdown(&title, &self.in_words());
        text.push_str("\n| round | mesh | ok | p50 µs | p90 µs | p99 µs | services µs | sidecars µs | runner µs | machine µs | by mutual TLS |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
        for slice in &self.slices {
            let cpu = |who: &str| {
                slice
                    .cpu_us
                    .get(who)
                    .map_or_else(|| "–".to_owned(), |us| format!("{us:.0}"))
            };
            let tls = slice
                .by_mutual_tls
                .map_or_else(|| "–".to_owned(), |count| count.to_string());
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {:.0} | {:.0} | {} | {} | {} | {:.0} | {tls} |",
                slice.round,
                if slice.mesh { "yes" } else { "no" },
                slice.ok,
                slice.p50_us,
                slice.p90_us,
                slice.p99_us,
                cpu("service"),
                cpu("sidecar"),
                cpu("runner"),
                slice.machine_us,
            );
        }
        let _ = write!(
            text,
            "\nRepeat it: `{}`\n\n```yaml\n{}```\n",
            self.head.command, self.graph_text
        );
        text
    }

    fn sections(&self) -> Vec<Section> {
        self.plots()
    }

    fn to_html(&self) -> String {
        self.page()
    }

    fn more_files(&self) -> Vec<(&'static str, String)> {
        let mut files = vec![("results.csv", self.to_csv())];
        if !self.picture.is_empty() {
            files.push(("graph.svg", self.picture.clone()));
        }
        files
    }

    fn shortcoming(&self) -> Option<&'static str> {
        (!self.holds()).then_some("no round is valid on both sides")
    }
}

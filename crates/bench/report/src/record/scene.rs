//! What the record of a scene has beyond its slices: the scene's parts, what is asked of its figures, and what was found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::Estimate;
use crate::record::target_verdicts::TargetResult;

/// The contestant of a graph with the mesh.
pub const MESH: &str = "voile";
/// The contestant without.
pub const BARE: &str = "baseline";

/// A scene: an experiment whose slices another runner takes than the common one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SceneKind {
    /// Our load generator beside Fortio.
    #[default]
    Agreement,
    /// The cost of a request for several load generators.
    Generators,
    /// The cost of policy decisions and token checks.
    Decisions,
    /// A whole graph of services, with a mesh and without.
    Graph,
    /// The cost of a control plane, and how soon proxies are told.
    ControlPlane,
    /// Thousands of real sidecars.
    Sidecars,
    /// A node's proxy with many pods.
    Nodes,
}

/// The part of a record that only scenes have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SceneRecord {
    /// The scene.
    pub kind: SceneKind,
    /// Servers and loads that are measured one beside the other; `mode` of a slice is the name of its part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<ScenePart>,
    /// The graph of services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<ServiceGraph>,
    /// Figures, what is asked of them, and what follows from the slices.
    pub findings: Vec<Finding>,
}

/// A server and the load it gets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScenePart {
    /// Its name in slices.
    pub name: String,
    /// In words.
    pub title: String,
    /// Command line of the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// Command line of each generator, by its name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub generators: BTreeMap<String, String>,
    /// The compared figure.
    pub figure: String,
    /// Value of the figure that an open loop must see, in µs, if it can be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_us: Option<f64>,
    /// True if our latency is compared from the actual send time, as Fortio counts. In such a part all requests are due at one
    /// instant and go out one after the other. Our generator counts their wait before the send; Fortio does not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_sent: bool,
    /// True if our figure is compared with Fortio's mean. The mean is exact; Fortio's percentiles come from wide buckets here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub against_mean: bool,
    /// Explanation of a difference.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub explained: String,
    /// The generators that ours is compared with, and the required ratios.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<OtherGenerator>,
}

/// Another generator in a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherGenerator {
    /// Its name.
    pub of: String,
    /// The least ratio of ours to its figure; without one rates are only shown, and latencies must agree.
    pub at_least: Option<f64>,
    /// Figure of the other generator, if it does not report the part's figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figure: Option<String>,
}

/// A graph of services, and the load at its entry point.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceGraph {
    /// The graph's file name.
    pub graph: String,
    /// The graph itself.
    pub graph_text: String,
    /// Number of its services.
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
    pub isolation: String,
    /// Requests at each service for one at the entry point.
    pub by_service: BTreeMap<String, f64>,
    /// The graph's picture: an SVG document.
    pub picture: String,
    /// The most that either side carried, where it was searched for.
    pub carried: Option<SustainedRates>,
}

/// The highest rates at the entry point at which the bounds held.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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

/// A figure, another one beside it, and what is asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// The measured thing.
    pub what: String,
    /// The measure of it, such as `p99`.
    pub measure: String,
    /// Key of the same figure in other slices; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Unit of the values: `us`, `/s`, or the word behind the number.
    pub unit: String,
    /// Where the figure is.
    pub of: SceneFigure,
    /// Where the figure beside it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<SceneFigure>,
    /// The figure, over rounds.
    pub value: Option<Estimate>,
    /// The one beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<Estimate>,
    /// The figure divided by the one beside it, paired within rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Estimate>,
    /// What the figure has more than the one beside it, within rounds; of a mesh beside none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<Estimate>,
    /// The requirement, in words; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub asked: String,
    /// The requirement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<SceneBound>,
    /// Verdict on the requirement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<TargetResult>,
}

/// A figure in the slices of a contestant in a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SceneFigure {
    /// Its name for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// As in [`crate::record::SliceRun`].
    pub contestant: String,
    /// `mode` of the slices.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// As in [`crate::record::Summary`].
    pub figure: String,
}

/// A bound of a finding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SceneBound {
    /// The bounded value.
    pub on: BoundedValue,
    /// No less than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// No more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// The median decides; else the whole interval must be within the bound, or outside.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_median: bool,
}

/// What a bound is on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundedValue {
    /// The figure.
    #[default]
    Figure,
    /// Its ratio to the one beside it.
    Ratio,
    /// The ratio of the two medians.
    Medians,
}

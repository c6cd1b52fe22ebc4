//! `record.json.gz`: one experiment on one machine. `runs[]` holds the measurements; `summary[]` and `control` follow from them
//! (`summarise`). Latencies are microseconds, sizes bytes, CPU microseconds per request.

pub(crate) mod claims;
mod estimate;
pub(crate) mod events;
pub mod scene;
pub(crate) mod target_verdicts;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::claims::CellSelector;
pub use crate::record::estimate::Estimate;
pub use crate::shape::CellShape;

/// The format of `record.json.gz` that this program writes.
pub const FORMAT: u32 = 1;
/// The format of the record of a scene. A reader refuses a larger one.
pub const SCENE_FORMAT: u32 = 2;

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this layout, see [`FORMAT`].
    pub format: u32,
    /// The experiment, as defined.
    pub experiment: Experiment,
    /// Machine of the measurement.
    pub environment: Environment,
    /// The machine of the servers and their sidecars, where an agent ran them; `processes[].host` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<Environment>,
    /// Each contestant: how it was started and configured, or why it is missing.
    pub contestants: Vec<Contestant>,
    /// One per slice, in the order they ran, invalid ones included.
    pub runs: Vec<SliceRun>,
    /// One per contestant × mode × tls × arrival, over its valid runs.
    pub summary: Vec<Summary>,
    /// The A/A control: one cell measured twice.
    pub control: Option<Control>,
    /// The A/A control of each repeat by itself, when there are several.
    #[serde(default)]
    pub repeats: Vec<Control>,
    /// Verdicts on the experiment's targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<crate::targets::TargetVerdict>,
    /// Proof of each cell's path.
    pub proofs: Vec<PathProof>,
    /// Profiles of cells, taken in slices of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<crate::profile::Profile>,
    /// Merged latency histograms per cell, for display: HdrHistogram V2 (deflated, base64) in microseconds.
    pub histograms: Vec<MergedHistogram>,
    /// What only the record of a scene has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scene: Option<scene::SceneRecord>,
    /// Notes that the reader must know: interruptions, missing contestants, unequal terms.
    pub notes: Vec<String>,
}

/// Definition of the experiment, and its progress.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// The experiment's question, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// When it began, RFC 3339, UTC.
    pub started_at: String,
    /// Duration of the whole experiment.
    pub took_seconds: f64,
    /// The command that ran it, to be repeated.
    pub command: String,
    /// Rounds asked for.
    pub rounds: u32,
    /// Number of times that all rounds were to run, each time with processes started anew.
    pub repeats: u32,
    /// Rounds in which at least one slice ran.
    pub rounds_done: u32,
    /// Rounds that were measured to their end, from the first; a run that is gone on with begins after them.
    pub rounds_whole: u32,
    /// Measured part of a slice.
    pub slice_seconds: f64,
    /// Load before the measured part of a slice.
    pub warmup_seconds: f64,
    /// Response body.
    pub size_bytes: u64,
    /// Worker threads of each proxy.
    pub workers: u32,
    /// `loopback`, or `netns`: networks of their own for client and server. Empty in older records, which are of loopback.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub isolation: String,
    /// Cores by role, by the name of the CPU set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpus: BTreeMap<String, BTreeMap<String, Vec<usize>>>,
    /// Resource limits of each sidecar, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limits: String,
    /// Seed of the order of slices and of bootstraps.
    pub seed: u64,
    /// The bounds of the validity gate, in words.
    pub validity: Vec<String>,
    /// Targets to be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<FigureTarget>,
    /// Published claims, to be compared with the measurements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<crate::claims::Claim>,
    /// Ended early by the user.
    pub interrupted: bool,
}

/// A figure to be reached, in every cell that matches the fields below.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FigureTarget {
    /// Subject of the target, in words.
    pub row: String,
    /// Names of figures, as in [`Summary`].
    pub figures: Vec<String>,
    /// Contestant of the figure.
    pub contestant: String,
    /// As in [`SliceRun`]; any if unset.
    pub mode: Option<String>,
    /// As in [`SliceRun`].
    pub tls: Option<bool>,
    /// As in [`SliceRun`].
    pub kind: Option<ValueKind>,
    /// As in [`SliceRun`].
    pub protocol: Option<String>,
    /// As in [`SliceRun`].
    pub arrival: Option<String>,
    /// As in [`SliceRun`].
    pub rate: Option<u32>,
    /// As in [`SliceRun`].
    pub connections: Option<u32>,
    /// No more than this.
    pub at_most: Option<f64>,
    /// Generated objects of the mesh by number, as in [`crate::shape::CellShape`]; any number if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generated: Option<BTreeMap<String, u32>>,
    /// Effect of the policies on requests, as in [`crate::shape::CellShape`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// The route that takes the requests, as in [`crate::shape::CellShape`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit: Option<String>,
    /// Tokens of the requests, as in [`crate::shape::CellShape`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// As a ratio to the same figure in the cell that differs in this, paired within rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to: Option<CellSelector>,
    /// As a difference to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more_than: Option<CellSelector>,
    /// No less than this.
    pub at_least: Option<f64>,
    /// Bounds apply to the ratio to each of these contestants' figure, that is, to the better of them.
    pub of: Vec<String>,
    /// As a difference to this contestant's figure.
    pub minus: Option<String>,
    /// No worse than those of `of` by more than the interval.
    pub within_noise: bool,
    /// Contestants whose ratio is shown beside it and not judged.
    pub beside: Vec<String>,
}

/// Machine and software of the measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// The processor's name.
    pub cpu: String,
    /// The kernel's release.
    pub kernel: String,
    /// Cores that could be used.
    pub cores: usize,
    /// Memory.
    pub memory_bytes: u64,
    /// The machine's name, as in `processes[].host`.
    pub host: String,
    /// Load average when the experiment began.
    pub load_average: Option<f64>,
    /// Versions of the programs measured, by name.
    pub versions: BTreeMap<String, String>,
    /// `release` or `debug`: how Voile was built. Figures of different profiles are never compared.
    pub profile: String,
    /// SHA-256 of the file of the `voile` program that was measured, in hexadecimal; empty for a debug build.
    pub voile_sha256: String,
    /// Negotiated TLS parameters by contestant, as seen on the wire.
    pub tls: BTreeMap<String, String>,
    /// Speed of the machine at a fixed piece of work when the experiment began; none in older records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// A short fixed piece of work, so that records of two machines can be set side by side as multiples of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// Wall-clock time of a small message through a bare relay over loopback and back, one at a time.
    pub relay_round_trip_us: Option<Estimate>,
    /// CPU time of the relay's thread for each.
    pub relay_cpu_us: Option<Estimate>,
    /// Copying memory that no cache holds.
    pub memcpy_gigabytes_per_second: Option<Estimate>,
    /// Sealing 16 KiB with AES-256-GCM, as TLS records are.
    pub aes_gcm_gigabytes_per_second: Option<Estimate>,
}

/// Use of one of two machines during a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineUse {
    /// Its name, as in `processes[].host`.
    pub host: String,
    /// Not idle, per request.
    pub cpu_us_per_request: f64,
    /// Not idle, between 0 and 1.
    pub busy: f64,
}

/// A contestant of the experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Contestant {
    /// `voile`, `envoy`, `relay`, …
    pub name: String,
    /// Command lines of its processes.
    pub commands: Vec<String>,
    /// Reason why the contestant has no runs.
    pub missing: Option<String>,
    /// Differences of its work from the other contestants, in words.
    pub terms: Vec<String>,
    /// SHA-256 of its program where that is another build of Voile.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sha256: String,
}

/// One slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceRun {
    /// `voile`, `envoy`, `relay`, … or `baseline` (no proxy at all).
    pub contestant: String,
    /// `baseline`, `clientonly`, `serveronly` or `both`.
    pub mode: String,
    /// Mutual TLS between the two sidecars.
    pub tls: bool,
    /// Kind of measurement.
    #[serde(default)]
    pub kind: ValueKind,
    /// `http1`, `grpc` or `tcp`.
    pub protocol: String,
    /// `uniform`, `poisson` or `fortio`.
    pub arrival: String,
    /// Requests per second asked for; 0 is as many as go.
    pub rate: f64,
    /// Connections of the generator.
    pub connections: u32,
    /// Further properties that distinguish cells; empty if the experiment's own values hold.
    #[serde(default, skip_serializing_if = "CellShape::is_plain")]
    pub shape: CellShape,
    /// The round, from 1.
    pub round: u32,
    /// Its place in the order of all slices, from 1.
    #[serde(default)]
    pub sequence: u32,
    /// The second half of the A/A control: the same cell again, never part of its summary.
    #[serde(default)]
    pub control: bool,
    /// Taken at the end of its round because the machine spoiled the cell's first slice.
    #[serde(default)]
    pub again: bool,
    /// Repeat of the whole experiment, from 1; rounds are counted on over repeats.
    #[serde(default)]
    pub repeat: u32,
    /// Seconds since the experiment began.
    #[serde(default)]
    pub started_seconds: f64,
    /// Measured seconds.
    #[serde(default)]
    pub seconds: f64,
    /// True if the slice counts.
    pub valid: bool,
    /// Reasons why the slice does not count.
    pub invalid_reasons: Vec<String>,
    /// Answers per second.
    pub achieved_rps: f64,
    /// Requests counted (sent in the measured part).
    #[serde(default)]
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Share of samples by which the generator itself was late, and by how much: its p99 lateness.
    #[serde(default)]
    pub generator_late_us_p99: Option<f64>,
    /// From the intended send time to the last byte of the answer.
    pub latency_us: Latency,
    /// From the actual send to the last byte of the answer.
    pub service_us: Latency,
    /// CPU of the whole machine, kernel work outside any process included.
    pub machine_cpu_us_per_request: Option<f64>,
    /// The same less the use of generator and server by their own clocks: the cost of the path, in any process and the kernel.
    #[serde(default)]
    pub machine_cpu_less_load_server_us_per_request: Option<f64>,
    /// Use of the machine's cores, by the kernel's own columns; none in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_split_sampled: Option<MachineSplit>,
    /// Payload carried per second, both ways, for bulk.
    #[serde(default)]
    pub gigabits_per_second: Option<f64>,
    /// Results of an idle slice, by role and name: `client-sidecar.bytes_per_connection`, …
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub idle: BTreeMap<String, f64>,
    /// Figures of a scene's slice, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measured: BTreeMap<String, f64>,
    /// Share of the machine's cores that was busy, 0…1.
    #[serde(default)]
    pub machine_busy: Option<f64>,
    /// Each machine by itself, where there are two; none in a record of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineUse>,
    /// One per instance on the path, the generator, the server and the control plane.
    pub processes: Vec<Process>,
    /// Its time line, where the experiment has events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<events::Interval>,
    /// Events that the lab made during the slice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<events::SliceEvent>,
}

/// Use of the machine's cores, from clock ticks. The ticks are samples: the sum is less than `machine_cpu_us_per_request` if work
/// wakes between ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineSplit {
    /// In user mode.
    pub user_us_per_request: f64,
    /// In the kernel, for processes.
    pub system_us_per_request: f64,
    /// In the kernel, for interrupts and their deferred work: the receiving side of the network.
    pub softirq_us_per_request: f64,
    /// Taken by the hypervisor.
    pub steal_us_per_request: f64,
}

/// Percentiles in microseconds; one with fewer than ten samples beyond it is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
    /// The largest sample.
    pub max: Option<f64>,
    /// The arithmetic mean.
    pub mean: Option<f64>,
    /// Number of samples.
    #[serde(default)]
    pub count: u64,
}

/// Cost of one instance during a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Name of the instance.
    pub name: String,
    /// `client-sidecar`, `server-sidecar`, `node`, `waypoint`, `gateway`, `load`, `server` or `control`.
    pub role: String,
    /// The machine it ran on.
    pub host: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// CPU by the processes' CPU clocks, all threads.
    pub cpu_us_per_request: f64,
    /// The part in user mode, from clock ticks: sampled.
    #[serde(default)]
    pub user_us_per_request_sampled: f64,
    /// The part in the kernel, from clock ticks: sampled.
    #[serde(default)]
    pub system_us_per_request_sampled: f64,
    /// Cores' worth of CPU used.
    pub vcpu: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Resident memory, shared pages divided by their users.
    pub pss_bytes: u64,
    /// Resident memory that no file backs.
    #[serde(default)]
    pub anonymous_bytes: u64,
    /// Context switches, voluntary and not.
    pub ctx_switches_per_request: f64,
    /// Of these, the voluntary ones.
    #[serde(default)]
    pub voluntary_ctx_switches_per_request: f64,
    /// Threads.
    #[serde(default)]
    pub threads: u64,
    /// Open descriptors.
    #[serde(default)]
    pub descriptors: u64,
    /// Cores that it may run on, when it is kept to some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<usize>,
    /// Periods in which its CPU limit held it back, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nr_throttled: Option<u64>,
    /// Length of the throttled periods, all threads added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_seconds: Option<f64>,
}

/// Summary of the valid runs of one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// As in [`SliceRun`].
    pub contestant: String,
    /// As in [`SliceRun`].
    pub mode: String,
    /// As in [`SliceRun`].
    pub tls: bool,
    /// As in [`SliceRun`].
    #[serde(default)]
    pub kind: ValueKind,
    /// As in [`SliceRun`].
    pub protocol: String,
    /// As in [`SliceRun`].
    pub arrival: String,
    /// As in [`SliceRun`].
    pub rate: f64,
    /// As in [`SliceRun`].
    pub connections: u32,
    /// As in [`SliceRun`].
    #[serde(default, skip_serializing_if = "CellShape::is_plain")]
    pub shape: CellShape,
    /// Valid runs.
    pub runs_valid: u32,
    /// Runs left out.
    pub runs_invalid: u32,
    /// Every figure by its name: `latency_us.p50`, `added_us.p99`, `sidecar.cpu_us_per_request`,
    /// `server-sidecar.rss_bytes`, `machine_cpu_us_per_request`, …
    pub figures: BTreeMap<String, Estimate>,
    /// Against each other contestant with the same cell: this one's figure divided by its, paired within rounds.
    pub ratios: BTreeMap<String, BTreeMap<String, Estimate>>,
}

/// The A/A control.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// The cell that was measured twice.
    #[serde(flatten)]
    pub cell: CellKey,
    /// Ratio of the second to the first, paired within rounds: 1 where nothing but noise differs.
    pub ratios: BTreeMap<String, Estimate>,
    /// Figures whose interval does not hold 1.
    pub alarms: Vec<String>,
    /// Per figure, how far from 1 the control's interval reaches: smaller differences are noise here.
    pub noise_floor: BTreeMap<String, f64>,
}

/// Proof of one cell's path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathProof {
    /// As in [`SliceRun`].
    pub contestant: String,
    /// As in [`SliceRun`].
    pub mode: String,
    /// As in [`SliceRun`].
    pub tls: bool,
    /// As in [`SliceRun`].
    #[serde(default = "http1")]
    pub protocol: String,
    /// Effect of the policies on requests, as in [`crate::shape::CellShape`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub verdict: String,
    /// The route that takes the requests, as in [`crate::shape::CellShape`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hit: String,
    /// Tokens of the requests, as in [`crate::shape::CellShape`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The things shown, or not.
    pub checks: Vec<Check>,
}

/// One thing shown, or not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The fact to be shown.
    pub claim: String,
    /// Verdict on the fact.
    pub verdict: CheckVerdict,
    /// The observed evidence.
    pub evidence: String,
}

/// Verdict of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckVerdict {
    /// Shown.
    Proven,
    /// Could not be checked here; the evidence states the missing condition.
    #[default]
    NotProven,
    /// Shown to be false: the cell's runs do not count.
    Failed,
}

/// A merged histogram.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MergedHistogram {
    /// Cell of the histogram.
    #[serde(flatten)]
    pub cell: CellKey,
    /// HdrHistogram V2, deflated, base64.
    pub hdr: String,
}

/// Key of a cell: contestant, path and load.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellKey {
    /// As in [`SliceRun`].
    pub contestant: String,
    /// As in [`SliceRun`].
    pub mode: String,
    /// As in [`SliceRun`].
    pub tls: bool,
    /// As in [`SliceRun`].
    #[serde(default)]
    pub kind: ValueKind,
    /// As in [`SliceRun`]; empty in records of before there were several.
    #[serde(default)]
    pub protocol: String,
    /// As in [`SliceRun`].
    pub arrival: String,
    /// As in [`SliceRun`], in whole requests per second.
    #[serde(default)]
    pub rate: u32,
    /// As in [`SliceRun`].
    #[serde(default)]
    pub connections: u32,
    /// As in [`SliceRun`].
    #[serde(default, skip_serializing_if = "CellShape::is_plain")]
    pub shape: CellShape,
}

/// Kind of measurement of a slice.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ValueKind {
    /// Requests on a schedule: measures cost and latency of each.
    #[default]
    Latency,
    /// Each connection sends as soon as it is answered: measures the highest rate.
    Saturation,
    /// Bytes as fast as they go.
    Bulk,
    /// Processes started anew, with idle connections: measures their memory, and CPU without load.
    Idle,
}

fn http1() -> String {
    "http1".to_owned()
}

impl CellKey {
    /// Returns true if the path has no proxy.
    #[must_use]
    pub fn is_baseline(&self) -> bool {
        self.mode == "baseline"
    }

    /// Returns true if path and load are the same, for any contestant.
    #[must_use]
    pub fn same_but_contestant(&self, other: &Self) -> bool {
        let mut other = other.clone();
        other.contestant.clone_from(&self.contestant);
        *self == other
    }

    /// Returns true if the load is the same, for any path.
    #[must_use]
    pub fn same_load(&self, other: &Self) -> bool {
        let load = |key: &Self| (key.kind, key.rate, key.connections);
        load(self) == load(other)
            && (&self.protocol, &self.arrival) == (&other.protocol, &other.arrival)
            && self.shape.same_load(&other.shape)
    }
}

impl SliceRun {
    /// The cell it belongs to.
    #[must_use]
    pub fn key(&self) -> CellKey {
        CellKey {
            contestant: self.contestant.clone(),
            mode: self.mode.clone(),
            tls: self.tls,
            kind: self.kind,
            protocol: self.protocol.clone(),
            arrival: self.arrival.clone(),
            rate: self.rate as u32,
            connections: self.connections,
            shape: self.shape.clone(),
        }
    }

    /// A slice of a scene, with these figures.
    #[must_use]
    pub fn of_scene(
        contestant: &str,
        part: &str,
        round: u32,
        measured: BTreeMap<String, f64>,
    ) -> Self {
        Self {
            contestant: contestant.to_owned(),
            mode: part.to_owned(),
            round,
            valid: true,
            measured,
            ..Self::default()
        }
    }

    /// A slice of this cell of which nothing is known yet.
    #[must_use]
    pub fn of(cell: &CellKey) -> Self {
        Self {
            contestant: cell.contestant.clone(),
            mode: cell.mode.clone(),
            tls: cell.tls,
            kind: cell.kind,
            protocol: cell.protocol.clone(),
            arrival: cell.arrival.clone(),
            rate: f64::from(cell.rate),
            connections: cell.connections,
            shape: cell.shape.clone(),
            ..Self::default()
        }
    }
}

impl Summary {
    /// The cell it sums up.
    #[must_use]
    pub fn key(&self) -> CellKey {
        CellKey {
            contestant: self.contestant.clone(),
            mode: self.mode.clone(),
            tls: self.tls,
            kind: self.kind,
            protocol: self.protocol.clone(),
            arrival: self.arrival.clone(),
            rate: self.rate as u32,
            connections: self.connections,
            shape: self.shape.clone(),
        }
    }
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// When it is not JSON, lacks a field, or was written by a later version.
    pub fn from_json(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_str(text).map_err(|e| format!("not a record: {e}"))?;
        if head.format > SCENE_FORMAT {
            return Err(format!(
                "record format {} is newer than this program's ({SCENE_FORMAT})",
                head.format
            ));
        }
        let mut record: Self = serde_json::from_str(text)
            .map_err(|e| format!("not a record of format {}: {e}", head.format))?;
        record.complete();
        Ok(record)
    }

    /// Records of before there were several loads name it only in their runs.
    fn complete(&mut self) {
        let Some(first) = self.runs.first().map(SliceRun::key) else {
            return;
        };
        let controls = self.control.iter_mut().chain(&mut self.repeats);
        let cells = controls
            .map(|control| &mut control.cell)
            .chain(self.histograms.iter_mut().map(|merged| &mut merged.cell));
        for cell in cells.filter(|cell| cell.protocol.is_empty()) {
            cell.protocol.clone_from(&first.protocol);
            (cell.rate, cell.connections) = (first.rate, first.connections);
        }
    }

    /// Writes a record, readable by people too.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self)
            .expect("invariant: a record holds nothing JSON cannot say")
            + "\n"
    }
}

impl Latency {
    /// Number of samples that must lie beyond a percentile for it to be reported.
    pub const BEYOND: f64 = 10.0;

    /// Leaves out each percentile that too few samples lie beyond.
    #[must_use]
    pub fn trimmed(self) -> Self {
        let count = self.count as f64;
        // A tiny tolerance, because 1000 × (1 − 0.99) is a hair below 10 in binary.
        let keep = |share: f64| count * (1.0 - share) >= Self::BEYOND - 1e-6;
        let or_none = |value: Option<f64>, share| value.filter(|_| keep(share));
        Self {
            p50: or_none(self.p50, 0.50),
            p90: or_none(self.p90, 0.90),
            p99: or_none(self.p99, 0.99),
            p999: or_none(self.p999, 0.999),
            ..self
        }
    }
}

//! Experiment definitions as written in TOML, and checked. An error names file, line, column and a correct value.

mod cells;
mod error;
mod events;
mod features;
mod generated;
mod hooks;
mod isolation;
mod peers;
mod suggestions;
mod targets;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use voile_report::record::{CellKey as Cell, FigureTarget, ValueKind};

use cells::CellOptions;
use written::{ComplaintLocation, Written, WrittenValidity};

pub use error::DefinitionError;
pub use events::{EventAction, ScheduledEvent};
pub use generated::Generated;
pub(crate) use generated::{
    Asks, FORGED, FRESH, GeneratedAction as PolicyAction, MatchedRule, PolicyEffect, RefusalKind,
    Routes, Stray, believed, carried, endpoints, has_policies, meeting, refusal,
    resources as generated_resources,
};
pub use hooks::Hook;
pub use isolation::{CpuSet, Isolation, SidecarLimits};
pub(crate) use peers::{AccessLog, PeerFeatures};
pub(crate) use written::WatchedPage;

/// The definition that `voile bench quick` runs, part of the program so that it runs from anywhere.
const QUICK: &str = include_str!("../../../../benchmarks/quick.toml");

/// The contestant of Envoys configured by `voile control`; `envoy` is configured by the lab's files.
pub(crate) const ENVOY_XDS: &str = "envoy-xds";

/// Contestants that the lab knows how to start.
const CONTESTANTS: [&str; 10] = [
    "baseline",
    "voile",
    "envoy",
    ENVOY_XDS,
    "nginx",
    "haproxy",
    "relay",
    "ztunnel",
    "linkerd2-proxy",
    "pipy",
];
const MODES: [&str; 7] = [
    "baseline",
    "clientonly",
    "serveronly",
    "both",
    "node",
    WAYPOINT_MODE,
    "gateway",
];
/// Two node proxies with a waypoint between them.
pub(crate) const WAYPOINT_MODE: &str = "node+waypoint";
/// Contestants that have node proxies, contestants with a waypoint, and contestants with a gateway.
const NODES: [&str; 2] = ["voile", "ztunnel"];
const WAYPOINTS: [&str; 2] = ["voile", "envoy"];
const GATEWAYS: [&str; 5] = ["voile", "envoy", "nginx", "haproxy", "pipy"];
const PROTOCOLS: [&str; 4] = ["http1", "http2", "grpc", "tcp"];
const ARRIVALS: [&str; 3] = ["uniform", "poisson", "fortio"];

/// Rounds, rates and so on beyond which a typing error is likelier than a wish.
const MAX_ROUNDS: u32 = 1000;
const MAX_SLICE: Duration = Duration::from_secs(3600);
const MAX_RATE: u32 = 1_000_000;
const MAX_CONNECTIONS: u32 = 50_000;
const MAX_SIZE_BYTES: u64 = 64 << 20;
const MAX_WORKERS: u32 = 256;

/// A checked experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its name, also in the record folder's.
    pub name: String,
    /// The experiment's question, in words.
    pub title: String,
    /// The text it was read from.
    pub text: String,
    /// Number of measurements of every cell.
    pub rounds: u32,
    /// Measured part of a slice.
    pub slice: Duration,
    /// Load before it.
    pub warmup: Duration,
    /// Seed of order and bootstrap.
    pub seed: u64,
    /// Bytes of an answer.
    pub size: u64,
    /// Threads of each proxy.
    pub workers: u32,
    /// The gate's bounds.
    pub validity: Validity,
    /// The measured cells, without the control.
    pub cells: Vec<Cell>,
    /// The cell that is measured twice.
    pub control: Option<Cell>,
    /// Voile with something changed, as contestants of their own.
    pub variants: Vec<Variant>,
    /// Targets to be reached.
    pub targets: Vec<FigureTarget>,
    /// Isolation of client and server: the machine's loopback, or network namespaces of their own.
    pub isolation: Isolation,
    /// CPU sets by name: the cores of each role.
    pub cpus: BTreeMap<String, CpuSet>,
    /// Resource limits of each sidecar.
    pub limits: Option<SidecarLimits>,
    /// Published claims of a preset, to be compared with the measurements.
    pub claims: Vec<voile_report::claims::Claim>,
    /// Hooks by name: commands before and after slices.
    pub hooks: BTreeMap<String, Hook>,
    /// Events of every slice, in order.
    pub events: Vec<ScheduledEvent>,
    /// Requested features that are not built, in words.
    pub missing: Vec<String>,
}

/// Voile with something changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variant {
    /// The contestant's name.
    pub name: String,
    /// The change, in words.
    pub title: String,
    /// More arguments of `voile proxy`.
    pub arguments: Vec<String>,
    /// Words of the mesh's resources and their replacements.
    pub replace: Vec<(String, String)>,
    /// More resources.
    pub append: String,
    /// True if the variant still counts its requests.
    pub counts: bool,
    /// Page of the sidecars that somebody watches all the time.
    pub watched: Option<WatchedPage>,
    /// Another build of Voile; none is the one that is measured.
    pub program: Option<PathBuf>,
}

impl Variant {
    /// Nothing changed.
    pub(crate) fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            counts: true,
            ..Self::default()
        }
    }
}

/// Bounds outside which a slice does not count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Validity {
    /// Generator's own lateness at its 99th percentile.
    pub max_lateness: Duration,
    /// Achieved against asked for.
    pub max_rate_error: f64,
    /// Failed requests.
    pub max_error_share: f64,
    /// Median of one half of the slice over that of the other.
    pub max_drift: f64,
    /// Share of the machine's cores that is busy, where there is a schedule to keep.
    pub max_machine_busy: f64,
    /// Largest busy share of the generator's threads. Beyond it, the generator is the measured program.
    pub max_generator_busy: f64,
    /// True if a run that the generator itself calls invalid is left out. False in a smoke test, which only shows that everything
    /// works, on machines too busy to measure anything.
    pub heed_generator: bool,
}

/// Contestants to be measured; none is all.
pub type Only = Option<BTreeSet<String>>;

/// Changes from the command line.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Rounds.
    pub rounds: Option<u32>,
    /// Measured part of a slice.
    pub slice: Option<Duration>,
    /// Contestants; baseline is always measured.
    pub only: Only,
    /// A few seconds that show that everything works, no figures to speak of.
    pub smoke: bool,
    /// Other builds of Voile, `NAME=PATH`: measured in every cell that Voile is measured in.
    pub contestants: Vec<String>,
}

/// The built-in experiment.
#[must_use]
pub fn quick() -> Definition {
    Definition::parse("quick.toml", QUICK).expect("invariant: the built-in definition is tested")
}

impl Definition {
    /// Reads and checks.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(file: &str, text: &str) -> Result<Self, DefinitionError> {
        let place = ComplaintLocation { file, text };
        let mut written: Written = toml::from_str(text).map_err(|e| {
            let message = suggestions::field(&e.message().replace('\n', "; "));
            place.error(e.span().unwrap_or(0..0), message)
        })?;
        let name = written.name.get_ref();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            let why =
                format!("name \"{name}\" becomes a folder's name: letters, digits and '-' only");
            return Err(place.error(written.name.span(), why));
        }
        let mut variants = targets::variants(&place, std::mem::take(&mut written.variants))?;
        let cpus = isolation::cpu_sets(&place, &written)?;
        let slice = place.duration(
            "slice",
            &written.slice,
            Duration::from_millis(100)..=MAX_SLICE,
        )?;
        let events = events::events(&place, std::mem::take(&mut written.events), slice)?;
        let hooks = hooks::hooks(&place, &written)?;
        let CellOptions { cells, missing } = cells::cells(&place, &written, &mut variants)?;
        if !events.is_empty() && cells.iter().any(|cell| !cell.shape.hit.is_empty()) {
            let why = "[[events]] are observed with requests that match no generated route: put the routes into a definition of their own";
            return Err(place.error(0..0, why));
        }
        let isolation = isolation::isolation(&place, written.isolation.as_ref())?;
        isolation::suits(isolation, &cells).map_err(|why| {
            place.error(written.isolation.as_ref().map_or(0..0, Spanned::span), why)
        })?;
        let has_endpoints = |cell: &Cell| endpoints(&cell.shape.generated).is_some();
        if let (Some(word), true) = (&written.isolation, cells.iter().any(has_endpoints))
            && isolation != Isolation::Loopback
        {
            let why = "generated endpoints have loopback addresses: use isolation \"loopback\"";
            return Err(place.error(word.span(), why));
        }
        Ok(Self {
            name: name.clone(),
            title: written.title.clone(),
            text: text.to_owned(),
            rounds: place.number("rounds", &written.rounds, 1..=MAX_ROUNDS)?,
            slice,
            warmup: place.duration("warmup", &written.warmup, Duration::ZERO..=MAX_SLICE)?,
            seed: written.seed,
            size: place.number("size", &written.load.size, 0..=MAX_SIZE_BYTES)?,
            workers: place.number("workers", &written.proxy.workers, 1..=MAX_WORKERS)?,
            validity: validity(&place, &written.validity, !events.is_empty())?,
            control: cells::control(&place, written.control.as_ref(), &cells)?,
            cells,
            variants,
            targets: targets::targets(&place, written.targets)?,
            isolation,
            limits: isolation::limits(&place, written.limits.as_ref())?,
            claims: Vec::new(),
            cpus,
            hooks,
            events,
            missing,
        })
    }

    /// Returns true if the TCP cells send bytes to a sink, which sends nothing back.
    pub(crate) fn is_bulk(&self) -> bool {
        self.cells.iter().any(|cell| cell.kind == ValueKind::Bulk)
    }

    /// Applies what the command line says.
    ///
    /// # Errors
    /// When a contestant is named that the experiment does not have.
    pub fn with(mut self, overrides: &Overrides) -> Result<Self, String> {
        if overrides.smoke {
            self.rounds = 2;
            if self.events.is_empty() {
                self.slice = Duration::from_millis(300);
            }
            self.warmup = Duration::from_millis(60);
            self.validity.max_lateness = Duration::from_secs(10);
            self.validity.max_rate_error = 1.0;
            self.validity.max_drift = f64::INFINITY;
            self.validity.max_machine_busy = f64::INFINITY;
            self.validity.max_generator_busy = f64::INFINITY;
            self.validity.heed_generator = false;
        }
        if let Some(rounds) = overrides.rounds {
            if !(1..=MAX_ROUNDS).contains(&rounds) {
                return Err(format!(
                    "--rounds {rounds}: must lie between 1 and {MAX_ROUNDS}"
                ));
            }
            self.rounds = rounds;
        }
        if let Some(slice) = overrides.slice {
            if slice < Duration::from_millis(100) || slice > MAX_SLICE {
                return Err(format!(
                    "--slice {slice:?}: must lie between 100ms and {MAX_SLICE:?}"
                ));
            }
            if let Some(event) = self.events.last().filter(|event| event.at >= slice) {
                return Err(format!(
                    "--slice {slice:?} is too short: {} happens at {:?}",
                    event.action.word(),
                    event.at
                ));
            }
            self.slice = slice;
        }
        for contestant in &overrides.contestants {
            self.add_build(contestant)?;
        }
        if let Some(only) = &overrides.only {
            let has: BTreeSet<String> = self
                .cells
                .iter()
                .map(|cell| cell.contestant.clone())
                .collect();
            if let Some(stranger) = only.difference(&has).next() {
                let has = has.iter().cloned().collect::<Vec<_>>().join(", ");
                return Err(format!("--only {stranger}: this experiment has {has}"));
            }
            let wanted = |cell: &Cell| cell.is_baseline() || only.contains(&cell.contestant);
            self.cells.retain(wanted);
            self.control = self.control.filter(wanted);
        }
        Ok(self)
    }
}

impl Definition {
    /// Another build of Voile beside the present one: in every cell that Voile is measured in, so that rounds pair them.
    fn add_build(&mut self, written: &str) -> Result<(), String> {
        let wrong = |why: &str| format!("--contestant {written}: {why}");
        let (name, path) = written
            .split_once('=')
            .ok_or_else(|| wrong("expected NAME=PATH, the path of a voile program"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let taken = CONTESTANTS.contains(&name) || self.variants.iter().any(|v| v.name == name);
        if taken || name.is_empty() || !name.chars().all(plain) {
            return Err(wrong("needs a name of its own of letters, digits and '-'"));
        }
        let path = std::fs::canonicalize(path).map_err(|e| wrong(&format!("{path}: {e}")))?;
        let mine = |cell: &&Cell| cell.contestant == "voile";
        let others: Vec<Cell> = self.cells.iter().filter(mine).cloned().collect();
        if others.is_empty() {
            return Err(wrong("this experiment does not measure voile"));
        }
        self.cells.extend(others.into_iter().map(|cell| Cell {
            contestant: name.to_owned(),
            ..cell
        }));
        self.variants.push(Variant {
            title: "another build".to_owned(),
            program: Some(path),
            ..Variant::plain(name)
        });
        Ok(())
    }
}

/// Events cause errors, misses and drift. These are measured, and judged only if the definition says so.
fn validity(
    place: &ComplaintLocation<'_>,
    written: &WrittenValidity,
    eventful: bool,
) -> Result<Validity, DefinitionError> {
    let unless = |usual: f64, eventful_value: f64| if eventful { eventful_value } else { usual };
    let share = |field, value: &Option<Spanned<f64>>, otherwise| match value {
        Some(value) => place.number(field, value, 0.0..=1.0),
        None => Ok(otherwise),
    };
    let second = Duration::from_secs(1);
    Ok(Validity {
        heed_generator: !eventful,
        max_lateness: match &written.max_lateness {
            Some(value) => {
                place.duration("max_lateness", value, Duration::from_micros(1)..=second)?
            }
            None => Duration::from_millis(1),
        },
        max_rate_error: share("max_rate_error", &written.max_rate_error, unless(0.02, 1.0))?,
        max_error_share: share(
            "max_error_share",
            &written.max_error_share,
            unless(0.0, 1.0),
        )?,
        max_drift: match &written.max_drift {
            Some(value) => place.number("max_drift", value, 1.0..=1000.0)?,
            None => unless(4.0, f64::INFINITY),
        },
        max_machine_busy: share(
            "max_machine_busy",
            &written.max_machine_busy,
            unless(0.95, f64::INFINITY),
        )?,
        max_generator_busy: share(
            "max_generator_busy",
            &written.max_generator_busy,
            unless(0.9, f64::INFINITY),
        )?,
    })
}

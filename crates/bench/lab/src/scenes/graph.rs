//! Cost of a mesh for a whole graph of services. The graph runs without a mesh and under `voile up`; both keep running, and the
//! generator loads one or the other in turn.
//!
//! ```text
//! without ─┐ both ready ── round: [with, without] in random order: warm-up, load, CPU of every process ── × rounds
//! voile up ┘                 └ what services and sidecars count is what the graph says, and by mutual TLS
//! ```

mod family;
mod pages;
mod side;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::machine::CoreTime;

use voile_report::record::scene::{BARE, MESH, SceneKind, ServiceGraph, SustainedRates};
use voile_report::record::{Record, SliceRun};

use crate::definition::Isolation;
use crate::environment::{INTERRUPTED, ended, environment, scene_record, warnings};
use family::{GraphSide, Used, held, spent};
use pages::ServiceCounters;
use side::GraphSideRun;

/// Deadline of the end of a graph or mesh.
const END_WITHIN: Duration = Duration::from_secs(30);
/// Load before each slice: connections are opened, caches filled.
const WARM_UP: Duration = Duration::from_secs(1);
/// Largest relative difference between the count by mutual TLS and the graph's number. Probabilities and errors are random.
const CHANCE: f64 = 0.05;
/// Conditions for a carried rate: a request that takes ten times its normal time is not served.
const CARRIED: &str = "p99<100ms,errors<0.1%";
/// Share of the highest carried rate at which the graph is measured. At the full rate, nothing is left for the machine's other
/// work.
const MEASURED_AT: f64 = 0.6;
/// First rate of the search, in requests a second.
const SEARCH_FROM: f64 = 20.0;

/// Settings of the measurement.
pub struct GraphSettings {
    /// The program.
    pub voile: PathBuf,
    /// The graph.
    pub graph: PathBuf,
    /// Requests a second at the first entry point; none is found out: a part of the most that both sides carry.
    pub rate: Option<f64>,
    /// Connections of the generator.
    pub connections: u32,
    /// Number of measurements of each side.
    pub rounds: u32,
    /// For how long.
    pub slice: Duration,
    /// Isolation of the services, on both sides.
    pub isolation: Isolation,
    /// The user's command line, for the record.
    pub command: String,
}

/// Output of `voile graph check --json`, as far as the lab needs it.
#[derive(Debug, Deserialize)]
struct GraphCheckResult {
    services: u32,
    entries: Vec<GraphEntry>,
    certain: bool,
}

#[derive(Debug, Deserialize)]
struct GraphEntry {
    service: String,
    requests: f64,
    depth: u32,
    by_service: BTreeMap<String, f64>,
}

/// Runs it. `say` receives lines for people; `stopped` is asked often.
///
/// # Errors
/// When the graph is wrong, a side does not start, or the user ends it before anything was measured.
pub fn measure_graph(
    settings: &GraphSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<Record, String> {
    let folder = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    let began = Instant::now();
    let checked = check(settings)?;
    let entry = checked
        .entries
        .first()
        .ok_or("the graph has no entry point")?;
    let mut graph = service_graph(settings, &checked, entry)?;
    let mut record = new_record(settings);
    let made = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    ask(settings, &["mesh", "--out", &made("mesh")])?;
    if settings.isolation == Isolation::Netns {
        ask(settings, &["mesh", "--no-sidecars", "--out", &made("open")])?;
    }
    graph.picture = picture(settings, &made("graph.svg"))?;
    say("\rstarting the graph without a mesh");
    let mut sides = [
        GraphSideRun::start(settings, folder.path(), false, stopped)?,
        GraphSideRun::start(settings, folder.path(), true, stopped)?,
    ];
    say("\rstarting the graph with the mesh");
    for side in &mut sides {
        side.wait_ready(settings, folder.path(), &entry.service, stopped)?;
    }
    let found = carried(settings, &sides, folder.path(), &mut graph, say, stopped);
    if found.is_ok() {
        let certain = checked.certain;
        let graph = (&graph, certain);
        record.runs = all_rounds(settings, &sides, folder.path(), graph, say, stopped);
    }
    say("\r");
    for side in &mut sides {
        side.child.begin_stop();
    }
    for side in &mut sides {
        side.child.stop(END_WITHIN);
    }
    found?;
    if let Some(scene) = &mut record.scene {
        scene.graph = Some(graph);
    }
    ended(record, began, stopped)
}

/// Searches for the rate to measure at, if the user set none.
fn carried(
    settings: &GraphSettings,
    sides: &[GraphSideRun; 2],
    folder: &Path,
    graph: &mut ServiceGraph,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<(), String> {
    if settings.rate.is_some() {
        return Ok(());
    }
    let mut most = [0.0; 2];
    for (most, side) in most.iter_mut().zip(sides) {
        let words = if side.mesh { "with" } else { "without" };
        say(&format!("\rfinding the maximum rate {words} the mesh"));
        *most = side.carries(settings, CARRIED, SEARCH_FROM, folder, stopped)?;
    }
    let [without, with] = most;
    // A whole number is easier to repeat.
    graph.rate = (without.min(with) * MEASURED_AT).floor().max(1.0);
    graph.carried = Some(SustainedRates {
        bounds: CARRIED.replace(',', ", "),
        without,
        with,
        share: MEASURED_AT,
    });
    Ok(())
}

fn all_rounds(
    settings: &GraphSettings,
    sides: &[GraphSideRun; 2],
    folder: &Path,
    (graph, certain): (&ServiceGraph, bool),
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Vec<SliceRun> {
    let (mut order, mut runs) = ([0, 1], Vec::new());
    for round in 1..=settings.rounds {
        fastrand::shuffle(&mut order);
        for at in order {
            let side = &sides[at];
            let words = if side.mesh { "with" } else { "without" };
            say(&format!(
                "\rround {round}/{}, {words} the mesh",
                settings.rounds
            ));
            let measured = turn(settings, side, graph.rate, folder, stopped);
            if stopped() {
                return runs;
            }
            let mut slice = measured.unwrap_or_else(|why| SliceRun {
                invalid_reasons: vec![why],
                ..SliceRun::default()
            });
            let contestant = if side.mesh { MESH } else { BARE };
            (slice.contestant, slice.round) = (contestant.to_owned(), round);
            prove(&mut slice, graph, certain);
            slice.valid = slice.invalid_reasons.is_empty();
            runs.push(slice);
        }
    }
    runs
}

fn new_record(settings: &GraphSettings) -> Record {
    let environment = environment(&settings.voile);
    let mut notes = warnings(&environment);
    let place = match settings.isolation {
        Isolation::Loopback => {
            "The generator calls the entry point itself, and with the mesh its sidecar, in plaintext."
        }
        Isolation::Netns => {
            "On both sides every service is in a network namespace of its own and requests enter by the runner's published port; its CPU is the runner's."
        }
    };
    notes.push(format!(
        "Generator, services and sidecars share this machine. {place}"
    ));
    scene_record(SceneKind::Graph, &settings.command, notes, environment)
}

fn service_graph(
    settings: &GraphSettings,
    checked: &GraphCheckResult,
    entry: &GraphEntry,
) -> Result<ServiceGraph, String> {
    let text = std::fs::read_to_string(&settings.graph);
    Ok(ServiceGraph {
        graph: settings
            .graph
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        graph_text: text.map_err(|e| format!("{}: {e}", settings.graph.display()))?,
        services: checked.services,
        requests: entry.requests,
        depth: entry.depth,
        by_service: entry.by_service.clone(),
        rate: settings.rate.unwrap_or(0.0),
        connections: settings.connections,
        isolation: settings.isolation.word().to_owned(),
        ..ServiceGraph::default()
    })
}

/// Runs `voile graph COMMAND FILE …` to its end.
fn ask(settings: &GraphSettings, words: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = std::process::Command::new(&settings.voile);
    command
        .arg("graph")
        .args(&words[..1])
        .arg(&settings.graph)
        .args(&words[1..]);
    let output = command
        .output()
        .map_err(|e| format!("{}: {e}", settings.voile.display()))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned()),
    }
}

fn check(settings: &GraphSettings) -> Result<GraphCheckResult, String> {
    let said = ask(settings, &["check", "--json"])?;
    serde_json::from_slice(&said)
        .map_err(|e| format!("unexpected output of `voile graph check --json`: {e}"))
}

fn picture(settings: &GraphSettings, path: &str) -> Result<String, String> {
    ask(settings, &["draw", "-o", path])?;
    std::fs::read_to_string(path).map_err(|e| format!("the graph's picture: {e}"))
}

/// Measures one slice. The counts are read before and after the clocks, so that reading them costs nothing.
fn turn(
    settings: &GraphSettings,
    side: &GraphSideRun,
    rate: f64,
    folder: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<SliceRun, String> {
    side.load(settings, rate, WARM_UP, folder, stopped)?;
    let machine = || CoreTime::now().map_err(|e| format!("the machine's clock: {e}"));
    let family = side.family(settings.isolation);
    let (told, counted) = (family.told()?, family.by_mutual_tls()?);
    let (before, busy) = (family.used(), machine()?);
    let found = side.load(settings, rate, settings.slice, folder, stopped)?;
    let (after, busy) = (family.used(), machine()?.since(busy));
    let counted = family.by_mutual_tls()?.saturating_sub(counted);
    let mut grew = family.told()?;
    for (service, told) in told {
        let later = grew.remove(&service).unwrap_or_default();
        grew.insert(service, later.since(&told));
    }
    let ok = found["ok"].as_u64().unwrap_or(0);
    if ok == 0 {
        return Err("no request was answered".to_owned());
    }
    let number = |name: &str| found["latency_us"][name].as_f64().unwrap_or(0.0);
    let reasons = found["invalid_reasons"].as_array().into_iter().flatten();
    let mut figures = vec![
        ("ok".to_owned(), Some(ok as f64)),
        ("p50_us".to_owned(), Some(number("p50"))),
        ("p90_us".to_owned(), Some(number("p90"))),
        ("p99_us".to_owned(), Some(number("p99"))),
        (
            "machine_us".to_owned(),
            Some(busy.busy_ns() as f64 / 1000.0 / ok as f64),
        ),
        (
            "by_mutual_tls".to_owned(),
            side.mesh.then_some(counted as f64),
        ),
    ];
    for kind in family.kinds() {
        let used = spent(family.of_kind(kind), &before, &after) / ok as f64;
        let held = held(family.of_kind(kind), |held| held.pss_bytes);
        figures.push((format!("cpu_us.{kind}"), Some(used)));
        figures.push((format!("memory_bytes.{kind}"), held));
    }
    figures.extend(services(&family, &grew, &before, &after));
    figures.extend(edges(&grew));
    let known = figures
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    Ok(SliceRun {
        measured: known.collect(),
        invalid_reasons: reasons
            .filter_map(|reason| reason.as_str().map(str::to_owned))
            .collect(),
        ..SliceRun::default()
    })
}

/// A figure by its name, if it is known.
type NamedFigure = (String, Option<f64>);

/// Work and cost of each service.
fn services(
    family: &GraphSide,
    grew: &BTreeMap<String, ServiceCounters>,
    before: &Used,
    after: &Used,
) -> Vec<NamedFigure> {
    let one = |(name, told): (&String, &ServiceCounters)| {
        let of = |kind: &'static str| family.of_kind(kind).filter(move |one| one.service == *name);
        let each = |kind| spent(of(kind), before, after) / told.requests.max(1.0);
        let rss = |kind| held(of(kind), |held| held.rss_bytes);
        let sidecars = of("sidecar").next().is_some();
        let part = format!("services.{name}");
        let own = [
            ("requests", Some(told.requests)),
            ("cpu_us", Some(each("service"))),
            ("rss_bytes", rss("service")),
            ("sidecar_cpu_us", sidecars.then(|| each("sidecar"))),
            ("sidecar_rss_bytes", rss("sidecar")),
        ];
        let own = own.map(|(figure, value)| (format!("{part}.{figure}"), value));
        [Vec::from(own), told.took.times().figures(&part)].concat()
    };
    grew.iter().flat_map(one).collect()
}

/// Every call that was made, by caller and callee.
fn edges(grew: &BTreeMap<String, ServiceCounters>) -> Vec<NamedFigure> {
    let mut all = Vec::new();
    for (caller, told) in grew {
        let made = told
            .calls
            .iter()
            .filter(|(_, calls)| calls.took.count() > 0);
        for (destination, calls) in made {
            let callee = destination.strip_suffix(":8080").unwrap_or(destination);
            let part = format!("edges.{caller} → {callee}");
            all.extend([
                (format!("{part}.calls"), Some(calls.took.count() as f64)),
                (format!("{part}.failed"), Some(calls.failed.max(0.0))),
            ]);
            all.extend(calls.took.times().figures(&part));
        }
    }
    all
}

/// Proof of path: every service took as many requests as the graph says, and with the mesh all calls but those to the entry
/// point came by mutual TLS.
fn prove(slice: &mut SliceRun, graph: &ServiceGraph, certain: bool) {
    let figure = |name: &str| slice.measured.get(name).copied();
    let Some(ok) = figure("ok").filter(|_| slice.invalid_reasons.is_empty()) else {
        return;
    };
    let near = |counted: f64, expected: f64| {
        let room = if certain { 0.0 } else { expected * CHANCE };
        (counted - expected).abs() <= room + 0.5
    };
    let of_service = |name: &&String| name.starts_with("services.") && name.ends_with(".requests");
    let services = slice.measured.keys().filter(of_service);
    let made: f64 = services.filter_map(|name| figure(name)).sum();
    let expected = ok * graph.requests;
    let mut reasons = Vec::new();
    if !near(made, expected) {
        reasons.push(format!(
            "services counted {made} requests, the graph makes {expected:.0}"
        ));
    }
    let calls = ok * (graph.requests - 1.0);
    if let Some(counted) = figure("by_mutual_tls").filter(|counted| !near(*counted, calls)) {
        reasons.push(format!(
            "sidecars counted {counted} calls by mutual TLS, the graph makes {calls:.0}"
        ));
    }
    slice.invalid_reasons = reasons;
}

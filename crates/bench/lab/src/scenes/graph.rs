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
use voile_report::graph::{EdgeSlice, GraphRecord, GraphSlice, ServiceSlice, SustainedRates};

use crate::definition::Isolation;
use crate::environment::{environment, head, warnings};
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
const INTERRUPTED: &str = "interrupted before anything was measured";

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
) -> Result<GraphRecord, String> {
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
    let mut record = new_record(settings, &checked, entry)?;
    let made = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    ask(settings, &["mesh", "--out", &made("mesh")])?;
    if settings.isolation == Isolation::Netns {
        ask(settings, &["mesh", "--no-sidecars", "--out", &made("open")])?;
    }
    record.picture = picture(settings, &made("graph.svg"))?;
    say("\rstarting the graph without a mesh");
    let mut sides = [
        GraphSideRun::start(settings, folder.path(), false, stopped)?,
        GraphSideRun::start(settings, folder.path(), true, stopped)?,
    ];
    say("\rstarting the graph with the mesh");
    for side in &mut sides {
        side.wait_ready(settings, folder.path(), &entry.service, stopped)?;
    }
    let found = carried(settings, &sides, folder.path(), &mut record, say, stopped);
    if found.is_ok() {
        all_rounds(
            settings,
            &sides,
            folder.path(),
            &checked,
            &mut record,
            say,
            stopped,
        );
    }
    say("\r");
    for side in &mut sides {
        side.child.begin_stop();
    }
    for side in &mut sides {
        side.child.stop(END_WITHIN);
    }
    found?;
    if record.slices.is_empty() {
        return Err(INTERRUPTED.to_owned());
    }
    if stopped() {
        let note = "Interrupted: rounds that were not measured are missing.";
        record.head.notes.push(note.to_owned());
    }
    record.head.took_seconds = began.elapsed().as_secs_f64();
    Ok(record)
}

/// Searches for the rate to measure at, if the user set none.
fn carried(
    settings: &GraphSettings,
    sides: &[GraphSideRun; 2],
    folder: &Path,
    record: &mut GraphRecord,
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
    record.rate = (without.min(with) * MEASURED_AT).floor().max(1.0);
    record.carried = Some(SustainedRates {
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
    checked: &GraphCheckResult,
    record: &mut GraphRecord,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) {
    let mut order = [0, 1];
    for round in 1..=settings.rounds {
        fastrand::shuffle(&mut order);
        for at in order {
            let side = &sides[at];
            let words = if side.mesh { "with" } else { "without" };
            say(&format!(
                "\rround {round}/{}, {words} the mesh",
                settings.rounds
            ));
            let measured = turn(settings, side, record.rate, folder, stopped);
            if stopped() {
                return;
            }
            let mut slice = measured.unwrap_or_else(|why| GraphSlice {
                invalid_reasons: vec![why],
                ..GraphSlice::default()
            });
            (slice.round, slice.mesh) = (round, side.mesh);
            prove(&mut slice, record, checked.certain);
            record.slices.push(slice);
        }
    }
}

fn new_record(
    settings: &GraphSettings,
    checked: &GraphCheckResult,
    entry: &GraphEntry,
) -> Result<GraphRecord, String> {
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
    let text = std::fs::read_to_string(&settings.graph);
    Ok(GraphRecord {
        head: head(&settings.command, notes, environment),
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
        ..GraphRecord::default()
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
) -> Result<GraphSlice, String> {
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
    let kinds = family.kinds();
    let cpu = |kind: &&'static str| {
        let used = spent(family.of_kind(kind), &before, &after) / ok as f64;
        ((*kind).to_owned(), used)
    };
    let memory = |kind: &&'static str| {
        let held = held(family.of_kind(kind), |held| held.pss_bytes)?;
        Some(((*kind).to_owned(), held))
    };
    Ok(GraphSlice {
        ok,
        p50_us: number("p50"),
        p90_us: number("p90"),
        p99_us: number("p99"),
        cpu_us: kinds.iter().map(cpu).collect(),
        machine_us: busy.busy_ns() as f64 / 1000.0 / ok as f64,
        memory_bytes: kinds.iter().filter_map(memory).collect(),
        by_mutual_tls: side.mesh.then_some(counted),
        services: services(&family, &grew, &before, &after),
        edges: edges(&grew),
        invalid_reasons: reasons
            .filter_map(|reason| reason.as_str().map(str::to_owned))
            .collect(),
        ..GraphSlice::default()
    })
}

/// Work and cost of each service.
fn services(
    family: &GraphSide,
    grew: &BTreeMap<String, ServiceCounters>,
    before: &Used,
    after: &Used,
) -> BTreeMap<String, ServiceSlice> {
    let one = |name: &String, told: &ServiceCounters| {
        let of = |kind: &'static str| family.of_kind(kind).filter(move |one| one.service == *name);
        let each = |kind| spent(of(kind), before, after) / told.requests.max(1.0);
        let sidecars = of("sidecar").next().is_some();
        ServiceSlice {
            requests: told.requests as u64,
            took: told.took.times(),
            cpu_us: each("service"),
            rss_bytes: held(of("service"), |held| held.rss_bytes).unwrap_or(0.0),
            sidecar_cpu_us: sidecars.then(|| each("sidecar")),
            sidecar_rss_bytes: held(of("sidecar"), |held| held.rss_bytes),
        }
    };
    grew.iter()
        .map(|(name, told)| (name.clone(), one(name, told)))
        .collect()
}

/// Every call that was made, by caller and callee.
fn edges(grew: &BTreeMap<String, ServiceCounters>) -> BTreeMap<String, EdgeSlice> {
    let all = grew.iter().flat_map(|(caller, told)| {
        told.calls.iter().map(move |(destination, calls)| {
            let callee = destination.strip_suffix(":8080").unwrap_or(destination);
            let edge = EdgeSlice {
                calls: calls.took.count(),
                failed: calls.failed.max(0.0) as u64,
                took: calls.took.times(),
            };
            (format!("{caller} → {callee}"), edge)
        })
    });
    all.filter(|(_, edge)| edge.calls > 0).collect()
}

/// Proof of path: every service took as many requests as the graph says, and with the mesh all calls but those to the entry
/// point came by mutual TLS.
fn prove(slice: &mut GraphSlice, record: &GraphRecord, certain: bool) {
    if !slice.invalid_reasons.is_empty() {
        return;
    }
    let near = |counted: u64, expected: f64| {
        let room = if certain { 0.0 } else { expected * CHANCE };
        (counted as f64 - expected).abs() <= room + 0.5
    };
    let made: u64 = slice
        .services
        .values()
        .map(|service| service.requests)
        .sum();
    let expected = slice.ok as f64 * record.requests;
    if !near(made, expected) {
        slice.invalid_reasons.push(format!(
            "services counted {made} requests, the graph makes {expected:.0}"
        ));
    }
    let calls = slice.ok as f64 * (record.requests - 1.0);
    if let Some(counted) = slice.by_mutual_tls.filter(|counted| !near(*counted, calls)) {
        slice.invalid_reasons.push(format!(
            "sidecars counted {counted} calls by mutual TLS, the graph makes {calls:.0}"
        ));
    }
}

//! What a mesh costs a whole graph of services: the same graph as processes without a mesh and under `voile up`, both kept
//! running, and the generator at the one or the other in turn.
//!
//! ```text
//! graph run ─┐ both ready ── round: [with, without] in random order: warm-up, load, CPU of every process ── × rounds
//! voile up ──┘                                     └ with: what sidecars count by mutual TLS is what the graph says
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::child::{Output, Spec, Supervised};
use voile_host::machine::CoreTime;
use voile_host::ready::http_get;
use voile_host::sampler::{Holdings, Usage};
use voile_report::graph::{GraphRecord, GraphSlice};

use crate::environment::{environment, head, warnings};
use crate::places::without;

/// How long a graph or a mesh may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// How long it may take to end.
const END_WITHIN: Duration = Duration::from_secs(30);
/// Load before each slice: connections are opened, caches filled.
const WARM_UP: &str = "1s";
/// How often we look whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a generator may take beyond its own plan.
const OVERTIME: Duration = Duration::from_secs(30);
/// Where sidecars tell their metrics.
const METRICS_PORT: u16 = 15020;
/// How far the count by mutual TLS may be from what the graph says, as a share: probabilities and errors are chance.
const CHANCE: f64 = 0.05;

/// What to run.
pub struct GraphSettings {
    /// The program.
    pub voile: PathBuf,
    /// The graph.
    pub graph: PathBuf,
    /// Requests a second at the first entry point.
    pub rate: f64,
    /// Connections of the generator.
    pub connections: u32,
    /// How often each side is measured.
    pub rounds: u32,
    /// For how long.
    pub slice: Duration,
    /// How the user called us, for the record.
    pub command: String,
}

/// What `voile graph check --json` says, as far as we need it.
#[derive(Debug, Deserialize)]
struct Checked {
    services: u32,
    entries: Vec<Entry>,
    certain: bool,
}

#[derive(Debug, Deserialize)]
struct Entry {
    service: String,
    requests: f64,
    depth: u32,
}

/// One side: everything that runs for it.
struct Side {
    child: Supervised,
    url: String,
    said: Arc<Mutex<String>>,
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
    let checked: Checked = check(settings)?;
    let entry = checked
        .entries
        .first()
        .ok_or("the graph has no entry point")?;
    let mut record = new_record(settings, &checked, entry)?;
    let mesh = folder.path().join("mesh");
    let made = ask(settings, &["mesh", "--out", &mesh.to_string_lossy()])?;
    drop(made);
    say("\rstarting the graph without a mesh");
    let mut sides = [
        start(settings, folder.path(), false, &mesh, stopped)?,
        start(settings, folder.path(), true, &mesh, stopped)?,
    ];
    say("\rstarting the graph with the mesh");
    for side in &mut sides {
        side.url = wait_ready(side, &entry.service, stopped)?;
    }
    let mut order = [false, true];
    'rounds: for round in 1..=settings.rounds {
        fastrand::shuffle(&mut order);
        for mesh in order {
            let words = if mesh { "with" } else { "without" };
            say(&format!(
                "\rround {round}/{}, {words} the mesh",
                settings.rounds
            ));
            let side = &mut sides[usize::from(mesh)];
            let measured = turn(settings, side, mesh, folder.path(), stopped);
            if stopped() {
                break 'rounds;
            }
            let mut slice = measured.unwrap_or_else(|why| GraphSlice {
                invalid_reasons: vec![without(&why)],
                ..GraphSlice::default()
            });
            (slice.round, slice.mesh) = (round, mesh);
            if mesh {
                prove(&mut slice, &record, checked.certain);
            }
            record.slices.push(slice);
        }
    }
    say("\r");
    for side in &mut sides {
        side.child.begin_stop();
    }
    for side in &mut sides {
        side.child.stop(END_WITHIN);
    }
    if record.slices.is_empty() {
        return Err("interrupted before anything was measured".to_owned());
    }
    if stopped() {
        let note = "Interrupted: rounds that were not measured are missing.";
        record.head.notes.push(note.to_owned());
    }
    record.head.took_seconds = began.elapsed().as_secs_f64();
    Ok(record)
}

/// Writes `graph.json` and `report.md` into the folder.
///
/// # Errors
/// When it cannot be written.
pub fn write_graph(record: &GraphRecord, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    crate::folder::write(&folder.join("graph.json"), &record.to_json())?;
    crate::folder::write(&folder.join("report.md"), &record.to_markdown())
}

fn new_record(
    settings: &GraphSettings,
    checked: &Checked,
    entry: &Entry,
) -> Result<GraphRecord, String> {
    let environment = environment(&settings.voile);
    let mut notes = warnings(&environment);
    notes.push(
        "Generator, services and sidecars share this machine. With the mesh the entry point is reached through the runner's published port, one hop more \
         than without; its CPU is the runner's."
            .to_owned(),
    );
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
        rate: settings.rate,
        connections: settings.connections,
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

fn check(settings: &GraphSettings) -> Result<Checked, String> {
    let said = ask(settings, &["check", "--json"])?;
    serde_json::from_slice(&said)
        .map_err(|e| format!("`voile graph check --json` says something else: {e}"))
}

fn start(
    settings: &GraphSettings,
    folder: &Path,
    mesh: bool,
    dir: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<Side, String> {
    if stopped() {
        return Err("interrupted before anything was measured".to_owned());
    }
    let (name, log) = if mesh {
        ("voile up", "mesh.log")
    } else {
        ("graph run", "baseline.log")
    };
    let spec = Spec::new(name, &settings.voile);
    let spec = match mesh {
        true => spec
            .arg("up")
            .arg(dir)
            .args(["--isolation", "loopback", "--quiet"]),
        false => spec.args(["graph", "run"]).arg(&settings.graph),
    };
    let said = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&said);
    let sink = move |line: &str| {
        if let Ok(mut said) = heard.lock() {
            said.push_str(line);
            said.push('\n');
        }
    };
    let child = spec
        .stdout(Output::Lines(Box::new(sink)))
        .stderr(Output::File(folder.join(log)))
        .start()
        .map_err(|e| e.to_string())?;
    Ok(Side {
        child,
        url: String::new(),
        said,
    })
}

/// Waits until the entry point is printed: the line's name ends with the service's.
fn wait_ready(side: &mut Side, entry: &str, stopped: &dyn Fn() -> bool) -> Result<String, String> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let said = side
            .said
            .lock()
            .map(|said| said.clone())
            .unwrap_or_default();
        let url = said.lines().find_map(|line| {
            let (name, url) = line.split_once('\t')?;
            (name.rsplit('/').next() == Some(entry)).then(|| url.trim_end_matches('/').to_owned())
        });
        if let Some(url) = url {
            return Ok(url);
        }
        if stopped() {
            return Err("interrupted before anything was measured".to_owned());
        }
        if let Some(exit) = side.child.wait(LOOK_EVERY) {
            return Err(format!("{} {exit} before it was ready", side.child.name()));
        }
        if Instant::now() > deadline {
            return Err(format!(
                "{} is not ready after {READY_WITHIN:?}",
                side.child.name()
            ));
        }
    }
}

fn turn(
    settings: &GraphSettings,
    side: &mut Side,
    mesh: bool,
    folder: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<GraphSlice, String> {
    load(settings, side, WARM_UP, folder, stopped)?;
    let family = family(side.child.pid());
    let usage = || -> BTreeMap<&'static str, u64> {
        let all = family.iter();
        all.map(|(kind, pids)| (*kind, Usage::of_all(pids).cpu_ns))
            .collect()
    };
    let machine = || CoreTime::now().map_err(|e| format!("the machine's clock: {e}"));
    let sidecars = if mesh { sidecars(folder) } else { Vec::new() };
    let (before, counted, busy) = (usage(), by_mutual_tls(&sidecars), machine()?);
    let slice = format!("{}ms", settings.slice.as_millis());
    let found = load(settings, side, &slice, folder, stopped)?;
    let (after, busy) = (usage(), machine()?.since(busy));
    let counted = by_mutual_tls(&sidecars).saturating_sub(counted);
    let ok = found["ok"].as_u64().unwrap_or(0);
    let each = |ns: u64| ns as f64 / 1000.0 / ok as f64;
    if ok == 0 {
        return Err("no request was answered".to_owned());
    }
    let number = |name: &str| found["latency_us"][name].as_f64().unwrap_or(0.0);
    let reasons = found["invalid_reasons"].as_array().into_iter().flatten();
    let cpu = after.iter().map(|(kind, ns)| {
        let used = ns.saturating_sub(before.get(kind).copied().unwrap_or(0));
        ((*kind).to_owned(), each(used))
    });
    Ok(GraphSlice {
        ok,
        p50_us: number("p50"),
        p90_us: number("p90"),
        p99_us: number("p99"),
        cpu_us: cpu.collect(),
        machine_us: each(busy.busy_ns()),
        memory_bytes: family
            .iter()
            .filter_map(|(kind, pids)| Some(((*kind).to_owned(), memory(pids)?)))
            .collect(),
        by_mutual_tls: mesh.then_some(counted),
        invalid_reasons: reasons
            .filter_map(|reason| reason.as_str().map(str::to_owned))
            .collect(),
        ..GraphSlice::default()
    })
}

fn load(
    settings: &GraphSettings,
    side: &Side,
    duration: &str,
    folder: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<serde_json::Value, String> {
    let out = folder.join("load.json");
    let mut child = Spec::new("voile load", &settings.voile)
        .args(["load", "--json", "--rate", &settings.rate.to_string()])
        .args(["--connections", &settings.connections.to_string()])
        .args(["--duration", duration])
        .arg(&side.url)
        .stdout(Output::File(out.clone()))
        .start()
        .map_err(|e| e.to_string())?;
    let deadline = Instant::now() + settings.slice + OVERTIME;
    while child.wait(LOOK_EVERY).is_none() {
        if stopped() || Instant::now() > deadline {
            return Err("the generator did not end in time".to_owned());
        }
    }
    let text = std::fs::read_to_string(&out).unwrap_or_default();
    serde_json::from_str(&text).map_err(|e| format!("the generator's answer: {e}"))
}

/// All processes below one, by what they are.
fn family(root: u32) -> BTreeMap<&'static str, Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok()) {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in brackets may hold anything; what follows its last bracket is numbers.
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut family: BTreeMap<&'static str, Vec<u32>> = BTreeMap::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        family.entry(kind(pid)).or_default().push(pid);
        next.extend(children.get(&pid).into_iter().flatten());
    }
    family
}

fn kind(pid: u32) -> &'static str {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip(1);
    match (words.next(), words.next()) {
        (Some(b"graph"), Some(b"serve")) => "service",
        (Some(b"proxy"), _) => "sidecar",
        (Some(b"control"), _) => "control",
        _ => "runner",
    }
}

fn memory(pids: &[u32]) -> Option<f64> {
    let held = pids.iter().filter_map(|pid| Holdings::of(*pid).ok());
    voile_report::statistics::median(&held.map(|held| held.pss_bytes as f64).collect::<Vec<_>>())
}

/// Where the sidecars of the mesh tell their metrics: the runner says which block of addresses it took, and pods come first in it.
fn sidecars(folder: &Path) -> Vec<SocketAddr> {
    let log = std::fs::read_to_string(folder.join("mesh.log")).unwrap_or_default();
    let block = log.split_once(" pods in 127.").and_then(|(before, rest)| {
        let pods: u32 = before.rsplit(' ').next()?.parse().ok()?;
        Some((pods, rest.split('.').next()?.parse::<u8>().ok()?))
    });
    let Some((pods, octet)) = block else {
        return Vec::new();
    };
    let addresses = (2..pods + 2).map(|number| {
        let [.., high, low] = number.to_be_bytes();
        SocketAddr::from((Ipv4Addr::new(127, octet, high, low), METRICS_PORT))
    });
    addresses.collect()
}

/// Requests that sidecars took by mutual TLS, all of them added up.
fn by_mutual_tls(sidecars: &[SocketAddr]) -> u64 {
    let count = |address: &SocketAddr| {
        let page = http_get(*address, "/metrics")
            .map(|(_, page)| page)
            .unwrap_or_default();
        let page = String::from_utf8_lossy(&page).into_owned();
        let ours = page.lines().filter(|line| {
            line.starts_with("istio_requests_total{")
                && line.contains("reporter=\"destination\"")
                && line.contains("connection_security_policy=\"mutual_tls\"")
        });
        let values = ours.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    };
    sidecars.iter().map(count).sum()
}

/// Proof of path: all calls but those to the entry point came by mutual TLS, as many as the graph says.
fn prove(slice: &mut GraphSlice, record: &GraphRecord, certain: bool) {
    let (Some(counted), true) = (slice.by_mutual_tls, slice.invalid_reasons.is_empty()) else {
        return;
    };
    let expected = slice.ok as f64 * (record.requests - 1.0);
    let room = if certain { 0.0 } else { expected * CHANCE };
    if (counted as f64 - expected).abs() > room + 0.5 {
        slice.invalid_reasons.push(format!(
            "sidecars counted {counted} calls by mutual TLS, the graph makes {expected:.0}"
        ));
    }
}

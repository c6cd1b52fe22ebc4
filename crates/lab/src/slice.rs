//! One slice: the generator as a process, samplers around its measured part, and what both say, as one [`Run`].
//!
//! ```text
//! start ─ connect ─ warm-up ─┬──────────── measured by the generator ────────────┬─ end
//!                            80 ms ├──────── samplers' window ────────┤ 20 ms
//! ```
//!
//! CPU is read at both ends of a window that lies inside the measured part, and divided by the requests of that window
//! (achieved rate × its length), so that neither process start nor connection setup is charged to requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use voile_host::child::{Output, Supervised};
use voile_host::machine::CoreTime;
use voile_host::sampler::{Holdings, Usage};
use voile_load::samples::Samples;
use voile_report::record::{Latency, Process, Run};

use crate::contestants::{Instance, Route};
use crate::plan::Cell;
use crate::target::Lab;

/// The generator may take this long to start and connect before the window would begin too early.
const LEAD: Duration = Duration::from_millis(80);
/// The window ends this long before the measured part can.
const TRAIL: Duration = Duration::from_millis(20);
/// How long the generator may take beyond its own plan (it waits for outstanding answers, 3 s at most).
const OVERTIME: Duration = Duration::from_secs(8);
/// How often we look whether the user asked to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Samples of a half that make its median worth comparing for drift.
const DRIFT_SAMPLES: u64 = 50;

/// What is asked of the generator.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) rate: f64,
    pub(crate) connections: u32,
    pub(crate) size: u64,
    pub(crate) arrival: String,
    pub(crate) duration: Duration,
    pub(crate) warmup: Duration,
    pub(crate) seed: u64,
    /// A word in the query by which a capture recognises our requests.
    pub(crate) marker: Option<String>,
}

/// The generator's JSON, as far as the lab needs it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Generated {
    pub(crate) valid: bool,
    pub(crate) invalid_reasons: Vec<String>,
    pub(crate) start_unix_ns: u64,
    pub(crate) start_time: String,
    pub(crate) duration_s: f64,
    pub(crate) achieved_rps: f64,
    pub(crate) scheduled: u64,
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) errors_total: u64,
    pub(crate) latency_us: Percentiles,
    pub(crate) service_us: Percentiles,
    pub(crate) lateness_us: Lateness,
    pub(crate) halves_us: Vec<Percentiles>,
    pub(crate) latency_histogram: String,
    pub(crate) interrupted: bool,
    /// Median of one half over that of the other, the larger way round.
    #[serde(skip)]
    pub(crate) drift: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    mean: f64,
    count: u64,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lateness {
    pub(crate) p99: u64,
}

impl From<Percentiles> for Latency {
    fn from(p: Percentiles) -> Self {
        let some = |value| (p.count > 0).then_some(value);
        Self {
            p50: some(p.p50),
            p90: some(p.p90),
            p99: some(p.p99),
            p999: some(p.p999),
            max: some(p.max),
            mean: some(p.mean),
            count: p.count,
        }
        .trimmed()
    }
}

/// Why a slice brought nothing at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The user asked to end.
    Stopped,
    /// The generator failed; in words.
    Failed(String),
}

/// Readings of the machine and of each instance at one moment.
struct Reading {
    at: Instant,
    wall: SystemTime,
    machine: Option<CoreTime>,
    usage: Vec<Usage>,
}

impl Reading {
    fn take(instances: &[Instance]) -> Self {
        let usage = instances
            .iter()
            .map(|instance| Usage::of_all(&instance.pids))
            .collect();
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
            machine: CoreTime::now().ok(),
            usage,
        }
    }
}

/// Starts the generator for this order.
pub(crate) fn start_load(
    lab: &Lab<'_>,
    route: &Route,
    order: &Order,
) -> Result<(Supervised, std::path::PathBuf), String> {
    let out = lab.folder.join("load.json");
    let _ = std::fs::remove_file(&out);
    let mut url = format!("http://{}/?size={}", route.entry, order.size);
    if let Some(marker) = &order.marker {
        url = format!("{url}&marker={marker}");
    }
    let duration = |d: Duration| format!("{}us", d.as_micros());
    let mut spec = lab
        .process("load", &lab.voile)
        .args(["load", &url, "--json", "--rate", &order.rate.to_string()])
        .args([
            "--connections",
            &order.connections.to_string(),
            "--arrival",
            &order.arrival,
        ])
        .args([
            "--duration",
            &duration(order.duration),
            "--warmup",
            &duration(order.warmup),
        ])
        .args([
            "--expect-size",
            &order.size.to_string(),
            "--seed",
            &order.seed.to_string(),
        ])
        .stdout(Output::File(out.clone()));
    if let Some(host) = &route.host {
        spec = spec.args(["--header", &format!("Host: {host}")]);
    }
    if let Some(bind) = &route.bind {
        spec = spec.args(["--bind", &bind.to_string()]);
    }
    Ok((spec.start().map_err(|e| e.to_string())?, out))
}

/// Waits until that moment, or until the generator ends, or the user asks to end.
fn wait_until(load: &mut Supervised, moment: Instant, lab: &Lab<'_>) -> Result<bool, Broken> {
    loop {
        if (lab.stopped)() {
            return Err(Broken::Stopped);
        }
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        if load.wait(left.min(LOOK_EVERY)).is_some() {
            return Ok(true);
        }
    }
}

/// Waits for the generator's end and reads what it says. A run that it calls invalid is an answer too.
pub(crate) fn finish_load(
    load: &mut Supervised,
    out: &Path,
    bound: Duration,
    lab: &Lab<'_>,
) -> Result<Generated, Broken> {
    if !wait_until(load, Instant::now() + bound, lab)? {
        return Err(Broken::Failed(format!(
            "the generator did not end within {bound:?}"
        )));
    }
    let text = std::fs::read_to_string(out).unwrap_or_default();
    let mut generated: Generated = serde_json::from_str(&text).map_err(|e| {
        let exit = load
            .try_exit()
            .map_or_else(String::new, |exit| exit.to_string());
        Broken::Failed(format!(
            "the generator {exit} without a result ({e}){}",
            lab.log_end("load")
        ))
    })?;
    generated.drift = drift(&generated.halves_us);
    Ok(generated)
}

/// How far the medians of the slice's halves lie apart, the larger over the smaller.
fn drift(halves: &[Percentiles]) -> Option<f64> {
    let [first, second] = halves else {
        return None;
    };
    let (low, high) = (first.p50.min(second.p50), first.p50.max(second.p50));
    let enough = first.count.min(second.count) >= DRIFT_SAMPLES;
    (enough && low > 0.0).then(|| high / low)
}

/// Runs one slice. The second part of the answer is the slice's histogram.
pub(crate) fn measure(
    lab: &Lab<'_>,
    cell: &Cell,
    route: &Route,
    order: &Order,
    shared: &[Instance],
    host: &str,
) -> Result<(Run, Generated), Broken> {
    let began = Instant::now();
    let (mut load, out) = start_load(lab, route, order).map_err(Broken::Failed)?;
    let mut instances = shared.to_vec();
    instances.push(Instance {
        name: "load".to_owned(),
        role: "load",
        pids: vec![load.pid()],
    });
    let window_starts = began + order.warmup + LEAD.min(order.duration / 4);
    let window_ends = began + order.warmup + order.duration - TRAIL.min(order.duration / 8);
    wait_until(&mut load, window_starts, lab)?;
    let before = Reading::take(&instances);
    wait_until(&mut load, window_ends, lab)?;
    let after = Reading::take(&instances);
    let generated = finish_load(&mut load, &out, OVERTIME, lab)?;
    let mut run = Run {
        contestant: cell.contestant.clone(),
        mode: cell.mode.clone(),
        tls: cell.tls,
        protocol: "http1".to_owned(),
        arrival: cell.arrival.clone(),
        rate: order.rate,
        connections: order.connections,
        seconds: generated.duration_s,
        achieved_rps: generated.achieved_rps,
        requests: generated.sent,
        errors: generated.errors_total,
        generator_late_us_p99: Some(generated.lateness_us.p99 as f64),
        latency_us: generated.latency_us.into(),
        service_us: generated.service_us.into(),
        ..Run::default()
    };
    if let Some(reason) = window_misplaced(&before, &after, &generated) {
        run.invalid_reasons.push(reason);
    }
    charge(&mut run, &instances, &before, &after, host);
    Ok((run, generated))
}

/// Divides what was used in the window by the requests of the window.
fn charge(run: &mut Run, instances: &[Instance], before: &Reading, after: &Reading, host: &str) {
    let window = after.at.duration_since(before.at);
    let requests = (run.achieved_rps * window.as_secs_f64()).max(1.0);
    if let (Some(before), Some(after)) = (before.machine, after.machine) {
        let used = after.since(before);
        run.machine_cpu_us_per_request = Some(used.busy_ns() as f64 / 1000.0 / requests);
        run.machine_busy = Some(used.busy_share());
    }
    for (at, instance) in instances.iter().enumerate() {
        let used = after.usage[at].since(before.usage[at]);
        // The generator has ended by now; it holds nothing that matters.
        let held = Holdings::of_all(&instance.pids);
        let per_request = |ns: u64| ns as f64 / 1000.0 / requests;
        run.processes.push(Process {
            name: instance.name.clone(),
            role: instance.role.to_owned(),
            host: host.to_owned(),
            pids: instance.pids.clone(),
            cpu_us_per_request: per_request(used.cpu_ns),
            user_us_per_request_sampled: per_request(used.user_ns),
            system_us_per_request_sampled: per_request(used.system_ns),
            vcpu: used.cpu_ns as f64 / window.as_nanos().max(1) as f64,
            rss_bytes: held.rss_bytes,
            pss_bytes: held.pss_bytes,
            anonymous_bytes: held.anonymous_bytes,
            ctx_switches_per_request: (used.voluntary_switches + used.involuntary_switches) as f64
                / requests,
            voluntary_ctx_switches_per_request: used.voluntary_switches as f64 / requests,
            threads: held.threads,
            descriptors: held.descriptors,
        });
    }
}

fn window_misplaced(before: &Reading, after: &Reading, generated: &Generated) -> Option<String> {
    let unix = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos())
    };
    let starts = u128::from(generated.start_unix_ns);
    let ends = starts + (generated.duration_s * 1e9) as u128;
    let inside = unix(before.wall) >= starts && unix(after.wall) <= ends;
    (!inside).then(|| "samplers' window outside the measured part: the generator took long to start, or ended early".to_owned())
}

/// Adds a slice's histogram to the merged one of its cell.
pub(crate) fn merge_histogram(merged: &mut Samples, text: &str) -> Result<(), String> {
    merged.merge(&Samples::decode(text)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_the_larger_half_over_the_smaller() {
        let half = |p50, count| Percentiles {
            p50,
            count,
            ..Percentiles::default()
        };
        for (halves, expected) in [
            (vec![half(100.0, 500), half(450.0, 500)], Some(4.5)),
            (vec![half(450.0, 500), half(100.0, 500)], Some(4.5)),
            (vec![half(100.0, 500), half(450.0, DRIFT_SAMPLES - 1)], None),
            (vec![half(0.0, 500), half(450.0, 500)], None),
            (vec![], None),
        ] {
            assert_eq!(drift(&halves), expected);
        }
    }
}

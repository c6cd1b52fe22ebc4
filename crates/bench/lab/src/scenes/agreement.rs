//! Runs `voile load` and Fortio in turn against the same servers. Both must agree on a server with a fixed delay, where Fortio
//! can tell the truth. Ours must show the stalls of a server that stalls, which Fortio's closed connections hide.
//!
//! ```text
//! round: for each scene, both generators in shuffled order ── a slice that does not count is repeated once ── × rounds
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::child::{Spec, SupervisedChild};
use voile_report::record::scene::{SceneKind, ScenePart};
use voile_report::record::{Latency, Record, SliceRun, ValueKind};

use crate::contestants::contestant::CellRoute;
use crate::definition::Asks;
use crate::environment::{ended, environment, scene_record, warnings};
use crate::find::PeerProgram;
use crate::generator::{BrokenSlice, GeneratorRequest, finish_load, start_load};
use crate::machine::instance::Hop;
use crate::network::Echo;
use crate::shared_processes::{HTTP, Lab, start_echo};

/// Rate of both generators, the one of istio/tools and of the quick experiment.
const RATE: u32 = 1000;
const CONNECTIONS: u32 = 16;
/// Bytes of an answer.
const SIZE: u64 = 1024;
/// The fixed delay.
const DELAY_MS: f64 = 2.0;
/// The server answers nothing for `STALL` in every `STALL_EVERY`.
const STALL_EVERY: Duration = Duration::from_secs(5);
const STALL: Duration = Duration::from_millis(200);
/// Slices against the stalling server last this often the fixed one's, and see whole stalls only.
const STALLS_A_SLICE: u32 = 2;
/// Achieved against asked for.
const MAX_RATE_MISS: f64 = 0.02;
/// Time that a generator may take beyond its own plan.
const OVERTIME: Duration = Duration::from_secs(8);

/// Settings of the comparison.
pub struct AgreementSettings {
    /// The `voile` program: generator and servers.
    pub voile: PathBuf,
    /// Fortio.
    pub fortio: PeerProgram,
    /// Number of measurements of each scene with each generator.
    pub rounds: u32,
    /// Length of a slice against the server with a fixed delay.
    pub slice: Duration,
    /// The user's command line, for the record.
    pub command: String,
}

/// A scene with its server running.
struct AgreementStage {
    name: &'static str,
    arrival: &'static str,
    address: SocketAddr,
    duration: Duration,
    /// Fortio's histogram: its lowest bucket's width and where it begins, so that its percentiles are fine where they matter.
    resolution: &'static str,
    offset: &'static str,
}

/// Fortio's JSON, as far as we need it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FortioResult {
    #[serde(rename = "ActualQPS")]
    actual_qps: f64,
    duration_histogram: FortioHistogram,
    #[serde(default)]
    ret_codes: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FortioHistogram {
    count: u64,
    max: f64,
    avg: f64,
    percentiles: Option<Vec<Percentile>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Percentile {
    percentile: f64,
    value: f64,
}

/// Runs it. `say` receives lines for people; `stopped` is asked often.
///
/// # Errors
/// When a server does not start or the user ends it before anything was measured.
pub fn agree(
    settings: &AgreementSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<Record, String> {
    let folder = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    let began = Instant::now();
    let mut record = new_record(settings);
    let size = SIZE.to_string();
    let start =
        |arguments: &[&str]| start_echo(&settings.voile, folder.path(), HTTP, arguments, stopped);
    let delay = format!("{DELAY_MS}ms");
    let stall = format!("{}ms:{}ms", STALL_EVERY.as_millis(), STALL.as_millis());
    let (slow, slow_at) = start(&["--size", &size, "--delay", &delay])?;
    let (stalling, stalling_at) = start(&["--size", &size, "--stall", &stall])?;
    let echo = Echo {
        http: slow_at,
        tcp: slow_at,
    };
    let lab = Lab::on_loopback(&settings.voile, folder.path(), echo, stopped);
    let stages = stages(slow_at, stalling_at, settings.slice);
    let servers = [&slow, &slow, &slow, &stalling];
    if let Some(own) = &mut record.scene {
        let parts = stages.iter().zip(servers);
        own.parts = parts
            .map(|(stage, server)| part(&lab, settings, stage, server))
            .collect();
    }
    all_rounds(&lab, settings, &stages, &mut record, say);
    say("\r");
    ended(record, began, stopped)
}

fn new_record(settings: &AgreementSettings) -> Record {
    let mut environment = environment(&settings.voile);
    let version = settings.fortio.version.clone();
    environment.versions.insert("fortio".to_owned(), version);
    let notes = warnings(&environment);
    scene_record(SceneKind::Agreement, &settings.command, notes, environment)
}

/// Measures until all rounds are done or the user asks to end.
fn all_rounds(
    lab: &Lab<'_>,
    settings: &AgreementSettings,
    stages: &[AgreementStage],
    record: &mut Record,
    say: &dyn Fn(&str),
) {
    let both = |at| [(at, "voile"), (at, "fortio")];
    let mut order: Vec<(usize, &str)> = (0..stages.len()).flat_map(both).collect();
    for round in 1..=settings.rounds {
        fastrand::shuffle(&mut order);
        for (at, generator) in &order {
            // A slice that does not count is taken once more.
            for _attempt in 0..2 {
                let sequence = record.runs.len() as u32 + 1;
                let stage = &stages[*at];
                say(&format!(
                    "\rround {round}/{}, {}: {generator}",
                    settings.rounds, stage.name
                ));
                let Ok(slice) = turn(lab, settings, stage, generator) else {
                    return;
                };
                let valid = slice.valid;
                record.runs.push(SliceRun {
                    round,
                    sequence,
                    ..slice
                });
                if valid {
                    break;
                }
            }
        }
    }
}

fn stages(slow: SocketAddr, stalling: SocketAddr, slice: Duration) -> [AgreementStage; 4] {
    let fixed = |name, arrival| AgreementStage {
        name,
        arrival,
        address: slow,
        duration: slice,
        resolution: "0.00001",
        offset: "2ms",
    };
    [
        fixed("fixed-uniform", "uniform"),
        fixed("fixed-in-phase", "fortio"),
        AgreementStage {
            // Fortio's default.
            resolution: "0.001",
            offset: "0s",
            ..fixed("wide-buckets", "uniform")
        },
        AgreementStage {
            name: "stall",
            arrival: "uniform",
            address: stalling,
            duration: STALL_EVERY * STALLS_A_SLICE,
            resolution: "0.0001",
            offset: "0s",
        },
    ]
}

fn part(
    lab: &Lab<'_>,
    settings: &AgreementSettings,
    stage: &AgreementStage,
    server: &SupervisedChild,
) -> ScenePart {
    let (stalls, wide) = (stage.name == "stall", stage.name == "wide-buckets");
    let pacing = if stage.arrival == "uniform" {
        "requests spread evenly"
    } else {
        "all connections in phase"
    };
    let title = if stalls {
        format!("A server that stalls {STALL:?} every {STALL_EVERY:?}, {pacing}")
    } else if wide {
        format!(
            "A server with a fixed delay of {DELAY_MS} ms, Fortio's histogram as it is by default"
        )
    } else {
        format!("A server with a fixed delay of {DELAY_MS} ms, {pacing}")
    };
    // A request that falls due at a random moment meets the stall with probability STALL / STALL_EVERY. It then waits for the
    // rest of the stall, evenly distributed; one in a hundred waits longer than this.
    let expected = STALL.as_secs_f64() - 0.01 * STALL_EVERY.as_secs_f64();
    let voile = format!(
        "voile load 'http://{}/?size={SIZE}' --json --rate {RATE} --connections {CONNECTIONS} --arrival {} --duration {:?}",
        stage.address, stage.arrival, stage.duration
    );
    ScenePart {
        name: stage.name.to_owned(),
        title,
        server: called(server.command_line(), &settings.voile, "voile"),
        generators: BTreeMap::from([
            ("voile".to_owned(), voile),
            (
                "fortio".to_owned(),
                called(
                    &fortio_line(lab, settings, stage),
                    &settings.fortio.path,
                    "fortio",
                ),
            ),
        ]),
        figure: if stalls { "p99" } else { "p50" }.to_owned(),
        expected_us: stalls.then_some(expected * 1e6),
        from_sent: stage.name == "fixed-in-phase",
        against_mean: wide,
        explained: explained(stage.name).to_owned(),
        ..ScenePart::default()
    }
}

/// Reason of a difference between both.
fn explained(stage: &str) -> &'static str {
    match stage {
        "fixed-in-phase" => {
            "all 16 requests are due at one instant and one thread sends them one after the other. voile load counts from that instant, so the last one waits for the fifteen before it; it also reports the time from the send. Fortio starts its clock when it sends, and reports only that time."
        }
        "wide-buckets" => {
            "Fortio counts in buckets (-r 0.001: 1 ms wide from 0 to 12 ms, then wider) and computes percentiles as if samples were spread evenly in a bucket. All answers come between 2 and 3 ms, so its p50 is about 2.5 ms and its p99 about 3 ms, wherever between they lie; its mean is exact. \
             The two scenes before it have buckets of 10 µs (-r 0.00001 -offset 2ms)."
        }
        "stall" => {
            "Fortio starts its clock when it sends, and a connection that waits for an answer sends nothing: of the requests that were due during a stall it counts only the 16 in flight, which is too few for a p99 (coordinated omission). voile load counts each from when it was due."
        }
        _ => "",
    }
}

/// A command line as a user would type it, without the program's path on this machine.
fn called(line: &str, program: &Path, name: &str) -> String {
    match line.strip_prefix(&program.display().to_string()) {
        Some(rest) => format!("{name}{rest}"),
        None => line.to_owned(),
    }
}

fn told_at(lab: &Lab<'_>) -> PathBuf {
    lab.folder.join("fortio.json")
}

fn fortio_line(lab: &Lab<'_>, settings: &AgreementSettings, stage: &AgreementStage) -> String {
    let line = fortio(lab, settings, stage).command_line();
    line.replace(&told_at(lab).display().to_string(), "fortio.json")
}

fn fortio(lab: &Lab<'_>, settings: &AgreementSettings, stage: &AgreementStage) -> Spec {
    let mut spec = lab
        .free_process("fortio", &settings.fortio.path)
        .args([
            "load",
            "-quiet",
            "-loglevel",
            "Error",
            "-p",
            "50,90,99,99.9",
        ])
        .args(["-c", &CONNECTIONS.to_string(), "-qps", &RATE.to_string()])
        .args(["-t", &format!("{}ms", stage.duration.as_millis())])
        .args(["-r", stage.resolution, "-offset", stage.offset]);
    if stage.arrival == "uniform" {
        spec = spec.arg("-uniform");
    }
    spec.arg("-json")
        .arg(told_at(lab))
        .arg(format!("http://{}/?size={SIZE}", stage.address))
}

fn turn(
    lab: &Lab<'_>,
    settings: &AgreementSettings,
    stage: &AgreementStage,
    generator: &str,
) -> Result<SliceRun, BrokenSlice> {
    let measured = if generator == "voile" {
        ours(lab, stage)
    } else {
        theirs(lab, settings, stage)
    };
    let mut slice = match measured {
        Ok(slice) => slice,
        Err(BrokenSlice::Stopped) => return Err(BrokenSlice::Stopped),
        Err(BrokenSlice::Failed(why)) => SliceRun {
            invalid_reasons: vec![why],
            ..SliceRun::default()
        },
    };
    let rate = f64::from(RATE);
    let miss = (slice.achieved_rps - rate).abs() / rate;
    if slice.invalid_reasons.is_empty() && miss > MAX_RATE_MISS {
        let reason = format!(
            "rate missed: {:.0} of {RATE} requests per second",
            slice.achieved_rps
        );
        slice.invalid_reasons.push(reason);
    }
    if slice.errors > 0 {
        slice
            .invalid_reasons
            .push(format!("{} requests failed", slice.errors));
    }
    slice.mode = stage.name.to_owned();
    slice.contestant = generator.to_owned();
    slice.valid = slice.invalid_reasons.is_empty();
    Ok(slice)
}

fn ours(lab: &Lab<'_>, stage: &AgreementStage) -> Result<SliceRun, BrokenSlice> {
    let route = CellRoute::through(vec![Hop {
        to: "server",
        address: stage.address,
        tls: false,
        spot: None,
    }]);
    let order = GeneratorRequest {
        kind: ValueKind::Latency,
        protocol: "http1".to_owned(),
        rate: RATE,
        connections: CONNECTIONS,
        request_bytes: None,
        intervals: false,
        size: SIZE,
        arrival: stage.arrival.to_owned(),
        duration: stage.duration,
        warmup: Duration::ZERO,
        seed: 1,
        marker: None,
        refused: None,
        token: String::new(),
        asks: Asks::default(),
        sink: false,
    };
    let (mut load, out) = start_load(lab, &route, &order).map_err(BrokenSlice::Failed)?;
    let generated = finish_load(&mut load, &out, stage.duration + OVERTIME, lab)?;
    Ok(SliceRun {
        invalid_reasons: generated.invalid_reasons.clone(),
        achieved_rps: generated.achieved_rps,
        errors: generated.errors_total,
        latency_us: generated.latency_us.into(),
        service_us: generated.service_us.into(),
        ..SliceRun::default()
    })
}

fn theirs(
    lab: &Lab<'_>,
    settings: &AgreementSettings,
    stage: &AgreementStage,
) -> Result<SliceRun, BrokenSlice> {
    let out = told_at(lab);
    let _ = std::fs::remove_file(&out);
    let mut child = fortio(lab, settings, stage)
        .start()
        .map_err(|e| BrokenSlice::Failed(e.to_string()))?;
    let deadline = Instant::now() + stage.duration + OVERTIME;
    while child.wait(Duration::from_millis(50)).is_none() {
        if (lab.stopped)() {
            return Err(BrokenSlice::Stopped);
        }
        if Instant::now() >= deadline {
            return Err(BrokenSlice::Failed("fortio did not end in time".to_owned()));
        }
    }
    let text = std::fs::read_to_string(&out).unwrap_or_default();
    told(&text).map_err(|e| {
        BrokenSlice::Failed(format!(
            "cannot parse fortio's result ({e}){}",
            lab.log_end("fortio")
        ))
    })
}

fn told(text: &str) -> Result<SliceRun, String> {
    let told: FortioResult = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let histogram = told.duration_histogram;
    let percentiles = histogram.percentiles.unwrap_or_default();
    let at = |share: f64| {
        let found = percentiles
            .iter()
            .find(|p| (p.percentile - share).abs() < 1e-6);
        found.map(|p| p.value * 1e6)
    };
    let good = told.ret_codes.get("200").copied().unwrap_or(0);
    let latency_us = Latency {
        p50: at(50.0),
        p90: at(90.0),
        p99: at(99.0),
        p999: at(99.9),
        max: Some(histogram.max * 1e6),
        mean: Some(histogram.avg * 1e6),
        count: histogram.count,
    };
    Ok(SliceRun {
        achieved_rps: told.actual_qps,
        errors: told.ret_codes.values().sum::<u64>().saturating_sub(good),
        latency_us: latency_us.trimmed(),
        ..SliceRun::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fortios_json_is_understood() {
        let text = r#"{"ActualQPS":999.5,"RetCodes":{"200":2990,"503":7,"-1":3},"DurationHistogram":{"Count":3000,"Min":0.002,
            "Max":0.0049,"Sum":6.3,"Avg":0.0021,"StdDev":0,"Data":[],"Percentiles":[{"Percentile":50,"Value":0.0021},
            {"Percentile":99,"Value":0.0031},{"Percentile":99.9,"Value":0.0047}]}}"#;
        let slice = told(text).expect("understood");
        assert_eq!((slice.errors, slice.latency_us.count), (10, 3000));
        assert_eq!(slice.latency_us.p50.map(f64::round), Some(2100.0));
        assert_eq!(slice.latency_us.p999, None, "three samples lie beyond it");
        for broken in ["", "{}", r#"{"ActualQPS":1}"#] {
            assert!(told(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn commands_in_a_record_name_no_place_of_this_machine() {
        let program = Path::new("/somewhere/voile");
        assert_eq!(
            called("/somewhere/voile echo --size 1", program, "voile"),
            "voile echo --size 1"
        );
        assert_eq!(called("other echo", program, "voile"), "other echo");
    }
}

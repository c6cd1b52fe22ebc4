//! Cost of a request for the load generator: `voile load` beside Fortio, wrk and h2load against the same server. Each sends as
//! many requests as it can; against a server with a fixed delay all must see the same latency. A generator that is not on this
//! machine is left out, with instructions to install it.
//!
//! ```text
//! round: every scene × every generator, shuffled ── rate ÷ the generator's own CPU time ── × rounds
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_host::child::{Output, Spec};
use voile_host::sampler::Usage;
use voile_report::record::scene::{OtherGenerator, SceneKind, ScenePart};
use voile_report::record::{Record, SliceRun};

use crate::environment::{ended, environment, scene_record, warnings};
use crate::find::{self, PeerProgram};
use crate::generator::{BrokenSlice, wait_until};
use crate::network::Echo;
use crate::shared_processes::{HTTP, Lab, TCP, start_echo};

const CONNECTIONS: u32 = 16;
/// Requests in flight on a connection of HTTP/2, at most rate.
const STREAMS: u32 = 10;
/// Requests a second where the server waits.
const RATE: u32 = 1000;
const DELAY: &str = "2ms";
const SIZE: u64 = 1024;
/// Between these parts of a slice its CPU is read.
const WINDOW: (f64, f64) = (0.25, 0.85);
/// Time that a generator may take beyond its own plan.
const OVERTIME: Duration = Duration::from_secs(8);
/// Threads of each server. They are enough that the server is not the limit, so generators differ by the cost of a request.
const SERVER_THREADS: &str = "2";
const PING: &str = "fgrpc.PingServer/Ping";

/// Settings of the comparison.
pub struct GeneratorSettings {
    /// The `voile` program: generator and server.
    pub voile: PathBuf,
    /// The others by name, or how to get them.
    pub others: BTreeMap<&'static str, Result<PeerProgram, String>>,
    /// Number of measurements of each generator.
    pub rounds: u32,
    /// For how long.
    pub slice: Duration,
    /// The user's command line, for the record.
    pub command: String,
}

/// Looks for the other generators, where the user says or on PATH.
///
/// # Errors
/// When the user names a program that is not there, or one that we do not know.
pub fn generators(
    given: &[String],
) -> Result<BTreeMap<&'static str, Result<PeerProgram, String>>, String> {
    let mut found = BTreeMap::new();
    let (fortio, others): (Vec<String>, Vec<String>) = given
        .iter()
        .cloned()
        .partition(|peer| peer.starts_with("fortio="));
    let fortio_here = find::fortio(&fortio);
    if let (Err(why), false) = (&fortio_here, fortio.is_empty()) {
        return Err(why.clone());
    }
    found.insert("fortio", fortio_here);
    for (name, package) in [("wrk", "wrk"), ("h2load", "nghttp2-client")] {
        let own = others
            .iter()
            .rev()
            .find_map(|peer| peer.strip_prefix(name)?.strip_prefix('='));
        let candidates = own.map_or_else(|| find::servers(name), |path| vec![PathBuf::from(path)]);
        let here = candidates.into_iter().find(|path| path.is_file());
        let peer = here.map(|path| PeerProgram {
            version: version(&path),
            path,
        });
        if let (None, Some(path)) = (&peer, own) {
            return Err(format!("--peer {name}={path}: no such program"));
        }
        let how = format!("{name} not found: `apt-get install {package}`, or --peer {name}=PATH");
        found.insert(name, peer.ok_or(how));
    }
    let unknown = |peer: &&String| {
        !found
            .keys()
            .any(|name| peer.starts_with(&format!("{name}=")))
    };
    match others.iter().find(unknown) {
        Some(peer) => Err(format!(
            "--peer {peer}: expected fortio=PATH, wrk=PATH or h2load=PATH"
        )),
        None => Ok(found),
    }
}

/// The first line of the program's version output; wrk prints its version and then fails.
fn version(path: &Path) -> String {
    let asked = std::process::Command::new(path).arg("--version").output();
    let said = asked.map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let words = said.lines().next().unwrap_or_default().split_whitespace();
    let number = words
        .map(|word| word.rsplit('/').next().unwrap_or(word))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    number.unwrap_or("?").to_owned()
}

/// Runs it. `say` receives lines for people; `stopped` is asked often.
///
/// # Errors
/// When a server does not start or the user ends it before anything was measured.
pub fn measure_generators(
    settings: &GeneratorSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<Record, String> {
    let folder = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    let began = Instant::now();
    let mut record = new_record(settings);
    let wide = ["--threads", SERVER_THREADS];
    let (http_server, http) = start_echo(&settings.voile, folder.path(), HTTP, &wide, stopped)?;
    let (tcp_server, tcp) = start_echo(&settings.voile, folder.path(), TCP, &wide, stopped)?;
    let servers = [&http_server, &tcp_server].map(voile_host::child::SupervisedChild::group_pids);
    let echo = Echo { http, tcp };
    let lab = Lab::on_loopback(&settings.voile, folder.path(), echo, stopped);
    let parts = parts();
    let mut turns: Vec<(usize, &str)> = Vec::new();
    for (at, scene) in parts.iter().enumerate() {
        turns.push((at, "voile"));
        let here = |name: &&String| {
            settings
                .others
                .get(name.as_str())
                .is_some_and(Result::is_ok)
        };
        let others = scene.bounds.iter().map(|bound| &bound.of);
        turns.extend(others.filter(here).map(|name| {
            let known = settings.others.keys().find(|known| *known == name);
            (at, *known.unwrap_or(&"fortio"))
        }));
    }
    'rounds: for round in 1..=settings.rounds {
        fastrand::shuffle(&mut turns);
        for (at, generator) in &turns {
            let scene = &parts[*at];
            say(&format!(
                "\rround {round}/{}, {}: {generator}",
                settings.rounds, scene.name
            ));
            let server = &servers[usize::from(scene.name.starts_with("tcp"))];
            let mut run = SliceRun {
                contestant: (*generator).to_owned(),
                mode: scene.name.clone(),
                round,
                ..SliceRun::default()
            };
            match turn(&lab, settings, scene, generator, server) {
                Ok(measured) => (run.measured, run.valid) = (measured, true),
                Err(BrokenSlice::Stopped) => break 'rounds,
                Err(BrokenSlice::Failed(why)) => run.invalid_reasons.push(why),
            }
            record.runs.push(run);
        }
    }
    say("\r");
    if let Some(own) = &mut record.scene {
        own.parts = parts;
    }
    ended(record, began, stopped)
}

fn new_record(settings: &GeneratorSettings) -> Record {
    let mut environment = environment(&settings.voile);
    let mut notes = warnings(&environment);
    for (name, other) in &settings.others {
        match other {
            Ok(peer) => {
                let version = peer.version.clone();
                environment.versions.insert((*name).to_owned(), version);
            }
            Err(how) => notes.push(how.clone()),
        }
    }
    scene_record(SceneKind::Generators, &settings.command, notes, environment)
}

/// A scene: the compared figure, and the generators it is compared with.
struct ComparisonPlan {
    name: &'static str,
    title: &'static str,
    figure: &'static str,
    /// The other generators, each with the least ratio.
    of: &'static [(&'static str, Option<f64>)],
}

/// Requests per second of one core of the generator's own.
const EACH: &str = "requests_per_core";
/// The other meaning of "per core": throughput of a machine whose cores both sides share.
const TOGETHER: &str = "requests_per_second";

const PLANS: [ComparisonPlan; 11] = [
    ComparisonPlan {
        name: "http1-most",
        title: "HTTP/1.1, as many as go",
        figure: EACH,
        of: &[("fortio", Some(2.0)), ("wrk", Some(0.8))],
    },
    ComparisonPlan {
        name: "http2-most",
        title: "HTTP/2, as many as go, 10 streams a connection",
        figure: EACH,
        of: &[("h2load", None)],
    },
    ComparisonPlan {
        name: "grpc-most",
        title: "gRPC unary, as many as go",
        figure: EACH,
        of: &[("fortio", Some(2.0))],
    },
    ComparisonPlan {
        name: "tcp-most",
        title: "TCP, as many round trips as go",
        figure: EACH,
        of: &[("fortio", Some(2.0))],
    },
    ComparisonPlan {
        name: "http1-shared",
        title: "HTTP/1.1, as many as go, all cores shared with the server",
        figure: TOGETHER,
        of: &[("fortio", None), ("wrk", None)],
    },
    ComparisonPlan {
        name: "http2-shared",
        title: "HTTP/2, as many as go, 10 streams a connection, all cores shared with the server",
        figure: TOGETHER,
        of: &[("h2load", None)],
    },
    ComparisonPlan {
        name: "grpc-shared",
        title: "gRPC unary, as many as go, all cores shared with the server",
        figure: TOGETHER,
        of: &[("fortio", None)],
    },
    ComparisonPlan {
        name: "tcp-shared",
        title: "TCP, as many round trips as go, all cores shared with the server",
        figure: TOGETHER,
        of: &[("fortio", None)],
    },
    ComparisonPlan {
        name: "http1-closed",
        title: "HTTP/1.1, as many as go over 16 connections, the server waits 2 ms",
        figure: "p50_us",
        of: &[("fortio", None), ("wrk", None), ("h2load", None)],
    },
    ComparisonPlan {
        name: "http2-fixed",
        title: "HTTP/2, 1000/s, the server waits 2 ms",
        figure: "mean_us",
        of: &[("h2load", None)],
    },
    ComparisonPlan {
        name: "grpc-fixed",
        title: "gRPC unary, 1000/s, the server waits 2 ms",
        figure: "p50_us",
        of: &[("fortio", None)],
    },
];

fn parts() -> Vec<ScenePart> {
    let bound = |plan: &ComparisonPlan, (of, at_least): &(&str, Option<f64>)| OtherGenerator {
        of: (*of).to_owned(),
        at_least: *at_least,
        // h2load reports no median, so the means are compared.
        figure: (*of == "h2load" && plan.figure == "p50_us").then(|| "mean_us".to_owned()),
    };
    let part = |plan: &ComparisonPlan| ScenePart {
        name: plan.name.to_owned(),
        title: plan.title.to_owned(),
        figure: plan.figure.to_owned(),
        bounds: plan.of.iter().map(|one| bound(plan, one)).collect(),
        ..ScenePart::default()
    };
    PLANS.iter().map(part).collect()
}

/// The command of a generator in a scene.
fn spec(lab: &Lab<'_>, settings: &GeneratorSettings, scene: &str, generator: &str) -> Option<Spec> {
    let (http, tcp) = (lab.echo.http, lab.echo.tcp);
    let pace = ScenePace::of(scene);
    let most = pace != ScenePace::Fixed;
    let threads = threads(scene);
    let program = match generator {
        "voile" => &settings.voile,
        other => &settings.others.get(other)?.as_ref().ok()?.path,
    };
    let words: Vec<String> = match generator {
        "voile" => ours(scene, pace, threads, http, tcp),
        "fortio" => fortio(lab.folder, scene, pace),
        "wrk" => vec![
            format!("-t{threads}"),
            format!("-c{CONNECTIONS}"),
            "--latency".to_owned(),
        ],
        _ => {
            let streams = if pace == ScenePace::Most { STREAMS } else { 1 };
            let mut words = vec![
                format!("-c{CONNECTIONS}"),
                format!("-m{streams}"),
                format!("-t{threads}"),
            ];
            if scene.starts_with("http1") {
                words.push("--h1".to_owned());
            }
            if !most {
                let each = f64::from(RATE) / f64::from(CONNECTIONS);
                words.push(format!("--rps={each}"));
            }
            words
        }
    };
    let spec = lab.free_process(generator, program).args(words);
    let seconds = settings.slice.as_secs().max(1);
    let delay = if pace == ScenePace::Most {
        String::new()
    } else {
        format!("&delay={DELAY}")
    };
    let url = format!("http://{http}/?size={SIZE}{delay}");
    let spec = match generator {
        "voile" => spec.args(["--duration", &format!("{seconds}s"), "--json"]),
        "fortio" => spec,
        "wrk" => spec.args([&format!("-d{seconds}s"), &url]),
        _ => spec.args(["-D", &seconds.to_string(), &url]),
    };
    let out = told_at(lab.folder);
    Some(match generator {
        // Fortio writes the file by itself.
        "fortio" => spec.args([
            "-t".to_owned(),
            format!("{seconds}s"),
            match pace {
                ScenePace::Closed => url,
                ScenePace::Most | ScenePace::Fixed => fortio_url(scene, http, tcp),
            },
        ]),
        _ => spec.stdout(Output::File(out)),
    })
}

fn told_at(folder: &Path) -> PathBuf {
    folder.join("generator.out")
}

/// Threads of generators that do not take all cores by themselves, as Fortio does.
fn threads(scene: &str) -> usize {
    if scene.ends_with("-shared") {
        std::thread::available_parallelism().map_or(1, usize::from)
    } else {
        1
    }
}

/// Pace of the requests in a scene, by the end of the scene's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScenePace {
    /// As fast as possible.
    Most,
    /// As fast as possible against a server that waits: each connection's next request follows its last answer.
    Closed,
    /// A fixed rate against a server that waits.
    Fixed,
}

impl ScenePace {
    fn of(scene: &str) -> Self {
        match scene.rsplit('-').next() {
            Some("fixed") => Self::Fixed,
            Some("closed") => Self::Closed,
            _ => Self::Most,
        }
    }

    /// Rate for `--rate` and `-qps`: 0 is as fast as possible.
    fn rate(self) -> u32 {
        if self == Self::Fixed { RATE } else { 0 }
    }
}

fn ours(
    scene: &str,
    pace: ScenePace,
    threads: usize,
    http: SocketAddr,
    tcp: SocketAddr,
) -> Vec<String> {
    let delay = if pace == ScenePace::Most {
        String::new()
    } else {
        format!("delay={DELAY}")
    };
    let url = match scene.split('-').next() {
        Some("http2") => format!("h2c://{http}/?size={SIZE}&{delay}"),
        Some("grpc") => format!("grpc://{http}/{PING}?{delay}"),
        Some("tcp") => format!("tcp://{tcp}"),
        _ => format!("http://{http}/?size={SIZE}&{delay}"),
    };
    let url = url.trim_end_matches(['&', '?']).to_owned();
    let mut words = vec!["load".to_owned(), url, "--connections".to_owned()];
    words.push(CONNECTIONS.to_string());
    words.push("--rate".to_owned());
    words.push(pace.rate().to_string());
    words.push(format!("--threads={threads}"));
    if pace == ScenePace::Most && scene.starts_with("http2") {
        words.extend(["--streams".to_owned(), STREAMS.to_string()]);
    }
    if scene.starts_with("grpc") || scene.starts_with("tcp") {
        words.extend(["--payload-size".to_owned(), SIZE.to_string()]);
    }
    words
}

fn fortio(folder: &Path, scene: &str, pace: ScenePace) -> Vec<String> {
    let rate = pace.rate();
    let mut words: Vec<String> = [
        "load",
        "-quiet",
        "-loglevel",
        "Error",
        "-p",
        "50,99",
        "-json",
    ]
    .map(str::to_owned)
    .to_vec();
    words.push(told_at(folder).display().to_string());
    words.extend(["-c", &CONNECTIONS.to_string(), "-qps", &rate.to_string()].map(str::to_owned));
    if scene.starts_with("grpc") {
        let size = SIZE.to_string();
        words.extend(["-grpc", "-ping", "-payload-size", &size].map(str::to_owned));
        if pace == ScenePace::Fixed {
            let fine = [
                "-grpc-ping-delay",
                DELAY,
                "-uniform",
                "-offset",
                DELAY,
                "-r",
                "0.00001",
            ];
            words.extend(fine.map(str::to_owned));
        }
    } else if scene.starts_with("tcp") {
        words.extend(["-payload-size".to_owned(), SIZE.to_string()]);
    } else if pace == ScenePace::Closed {
        // Buckets of 10 µs from the delay on: with its own of 1 ms its median would be a guess.
        words.extend(["-offset", DELAY, "-r", "0.00001"].map(str::to_owned));
    }
    words
}

fn fortio_url(scene: &str, http: SocketAddr, tcp: SocketAddr) -> String {
    match scene.split('-').next() {
        Some("grpc") => http.to_string(),
        Some("tcp") => format!("tcp://{tcp}"),
        _ => format!("http://{http}/?size={SIZE}"),
    }
}

fn turn(
    lab: &Lab<'_>,
    settings: &GeneratorSettings,
    scene: &ScenePart,
    generator: &str,
    server: &[u32],
) -> Result<BTreeMap<String, f64>, BrokenSlice> {
    let failed = |why: String| BrokenSlice::Failed(why);
    let spec = spec(lab, settings, &scene.name, generator);
    let spec = spec.ok_or_else(|| failed(format!("{generator} is not installed")))?;
    let _ = std::fs::remove_file(told_at(lab.folder));
    let mut child = spec.start().map_err(|e| failed(e.to_string()))?;
    let began = Instant::now();
    let slice = Duration::from_secs(settings.slice.as_secs().max(1));
    let read = |child: &voile_host::child::SupervisedChild| {
        let both = (Usage::of_all(&child.group_pids()), Usage::of_all(server));
        (both, Instant::now())
    };
    wait_until(&mut child, began + slice.mul_f64(WINDOW.0), lab)?;
    let (before, from) = read(&child);
    wait_until(&mut child, began + slice.mul_f64(WINDOW.1), lab)?;
    let (after, to) = read(&child);
    if !wait_until(&mut child, Instant::now() + slice + OVERTIME, lab)? {
        return Err(failed(format!("{generator} did not end in time")));
    }
    let text = std::fs::read_to_string(told_at(lab.folder)).unwrap_or_default();
    let (rate, p50_us, mean_us) = told(generator, &text).ok_or_else(|| {
        let end = lab.log_end(generator);
        failed(format!("cannot parse the result of {generator}{end}"))
    })?;
    let window = to.duration_since(from).as_secs_f64();
    let cores = |ns: u64| ns as f64 / 1e9 / window;
    let ours = after.0.since(before.0);
    let cpu = cores(ours.cpu_ns);
    let each = 1e6 / rate.max(1e-9);
    let figures = [
        ("requests_per_second", Some(rate)),
        ("cores", Some(cpu)),
        ("requests_per_core", Some(rate / cpu.max(1e-9))),
        ("cpu_us", Some(cpu * each)),
        ("user_us", Some(cores(ours.user_ns) * each)),
        ("server_cores", Some(cores(after.1.since(before.1).cpu_ns))),
        ("p50_us", p50_us),
        ("mean_us", mean_us),
    ];
    let known = figures
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(known.collect())
}

/// Rate, median and mean in µs, as far as a generator reports them.
fn told(generator: &str, text: &str) -> Option<(f64, Option<f64>, Option<f64>)> {
    match generator {
        "voile" => {
            let json: serde_json::Value = serde_json::from_str(text).ok()?;
            // From the send, as the others count.
            let of = |name: &str| json["service_us"][name].as_f64();
            Some((json["achieved_rps"].as_f64()?, of("p50"), of("mean")))
        }
        "fortio" => {
            let json: serde_json::Value = serde_json::from_str(text).ok()?;
            let histogram = &json["DurationHistogram"];
            let median = histogram["Percentiles"].as_array()?.iter().find_map(|p| {
                (p["Percentile"].as_f64()? - 50.0)
                    .abs()
                    .lt(&1e-6)
                    .then(|| p["Value"].as_f64())?
            });
            let us = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e6);
            Some((
                json["ActualQPS"].as_f64()?,
                us(median),
                us(histogram["Avg"].as_f64()),
            ))
        }
        "wrk" => {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("Requests/sec:"))?;
            let median = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("50%"));
            let p50 = median.and_then(|at| span(at.trim()));
            Some((line.trim().parse().ok()?, p50, None))
        }
        _ => {
            let line = text.lines().find(|line| line.starts_with("finished in "))?;
            let rate = line
                .split(", ")
                .find_map(|part| part.strip_suffix(" req/s"))?;
            let times = text
                .lines()
                .find_map(|line| line.strip_prefix("time for request:"));
            let mean = times.and_then(|line| span(line.split_whitespace().nth(2)?));
            Some((rate.parse().ok()?, None, mean))
        }
    }
}

/// `2.31ms`, `120us`, `1.02s` in µs.
fn span(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = text[..at].parse().ok()?;
    match &text[at..] {
        "us" => Some(number),
        "ms" => Some(number * 1e3),
        "s" => Some(number * 1e6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_generators_print_is_understood() {
        let wrk = "Running 2s test\n  1 threads and 16 connections\nRequests/sec:  71234.56\nTransfer/sec:     80MB\n";
        assert_eq!(told("wrk", wrk), Some((71234.56, None, None)));
        let wrk = format!("  Latency Distribution\n     50%    2.06ms\n     99%    2.40ms\n{wrk}");
        assert_eq!(told("wrk", &wrk), Some((71234.56, Some(2060.0), None)));
        let h2load = "finished in 2.00s, 998.50 req/s, 1.02MB/s\nrequests: 2000 total\n                     min         max         mean         sd        +/- sd\ntime for request:     2.05ms      4.40ms      2.31ms       120us    83.70%\n";
        assert_eq!(told("h2load", h2load), Some((998.5, None, Some(2310.0))));
        let fortio = r#"{"ActualQPS":999.5,"DurationHistogram":{"Avg":0.0022,"Percentiles":[{"Percentile":50,"Value":0.0021}]}}"#;
        let (rate, p50, mean) = told("fortio", fortio).expect("understood");
        assert_eq!(
            (rate, p50.map(f64::round), mean.map(f64::round)),
            (999.5, Some(2100.0), Some(2200.0))
        );
        let voile = r#"{"achieved_rps":1000.0,"service_us":{"p50":2100,"mean":2110.5}}"#;
        assert_eq!(
            told("voile", voile),
            Some((1000.0, Some(2100.0), Some(2110.5)))
        );
        for generator in ["voile", "fortio", "wrk", "h2load"] {
            assert_eq!(told(generator, "nonsense"), None, "{generator}");
        }
        assert_eq!(span("1.02s"), Some(1_020_000.0));
        assert_eq!(span("12"), None);
    }

    #[test]
    fn a_generator_that_nobody_knows_is_refused() {
        assert!(generators(&["ab=/bin/true".to_owned()]).is_err());
        assert!(generators(&["wrk=/no/such/wrk".to_owned()]).is_err());
    }
}

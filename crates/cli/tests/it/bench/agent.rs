//! `voile bench agent`: experiments with their two ends in two network namespaces, joined by veth pairs. Tests the behaviour
//! of both ends after one is killed, a stranger calls, or the token is wrong. Tests that need no namespace run on loopback.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use voile_host::netns::Namespace;
use voile_host::netns::link::{Bridge, Prefixed};
use voile_testkit::prerequisites::{Prerequisite, require, skip};

use crate::bench::{PACES, changed, record, record_text, stretched};
use crate::mesh::{Process, wait_until};

/// Two hosts, as far as their networks go.
struct Hosts {
    near: Namespace,
    far: Namespace,
    _bridge: Bridge,
}

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 212, 0, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 212, 0, 3);
const fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x212, 0, 0, 0, 0, 0, last)
}

fn hosts() -> Option<Hosts> {
    let make = || -> std::io::Result<Hosts> {
        let between = Namespace::create()?;
        let gateway = Ipv4Addr::new(10, 212, 0, 1);
        let both = |v4, last| [Prefixed::v4(v4, 24), Prefixed::v6(v6(last), 64)];
        let bridge = between.run(|| Bridge::create(&both(gateway, 1)))??;
        let gateways = [IpAddr::V4(gateway), IpAddr::V6(v6(1))];
        let host = |address, last| bridge.add_pod(&both(address, last), &gateways);
        Ok(Hosts {
            near: host(NEAR, 2)?,
            far: host(FAR, 3)?,
            _bridge: bridge,
        })
    };
    require(Prerequisite::Netns, make())
}

/// A running agent, what it said, and where its temporary folders are.
pub(crate) struct Agent {
    process: Process,
    address: String,
    token: String,
    folder: tempfile::TempDir,
}

impl Agent {
    pub(crate) fn start(listen: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let process = Process::start("agent", |voile| {
            voile
                .args(["bench", "agent", "--listen", listen])
                .env("TMPDIR", folder.path());
        });
        let word = |after: &str| {
            let log = process.log();
            let line = log.lines().find_map(|line| line.strip_prefix(after));
            line.map(str::to_owned)
        };
        wait_until("the agent listens and says its token", || {
            word("token ").is_some()
        });
        Self {
            address: word("listening on ").expect("it said so before"),
            token: word("token ").expect("it said so"),
            process,
            folder,
        }
    }

    pub(crate) fn option(&self) -> String {
        format!("--agent={}={}", self.address, self.token)
    }

    /// Nothing of a session is left: no process, no folder.
    fn is_alone(&self) -> bool {
        let folders = std::fs::read_dir(self.folder.path())
            .expect("the folder")
            .count();
        folders == 0 && children(self.process.pid()).is_empty()
    }
}

/// The processes whose parent this is.
fn children(parent: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task"))
        .into_iter()
        .flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|pids| {
            let pids = pids
                .split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok());
            pids.collect::<Vec<u32>>()
        })
        .collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_experiment_runs_with_its_ends_on_two_hosts() {
    runs_with_its_ends_on_two_hosts(IpAddr::V4(FAR));
}

#[test]
fn an_experiment_runs_over_ipv6() {
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return skip(Prerequisite::Ipv6, "/proc/sys/net/ipv6 does not exist");
    }
    runs_with_its_ends_on_two_hosts(IpAddr::V6(v6(3)));
}

fn runs_with_its_ends_on_two_hosts(far: IpAddr) {
    let Some(hosts) = hosts() else { return };
    let listen = std::net::SocketAddr::new(far, 15070).to_string();
    let agent = hosts.far.run(|| Agent::start(&listen)).expect("entered");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let ran = hosts.near.run(|| {
        Process::output(|voile| {
            voile
                .args([
                    "bench",
                    "quick",
                    "--smoke",
                    "--only",
                    "relay,voile",
                    &agent.option(),
                ])
                .arg("--out")
                .arg(&out);
        })
    });
    let ran = ran.expect("entered");
    assert!(ran.status.success(), "{}", said(&ran));
    let text = record_text(&out).expect("a record");
    assert!(!text.contains(&agent.token), "the token is in the record");
    let record = record(&out);
    let (near, far) = (&record["environment"]["host"], &record["far"]["host"]);
    assert!(far.is_string() && near != far, "{near} {far}");
    for contestant in record["contestants"].as_array().expect("contestants") {
        assert!(contestant["missing"].is_null(), "{contestant}");
    }
    let mut seen = Vec::new();
    for run in record["runs"].as_array().expect("runs") {
        // A busy machine may spoil a slice; the path may not.
        let reasons = run["invalid_reasons"].to_string();
        let excused = reasons.contains("samplers' window") || run["valid"] == true;
        assert!(excused && !reasons.contains("another path"), "{reasons}");
        for process in run["processes"].as_array().expect("processes") {
            let role = process["role"].as_str().expect("a role");
            let there = ["server", "server-sidecar"].contains(&role);
            assert_eq!(
                &process["host"],
                if there { far } else { near },
                "{process}"
            );
            let cpu = process["cpu_us_per_request"].as_f64().expect("CPU");
            let is_idle = role == "control" || run["valid"] == false;
            assert!(cpu > 0.0 || is_idle, "{process}");
            seen.push(role.to_owned());
        }
    }
    for role in ["load", "client-sidecar", "server-sidecar", "server"] {
        assert!(seen.iter().any(|one| one == role), "no {role} in any slice");
    }
    for proof in record["proofs"].as_array().expect("proofs") {
        for check in proof["checks"].as_array().expect("checks") {
            assert_ne!(check["verdict"], "failed", "{proof:#}");
        }
    }
    let proven = |words: &str| {
        text.split("\"claim\": ")
            .any(|check| check.contains(words) && check.contains("\"proven\""))
    };
    for words in [
        "captured before the server-sidecar: all encrypted",
        "captured before the server: every request passed",
        listen.strip_suffix("15070").expect("its port"),
    ] {
        assert!(proven(words), "not proven: {words}");
    }
    wait_until("nothing is left at the agent's", || agent.is_alone());
}

/// One slice of Voile, with its server's sidecar at an agent's and something done to it all along.
fn eventful() -> String {
    let mut text = changed(&[
        ("rounds = 3", "rounds = 1"),
        ("slice = \"150ms\"", "slice = \"9s\""),
        ("\"baseline\", \"relay\"", "\"voile\""),
        ("\"baseline\", \"both\"", "\"both\""),
        ("response_sizes = [64, 4096]", "tls = true"),
    ]);
    for (at, action) in [
        ("500ms", "push-policy"),
        ("1500ms", "change-policies\"\ncount = 40#"),
        ("2500ms", "rotate-certificates"),
        ("4s", "move-endpoints"),
        ("5500ms", "restart-proxy"),
        ("8s", "kill-control-plane"),
    ] {
        text += &format!("[[events]]\nat = \"{at}\"\naction = \"{action}\"\n");
    }
    text
}

#[test]
fn what_is_done_to_contestants_is_done_at_the_agents_too_and_its_effect_seen() {
    let agent = Agent::start("127.0.0.1:0");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("eventful.toml");
    let try_once = |pace: u64| {
        std::fs::write(&file, stretched(&eventful(), pace)).expect("written");
        let out = folder.path().join(pace.to_string());
        let ran = Process::output(|voile| {
            voile
                .args(["bench", "run", "--smoke", "--rounds", "1"])
                .arg(&file);
            voile.arg(agent.option()).arg("--out").arg(&out);
        });
        // On a busy machine no slice may be valid; what was done is on record all the same.
        let said = said(&ran);
        assert!(
            ran.status.success() || said.contains("no slice is valid"),
            "{said}"
        );
        let record = record(&out);
        let run = record["runs"].as_array().expect("runs")[0].clone();
        (said, run)
    };
    let [first, slower @ ..] = PACES;
    let (mut log, mut run) = try_once(first);
    for pace in slower {
        let events: Vec<_> = run["events"].as_array().into_iter().flatten().collect();
        let is_seen = |event: &&Value| event["effect_seconds"].is_number();
        if run["valid"] == true && events.iter().all(is_seen) {
            break;
        }
        (log, run) = try_once(pace);
    }
    let events = run["events"].as_array().expect("events");
    assert_eq!(events.len(), 6, "{log}");
    for event in events {
        assert!(event["failure"].is_null(), "{event}");
        let seen = event["effect_seconds"].as_f64();
        assert!(seen.is_some_and(|seconds| seconds < 3.0), "{event}: {log}");
    }
    let restarted = &events[4];
    let observed = restarted["observed"].as_str().expect("words");
    assert!(observed.contains("through the agent"), "{restarted}");
    // The old process's clock went with it; who was not replaced is charged as ever.
    let roles: Vec<&str> = run["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .filter_map(|process| process["role"].as_str())
        .collect();
    assert!(
        roles.contains(&"server") && !roles.contains(&"server-sidecar"),
        "{roles:?}"
    );
    wait_until("nothing is left at the agent's", || agent.is_alone());
}

#[test]
fn a_closer_look_has_the_stacks_of_both_hosts_and_says_what_it_has_not() {
    let agent = Agent::start("127.0.0.1:0");
    let folder = tempfile::tempdir().expect("a folder");
    let (file, out) = (folder.path().join("it.toml"), folder.path().join("out"));
    let text = changed(&[
        ("rounds = 3", "rounds = 1"),
        ("slice = \"150ms\"", "slice = \"2s\""),
        ("\"baseline\", \"relay\"", "\"relay\""),
        ("\"baseline\", \"both\"", "\"both\""),
        ("response_sizes = [64, 4096]", ""),
    ]);
    std::fs::write(&file, text).expect("written");
    let ran = Process::output(|voile| {
        voile.args(["bench", "run", "--profile"]).arg(&file);
        voile.arg(agent.option()).arg("--out").arg(&out);
    });
    assert!(out.join(voile_lab::RECORD).exists(), "{}", said(&ran));
    let profile = &record(&out)["profiles"][0];
    let missing = profile["missing"].to_string();
    assert!(
        missing.contains("are profiled on one machine only"),
        "{missing}"
    );
    if missing.contains("no flame graphs") || missing.contains("perf is not found") {
        return skip(Prerequisite::Perf, missing);
    }
    let flames = profile["flames"].as_array().expect("flames");
    let roles: Vec<&str> = flames
        .iter()
        .filter_map(|one| one["role"].as_str())
        .collect();
    for role in ["load", "client-sidecar", "server-sidecar", "server"] {
        assert!(roles.contains(&role), "{role}: {roles:?} {missing}");
    }
    let syscalls = profile["syscalls"].as_object().expect("system calls");
    assert!(!syscalls.contains_key("server"), "{syscalls:?}");
    wait_until("nothing is left at the agent's", || agent.is_alone());
}

#[test]
fn an_agent_that_is_killed_leaves_what_was_measured_and_its_end_is_named() {
    let mut agent = Agent::start("127.0.0.1:0");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let mut bench = Process::start("bench", |voile| {
        let words = ["bench", "quick", "--only", "relay", "--slice", "200ms"];
        voile.args(words).arg(agent.option()).arg("--out").arg(&out);
    });
    wait_until("a round is measured", || bench.log().contains("round 2/"));
    let there = children(agent.process.pid());
    assert!(!there.is_empty(), "the agent runs nothing");
    agent.process.kill();
    assert_eq!(bench.wait().code(), Some(1));
    let log = bench.log();
    let gone = format!("the agent at {} is gone", agent.address);
    assert!(log.contains(&gone) && log.contains("--resume"), "{log}");
    let record = record(&out);
    assert_eq!(record["experiment"]["interrupted"], true);
    assert!(
        record["runs"]
            .as_array()
            .is_some_and(|runs| runs.len() >= 5)
    );
    assert!(
        record["notes"].to_string().contains(&gone),
        "{}",
        record["notes"]
    );
    wait_until("what it ran ended with it", || {
        there
            .iter()
            .all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
}

#[test]
fn a_near_end_that_is_killed_leaves_nothing_at_the_agents_and_the_next_is_served() {
    let agent = Agent::start("127.0.0.1:0");
    let folder = tempfile::tempdir().expect("a folder");
    let mut bench = Process::start("bench", |voile| {
        let words = ["bench", "quick", "--only", "relay", "--slice", "200ms"];
        voile
            .args(words)
            .arg(agent.option())
            .arg("--out")
            .arg(folder.path().join("first"))
            .env("TMPDIR", folder.path());
    });
    wait_until("it measures", || bench.log().contains("slice 2/"));
    assert!(!agent.is_alone(), "the agent runs nothing");
    let busy = bench_with(&[&agent.option()], &folder.path().join("busy"));
    assert!(
        said(&busy).contains("busy with another session"),
        "{}",
        said(&busy)
    );
    bench.kill();
    wait_until("nothing is left at the agent's", || agent.is_alone());
    let next = bench_with(&[&agent.option()], &folder.path().join("next"));
    assert!(next.status.success(), "{}", said(&next));
    agent.process.terminate();
    let mut process = agent.process;
    assert_eq!(process.wait().code(), Some(0), "{}", process.log());
}

#[test]
fn a_sidecar_that_dies_at_the_agents_is_named_and_the_rest_is_measured() {
    let agent = Agent::start("127.0.0.1:0");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let mut bench = Process::start("bench", |voile| {
        let words = ["bench", "quick", "--only", "relay", "--rounds", "2"];
        let words = voile.args(words).args(["--slice", "300ms"]);
        words.arg(agent.option()).arg("--out").arg(&out);
    });
    wait_until("it measures", || bench.log().contains("slice 2/"));
    let mut killed = 0;
    for pid in children(agent.process.pid()) {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&words).contains("\0relay\0") {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
            killed += 1;
        }
    }
    assert_eq!(killed, 2, "one before each of the server's ports");
    bench.wait();
    let record = record(&out);
    let runs = record["runs"].as_array().expect("runs");
    let reasons: String = runs
        .iter()
        .map(|run| run["invalid_reasons"].to_string())
        .collect();
    assert!(
        reasons.contains("relay-server was ended by signal 9"),
        "{reasons}"
    );
    let last = runs
        .iter()
        .rev()
        .find(|run| run["contestant"] == "baseline");
    assert!(
        last.is_some_and(|run| run["requests"].as_u64() > Some(0)),
        "{}",
        bench.log()
    );
    assert_eq!(record["experiment"]["interrupted"], false);
}

/// A run of a few seconds with these options.
fn bench_with(options: &[&str], out: &Path) -> Output {
    Process::output(|voile| {
        let words = [
            "bench", "quick", "--smoke", "--only", "relay", "--rounds", "1",
        ];
        voile.args(words).args(options).arg("--out").arg(out);
    })
}

#[test]
fn strangers_are_refused_in_clear_words_and_end_nothing() {
    let agent = Agent::start("127.0.0.1:0");
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |options: &[&str], code, words: &str| {
        let ran = bench_with(options, &folder.path().join("out"));
        let said = said(&ran);
        assert_eq!(ran.status.code(), Some(code), "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
        assert!(
            !folder.path().join("out").exists(),
            "{options:?} leaves a folder"
        );
    };
    let wrong = format!("--agent={}={}", agent.address, "x".repeat(64));
    refused(&[&wrong], 1, "wrong token");
    refused(
        &[&format!("--agent={}", agent.address)],
        2,
        "needs the agent's token",
    );
    refused(&[&format!("--agent={}=short", agent.address)], 2, "32");
    let nobody = crate::mesh::free_port();
    let option = format!("--agent=127.0.0.1:{nobody}={}", agent.token);
    refused(&[&option], 1, "is `voile bench agent` running there");
    refused(
        &[&format!("--agent=nowhere={}", agent.token)],
        1,
        "not an address",
    );
    // A server that is no agent.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = other.local_addr().expect("an address");
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().expect("a call");
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    refused(
        &[&format!("--agent={at}={}", agent.token)],
        1,
        "it is not a `voile bench agent`",
    );
    answering.join().expect("it answered");
    let second = Process::output(|voile| {
        voile.args(["bench", "agent", "--listen", &agent.address]);
    });
    assert_eq!(second.status.code(), Some(1));
    let words = format!("cannot listen on {}", agent.address);
    assert!(said(&second).contains(&words), "{}", said(&second));
    hostile(&agent.address);
    let good = bench_with(&[&agent.option()], &folder.path().join("good"));
    assert!(good.status.success(), "{}", said(&good));
    assert!(
        !agent.process.log().contains("panicked"),
        "{}",
        agent.process.log()
    );
}

/// Bytes that no near end sends, from many at once.
fn hostile(address: &str) {
    let hello = [0x16, 3, 1, 0xff, 0xff, 1, 0, 0xff, 0xfb, 3, 3];
    let words: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 70_000],
        &[0; 16],
        &hello,
        b"",
    ];
    let mut held = Vec::new();
    for bytes in words.iter().cycle().take(60) {
        let Ok(mut stream) = TcpStream::connect(address) else {
            continue;
        };
        let bound = Some(Duration::from_millis(100));
        stream.set_write_timeout(bound).expect("set");
        let _ = stream.write_all(bytes);
        held.push(stream);
    }
    // Those that say nothing are let go by the bound on their number or by the agent's patience.
    for mut stream in held {
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let bound = Some(Duration::from_secs(15));
        stream.set_read_timeout(bound).expect("set");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
}

#[test]
fn what_cannot_be_had_on_two_hosts_is_refused_before_anything_runs() {
    let token = "t".repeat(40);
    let folder = tempfile::tempdir().expect("a folder");
    let definition = |text: &str| {
        let path = folder.path().join("x.toml");
        let quick = include_str!("../../../../../benchmarks/quick.toml");
        std::fs::write(&path, format!("{text}\n{quick}")).expect("written");
        path
    };
    let netns = definition("isolation = \"netns\"");
    let out = folder.path().join("out");
    let ran = Command::new(env!("CARGO_BIN_EXE_voile"))
        .args(["bench", "run"])
        .arg(&netns)
        .arg(format!("--agent=127.0.0.1:9={token}"))
        .arg("--out")
        .arg(&out)
        .output()
        .expect("voile starts");
    assert_eq!(ran.status.code(), Some(1));
    assert!(
        said(&ran).contains("with --agent they are on two"),
        "{}",
        said(&ran)
    );
    let file = folder.path().join("token");
    std::fs::write(&file, &token).expect("written");
    let open = Process::output(|voile| {
        voile.args(["bench", "agent", "--token-file"]).arg(&file);
    });
    assert_eq!(open.status.code(), Some(2));
    assert!(said(&open).contains("chmod 600"), "{}", said(&open));
}

#[test]
fn what_two_hosts_cannot_do_is_refused_with_what_to_do_instead() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("apart.toml");
    let token = "x".repeat(40);
    for (agent, more, instead) in [
        (
            "127.0.0.1:1",
            "isolation = \"netns\"",
            "use isolation \"loopback\"",
        ),
        (
            "127.0.0.1:1",
            "[[events]]\nat = \"500ms\"\naction = \"upgrade-proxy\"",
            "use restart-proxy, or remove --agent and separate client and server with isolation \"netns\"",
        ),
    ] {
        let cells = "[[cells]]\ncontestants = [\"relay\"]\nmodes = [\"both\"]\n";
        let (top, table) = match more.starts_with('[') {
            true => ("", more),
            false => (more, ""),
        };
        let text = format!(
            "name = \"apart\"\nrounds = 1\nslice = \"2s\"\nwarmup = \"0s\"\n{top}\n[load]\nrate = 100\nconnections = 1\nsize = 1\n\
             protocol = \"http1\"\n[proxy]\nworkers = 1\n{cells}{table}\n"
        );
        std::fs::write(&file, text).expect("written");
        let ran = Process::output(|voile| {
            voile.args(["bench", "run"]).arg(&file);
            voile.arg(format!("--agent={agent}={token}"));
            voile.arg("--out").arg(folder.path().join("out"));
        });
        let said = said(&ran);
        assert_eq!(ran.status.code(), Some(1), "{instead}: {said}");
        assert!(said.contains(instead), "{instead}: {said}");
        assert!(!folder.path().join("out").join(voile_lab::RECORD).exists());
    }
}

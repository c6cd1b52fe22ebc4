//! `voile bench` as its users run it: a smoke test of the floor, an interrupted run that keeps what it has, and wrong words.

mod agent;
mod clock;
mod envoy;
mod hooks;
mod liars;
mod linkerd;
mod machine;
mod netns;
mod pages;
mod profile;
mod records;
mod several;
mod sides;
mod truth;
mod unlucky;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use voile_report::gzip;

use crate::mesh::Process;

/// The text of a folder's record.
pub(crate) fn record_text(folder: &Path) -> std::io::Result<String> {
    gzip::decompress(&std::fs::read(folder.join(voile_lab::RECORD))?)
}

pub(crate) fn record(folder: &Path) -> serde_json::Value {
    let text = record_text(folder).expect("a record was written");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_smoke_run_writes_a_whole_record_that_can_be_drawn_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "quick", "--smoke", "--only", "relay", "--out"])
            .arg(&out);
    });
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let record = record(&out);
    let runs = record["runs"].as_array().expect("runs");
    // On a busy machine slices may be taken again in their round.
    let planned = runs.iter().filter(|run| run["again"] == false).count();
    assert_eq!(
        planned, 10,
        "two rounds of baseline twice and relay three times"
    );
    assert!(
        runs.iter()
            .any(|run| run["contestant"] == "relay" && run["valid"] == true)
    );
    for file in [
        "report.html",
        "results.csv",
        "definition.toml",
        "environment.json",
        "samples/slices.jsonl.gz",
    ] {
        assert!(out.join(file).is_file(), "{file} is missing");
    }
    no_place(&out, folder.path());
    std::fs::remove_file(out.join("report.html")).expect("it was there");
    let again = Process::output(|voile| {
        voile.args(["bench", "report"]).arg(&out);
    });
    assert!(again.status.success() && out.join("report.html").is_file());
    let same = Process::output(|voile| {
        voile.args(["bench", "compare"]).args([&out, &out]);
    });
    let said = String::from_utf8_lossy(&same.stdout);
    assert!(same.status.success() && said.contains("relay"), "{said}");
    let text = record_text(&out).expect("it was there");
    let other = folder.path().join("other");
    std::fs::create_dir(&other).expect("a folder");
    let built = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let profile = format!("\"profile\": \"{built}\"");
    assert!(text.contains(&profile), "the record tells the profile");
    let changed = text.replace(&profile, "\"profile\": \"another\"");
    std::fs::write(other.join(voile_lab::RECORD), gzip::compress(&changed)).expect("written");
    let refused = Process::output(|voile| {
        voile.args(["bench", "compare"]).args([&out, &other]);
    });
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("profiles are not compared"), "{said}");
}

#[test]
fn an_interrupted_run_keeps_what_was_measured_says_so_and_can_be_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let log = tempfile::NamedTempFile::new().expect("a log file");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_voile"))
        .args([
            "bench", "quick", "--only", "relay", "--slice", "200ms", "--out",
        ])
        .arg(&out)
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.reopen().expect("the log file"))
        .spawn()
        .expect("voile starts");
    let deadline = Instant::now() + Duration::from_secs(180);
    while !std::fs::read_to_string(log.path())
        .unwrap_or_default()
        .contains("slice 3/")
    {
        assert!(Instant::now() < deadline, "the third slice never began");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let status = bench.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    let said = std::fs::read_to_string(log.path()).expect("the log");
    assert!(
        said.contains("interrupted: ") && said.contains("--resume"),
        "{said}"
    );
    let cut = record(&out);
    assert_eq!(cut["experiment"]["interrupted"], true);
    assert!(cut["runs"].as_array().is_some_and(|runs| runs.len() >= 2));
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .filter_map(Result::ok)
        .collect();
    assert_eq!(left.len(), 1, "only the record is left: {left:?}");
}

/// A definition small enough to be killed in the middle of, and gone on with, in a few seconds.
pub(crate) const SMALL: &str = r#"name = "small"
rounds = 3
slice = "150ms"
warmup = "30ms"
[load]
rate = 400
connections = 2
size = 64
protocol = "http1"
[proxy]
workers = 1
[validity]
max_lateness = "1s"
max_rate_error = 1.0
max_drift = 1000.0
[[cells]]
contestants = ["baseline", "relay"]
modes = ["baseline", "both"]
response_sizes = [64, 4096]
"#;

#[test]
fn a_run_that_was_killed_goes_on_after_its_last_whole_round() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    std::fs::write(&file, SMALL).expect("written");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_voile"))
        .args(["bench", "run", "--smoke", "--rounds", "3"])
        .arg(&file)
        .arg("--out")
        .arg(&out)
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("voile starts");
    let deadline = Instant::now() + Duration::from_secs(180);
    while !out.join(voile_lab::RECORD).is_file() {
        assert!(Instant::now() < deadline, "the first round never ended");
        std::thread::yield_now();
    }
    bench.kill().expect("it runs");
    bench.wait().expect("it ends");
    let first = record(&out);
    let whole = first["experiment"]["rounds_whole"].as_u64().expect("told");
    assert!((1..=2).contains(&whole), "{whole}");
    let resume = || {
        Process::output(|voile| {
            voile
                .args(["bench", "run", "--smoke", "--rounds", "3"])
                .arg(&file)
                .arg("--resume")
                .arg(&out);
        })
    };
    let ran = resume();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let all = record(&out);
    let planned = |run: &&serde_json::Value| run["again"] != true;
    let runs = all["runs"].as_array().expect("runs");
    assert_eq!(
        runs.iter().filter(planned).count(),
        3 * 4,
        "three rounds of four cells"
    );
    assert_eq!(
        runs[0], first["runs"][0],
        "what was measured stays as it was"
    );
    assert_eq!(all["experiment"]["interrupted"], false);
    let sizes = |run: &&serde_json::Value| run["shape"]["response_bytes"] == 4096;
    assert_eq!(runs.iter().filter(planned).filter(sizes).count(), 3 * 2);
    let summary = all["summary"].as_array().expect("a summary");
    let cells = summary
        .iter()
        .filter(|s| s["shape"]["response_bytes"] == 4096);
    assert_eq!(cells.count(), 2, "each size is summed up by itself");
    let ran = resume();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1));
    assert!(said.contains("nothing to do"), "{said}");
    std::fs::write(&file, SMALL.replace("rate = 400", "rate = 300")).expect("written");
    let said = String::from_utf8_lossy(&resume().stderr).into_owned();
    assert!(said.contains("another definition"), "{said}");
}

/// The definition with other words in it.
pub(crate) fn changed(words: &[(&str, &str)]) -> String {
    words.iter().fold(SMALL.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

/// Events of every slice: the time of each and its action.
pub(crate) fn events(all: &[(&str, &str)]) -> String {
    let one =
        |(at, action): &(&str, &str)| format!("[[events]]\nat = \"{at}\"\naction = \"{action}\"\n");
    all.iter().map(one).collect()
}

/// Factors for the time in which an effect must be seen, one for each attempt. On a busy machine the effect may come only after
/// the next event, or the slice.
pub(crate) const PACES: [u64; 3] = [1, 2, 4];

/// It came to its end. On a busy machine no slice may be valid; what was done, seen and proven is on record all the same.
pub(crate) fn is_measured(ran: &Output) {
    let said = String::from_utf8_lossy(&ran.stderr);
    let spoiled = said.contains("no slice is valid");
    assert!(ran.status.success() || spoiled, "{said}");
}

/// The same definition, with so many times the time for all that is done in a slice.
pub(crate) fn stretched(text: &str, times: u64) -> String {
    let line = |line: &str| {
        let found = ["slice", "at"].iter().find_map(|name| {
            let length = line.strip_prefix(&format!("{name} = \""))?;
            Some((*name, length.strip_suffix('"')?))
        });
        let Some((name, length)) = found else {
            return format!("{line}\n");
        };
        let milliseconds = match length.strip_suffix("ms") {
            Some(number) => number.parse::<u64>().expect("a number"),
            None => {
                1000 * length
                    .trim_end_matches('s')
                    .parse::<u64>()
                    .expect("seconds")
            }
        };
        format!("{name} = \"{}ms\"\n", milliseconds * times)
    };
    text.lines().map(line).collect()
}

/// One slice each of these contestants, with something done to them all along at this pace: what was said, and the record.
fn changed_under_load(contestants: &str, mode: &str, pace: u64) -> (String, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    let mut text = changed(&[
        ("rounds = 3", "rounds = 1"),
        ("slice = \"150ms\"", "slice = \"9500ms\""),
        ("\"baseline\", \"relay\"", contestants),
        ("\"baseline\", \"both\"", &format!("{mode:?}")),
        ("response_sizes = [64, 4096]", "tls = false"),
    ]);
    text += &events(&[
        ("500ms", "push-policy"),
        ("1200ms", "change-policies\"\ncount = 40#"),
        ("2s", "rotate-certificates"),
        ("3500ms", "move-endpoints"),
        ("5s", "upgrade-proxy"),
        ("6500ms", "restart-proxy"),
        ("8s", "hook\"\ncommand = [\"true\"]#"),
        ("8500ms", "kill-control-plane"),
    ]);
    std::fs::write(&file, stretched(&text, pace)).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--rounds", "1"])
            .arg(&file)
            .arg("--out")
            .arg(&out);
    });
    is_measured(&ran);
    let said = String::from_utf8_lossy(&ran.stderr);
    (said.into_owned(), record(&out))
}

/// The same at the first pace at which all that is done to Voile is seen to have an effect.
fn until_all_is_seen(contestants: &str, mode: &str) -> (String, serde_json::Value) {
    let [first, slower @ ..] = PACES;
    let mut ran = changed_under_load(contestants, mode, first);
    for pace in slower {
        if all_seen(&ran.1, "voile", mode) {
            break;
        }
        ran = changed_under_load(contestants, mode, pace);
    }
    ran
}

/// The slice of that contestant.
fn slice<'a>(record: &'a serde_json::Value, contestant: &str, mode: &str) -> &'a serde_json::Value {
    let mut runs = record["runs"].as_array().expect("runs").iter();
    let run = runs.find(|run| run["contestant"] == contestant && run["mode"] == mode);
    run.unwrap_or_else(|| panic!("no slice of {contestant}: {}", record["notes"]))
}

/// Returns true if every event of the slice was seen to have an effect.
pub(crate) fn all_seen(record: &serde_json::Value, contestant: &str, mode: &str) -> bool {
    let events = slice(record, contestant, mode)["events"].as_array();
    let mut events = events.expect("events").iter();
    events.all(|event| event["effect_seconds"].is_number())
}

/// Asserts an effect soon after each event, and failed requests only after a restart of a proxy or the control plane's kill.
pub(crate) fn seen_and_lost_nothing(record: &serde_json::Value, contestant: &str, mode: &str) {
    let events = slice(record, contestant, mode)["events"].as_array();
    for event in events.expect("events") {
        let effect = event["effect_seconds"].as_f64();
        assert!(effect.is_some_and(|s| s < 4.3), "{mode}: {event}");
        let observed = event["observed"].as_str();
        assert!(observed.is_some_and(|words| !words.is_empty()), "{event}");
        let action = event["action"].as_str().unwrap_or("");
        if !["restart-proxy", "kill-control-plane"].contains(&action) {
            assert_eq!(event["failed"], 0, "{mode}: {event}");
        }
    }
}

/// Asserts that the restarted proxy was on the path of requests, and that some of them were lost.
pub(crate) fn lost_by_the_restart(record: &serde_json::Value, contestant: &str, mode: &str) {
    let events = slice(record, contestant, mode)["events"].as_array();
    let mut events = events.expect("events").iter();
    let restarted = events.find(|event| event["action"] == "restart-proxy");
    let restarted = restarted.expect("an event");
    assert!(restarted["failure"].is_null(), "{restarted}");
    let lost = restarted["failed"].as_u64();
    assert!(lost > Some(0), "it was not on the way: {restarted}");
}

#[test]
fn changes_under_load_are_timed_and_what_they_cost_is_counted() {
    let (said, record) = until_all_is_seen("\"voile\", \"relay\"", "both");
    let series = slice(&record, "voile", "both")["series"].as_array();
    assert!(series.is_some_and(|series| series.len() >= 90), "{said}");
    seen_and_lost_nothing(&record, "voile", "both");
    let undone = slice(&record, "relay", "both")["events"].as_array();
    assert!(
        undone
            .expect("events")
            .iter()
            .filter(|event| event["action"] != "hook")
            .all(|e| e["failure"].is_string())
    );
    let notes = record["notes"].to_string();
    assert!(notes.contains("relay: push-policy was not done"), "{notes}");
}

/// Beside nginx, where it is: a peer's gateway is another of its processes than its server's sidecar.
#[test]
fn a_gateway_is_changed_under_load_and_it_is_the_gateway_that_is_restarted() {
    let (contestants, nginx) = match Command::new("nginx").arg("-v").output() {
        Ok(_) => ("\"voile\", \"nginx\"", true),
        Err(_) => ("\"voile\"", false),
    };
    let (_, record) = until_all_is_seen(contestants, "gateway");
    seen_and_lost_nothing(&record, "voile", "gateway");
    lost_by_the_restart(&record, "voile", "gateway");
    if nginx {
        lost_by_the_restart(&record, "nginx", "gateway");
    }
}

#[test]
fn decisions_are_priced_by_kind_and_number_of_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("record");
    let ran = Process::output(|voile| {
        voile.args(["bench", "policy", "--rules", "5,20", "--policies", "3"]);
        voile.args(["--kind", "paths,mixed", "--rounds", "2", "--json", "--out"]);
        voile.arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let record: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let rounds = record["runs"].as_array().expect("rounds");
    assert_eq!(rounds.len(), 2, "{rounds:?}");
    for round in rounds {
        let measured = round["measured"].as_object().expect("figures");
        // Twice two of one policy, and beside three policies of five rules one of them, which is there already.
        let sets = measured.keys().filter(|name| name.ends_with(" bytes"));
        assert_eq!(sets.count(), 5, "{round}");
        // Four hits, and the time of the set's compilation and its bytes.
        assert_eq!(measured.len(), 5 * 6, "{round}");
        let above_0 = |value: &serde_json::Value| value.as_f64() > Some(0.0);
        assert!(measured.values().all(above_0), "{round}");
    }
    let drawn = Process::output(|voile| {
        voile.args(["bench", "report"]).arg(&out);
    });
    assert!(drawn.status.success());
    assert!(out.join("report.html").is_file());
    let unknown = Process::output(|voile| {
        voile.args(["bench", "policy", "--kind", "colours", "--rounds", "1"]);
    });
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(said.contains("`colours` is not a kind of rules"), "{said}");
}

#[test]
fn wrong_words_exit_with_two() {
    for words in [
        vec!["bench", "quick", "--only", "caddy"],
        vec!["bench", "quick", "--peer", "envoy=/no/such/envoy"],
        vec!["bench", "run", "/no/such/file.toml"],
        vec!["bench", "quick", "--rounds", "0"],
        vec!["bench", "quick", "--repeat", "0"],
        vec!["bench", "agreement", "--peer", "fortio=/no/such/fortio"],
        vec!["bench", "generators", "--peer", "ab=/usr/bin/ab"],
        vec!["bench", "control-plane", "--proxies", "0"],
    ] {
        let ran = Process::output(|voile| {
            voile.args(&words);
        });
        assert_eq!(
            ran.status.code(),
            Some(2),
            "{words:?}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}

#[test]
fn generators_that_are_missing_or_talk_nonsense_are_named_and_the_rest_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let wrk = env!("CARGO_BIN_EXE_voile");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "generators", "--rounds", "1", "--slice", "1s"])
            .args(["--peer", &format!("wrk={wrk}"), "--out"])
            .arg(&out)
            .env("PATH", folder.path())
            .env("HOME", folder.path())
            .env_remove("GOPATH")
            .env_remove("GOBIN");
    });
    let text = std::fs::read_to_string(out.join("generators.json"));
    let text = text.unwrap_or_else(|why| panic!("{why}: {}", String::from_utf8_lossy(&ran.stderr)));
    let record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let slices = record["runs"].as_array().expect("slices");
    let of = |name: &str| -> Vec<&serde_json::Value> {
        let its = slices.iter().filter(|slice| slice["contestant"] == name);
        its.collect()
    };
    // Eleven scenes; wrk speaks HTTP/1.1, which three of them are.
    assert_eq!(
        (of("voile").len(), of("wrk").len(), slices.len()),
        (11, 3, 14)
    );
    for slice in of("voile") {
        let each = &slice["measured"]["requests_per_core"];
        assert!(each.as_f64() > Some(100.0), "{slice}");
    }
    assert!(
        of("wrk").iter().all(|slice| slice["valid"] == false),
        "{text}"
    );
    let said = String::from_utf8_lossy(&ran.stdout);
    for words in [
        "fortio not found",
        "h2load not found",
        "http1-most wrk failed",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    no_place(&out, folder.path());
    std::fs::remove_file(out.join("report.md")).expect("it was written");
    let again = Process::output(|voile| {
        voile.args(["bench", "report"]).arg(&out);
    });
    assert!(again.status.success() && out.join("report.md").is_file());
}

/// No file of a record tells where this machine keeps the program, the tests' folders or the user's.
fn no_place(out: &Path, folder: &Path) {
    let program = Path::new(env!("CARGO_BIN_EXE_voile"));
    let home = std::env::var("HOME").unwrap_or_default();
    let mut places = vec![
        program.parent().expect("a folder").display().to_string(),
        folder.display().to_string(),
        std::env::temp_dir().display().to_string(),
        env!("CARGO_MANIFEST_DIR").to_owned(),
        home,
    ];
    places.retain(|place| place.len() > 1);
    let mut seen = 0;
    for file in std::fs::read_dir(out).expect("the record").flatten() {
        let Ok(bytes) = std::fs::read(file.path()) else {
            continue;
        };
        let text = gzip::decompress(&bytes)
            .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned());
        seen += 1;
        for place in &places {
            assert!(
                !text.contains(place.as_str()),
                "{place} in {}",
                file.path().display()
            );
        }
    }
    assert!(seen >= 2, "there are files to look at");
}

/// Nothing is as punctual as this definition asks, so the machine spoils every slice.
const IMPOSSIBLE: &str = r#"
name = "impossible"
rounds = 5
slice = "100ms"
warmup = "0s"
[load]
rate = 500
connections = 2
size = 10
protocol = "http1"
[proxy]
workers = 1
[validity]
max_lateness = "1us"
[[cells]]
contestants = ["baseline"]
modes = ["baseline"]
arrivals = ["uniform"]
[[cells]]
contestants = ["relay"]
modes = ["both"]
arrivals = ["uniform"]
"#;

#[test]
fn spoiled_slices_are_taken_again_in_their_round_and_stay_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, out) = (folder.path().join("it.toml"), folder.path().join("out"));
    std::fs::write(&file, IMPOSSIBLE).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run"])
            .arg(&file)
            .args(["--repeat", "2", "--out"])
            .arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("no slice is valid"), "{said}");
    let record = record(&out);
    let runs = record["runs"].as_array().expect("runs");
    let again: Vec<&serde_json::Value> = runs.iter().filter(|run| run["again"] == true).collect();
    assert_eq!(
        (runs.len(), again.len()),
        (24, 4),
        "ten planned in each repeat, one in five taken again"
    );
    for run in again {
        let first = runs.iter().find(|first| {
            first["again"] == false
                && first["round"] == run["round"]
                && first["contestant"] == run["contestant"]
        });
        let reason = first.map(|first| first["invalid_reasons"].to_string());
        assert!(
            reason.is_some_and(|reason| reason.contains("late")),
            "{run}"
        );
    }
    let rounds = |repeat: u64| {
        let of_it = runs.iter().filter(|run| run["repeat"] == repeat);
        let numbers: std::collections::BTreeSet<u64> =
            of_it.filter_map(|run| run["round"].as_u64()).collect();
        numbers.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(
        (rounds(1), rounds(2)),
        ((1..=5).collect(), (6..=10).collect())
    );
}

#[test]
fn a_cold_start_has_processes_of_its_own_in_each_slice_and_is_measured_from_its_first_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, out) = (folder.path().join("it.toml"), folder.path().join("out"));
    let text = IMPOSSIBLE.replace("rounds = 5", "rounds = 2");
    let text = text.replace(
        "slice = \"100ms\"\nwarmup = \"0s\"",
        "slice = \"500ms\"\nwarmup = \"200ms\"",
    );
    let text = text.replace("max_lateness = \"1us\"", "max_lateness = \"1s\"");
    std::fs::write(&file, format!("{text}starts = [\"warm\", \"cold\"]\n")).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run"])
            .arg(&file)
            .arg("--out")
            .arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    let record = record(&out);
    let runs = record["runs"].as_array().expect("runs");
    let of = |start: &str| {
        let of_relay = runs.iter().filter(|run| run["contestant"] == "relay");
        let started = of_relay.filter(|run| run["shape"]["start"].as_str().unwrap_or("") == start);
        started.collect::<Vec<_>>()
    };
    let pids = |start: &str| {
        let processes = of(start)
            .into_iter()
            .filter_map(|run| run["processes"].as_array())
            .flatten();
        let sidecars = processes.filter(|one| one["role"] == "client-sidecar");
        let pids = sidecars.map(|one| one["pids"].to_string());
        pids.collect::<std::collections::BTreeSet<String>>()
    };
    let (warm, cold) = (pids("").len(), of("cold").len());
    assert!(warm == 1 && cold >= 2, "{warm} {cold}: {said}");
    assert_eq!(pids("cold").len(), cold, "each has its own");
    assert!(pids("cold").is_disjoint(&pids("")));
    for run in of("cold") {
        assert!(run["requests"].as_u64() > Some(100), "{run:#}");
        assert_eq!(run["errors"], 0, "{run:#}");
        let reasons = run["invalid_reasons"].to_string();
        assert!(
            !reasons.contains("samplers' window"),
            "no window is too early: {reasons}"
        );
        let cpu = |role: &str| {
            let mut processes = run["processes"].as_array().into_iter().flatten();
            let found = processes.find(|one| one["role"] == role);
            found.and_then(|one| one["cpu_us_per_request"].as_f64())
        };
        assert!(
            cpu("client-sidecar") > Some(0.0) && cpu("load") > Some(0.0),
            "{run:#}"
        );
    }
}

#[test]
fn presets_are_planned_and_named_and_what_is_missing_is_said() {
    for name in [
        "best-practices",
        "protocol-detection",
        "security-policies",
        "data-planes",
        "performance-and-scalability",
        "routing",
        "all",
    ] {
        let ran = Process::output(|voile| {
            voile.args(["bench", name, "--quick", "--dry-run"]);
        });
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success() && said.contains("slices in all"),
            "{name}: {said}"
        );
        let missing = String::from_utf8_lossy(&ran.stderr);
        let scaling = ["performance-and-scalability", "all"].contains(&name);
        let named = missing.contains("voile bench control-plane");
        assert_eq!(named, scaling, "{name}: {missing}");
        let in_all = said.contains("6 experiments, about ");
        assert_eq!(in_all, name == "all", "{said}");
    }
}

#[test]
fn a_preset_prints_each_claim_beside_what_it_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let ran = Process::output(|voile| {
        voile
            .args([
                "bench",
                "performance-and-scalability",
                "--quick",
                "--smoke",
                "--only",
                "voile",
                "--out",
            ])
            .arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    for part in [
        "A sidecar holds 60 MB",
        "A waypoint uses 0.25 vCPU",
        "published claims",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("Published claims"));
}

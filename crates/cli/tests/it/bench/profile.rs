//! `voile bench run --profile`: the time of each hop, the bytes on the wire, system calls and flame graphs. Missing tools are
//! named.

use std::path::Path;

use serde_json::Value;
use voile_testkit::prerequisites::{Prerequisite, skip};

use crate::bench::PACES;
use crate::mesh::Process;

const DEFINITION: &str = r#"name = "profiled"
rounds = 1
slice = "200ms"
warmup = "30ms"
[load]
rate = 400
connections = 2
size = 1000
protocol = "http1"
[proxy]
workers = 1
[[cells]]
contestants = ["relay"]
modes = ["both"]
"#;

/// Runs it at this pace and with this search path, if any; its record and its page.
fn profiled(folder: &Path, pace: u64, path: Option<&Path>) -> (Value, String) {
    let (file, out) = (folder.join("profiled.toml"), folder.join("out"));
    std::fs::write(&file, DEFINITION).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--profile", "--rounds", "1"])
            .args(["--slice", &format!("{}ms", 1500 * pace)])
            .arg(&file)
            .arg("--out")
            .arg(&out);
        if let Some(path) = path {
            voile.env("PATH", path);
        }
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    let text = crate::bench::record_text(&out);
    let text = text.unwrap_or_else(|why| panic!("{why}: {said}"));
    let page = std::fs::read_to_string(out.join("report.html")).expect("a page");
    (serde_json::from_str(&text).expect("JSON"), page)
}

/// Returns true if a hop saw enough answers for a judgement.
fn is_busy(hop: &Value) -> bool {
    hop["answers"].as_u64() > Some(100)
}

/// Parts that the profile reports as missing.
fn missing(profile: &Value) -> String {
    profile["missing"].to_string()
}

#[test]
fn each_hop_is_timed_and_weighed_and_its_processes_are_looked_into() {
    let ran = |pace| {
        let folder = tempfile::tempdir().expect("a folder");
        let (record, page) = profiled(folder.path(), pace, None);
        (folder, record, page)
    };
    let [first, slower @ ..] = PACES;
    let (mut folder, mut record, mut page) = ran(first);
    for pace in slower {
        // On a busy machine little is answered in so short a time.
        let hops = record["profiles"][0]["hops"].as_array();
        if hops.is_none_or(|hops| hops.iter().all(is_busy)) {
            break;
        }
        (folder, record, page) = ran(pace);
    }
    let profile = &record["profiles"][0];
    assert_eq!(profile["cell"]["contestant"], "relay");
    assert!(page.contains("<summary>Profile</summary>"));
    let missing = missing(profile);
    if missing.contains("CAP_NET_RAW") {
        skip(Prerequisite::RawSockets, &missing);
    } else {
        let hops = profile["hops"].as_array().expect("hops");
        let last = hops.last().expect("a hop");
        assert_eq!(last["to"], "server");
        for hop in hops {
            assert!(is_busy(hop), "{hop}");
            // An answer of a thousand bytes, its head, the request, and the bytes of the protocols
            // below.
            let bytes = hop["wire_bytes_per_request"].as_f64().expect("bytes");
            assert!((1200.0..2500.0).contains(&bytes), "{hop}");
        }
        let time = |hop: &Value| hop["p50_us"].as_f64().expect("a time");
        assert!(
            time(&hops[0]) > time(last),
            "the first hop holds the last: {hops:?}"
        );
        assert!(profile["service_p50_us"].as_f64() > Some(time(&hops[0])));
    }
    if missing.contains("perf") {
        return skip(Prerequisite::Perf, missing);
    }
    let calls = &profile["syscalls"]["server"];
    // It takes a request and sends an answer.
    assert!(calls["per_request"].as_f64() > Some(1.8), "{calls}");
    let roles: Vec<&str> = profile["flames"]
        .as_array()
        .expect("flames")
        .iter()
        .filter_map(|flame| flame["role"].as_str())
        .collect();
    assert!(roles.contains(&"server"), "{roles:?}");
    assert!(page.contains("class=\"flame\""));
    let files: Vec<String> = std::fs::read_dir(folder.path().join("out/flames"))
        .expect("flames")
        .flatten()
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    for end in ["-server.svg", "-server.folded"] {
        assert!(files.iter().any(|name| name.ends_with(end)), "{files:?}");
    }
}

#[test]
fn without_perf_it_is_named_and_the_rest_is_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let (record, page) = profiled(folder.path(), 1, Some(folder.path()));
    let missing = missing(&record["profiles"][0]);
    assert!(missing.contains("perf is not found"), "{missing}");
    assert!(page.contains("perf is not found"));
    assert_eq!(record["profiles"][0]["syscalls"], serde_json::json!({}));
}

//! `voile bench control-plane` and `voile bench sidecars` in sizes that a test bears: the same steps as with thousands.

use std::path::Path;

use voile_testkit::prerequisites::{Prerequisite, skip};

use crate::bench::netns::is_refused;
use crate::mesh::{Process, wait_until};

fn json(folder: &Path, name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(folder.join(name)).expect("a record was written");
    serde_json::from_str(&text).expect("JSON")
}

/// Value of this figure in the record's own mesh.
fn seen(record: &serde_json::Value, what: &str, measure: &str) -> f64 {
    seen_in(record, &serde_json::Value::Null, what, measure)
}

/// Value of this figure in the mesh of that slice.
fn seen_in(record: &serde_json::Value, part: &serde_json::Value, what: &str, measure: &str) -> f64 {
    let figures = record["scene"]["findings"].as_array().expect("figures");
    let own = |figure: &&serde_json::Value| figure["of"]["part"] == *part;
    let found = figures.iter().filter(own).find(|figure| {
        let is = |field: &str, word: &str| {
            figure[field]
                .as_str()
                .is_some_and(|text| text.starts_with(word))
        };
        is("what", what) && is("measure", measure)
    });
    let found = found.unwrap_or_else(|| panic!("no figure `{what}: {measure}` in {figures:#?}"));
    found["value"]["median"].as_f64().expect("a number")
}

/// Draws the record again from its data.
fn drawn_again(out: &Path, words: &str) {
    std::fs::remove_file(out.join("report.html")).expect("it was there");
    let again = Process::output(|voile| {
        voile.args(["bench", "report"]).arg(out);
    });
    assert!(again.status.success(), "{again:?}");
    let page = std::fs::read_to_string(out.join("report.html")).expect("drawn");
    assert!(page.contains(words), "{words}");
}

#[test]
fn a_control_plane_is_measured_in_two_sizes_and_everybody_renews_without_a_failed_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let ran = Process::output(|voile| {
        voile.args([
            "bench",
            "control-plane",
            "--services",
            "12",
            "--workloads",
            "24",
        ]);
        voile.args([
            "--proxies",
            "20",
            "--used",
            "4",
            "--changes",
            "2",
            "--churn",
            "10",
        ]);
        voile.args([
            "--churn-for",
            "900ms",
            "--certify-for",
            "500ms",
            "--rotate-for",
            "1s",
        ]);
        voile.args(["--beside", "6/12/10", "--out"]).arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains(" left)"), "{said}");
    let record = json(&out, "control-plane.json");
    assert!(seen(&record, "certificates", "requests") > 10.0);
    assert!(seen(&record, "20 proxies renew", "requests") >= 20.0);
    for what in ["certificates", "20 proxies renew"] {
        assert!(seen(&record, what, "failed requests") == 0.0, "{record:#}");
    }
    assert!(seen(&record, "20 proxies renew", "proxies out of sync") == 0.0);
    assert!(seen(&record, "one endpoint changes", "the last told") > 0.0);
    let small = &record["runs"][1];
    assert_eq!(small["measured"]["services"], 6.0);
    let part = &small["mode"];
    assert!(seen_in(&record, part, "killed", "until all are in sync") > 0.0);
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(
        told.contains("linear or better") || told.contains("MORE THAN LINEAR"),
        "{told}"
    );
    drawn_again(&out, "By size of the mesh");
}

#[test]
fn many_real_sidecars_come_into_sync_carry_load_by_mutual_tls_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let ran = Process::output(|voile| {
        voile.args([
            "bench",
            "sidecars",
            "--sidecars",
            "4",
            "--used",
            "2",
            "--sample",
            "2",
        ]);
        voile.args(["--rate", "20", "--load-for", "1s", "--idle-for", "500ms"]);
        voile
            .args(["--meshes", "10,14", "--rounds", "1", "--out"])
            .arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let record = json(&out, "sidecars.json");
    let load = "light load through 2 sidecars";
    assert!(seen(&record, load, "requests a second") > 10.0);
    assert!(seen(&record, load, "failed requests") == 0.0, "{record:#}");
    assert!(
        seen(&record, load, "answers that no sidecar") == 0.0,
        "{record:#}"
    );
    assert!(seen(&record, "a policy for all", "at the last") > 0.0);
    assert!(seen(&record, "of a sidecar", "threads") >= 3.0);
    assert!(seen(&record, "the end", "sidecars that had ended") == 0.0);
    let notes = record["notes"].to_string();
    // Without network namespaces the record has a note on that.
    if notes.contains("needs root") || notes.contains("netns") {
        skip(Prerequisite::Netns, notes);
    } else {
        let what = "a sidecar that uses 10 of 14 services";
        assert!(seen(&record, what, "first requests") == 10.0);
        assert!(seen(&record, what, "RSS more than in the first mesh").abs() < 50.0);
    }
    drawn_again(&out, "Cost of many sidecars");
}

#[test]
fn a_crowd_of_pods_is_served_by_its_nodes_proxy_and_newcomers_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let ran = Process::output(|voile| {
        voile.args(["bench", "nodes", "--quick", "--workloads", "3"]);
        voile.args(["--connections", "30", "--rate", "40", "--rate-for", "1s"]);
        voile.args(["--joins", "3", "--out"]).arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    if is_refused(&said) {
        return;
    }
    assert!(ran.status.success(), "{said}");
    let record = json(&out, "nodes.json");
    let workloads = "voile, 3 workloads, 10 connections each";
    assert!(seen(&record, workloads, "RSS of their proxy") > 1.0);
    assert!(
        seen(
            &record,
            "voile, connections at once",
            "open, each answered once"
        ) >= 30.0
    );
    let rate = "voile, 40 new connections a second from 3 addresses";
    // A machine that stands still for two seconds has not begun all of them.
    assert!(
        seen(&record, rate, "failed or never begun") < 40.0,
        "{record:#}"
    );
    assert!(seen(&record, rate, "CPU of the server's node's proxy") > 0.0);
    let joins = "voile, 3 new workloads";
    assert!(
        seen(
            &record,
            joins,
            "to the first byte with its identity, the slowest"
        ) > 0.0,
        "{record:#}"
    );
    drawn_again(&out, "A node proxy with many pods");
}

/// A process's parent; none when there is no such process.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

#[test]
fn an_interrupted_measurement_keeps_what_it_has_and_ends_its_sidecars() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let mut bench = Process::start("bench", |voile| {
        voile.args(["bench", "sidecars", "--sidecars", "3", "--used", "2"]);
        voile.args(["--sample", "1", "--idle-for", "1h", "--meshes", "none"]);
        voile.arg("--out").arg(&out);
    });
    for step in ["are in sync", "reading what they hold", "nothing happens"] {
        wait_until(step, || {
            assert!(bench.is_running(), "before `{step}`");
            bench.log().contains(step)
        });
    }
    let children = children_of(bench.pid());
    assert!(
        children.len() >= 5,
        "three sidecars, a control plane, a server: {children:?}"
    );
    bench.signal(rustix::process::Signal::INT);
    assert_eq!(bench.wait().code(), Some(130));
    let record = json(&out, "sidecars.json");
    assert!(seen(&record, "memory of 3 sidecars", "PSS of all") > 0.0);
    let left: Vec<u32> = children
        .into_iter()
        .filter(|pid| parent_of(*pid).is_some())
        .collect();
    assert!(left.is_empty(), "{left:?} are still there");
    assert!(
        record["notes"]
            .to_string()
            .contains("Not measured completely"),
        "{record:#}"
    );
}

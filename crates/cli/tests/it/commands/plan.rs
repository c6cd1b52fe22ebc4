//! `voile plan` and `voile bench curves --from`, on committed records and example graphs.

use std::path::{Path, PathBuf};

use crate::mesh::Process;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn ran(words: &[&str]) -> (Option<i32>, String, String) {
    let ran = Process::output(|voile| {
        voile.args(words).current_dir(root());
    });
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (ran.status.code(), text(ran.stdout), text(ran.stderr))
}

/// Curves of records of one machine: sidecars by connections and rate, tokens, node proxies and a waypoint.
fn curves(folder: &Path) -> String {
    let file = folder.join("curves.json").display().to_string();
    let (code, said, why) = ran(&[
        "bench",
        "curves",
        "--curves",
        &file,
        "--from",
        "benchmarks/records/2026-11-30-speed-mtls-profile",
        "benchmarks/records/2026-11-22-tokens",
        "benchmarks/records/2026-11-22-node-waypoint",
    ]);
    assert_eq!(code, Some(0), "{why}");
    assert!(said.contains("mtls: 6 loads"), "{said}");
    assert!(said.contains("waypoint: "), "{said}");
    file
}

#[test]
fn a_graph_has_a_forecast_with_intervals_and_the_same_one_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let curves = curves(folder.path());
    let words = [
        "plan",
        "examples/graphs/chain-10.yaml",
        "--rate",
        "200",
        "--curves",
        &curves,
    ];
    let (code, said, why) = ran(&words);
    assert_eq!(code, Some(0), "{why}");
    assert!(said.starts_with("with sidecar,mtls\nSERVICE "), "{said}");
    assert!(said.contains("\nin all "), "{said}");
    assert!(
        said.contains("* CPU: extrapolated beyond what was measured by"),
        "{said}"
    );
    assert_eq!(ran(&words).1, said, "the same seed");
    let (_, page, _) = ran(&[&words[..], &["-o", "json"]].concat());
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(page["services"].as_array().map(Vec::len), Some(10));
    let figure = |name: &str, part: &str| page["total"][name][part].as_f64().expect("a number");
    for name in ["vcpu", "memory_bytes", "p50_us", "p90_us", "p99_us"] {
        assert!(figure(name, "value") > 0.0, "{page:#}");
        assert!(
            figure(name, "low") <= figure(name, "high"),
            "{name}: {page:#}"
        );
    }
}

#[test]
fn choices_are_compared_and_the_cheapest_within_a_budget_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let curves = curves(folder.path());
    let page = folder.path().join("plan.html").display().to_string();
    let plan = |words: &[&str]| {
        let graph = [
            "plan",
            "examples/graphs/star-10.yaml",
            "--rate",
            "50",
            "--curves",
            &curves,
        ];
        ran(&[&graph[..], words].concat())
    };
    let (code, said, why) = plan(&["--what-if", "node,waypoint", "--html", &page]);
    assert_eq!(code, Some(0), "{why}");
    assert!(
        said.contains("\nnode,waypoint instead of sidecar,mtls: "),
        "{said}"
    );
    let page = std::fs::read_to_string(&page).expect("a page");
    assert_eq!(page.matches("<svg").count(), 2, "a graph for each choice");
    assert!(
        page.contains("fill-opacity=\"0.50\""),
        "the dearest service"
    );
    let (code, said, why) = plan(&["--budget", "cpu=64,p99=10s"]);
    assert_eq!(code, Some(0), "{why}");
    assert!(said.contains("cheapest that holds it: "), "{said}");
    let (code, said, _) = plan(&["--budget", "cpu=0.000001"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("none holds it"), "{said}");
}

#[test]
fn counted_edges_are_a_graph_with_its_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let curves = curves(folder.path());
    let edges = folder.path().join("edges.json");
    let text = r#"{"rows": [{"source": "web", "destination": "shop/front", "requests": 40},
        {"source": "shop/front", "destination": "shop/cart", "requests": 60}]}"#;
    std::fs::write(&edges, text).expect("written");
    let edges = edges.display().to_string();
    let (code, said, why) = ran(&["plan", &edges, "--curves", &curves]);
    assert_eq!(code, Some(0), "{why}");
    let line = said
        .lines()
        .find(|line| line.starts_with("shop/front"))
        .expect("a line");
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[1..3], ["40.0", "60.0"], "{said}");
}

#[test]
fn what_cannot_be_planned_is_refused_by_name_with_its_cure() {
    let folder = tempfile::tempdir().expect("a folder");
    let curves = curves(folder.path());
    let graph = "examples/graphs/chain-10.yaml";
    for (words, expected) in [
        (&[graph][..], "a graph has no load of its own; cure: --rate"),
        (
            &["examples/bookstore", "--rate", "1"],
            "voile edges -o json",
        ),
        (&["http://prometheus:9090", "--rate", "1"], "not read yet"),
        (&["none.yaml", "--rate", "1"], "none.yaml"),
        (
            &[graph, "--rate", "1", "--with", "mtls,tracing"],
            "no `tracing`",
        ),
        (
            &[graph, "--rate", "1", "--with", "node,tokens"],
            "add waypoint",
        ),
        (&[graph, "--rate", "0"], "a rate above 0"),
    ] {
        let words = [&["plan", "--curves", &curves], words].concat();
        let (code, _, why) = ran(&words);
        assert_eq!(code, Some(2), "{words:?}: {why}");
        assert!(why.contains(expected), "{words:?}: {why}");
    }
    let (code, _, why) = ran(&["plan", graph, "--rate", "1", "--curves", "none.json"]);
    assert_eq!(code, Some(2));
    assert!(why.contains("cure: measure the curves"), "{why}");
    let record = "benchmarks/records/2026-11-24-sidecar-free";
    let other = "benchmarks/records/2026-11-22-tokens";
    let (code, _, why) = ran(&["bench", "curves", "--from", record, other]);
    assert_eq!(code, Some(2));
    assert!(why.contains("one file of curves for each machine"), "{why}");
}

#[test]
fn the_experiments_of_the_curves_can_be_listed() {
    let (code, said, why) = ran(&["bench", "curves", "--dry-run"]);
    assert_eq!(code, Some(0), "{why}");
    assert!(
        said.starts_with("curves (Cost of sidecars by load"),
        "{said}"
    );
}

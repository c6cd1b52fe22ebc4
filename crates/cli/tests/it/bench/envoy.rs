//! `voile bench` with stock Envoys that `voile control` configures from the same folder as Voile's own sidecars (`envoy-xds`).
//! Their traffic is proven like that of all contestants, and unsupported events are named. Uses the Envoy of this machine, or of
//! `ENVOY`; skipped without.

use serde_json::Value;
use voile_testkit::prerequisites::{Prerequisite, peer};

use crate::bench::agent::Agent;
use crate::bench::netns::{IN_NAMESPACES, impostor_was_tried, ran};
use crate::bench::{PACES, changed, events, stretched};
use crate::mesh::Process;

/// Argument that names Envoy to the lab, if the lab would not find it itself. The outer None means
/// that there is no Envoy.
fn envoy() -> Option<Option<String>> {
    peer(Prerequisite::Envoy, "ENVOY", "envoy")?;
    let given = std::env::var("ENVOY").ok();
    Some(given.map(|path| format!("envoy={path}")))
}

/// The proof of each of its ways is whole; how many there are.
fn proven(record: &Value, redirected: bool) -> usize {
    let proofs = record["proofs"].as_array().expect("proofs").iter();
    let own: Vec<_> = proofs
        .filter(|proof| proof["contestant"] == "envoy-xds")
        .collect();
    for proof in &own {
        let checks = proof["checks"].as_array().expect("checks");
        let failed: Vec<_> = checks
            .iter()
            .filter(|check| check["verdict"] == "failed")
            .collect();
        assert!(failed.is_empty(), "{proof:#}");
        let shown = |words: &str| {
            let shows = |check: &&Value| {
                check["verdict"] == "proven" && check["claim"].to_string().contains(words)
            };
            checks.iter().filter(shows).count()
        };
        let sidecars = match proof["mode"] == "both" {
            true => 2,
            false => 1,
        };
        let counted = match proof["protocol"] == "tcp" {
            true => "each proxy's own counter grew by the connections opened",
            false => "each proxy's own counter of good answers grew by the requests sent",
        };
        assert_eq!(shown(counted), 1, "{proof:#}");
        assert_eq!(shown("a socket of the "), sidecars, "{proof:#}");
        if redirected {
            assert_eq!(shown(" is redirected to port "), sidecars, "{proof:#}");
        }
        if proof["tls"] == true {
            for words in [
                "captured before the server-sidecar: all encrypted",
                "a stranger in plaintext gets no answer",
            ] {
                assert_eq!(shown(words), 1, "{words}: {proof:#}");
            }
            impostor_was_tried(checks);
        }
    }
    own.len()
}

/// All that was started for it, as the record has it.
fn commands(record: &Value) -> String {
    let contestants = record["contestants"].as_array().expect("contestants");
    let own = contestants.iter().find(|one| one["name"] == "envoy-xds");
    let own = own.expect("it is listed");
    assert!(own["missing"].is_null(), "{own}");
    own["commands"].to_string()
}

const MODES: &str = "modes = [\"baseline\", \"clientonly\", \"serveronly\", \"both\"]";
const WAYS: &str = "tls = [false, true]\nprotocols = [\"http1\", \"http2\", \"grpc\", \"tcp\"]";
/// Four protocols, each carried by either sidecar, by both in plaintext, and by both over mutual TLS.
const ALL: usize = 4 * 4;

#[test]
fn stock_envoys_told_by_the_control_plane_carry_between_namespaces_all_that_voiles_sidecars_do() {
    let Some(peer) = envoy() else { return };
    let text = changed(&[
        IN_NAMESPACES[0],
        ("\"baseline\", \"relay\"", "\"baseline\", \"envoy-xds\""),
        ("modes = [\"baseline\", \"both\"]", MODES),
        ("response_sizes = [64, 4096]", WAYS),
    ]);
    let Some(record) = ran(&text, "1", peer.as_deref()) else {
        return;
    };
    assert_eq!(proven(&record, true), ALL, "{}", record["notes"]);
    let commands = commands(&record);
    for words in [
        "control --config FOLDER/",
        "envoy -c FOLDER/",
        "/client.json",
        "/server.json",
    ] {
        assert!(commands.contains(words), "{words}: {commands}");
    }
}

#[test]
fn stock_envoys_told_by_the_control_plane_carry_on_loopback_by_explicit_listeners() {
    let Some(peer) = envoy() else { return };
    let text = changed(&[
        ("rounds = 3", "rounds = 1"),
        ("\"baseline\", \"relay\"", "\"baseline\", \"envoy-xds\""),
        ("modes = [\"baseline\", \"both\"]", MODES),
        ("response_sizes = [64, 4096]", WAYS),
    ]);
    let record = ran(&text, "1", peer.as_deref()).expect("no namespaces are needed");
    assert_eq!(proven(&record, false), ALL, "{}", record["notes"]);
}

/// Rules by path of which the last is for the requests, routes of which the last takes them, a token that is no issuer's, and servers
/// to choose from.
const BY_NUMBER: &str = r#"
[[cells]]
contestants = ["envoy-xds"]
modes = ["both"]
tls = true
prefix_routes = [20]
[[cells]]
contestants = ["envoy-xds"]
modes = ["both"]
tls = true
issuers = [2]
tokens = ["forged"]
[[cells]]
contestants = ["envoy-xds"]
modes = ["clientonly"]
endpoints = [3]
"#;

#[test]
fn what_the_mesh_holds_by_number_stock_envoys_are_told_and_obey() {
    let Some(peer) = envoy() else { return };
    let text = changed(&[
        ("rounds = 3", "rounds = 1"),
        ("\"baseline\", \"relay\"", "\"baseline\", \"envoy-xds\""),
        (
            "response_sizes = [64, 4096]",
            "tls = [false, true]\npaths = [30]\nverdicts = [\"allow-last\", \"deny-last\"]",
        ),
    ]) + BY_NUMBER;
    let record = ran(&text, "1", peer.as_deref()).expect("no namespaces are needed");
    let proofs = record["proofs"].as_array().expect("proofs").iter();
    let own: Vec<_> = proofs
        .filter(|proof| proof["contestant"] == "envoy-xds")
        .collect();
    assert_eq!(own.len(), 7, "{}", record["notes"]);
    let checks = own.iter().filter_map(|proof| proof["checks"].as_array());
    let checks: Vec<&Value> = checks.flatten().collect();
    for check in &checks {
        assert_ne!(check["verdict"], "failed", "{own:#?}");
    }
    let by_policies = "requests that policies";
    let by_statistics = "by the server-sidecar's statistics";
    for (words, times) in [
        (format!("{by_policies} let in, {by_statistics}"), 2),
        (format!("{by_policies} refused, {by_statistics}"), 2),
        (
            format!("requests refused for their token, {by_statistics}"),
            1,
        ),
        (
            "own counter of refusals grew by the requests sent".to_owned(),
            3,
        ),
    ] {
        let shows = |check: &&&Value| {
            check["verdict"] == "proven" && check["claim"].to_string().contains(&words)
        };
        let shown = checks.iter().filter(shows).count();
        assert_eq!(shown, times, "{words}: {own:#?}");
    }
}

/// The event of Envoy's slice with this action; the record holds its effect or failure.
fn event<'a>(record: &'a Value, action: &str) -> &'a Value {
    let runs = record["runs"].as_array().expect("runs");
    let run = runs.iter().find(|run| run["contestant"] == "envoy-xds");
    let events = run.expect("a slice")["events"].as_array().expect("events");
    let found = events.iter().find(|event| event["action"] == action);
    found.expect("it was planned")
}

#[test]
fn what_changes_the_mesh_changes_stock_envoys_and_what_cannot_be_done_to_them_is_named() {
    let Some(peer) = envoy() else { return };
    let mut text = changed(&[
        ("rounds = 3", "rounds = 1"),
        ("slice = \"150ms\"", "slice = \"9500ms\""),
        ("\"baseline\", \"relay\"", "\"envoy-xds\""),
        ("\"baseline\", \"both\"", "\"both\""),
        ("response_sizes = [64, 4096]", "tls = true"),
    ]);
    text += &events(&[
        ("500ms", "push-policy"),
        ("1500ms", "change-policies\"\ncount = 40#"),
        ("3s", "move-endpoints"),
        ("4500ms", "rotate-certificates"),
        ("5s", "upgrade-proxy"),
        ("6s", "restart-proxy"),
        ("9s", "kill-control-plane"),
    ]);
    let done = [
        "push-policy",
        "change-policies",
        "move-endpoints",
        "restart-proxy",
        "kill-control-plane",
    ];
    let run = |pace| {
        let record = ran(&stretched(&text, pace), "1", peer.as_deref());
        record.expect("no namespaces are needed")
    };
    let seen = |record: &Value| {
        let seen = |action: &&str| event(record, action)["effect_seconds"].is_number();
        done.iter().all(seen)
    };
    let [first, slower @ ..] = PACES;
    let mut record = run(first);
    for pace in slower {
        if seen(&record) {
            break;
        }
        record = run(pace);
    }
    for action in done {
        let event = event(&record, action);
        assert!(event["failure"].is_null(), "{event}");
        assert!(event["effect_seconds"].is_number(), "{event}");
    }
    for action in ["rotate-certificates", "upgrade-proxy"] {
        let why = event(&record, action)["failure"].as_str().unwrap_or("");
        let words = format!("does not support {action} for envoy-xds");
        assert!(why.contains(&words), "{words}: {why}");
    }
}

#[test]
fn stock_envoys_told_by_the_control_plane_are_left_out_by_name_where_the_server_is_elsewhere() {
    let Some(peer) = envoy() else { return };
    let agent = Agent::start("127.0.0.1:0");
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    let text = changed(&[
        ("\"baseline\", \"relay\"", "\"baseline\", \"envoy-xds\""),
        ("response_sizes = [64, 4096]", "tls = false"),
    ]);
    std::fs::write(&file, text).expect("written");
    let ran = Process::output(|voile| {
        voile.args(["bench", "run", "--smoke", "--rounds", "1"]);
        voile.args(peer.iter().flat_map(|peer| ["--peer", peer]));
        voile.arg(&file).arg(agent.option());
        voile.arg("--out").arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    let words = "envoy-xds is left out: envoy-xds has its certificates in a folder of the lab, which two machines do not share";
    assert!(said.contains(words), "{said}");
}

#[test]
fn envoy_is_listed_as_both_contestants_that_it_is() {
    let Some(peer) = envoy() else { return };
    let told = Process::output(|voile| {
        voile.args(["bench", "peers"]);
        voile.args(peer.iter().flat_map(|peer| ["--peer", peer]));
    });
    let text = String::from_utf8_lossy(&told.stdout);
    for name in ["envoy ", "envoy-xds "] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
    }
}

//! `voile bench` between network namespaces: sidecars that capture, their limits, and that nothing is left behind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use voile_testkit::prerequisites::{Prerequisite, peer, program, skip};

use crate::bench::{
    PACES, all_seen, changed, events, is_measured, lost_by_the_restart, record,
    seen_and_lost_nothing, stretched,
};
use crate::mesh::{Process, wait_until};

pub(crate) const IN_NAMESPACES: [(&str, &str); 4] = [
    ("rounds = 3", "rounds = 1\nisolation = \"netns\""),
    (
        "\"baseline\", \"relay\"",
        "\"baseline\", \"voile\", \"relay\"",
    ),
    ("response_sizes = [64, 4096]", "tls = [false, true]"),
    (
        "[validity]",
        "[limits]\ncpu = 1.0\nmemory = \"512MiB\"\n[validity]",
    ),
];

#[test]
fn sidecars_capture_between_namespaces_within_their_limits_and_nothing_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    std::fs::write(&file, changed(&IN_NAMESPACES)).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--rounds", "1"])
            .arg(&file)
            .arg("--out")
            .arg(&out)
            .env("TMPDIR", folder.path());
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    if is_refused(&said) {
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(!out.exists(), "nothing is measured in its place");
        return;
    }
    is_measured(&ran);
    let record = record(&out);
    assert_eq!(record["experiment"]["isolation"], "netns");
    assert_eq!(record["experiment"]["limits"], "1 CPU, 512 MiB");
    redirected_and_tried(&record);
    let sidecars = |run: &serde_json::Value| {
        let processes = run["processes"].as_array().expect("processes").iter();
        let throttled = processes.filter(|p| p["nr_throttled"].is_u64());
        throttled.map(|p| p["role"].to_string()).collect::<Vec<_>>()
    };
    let runs = record["runs"].as_array().expect("runs");
    let through = runs
        .iter()
        .find(|run| run["contestant"] == "voile")
        .expect("a slice");
    assert_eq!(
        sidecars(through),
        ["\"client-sidecar\"", "\"server-sidecar\""]
    );
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .flatten()
        .collect();
    assert_eq!(
        left.len(),
        2,
        "only definition and record are left: {left:?}"
    );
    // A lab of another test that was killed a moment ago may not have been cleared away yet.
    wait_until("no group is left", || {
        let hierarchies = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/cpu",
            "/sys/fs/cgroup/unified",
        ];
        groups_of(&hierarchies).is_empty()
    });
}

/// Returns true if the lab said that this machine lacks what the experiment needs. The test is then skipped.
pub(crate) fn is_refused(said: &str) -> bool {
    let causes = [
        ("control groups", Prerequisite::Cgroups),
        ("nftables", Prerequisite::Nft),
        ("needs root", Prerequisite::Netns),
    ];
    let cause = causes.iter().find(|(words, _)| said.contains(words));
    if let Some((_, prerequisite)) = cause {
        skip(*prerequisite, said);
    }
    cause.is_some()
}

/// Each proof shows both redirections, and that an impostor in the server's place got nothing.
fn redirected_and_tried(record: &serde_json::Value) {
    let proofs = record["proofs"].as_array().expect("proofs");
    let of = |name: &str| -> Vec<&serde_json::Value> {
        let its = proofs.iter().filter(|proof| proof["contestant"] == name);
        its.collect()
    };
    let shown = ["baseline", "voile", "relay"].map(|name| of(name).len());
    assert_eq!(shown, [1, 2, 1]);
    for proof in of("voile").into_iter().chain(of("relay")) {
        let checks = proof["checks"].as_array().expect("checks");
        assert!(
            checks.iter().all(|check| check["verdict"] != "failed"),
            "{proof}"
        );
        let redirected = |claim: &str| claim.contains(" is redirected to port ");
        let shown = |check: &&serde_json::Value| {
            check["verdict"] == "proven" && check["claim"].as_str().is_some_and(redirected)
        };
        assert_eq!(checks.iter().filter(shown).count(), 2, "{proof}");
        match proof["tls"] == true {
            true => impostor_was_tried(checks),
            false => assert_eq!(impostor(checks), None, "{proof}"),
        }
    }
}

/// The record of one round of these contestants in those modes beside the baseline, all over mutual TLS; none where this machine
/// makes no networks.
fn through_nodes(modes: &str, contestants: &str, peer: Option<&str>) -> Option<serde_json::Value> {
    let contestants = format!("\"baseline\", {contestants}");
    let modes = format!("modes = [\"baseline\", {modes}]");
    let text = changed(&[
        IN_NAMESPACES[0],
        ("\"baseline\", \"relay\"", &contestants),
        ("modes = [\"baseline\", \"both\"]", &modes),
        ("response_sizes = [64, 4096]", "tls = [false, true]"),
    ]);
    ran(&text, "1", peer)
}

/// The record of that definition.
pub(crate) fn ran(text: &str, rounds: &str, peer: Option<&str>) -> Option<serde_json::Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    std::fs::write(&file, text).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--rounds", rounds])
            .args(peer.into_iter().flat_map(|peer| ["--peer", peer]))
            .arg(&file)
            .arg("--out")
            .arg(&out)
            .env("TMPDIR", folder.path());
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    if is_refused(&said) {
        return None;
    }
    is_measured(&ran);
    Some(record(&out))
}

/// The proof of that contestant's path shows all of this, and nothing is wrong with it.
fn proven(record: &serde_json::Value, contestant: &str, mode: &str, claims: &[&str]) {
    let proofs = record["proofs"].as_array().expect("proofs");
    let own =
        |proof: &&serde_json::Value| proof["mode"] == mode && proof["contestant"] == contestant;
    let proof = proofs.iter().find(own).expect("a proof");
    let checks = proof["checks"].as_array().expect("checks");
    assert!(
        checks.iter().all(|check| check["verdict"] != "failed"),
        "{checks:?}"
    );
    for wanted in claims {
        let shown = |check: &serde_json::Value| {
            check["verdict"] == "proven" && check["claim"].to_string().contains(wanted)
        };
        assert!(checks.iter().any(shown), "{wanted}: {checks:?}");
    }
    impostor_was_tried(checks);
}

/// Asserts that each of these roles has a memory figure in that contestant's slices and, if a slice counts, its CPU work. On a
/// busy machine none may count.
fn charged(record: &serde_json::Value, contestant: &str, mode: &str, roles: &[&str]) {
    let runs = record["runs"].as_array().expect("runs").iter();
    let own = |run: &&serde_json::Value| run["mode"] == mode && run["contestant"] == contestant;
    let runs: Vec<_> = runs.filter(own).collect();
    assert!(!runs.is_empty(), "{record}");
    for (run, role) in runs
        .iter()
        .flat_map(|run| roles.iter().map(move |role| (run, role)))
    {
        let processes = run["processes"].as_array().expect("processes");
        let one = processes.iter().find(|process| process["role"] == **role);
        let of = |figure: &str| one.and_then(|one| one[figure].as_f64());
        assert!(
            of("rss_bytes").is_some_and(|held| held > 0.0),
            "{role}: {run}"
        );
        let worked = of("cpu_us_per_request").is_some_and(|cpu| cpu > 0.0);
        assert!(worked || run["valid"] == false, "{role}: {run}");
    }
}

#[test]
fn two_node_proxies_carry_what_the_lab_agent_tells_them_of_and_both_are_charged() {
    let Some(record) = through_nodes("\"node\"", "\"voile\"", None) else {
        return;
    };
    let claims = [
        "is redirected to port 15001, a socket of the client-node",
        ":15008 is a socket of the server-node",
        "each proxy's own counter grew by the connections opened",
        "captured before the server-node: all encrypted",
        "captured before the server: every request passed, readable",
        "a stranger without certificate gets no answer",
    ];
    proven(&record, "voile", "node", &claims);
    charged(&record, "voile", "node", &["client-node", "server-node"]);
}

/// With the Envoy of this machine, or of `ENVOY`, its waypoint is tried, too.
#[test]
fn requests_go_through_a_waypoint_between_two_nodes_and_it_is_charged_for_them_alone() {
    let mode = "node+waypoint";
    let envoy = std::env::var("ENVOY")
        .ok()
        .map(|path| format!("envoy={path}"));
    let contestants = match peer(Prerequisite::Envoy, "ENVOY", "envoy") {
        Some(_) => vec!["voile", "envoy"],
        None => vec!["voile"],
    };
    let quoted: Vec<String> = contestants.iter().map(|one| format!("{one:?}")).collect();
    // Voile's two node proxies without a waypoint run beside those; the record keeps the two modes
    // apart.
    let modes = format!("\"node\", {mode:?}");
    let Some(record) = through_nodes(&modes, &quoted.join(", "), envoy.as_deref()) else {
        return;
    };
    let counted = "each proxy's own counter grew by the connections opened";
    proven(&record, "voile", "node", &[counted]);
    let claims = [
        "is redirected to port 15001, a socket of the client-node",
        ":15008 is a socket of the waypoint",
        ":15008 is a socket of the server-node",
        "each proxy's own counter grew by the requests sent or the connections opened",
        "captured before the waypoint: all encrypted",
        "captured before the server-node: all encrypted",
        "captured before the server: every request passed, readable",
        "a stranger without certificate gets no answer",
    ];
    for contestant in contestants {
        proven(&record, contestant, mode, &claims);
        let roles = ["client-node", "waypoint", "server-node"];
        charged(&record, contestant, mode, &roles);
    }
}

/// Repeats in each round: a killed process runs again after its slice. Events that are impossible
/// are named.
#[test]
fn the_control_plane_of_node_proxies_and_of_a_waypoint_is_killed_under_load_and_comes_again() {
    let mut text = changed(&[
        ("rounds = 3", "rounds = 2\nisolation = \"netns\""),
        ("slice = \"150ms\"", "slice = \"1500ms\""),
        ("\"baseline\", \"relay\"", "\"voile\""),
        ("\"baseline\", \"both\"", "\"node\", \"node+waypoint\""),
        ("response_sizes = [64, 4096]", "tls = true"),
    ]);
    text += &events(&[
        ("400ms", "kill-control-plane"),
        ("1s", "change-policies\"\ncount = 20#"),
    ]);
    let Some(record) = ran(&text, "2", None) else {
        return;
    };
    let runs = record["runs"].as_array().expect("runs");
    for mode in ["node", "node+waypoint"] {
        let own: Vec<_> = runs.iter().filter(|run| run["mode"] == mode).collect();
        assert!(own.len() >= 2, "{mode}: {}", record["notes"]);
        for run in own {
            let [killed, changed] = [&run["events"][0], &run["events"][1]];
            assert_eq!(killed["action"], "kill-control-plane");
            assert!(killed["failure"].is_null(), "{killed}");
            assert_eq!(killed["observed"], "the control plane's end by SIGKILL");
            // A change without a control plane cannot be applied; a change that bytes cannot show
            // is not tried.
            let why = changed["failure"].as_str().unwrap_or("");
            let read = "node proxies do not read paths";
            assert_eq!(why.contains(read), mode == "node", "{changed}");
            assert!(changed["effect_seconds"].is_null(), "{changed}");
        }
    }
}

/// Of a proxy that is ended what it has may be lost, and nothing else.
#[test]
fn node_proxies_and_a_waypoint_are_changed_under_load_and_every_change_is_seen() {
    let mut text = changed(&[
        ("rounds = 3", "rounds = 1\nisolation = \"netns\""),
        ("slice = \"150ms\"", "slice = \"9500ms\""),
        ("\"baseline\", \"relay\"", "\"voile\""),
        ("\"baseline\", \"both\"", "\"node\", \"node+waypoint\""),
        ("response_sizes = [64, 4096]", "tls = true"),
    ]);
    text += &events(&[
        ("500ms", "push-policy"),
        ("1300ms", "rotate-certificates"),
        ("2300ms", "move-endpoints"),
        ("3100ms", "upgrade-proxy"),
        ("4600ms", "restart-proxy"),
        ("9s", "kill-control-plane"),
    ]);
    let modes = ["node", "node+waypoint"];
    let [first, slower @ ..] = PACES;
    let Some(mut record) = ran(&stretched(&text, first), "1", None) else {
        return;
    };
    for pace in slower {
        if modes.iter().all(|mode| all_seen(&record, "voile", mode)) {
            break;
        }
        record = ran(&stretched(&text, pace), "1", None).expect("as before");
    }
    for mode in modes {
        seen_and_lost_nothing(&record, "voile", mode);
        lost_by_the_restart(&record, "voile", mode);
    }
}

/// Verdict on the impostor, if one was tried.
fn impostor(checks: &[serde_json::Value]) -> Option<&str> {
    let impostor = |claim: &str| claim.contains("another identity gets no byte");
    let tried = checks
        .iter()
        .find(|check| check["claim"].as_str().is_some_and(impostor));
    tried.and_then(|check| check["verdict"].as_str())
}

/// Asserts that the impostor got no byte. Without openssl, which plays the servers, the record has
/// a note.
pub(crate) fn impostor_was_tried(checks: &[serde_json::Value]) {
    let wanted = match program(Prerequisite::Openssl, "openssl") {
        Some(_) => "proven",
        None => "not-proven",
    };
    assert_eq!(impostor(checks), Some(wanted), "{checks:?}");
}

/// Turns what the client calls to the server without a sidecar, so that neither sidecar sees it and every answer is good.
const BYPASS: &str = r#"
client=${VOILE_LAB_PIDS#*client-sidecar=}
client=${client%%[ ,]*}
nsenter -t "$client" -n nft insert rule ip voile output ip daddr 10.211.0.1 tcp dport 8081 dnat to 10.210.2.2:8080
"#;

#[test]
fn sidecars_that_are_bypassed_between_namespaces_are_found_though_every_answer_is_good() {
    let needed = [
        (Prerequisite::UtilLinux, "nsenter"),
        (Prerequisite::Nft, "nft"),
    ];
    if needed.iter().any(|(of, name)| program(*of, name).is_none()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    let hook = format!("[hooks.bypass]\nbefore = [\"sh\", \"-c\", '''{BYPASS}''']\n[validity]");
    let text = changed(&[
        IN_NAMESPACES[0],
        ("\"baseline\", \"relay\"", "\"voile\""),
        ("modes = [\"baseline\", \"both\"]", "modes = [\"both\"]"),
        ("response_sizes = [64, 4096]", "hooks = [\"bypass\"]"),
        ("[validity]", &hook),
    ]);
    std::fs::write(&file, text).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--rounds", "2"])
            .arg(&file)
            .arg("--out")
            .arg(&out)
            .env("TMPDIR", folder.path());
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    if is_refused(&said) {
        return;
    }
    let record = record(&out);
    let runs = record["runs"].as_array().expect("runs");
    assert!(runs.len() >= 2, "{said}");
    for run in runs {
        let reasons = run["invalid_reasons"].to_string();
        for sidecar in ["client-sidecar", "server-sidecar"] {
            let words = format!("the {sidecar} counted 0 good answers");
            assert!(reasons.contains(&words), "{run}");
        }
        assert_eq!((&run["valid"], &run["errors"]), (&false.into(), &0.into()));
    }
}

/// Control groups of labs whose process is gone.
fn groups_of(folders: &[&str]) -> Vec<String> {
    let entries = folders
        .iter()
        .flat_map(std::fs::read_dir)
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| {
            let pid = name
                .strip_prefix("voile-lab-")
                .and_then(|rest| rest.split('-').next());
            pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
        })
        .collect()
}

#[test]
fn what_a_killed_lab_started_in_namespaces_ends_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    let text = changed(&IN_NAMESPACES[..3]);
    std::fs::write(&file, text.replace("rounds = 1", "rounds = 500")).expect("written");
    let log = tempfile::NamedTempFile::new().expect("a log file");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_voile"))
        .args(["bench", "run"])
        .arg(&file)
        .arg("--out")
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
        .contains("slice 2/")
    {
        assert!(Instant::now() < deadline, "the second slice never began");
        if bench.try_wait().expect("asked").is_some() {
            let said = std::fs::read_to_string(log.path()).unwrap_or_default();
            assert!(is_refused(&said), "{said}");
            return;
        }
        std::thread::yield_now();
    }
    assert!(
        !running_with(folder.path()).is_empty(),
        "its children name its folder"
    );
    bench.kill().expect("it runs");
    bench.wait().expect("it ends");
    while !running_with(folder.path()).is_empty() {
        assert!(
            Instant::now() < deadline,
            "left: {:?}",
            running_with(folder.path())
        );
        std::thread::yield_now();
    }
}

/// Processes whose command line names this folder.
fn running_with(folder: &Path) -> Vec<u32> {
    let wanted = folder.display().to_string();
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    })
    .collect()
}

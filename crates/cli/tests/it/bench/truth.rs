//! Does the lab see through contestants that cheat, break or vanish, and keep what it has when the disk is full? Contestants
//! are wrappers around this very program, measured beside it by `--contestant`: the plain one is believed, the other named.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use voile_testkit::prerequisites::{Prerequisite, require, skip};

use crate::bench::is_measured;
use crate::mesh::Process;

pub(crate) const DEFINITION: &str = r#"name = "truth"
rounds = 1
slice = "1500ms"
warmup = "30ms"
[load]
rate = 400
connections = 2
size = 64
protocol = "http1"
[proxy]
workers = 1
[[cells]]
contestants = ["voile"]
modes = ["both"]
"#;

/// Measures a program that runs this shell text, with `$VOILE` the real one, beside the real one. A smoke run judges errors and
/// paths but no timing, so a busy machine spoils no slice.
pub(crate) fn measured(script: &str, definition: &str) -> (Output, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let text = format!(
        "#!/bin/sh\nVOILE='{}'\n{script}\n",
        env!("CARGO_BIN_EXE_voile")
    );
    std::fs::write(at("cheat"), text).expect("written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(at("cheat"), mode).expect("ours");
    std::fs::write(at("truth.toml"), definition).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--rounds", "1", "--contestant"])
            .arg(format!("cheat={}", at("cheat").display()))
            .arg(at("truth.toml"))
            .arg("--out")
            .arg(at("out"));
    });
    let record = crate::bench::record_text(&at("out"));
    let record = record.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stderr)));
    (ran, serde_json::from_str(&record).expect("JSON"))
}

/// Why the runs of that contestant do not count.
pub(crate) fn reasons(record: &serde_json::Value, contestant: &str) -> String {
    let runs = record["runs"].as_array().expect("runs").iter();
    let its = runs.filter(|run| run["contestant"] == contestant);
    its.map(|run| run["invalid_reasons"].to_string()).collect()
}

/// The honest contestant is believed. A busy machine may move the samplers' window of a slice; nothing else may be said of it.
pub(crate) fn assert_believed(record: &serde_json::Value, said: &str) {
    let runs = record["runs"].as_array().expect("runs").iter();
    let its: Vec<_> = runs.filter(|run| run["contestant"] == "voile").collect();
    assert!(!its.is_empty(), "{said}");
    let reasons = its.iter().flat_map(|run| run["invalid_reasons"].as_array());
    let others = reasons.flatten().filter_map(|reason| reason.as_str());
    let others: Vec<&str> = others
        .filter(|reason| !reason.starts_with("samplers' window outside"))
        .collect();
    assert!(others.is_empty(), "{others:?}: {said}");
}

#[test]
fn who_answers_in_the_servers_place_is_caught() {
    // Its server's sidecar leads to a server of its own, which answers exactly as the lab's does.
    let script = r#"if [ "$1" = control ]; then
  "$VOILE" echo --listen 127.0.0.1:0 2>"$3/own" &
  while ! grep -q "listening on" "$3/own"; do :; done
  own=$(sed -n 's/.*listening on .*:\([0-9]*\).*/\1/p' "$3/own" | head -n 1)
  rm "$3/own"
  sed -i "s/defaultEndpoint: .*/defaultEndpoint: 127.0.0.1:$own/" "$3/mesh.yaml"
fi
exec "$VOILE" "$@""#;
    let (ran, record) = measured(script, DEFINITION);
    let said = String::from_utf8_lossy(&ran.stderr);
    if record["proofs"].to_string().contains("needs CAP_NET_RAW") {
        return skip(Prerequisite::RawSockets, "the proofs have no capture");
    }
    assert_believed(&record, &said);
    let why = reasons(&record, "cheat");
    assert!(
        why.contains("captured before the server: every request passed"),
        "{why} {said}"
    );
    assert!(why.contains("marker seen 0 times"), "{why}");
}

#[test]
fn who_does_not_start_is_named_and_the_others_are_measured() {
    let (ran, record) = measured(
        r#"[ "$1" = proxy ] && exit 3; exec "$VOILE" "$@""#,
        DEFINITION,
    );
    let said = String::from_utf8_lossy(&ran.stderr);
    is_measured(&ran);
    assert!(
        said.contains("cheat is left out: cheat-client ended with code 3"),
        "{said}"
    );
    assert!(
        record["notes"].to_string().contains("cheat is left out"),
        "{}",
        record["notes"]
    );
    assert_believed(&record, &said);
}

#[test]
fn who_ends_half_way_is_named_and_the_others_are_measured() {
    // The sidecar's log begins with its process, so that the hook of its own slice can end it.
    let script = r#"[ "$1" = proxy ] && echo $$ >&2
exec "$VOILE" "$@""#;
    let hook = "[[events]]\nat = \"500ms\"\naction = \"hook\"\ncommand = [\"sh\", \"-c\", \"\
                [ $VOILE_LAB_CONTESTANT = voile ] || kill -9 $(head -n 1 $VOILE_LAB_FOLDER/cheat-server.log)\"]\n";
    let (ran, record) = measured(script, &format!("{DEFINITION}{hook}"));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_believed(&record, &said);
    let why = reasons(&record, "cheat");
    assert!(
        why.contains("cheat-server was ended by signal 9"),
        "{why} {said}"
    );
}

#[test]
fn a_full_disk_ends_a_run_with_words_and_keeps_whole_rounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let full = folder.path().join("full");
    std::fs::create_dir(&full).expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size=40k none {0} || exit 99\n\
         '{1}' bench quick --smoke --rounds 9 --only relay --out {0}/out\n\
         code=$?\nzcat {0}/out/record.json.gz | grep rounds_whole\nexit $code",
        full.display(),
        env!("CARGO_BIN_EXE_voile")
    );
    let ran = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output();
    let Some(ran) = require(Prerequisite::UtilLinux, ran) else {
        return;
    };
    let said = String::from_utf8_lossy(&ran.stderr);
    if ran.status.code() == Some(99) || said.contains("unshare failed") {
        return skip(Prerequisite::Mounts, said);
    }
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("kept; continue with --resume"), "{said}");
    let kept = String::from_utf8_lossy(&ran.stdout);
    let whole = kept.lines().rev().find_map(|line| {
        let number = line.trim().strip_prefix("\"rounds_whole\": ")?;
        number.trim_end_matches(',').parse::<u32>().ok()
    });
    assert!(whole.is_some_and(|whole| (1..9).contains(&whole)), "{kept}");
    let told = match whole {
        Some(1) => "round 1 is kept".to_owned(),
        whole => format!("rounds 1 to {} are kept", whole.unwrap_or_default()),
    };
    assert!(said.contains(&told), "of {whole:?} whole rounds: {said}");
}

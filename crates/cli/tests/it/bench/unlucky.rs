//! `voile bench` where the machine is against it: no permission for networks or groups, a folder of a newer program, a disk
//! that is full at the far end. Each ends in words that say what, where and why, and nothing is measured in its place.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use voile_report::gzip;
use voile_testkit::prerequisites::{Prerequisite, require, skip};

use crate::mesh::Process;

/// A user that may do nothing.
const NOBODY: u32 = 65_534;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the program as nobody in that folder; none where this user cannot be another, or another cannot run it.
fn as_nobody(folder: &Path, arguments: &[&str]) -> Option<Output> {
    let mut voile = Command::new(env!("CARGO_BIN_EXE_voile"));
    voile
        .args(arguments)
        .current_dir(folder)
        .env("TMPDIR", folder)
        .stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).expect("root may");
        voile.uid(NOBODY).gid(NOBODY);
    }
    require(Prerequisite::OtherUsers, voile.output())
}

#[test]
fn who_may_not_make_networks_or_groups_is_told_so_and_nothing_is_measured_in_their_place() {
    let quick = include_str!("../../../../../benchmarks/quick.toml");
    for (name, text, words) in [
        (
            "netns.toml",
            format!("isolation = \"netns\"\n{quick}"),
            "; nothing was measured",
        ),
        (
            "limits.toml",
            format!("{quick}\n[limits]\ncpu = 1.0\n"),
            "needs control groups that this user may make",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(name), text).expect("written");
        let arguments = [
            "bench", "run", name, "--smoke", "--only", "voile", "--out", "out",
        ];
        let Some(ran) = as_nobody(folder.path(), &arguments) else {
            return;
        };
        let said = said(&ran);
        assert_eq!(ran.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(words), "{name}: {said}");
        assert!(
            !folder.path().join("out").exists(),
            "{name} leaves a record"
        );
    }
}

#[test]
fn a_folder_of_a_newer_program_is_named_so_by_every_command_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(voile_lab::RECORD);
    let newer = gzip::compress("{\"format\": 99, \"of\": \"a program to come\"}");
    std::fs::write(&path, &newer).expect("written");
    let at = folder.path().display().to_string();
    for words in [
        vec!["report", &at],
        vec!["compare", &at, &at],
        vec!["history", &at, &at],
        vec!["gate", &at, &at],
        vec!["targets", &at],
        vec!["quick", "--smoke", "--only", "relay", "--resume", &at],
    ] {
        let ran = Process::output(|voile| {
            voile.arg("bench").args(&words);
        });
        let said = said(&ran);
        assert!(
            said.contains("format 99 is newer than this program's"),
            "{words:?}: {said}"
        );
        assert!(ran.status.code() >= Some(1), "{words:?}: {said}");
    }
    assert_eq!(std::fs::read(&path).expect("still there"), newer);
    let files = std::fs::read_dir(folder.path())
        .expect("the folder")
        .count();
    assert_eq!(files, 1, "something was written beside it");
}

#[test]
fn a_full_disk_at_the_far_end_is_named_and_others_are_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "mkdir {0}/full && mount -t tmpfs -o size=24k none {0}/full || exit 99\n\
         TMPDIR={0}/full '{1}' bench agent --listen 127.0.0.1:0 --once > {0}/agent.out &\n\
         while ! grep -q token {0}/agent.out; do kill -0 $! || exit 98; done\n\
         dd if=/dev/zero of={0}/full/x bs=1k count=12 2>/dev/null\n\
         at=$(sed -n 's/^listening on //p' {0}/agent.out)\n\
         token=$(sed -n 's/^token //p' {0}/agent.out)\n\
         '{1}' bench quick --smoke --rounds 1 --only relay,voile --agent $at=$token --out {0}/out\n\
         code=$?\nwait\nls {0}/full\nexit $code",
        folder.path().display(),
        env!("CARGO_BIN_EXE_voile")
    );
    let ran = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output();
    let Some(ran) = require(Prerequisite::UtilLinux, ran) else {
        return;
    };
    let words = said(&ran);
    if ran.status.code() == Some(99) || words.contains("unshare failed") {
        return skip(Prerequisite::Mounts, words);
    }
    assert_eq!(ran.status.code(), Some(0), "{words}");
    let text = crate::bench::record_text(&folder.path().join("out")).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let notes = record["notes"].to_string();
    assert!(
        notes.contains("voile is left out") && notes.contains("No space left"),
        "{notes}"
    );
    let relay = |run: &&serde_json::Value| run["contestant"] == "relay";
    let runs = record["runs"].as_array().expect("runs");
    assert!(
        runs.iter()
            .any(|run| relay(&run) && run["requests"].as_u64() > Some(0)),
        "{words}"
    );
    let listed = String::from_utf8_lossy(&ran.stdout);
    assert!(listed.lines().any(|line| line == "x"), "{listed}");
    assert!(
        !listed.contains("voile-agent-"),
        "the session's folder is left: {listed}"
    );
}

/// The end of a pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    Stdio::from(writer)
}

#[test]
fn that_nobody_reads_what_is_said_ends_no_command_and_loses_no_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/records");
    let record = records.join("2026-11-21-speed-core");
    let record = record.display().to_string();
    let small = folder.path().join("small.toml");
    std::fs::write(&small, crate::bench::SMALL).expect("written");
    let small = small.display().to_string();
    let out = folder.path().join("out");
    let run = [
        "bench",
        "run",
        &small,
        "--smoke",
        "--rounds",
        "1",
        "--out",
        &out.display().to_string(),
    ]
    .map(str::to_owned);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let commands: [Vec<String>; 5] = [
        words(&["bench", "quick", "--dry-run"]),
        words(&["bench", "compare", &record, &record]),
        words(&["graph", "generate", "tree", "--services", "100"]),
        words(&["explain-code", "--list"]),
        run.to_vec(),
    ];
    for command in commands {
        let told = |stdout: Stdio, stderr: Stdio| {
            Command::new(env!("CARGO_BIN_EXE_voile"))
                .args(&command)
                .env("TMPDIR", folder.path())
                .stdin(Stdio::null())
                .stdout(stdout)
                .stderr(stderr)
                .spawn()
                .and_then(std::process::Child::wait_with_output)
                .expect("it runs")
        };
        let measures = command.contains(&"--smoke".to_owned());
        let ended = match measures {
            true => told(closed(), closed()),
            false => told(closed(), Stdio::piped()),
        };
        assert!(ended.status.success(), "{command:?}: {}", said(&ended));
    }
    assert!(out.join("report.html").is_file());
}

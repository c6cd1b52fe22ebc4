//! What side experiments of `voile bench` have in common: their end on Ctrl-C, and records without folders of this machine.

mod scale;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;

use super::no_place;
use crate::mesh::{Process, wait_until};

/// A program that has a version as Fortio has, and does something else instead of measuring. Returns the option that names it.
fn fortio(folder: &Path, measures: &str) -> String {
    let path = folder.join("fortio");
    let script = format!("#!/bin/sh\ncase $1 in version) echo 1.69.5;; *) {measures};; esac\n");
    std::fs::write(&path, script).expect("written");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, executable).expect("changed");
    format!("--peer=fortio={}", path.display())
}

#[test]
fn side_experiments_exit_with_130_when_they_are_interrupted_before_anything_was_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let fortio = fortio(folder.path(), "exec sleep 60");
    let graph = folder.path().join("graph.yaml");
    let services = "services: [{name: root, isEntrypoint: true}]\n";
    std::fs::write(&graph, services).expect("written");
    let graph = graph.display().to_string();
    let out = folder.path().join("out");
    for (words, step) in [
        (vec!["agreement", &fortio, "--slice=60s"], "round 1/"),
        (vec!["generators", &fortio, "--slice=60s"], "round 1/"),
        (vec!["graph", &graph], "starting the graph"),
        (vec!["policy"], "round 1/"),
    ] {
        let mut bench = Process::start("bench", |voile| {
            voile.arg("bench").args(&words).arg("--out").arg(&out);
        });
        wait_until(step, || {
            assert!(bench.is_running(), "{words:?}: {}", bench.log());
            bench.log().contains(step)
        });
        bench.signal(Signal::INT);
        let code = bench.wait().code();
        assert_eq!(code, Some(130), "{words:?}: {}", bench.log());
        assert!(!out.exists(), "{words:?} measured something");
    }
}

#[test]
fn reasons_in_the_record_of_an_agreement_name_no_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let fortio = fortio(folder.path(), "echo cannot run $0 >&2");
    let out = folder.path().join("out");
    let ran = Process::output(|voile| {
        voile.args(["bench", "agreement", "--rounds=1", "--slice=1s", &fortio]);
        voile.arg("--out").arg(&out);
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    let text = std::fs::read_to_string(out.join("agreement.json")).expect("a record");
    assert!(text.contains("cannot run fortio"), "{text}");
    no_place(&out, folder.path());
}

#[test]
fn figures_are_printed_if_the_record_cannot_be_written() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let ran = Process::output(|voile| {
        voile.args([
            "bench",
            "policy",
            "--rules=5",
            "--policies=1",
            "--kind=paths",
        ]);
        voile
            .args(["--rounds=1", "--out"])
            .arg(file.path().join("out"));
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("making "), "{said}");
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(printed.contains("paths"), "{printed}");
}

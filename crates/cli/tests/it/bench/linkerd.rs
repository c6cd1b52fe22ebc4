//! linkerd2-proxy as a contestant, as far as possible without its program: its version, the start of its control plane
//! from the lab's file, and the report on a proxy that ends.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::bench::netns::is_refused;
use crate::bench::{changed, record};
use crate::mesh::Process;

/// A program that prints its version as linkerd2-proxy does, and then ends.
fn program(folder: &Path) -> PathBuf {
    let path = folder.join("proxy");
    let script = "#!/bin/sh\n\
        echo '[     0.001s]  INFO ThreadId(01) linkerd2_proxy: release 2.300.0 (0123abc) by linkerd on 2026-08-21T15:03:02Z'\n\
        for name in IDENTITY_SVC_ADDR POLICY_SVC_ADDR DESTINATION_SVC_ADDR IDENTITY_TRUST_ANCHORS; do\n\
          eval \"value=\\$LINKERD2_PROXY_$name\"; [ -n \"$value\" ] || { echo \"no $name\"; exit 64; }\n\
        done\n\
        [ -s \"$LINKERD2_PROXY_IDENTITY_DIR/csr.der\" ] && [ -s \"$LINKERD2_PROXY_IDENTITY_TOKEN_FILE\" ] && echo 'it was told all'\n\
        exit 3\n";
    std::fs::write(&path, script).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

#[test]
fn its_version_is_told_by_either_of_its_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = program(folder.path());
    for name in ["linkerd", "linkerd2-proxy"] {
        let told = Process::output(|voile| {
            let peer = format!("{name}={}", path.display());
            voile.args(["bench", "peers", "--peer", &peer]);
        });
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let line = told.lines().find(|line| line.starts_with("linkerd2-proxy"));
        let line = line.unwrap_or_else(|| panic!("{told}"));
        assert!(line.starts_with("linkerd2-proxy 2.300.0 "), "{line}");
    }
}

#[test]
fn one_that_ends_is_named_with_its_last_words_and_the_others_are_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
    let text = changed(&[
        ("rounds = 3", "rounds = 1\nisolation = \"netns\""),
        (
            "\"baseline\", \"relay\"",
            "\"baseline\", \"linkerd2-proxy\"",
        ),
        ("response_sizes = [64, 4096]", "tls = [false, true]"),
    ]);
    std::fs::write(&file, text).expect("written");
    let ran = Process::output(|voile| {
        let peer = format!("linkerd={}", program(folder.path()).display());
        let words = ["bench", "run", "--smoke", "--rounds", "1", "--peer", &peer];
        voile.args(words).arg(&file).arg("--out").arg(&out);
        voile.env("TMPDIR", folder.path());
    });
    let said = String::from_utf8_lossy(&ran.stderr);
    if is_refused(&said) {
        return;
    }
    assert!(ran.status.success(), "{said}");
    for words in [
        "linkerd2-proxy is left out: linkerd2-proxy-client ended with code 3",
        "it was told all",
        "it never requested its certificate from the lab's control plane",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let record = record(&out);
    let runs = record["runs"].as_array().expect("runs");
    assert!(runs.iter().any(|run| run["contestant"] == "baseline"));
    assert!(runs.iter().all(|run| run["contestant"] != "linkerd2-proxy"));
}

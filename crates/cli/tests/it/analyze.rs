//! `voile analyze` as a program: what goes where, and the exit code.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const GOOD: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
const BAD: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {nam: shop}\n";

fn analyze(args: &[&str], folder: &Path) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_voile"))
        .arg("analyze")
        .args(args)
        .arg(folder)
        .output()
        .expect("voile starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn analyze_tells_good_from_bad_and_from_missing_by_its_exit_code() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("good.yaml"), GOOD).expect("written");
    let (code, stdout, stderr) = analyze(&[], folder.path());
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(stderr.contains("0 errors, 0 warnings"), "{stderr}");

    fs::write(folder.path().join("bad.yaml"), BAD).expect("written");
    let (code, stdout, stderr) = analyze(&[], folder.path());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stdout.contains("bad.yaml:3:12: error[V0101]: unknown field `nam` (field metadata.nam)"),
        "{stdout}"
    );
    assert!(stdout.contains("did you mean `name`?"), "{stdout}");

    let (code, stdout, stderr) = analyze(&[], &folder.path().join("none"));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("cannot read the folder"), "{stderr}");
}

#[test]
fn analyze_prints_one_json_array() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("bad.yaml"), BAD).expect("written");
    let (code, stdout, _) = analyze(&["--output", "json"], folder.path());
    assert_eq!(code, Some(1));
    let all: Vec<serde_json::Value> = serde_json::from_str(&stdout).expect("JSON");
    let unknown = all
        .iter()
        .find(|problem| problem["code"] == "V0101")
        .expect("the unknown field");
    assert_eq!(
        (&unknown["line"], &unknown["column"]),
        (&3.into(), &12.into())
    );
}

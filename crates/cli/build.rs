//! Gives the program its version. A release build names the commit and its date; other builds do not, so that a commit alone
//! compiles nothing anew.

use std::env;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        // HEAD names a branch, and the branch's file, or the packed one, names the commit.
        for file in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&["rev-parse", "--git-path", file]) {
                println!("cargo:rerun-if-changed={path}");
            }
        }
        if let Some(commit) = git(&["log", "-1", "--format=%h %cs"]) {
            let (commit, date) = commit.split_once(' ').unwrap_or((&commit, ""));
            version = format!("{version} ({commit}, {date})");
        }
    }
    println!("cargo:rustc-env=VOILE_VERSION={version}");
}

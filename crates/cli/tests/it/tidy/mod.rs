//! House rules that no compiler checks: layers, the page that draws them, file headers, lengths and folders, import circles, and that README and CI
//! run the same commands. Rules for dependencies are in deny.toml.

mod circles;
mod files;
mod layers;
mod links;
pub(crate) mod monitoring;
mod pages;
mod records;
mod site;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The workspace's root.
fn root() -> PathBuf {
    let cli = Path::new(env!("CARGO_MANIFEST_DIR"));
    cli.ancestors()
        .nth(2)
        .expect("invariant: crates/cli stands two folders below the root")
        .to_path_buf()
}

/// Folders whose files are built, generated or measured; by their last parts.
const LEFT_OUT: &[&str] = &["target", "generated", "benchmarks/records", "docs/results"];

/// Files of the repository that have this ending and are written by hand.
fn files_of(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let left_out = name.starts_with('.') || LEFT_OUT.iter().any(|end| path.ends_with(end));
            if path.is_dir() && !left_out {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == ending)
            {
                found.push(path);
            }
        }
    }
    found
}

/// `cargo metadata` of the workspace as it is resolved in Cargo.lock.
fn metadata() -> Value {
    // Only what this machine builds: a build downloads nothing else, and nothing may be downloaded here.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .args(["--filter-platform", &platform])
        .current_dir(root())
        .output()
        .expect("cargo metadata starts");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

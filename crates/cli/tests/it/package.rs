//! The package for Debian: made by `scripts/release`, installed in a copy of the system, run and removed.

use std::path::Path;
use std::process::Command;

use voile_testkit::prerequisites::{Prerequisite, program, skip};

/// Runs a command in the repository; returns what it said.
fn run(command: &mut Command) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = command.current_dir(repository).output();
    let output = output.expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn the_package_for_debian_installs_measures_and_goes() {
    let packagers = [(Prerequisite::Nfpm, "nfpm"), (Prerequisite::Dpkg, "dpkg")];
    if !packagers
        .iter()
        .all(|(of, name)| program(*of, name).is_some())
    {
        return;
    }
    let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
    if !may_mount.is_ok_and(|done| done.status.success()) {
        return skip(Prerequisite::Mounts, "unshare --mount");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let binary = env!("CARGO_BIN_EXE_voile");
    let mut release = Command::new("scripts/release");
    release.args(["--binary", binary, "--parts", "packages"]);
    run(release.arg(folder.path()));
    let entries = std::fs::read_dir(folder.path()).expect("the folder");
    let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let of = |ending: &str| {
        let mut files = files.iter();
        files.find(|path| path.extension().is_some_and(|one| one == ending))
    };
    assert!(of("rpm").is_some(), "{files:?}");
    let said = run(Command::new("tests/package/try").arg(of("deb").expect("a package")));
    assert!(said.contains("installed, measured and removed\n"), "{said}");
}

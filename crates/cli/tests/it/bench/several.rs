//! Several experiments by one command: each has its record in the folder that is named, and all are gone on with by that folder.

use std::path::Path;
use std::process::Output;

use crate::bench::{SMALL, record};
use crate::mesh::Process;

/// Runs `one` and `two` there.
fn both(folder: &Path, how: &str, out: &Path) -> Output {
    Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke", "--rounds", "1"])
            .args([folder.join("one.toml"), folder.join("two.toml")])
            .arg(how)
            .arg(out)
            .env("TMPDIR", folder);
    })
}

#[test]
fn those_that_are_whole_stay_as_they_are_and_those_that_are_not_there_are_begun() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    for name in ["one", "two"] {
        let text = SMALL.replace("name = \"small\"", &format!("name = \"{name}\""));
        let path = folder.path().join(format!("{name}.toml"));
        std::fs::write(path, text).expect("written");
    }
    let said = |ran: &Output| {
        let (words, errors) = (&ran.stdout, &ran.stderr);
        String::from_utf8_lossy(&[words.as_slice(), errors].concat()).into_owned()
    };
    let empty = both(folder.path(), "--resume", folder.path());
    assert_eq!(empty.status.code(), Some(2));
    assert!(said(&empty).contains("has no record of these experiments"));
    let ran = both(folder.path(), "--out", &out);
    assert!(ran.status.success(), "{}", said(&ran));
    let first = record(&out.join("one"));
    assert_eq!(first["experiment"]["rounds_whole"], 1);
    // As if it had been ended before the second began.
    std::fs::remove_dir_all(out.join("two")).expect("it is there");
    let ran = both(folder.path(), "--resume", &out);
    assert!(ran.status.success(), "{}", said(&ran));
    assert!(
        said(&ran).contains("one is complete and left as it is"),
        "{}",
        said(&ran)
    );
    assert_eq!(record(&out.join("one")), first);
    assert_eq!(record(&out.join("two"))["experiment"]["name"], "two");
    let wrong = both(folder.path(), "--resume", &out.join("one"));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        said(&wrong).contains("is the folder of one record"),
        "{}",
        said(&wrong)
    );
}

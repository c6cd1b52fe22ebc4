//! `voile bench gate`, `compare` and `history` on the committed records of `benchmarks/records`.

use std::path::Path;

use crate::mesh::Process;

/// Committed record of an earlier day.
fn committed(name: &str) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/records");
    folder.join(format!("2026-11-21-{name}"))
}

#[test]
fn a_gate_exits_with_what_it_found() {
    let (first, second) = (committed("speed-core"), committed("speed-core-2"));
    let gate = |base: &Path, new: &Path, words: &[&str]| {
        let ran = Process::output(|voile| {
            voile.args(["bench", "gate"]).args([base, new]).args(words);
        });
        let said = [ran.stdout, ran.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (ran.status.code(), said)
    };
    // The second of these was taken on a louder machine. The path without a proxy shows it, and a comparison within rounds
    // does not see it.
    for (base, new, words, code, expected) in [
        (&first, &first, &[][..], 0, "no regression"),
        (
            &first,
            &second,
            &[],
            0,
            "The baseline, which has no proxy, moved itself",
        ),
        (&first, &second, &["-o", "json"], 0, "\"cannot-tell\""),
        (
            &first,
            &second,
            &["--beside", "nginx"],
            0,
            "no regression is proven",
        ),
        (&first, &second, &["--bound", "200"], 0, "no regression"),
        (
            &first,
            &committed("speed-idle-5"),
            &[],
            2,
            "no figure of voile is in both records",
        ),
        (&first, &committed("none"), &[], 2, "record.json.gz"),
        (&first, &second, &["--bound", "p50=5"], 2, "is not a figure"),
        (
            &first,
            &second,
            &["--beside", "ngnix"],
            2,
            "ngnix is not in the base record, which has baseline",
        ),
    ] {
        let (exit, said) = gate(base, new, words);
        assert_eq!(exit, Some(code), "{words:?}: {said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn records_are_compared_and_lined_up_as_pages_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second, third] = ["speed-core", "speed-core-2", "speed-mtls-3"].map(committed);
    for (word, folders, page) in [
        ("compare", vec![&first, &second], "compare.html"),
        ("history", vec![&third, &second, &first], "history.html"),
    ] {
        let out = folder.path().join(word);
        let ran = Process::output(|voile| {
            voile
                .args(["bench", word])
                .args(folders)
                .arg("--out")
                .arg(&out);
        });
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{word}: {said}");
        let text = std::fs::read_to_string(out.join(page)).expect("a page");
        assert!(
            text.contains("<svg") && text.ends_with("</html>\n"),
            "{word}"
        );
        let plots = std::fs::read_dir(out.join("plots")).expect("plots");
        assert!(plots.count() > 2, "{word}");
    }
}

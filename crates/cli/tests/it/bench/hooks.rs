//! Hooks of an experiment as its users write them: run before and after each slice of the cells that name them, bounded in time,
//! and named when they fail.

use std::path::Path;
use std::process::Output;

use crate::mesh::Process;

const DEFINITION: &str = r#"name = "hooked"
rounds = 2
slice = "150ms"
warmup = "30ms"
[load]
rate = 200
connections = 2
size = 64
protocol = "http1"
[proxy]
workers = 1
[[cells]]
contestants = ["relay"]
modes = ["both"]
hooks = ["none", "told"]
[hooks.told]
"#;

fn run(folder: &Path, hook: &str) -> (Output, Option<serde_json::Value>) {
    let (file, out) = (folder.join("hooked.toml"), folder.join("out"));
    std::fs::write(&file, format!("{DEFINITION}{hook}\n")).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--smoke"])
            .arg(&file)
            .arg("--out")
            .arg(&out);
    });
    let record = crate::bench::record_text(&out).ok();
    let record = record.map(|text| serde_json::from_str(&text).expect("JSON"));
    (ran, record)
}

/// Of the slices with the hook or without it, what was said against them; the machine may have spoiled some.
fn against(record: &serde_json::Value, hook: Option<&str>) -> Vec<String> {
    let runs = record["runs"].as_array().expect("runs").iter();
    let its = runs.filter(|run| run["shape"]["hook"].as_str() == hook);
    its.map(|run| {
        let reasons = run["invalid_reasons"].as_array().expect("reasons").iter();
        let hooks = reasons.filter_map(|reason| reason.as_str()?.strip_prefix("hook "));
        hooks.map(str::to_owned).collect()
    })
    .collect()
}

#[test]
fn hooks_surround_the_slices_of_the_cells_that_name_them_and_are_told_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes");
    let note = format!(
        r#"["sh", "-c", "echo $VOILE_LAB_WHEN $VOILE_LAB_HOOK $VOILE_LAB_CONTESTANT $VOILE_LAB_MODE $VOILE_LAB_ROUND $VOILE_LAB_PIDS >>'{}'"]"#,
        notes.display()
    );
    let (ran, record) = run(folder.path(), &format!("before = {note}\nafter = {note}"));
    let said = String::from_utf8_lossy(&ran.stderr);
    let record = record.unwrap_or_else(|| panic!("{said}"));
    assert_eq!(against(&record, None).len(), 2, "{said}");
    assert_eq!(against(&record, Some("told")), ["", ""], "{said}");
    let text = std::fs::read_to_string(notes).expect("it was run");
    let lines: Vec<&str> = text.lines().collect();
    let begins: Vec<String> = (1..=2)
        .flat_map(|round| {
            ["before", "after"]
                .map(|when| format!("{when} told relay both {round} client-sidecar="))
        })
        .collect();
    assert_eq!(lines.len(), begins.len(), "{text}");
    for (line, begin) in lines.iter().zip(&begins) {
        assert!(
            line.starts_with(begin) && line.contains(" server="),
            "{text}"
        );
    }
}

#[test]
fn a_hook_that_fails_or_hangs_is_named_and_the_others_are_measured() {
    for (hook, words) in [
        (
            r#"before = ["sh", "-c", "echo no cache here; exit 3"]"#,
            &["told, before: it ended with code 3", "no cache here"][..],
        ),
        (
            r#"after = ["sh", "-c", "exit 4"]"#,
            &["told, after: it ended with code 4"],
        ),
        (
            "before = [\"sleep\", \"60\"]\nbound = \"100ms\"",
            &["told, before: it did not end within 100ms"],
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (ran, record) = run(folder.path(), hook);
        let said = String::from_utf8_lossy(&ran.stderr);
        let record = record.unwrap_or_else(|| panic!("{said}"));
        assert_eq!(against(&record, None), ["", ""], "{said}");
        let hooked = against(&record, Some("told"));
        assert_eq!(hooked.len(), 2, "{hooked:?}");
        for reasons in hooked {
            assert!(words.iter().all(|word| reasons.contains(word)), "{reasons}");
        }
    }
}

#[test]
fn a_hook_that_cannot_be_is_refused_before_anything_is_measured() {
    for (hook, code, words) in [
        (
            r#"before = ["no-such-program-anywhere"]"#,
            1,
            "hook told, before: program no-such-program-anywhere not found",
        ),
        ("bound = \"1s\"", 2, "hook told does nothing"),
        ("before = []", 2, "before must be a command"),
        (
            "before = [\"true\"]\nbound = \"1h\"",
            2,
            "bound: 3600s must lie between",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (ran, record) = run(folder.path(), hook);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{said}");
        assert!(said.contains(words) && record.is_none(), "{said}");
    }
}

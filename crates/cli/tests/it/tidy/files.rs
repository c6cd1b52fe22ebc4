//! Every source file says why it exists, no file and no folder outgrows its room, and every `expect` outside tests states an invariant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lines of one file; beyond it, it is two rooms.
const MAX_FILE_LINES: usize = 800;

/// Calls `rule` with each file's path (from the root) and text, and fails with everything it complains of.
fn every_source(rule: impl Fn(&Path, &str) -> Vec<String>) {
    let root = super::root();
    let found = super::files_of("rs");
    assert!(found.len() > 30, "sources were found");
    let complaints: Vec<String> = found
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).expect("the source can be read");
            let short = path.strip_prefix(&root).unwrap_or(path);
            rule(short, &text)
        })
        .collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn every_source_file_opens_by_saying_why_it_exists() {
    every_source(|path, text| match text.starts_with("//! ") {
        true => vec![],
        false => vec![format!("{}: no `//!` header", path.display())],
    });
}

#[test]
fn no_source_file_outgrows_its_room() {
    every_source(|path, text| match text.lines().count() {
        lines if lines > MAX_FILE_LINES => vec![format!("{}: {lines} lines", path.display())],
        _ => vec![],
    });
}

/// Source files of one folder; beyond it, it is several folders.
const MAX_FOLDER_FILES: usize = 16;

#[test]
fn no_folder_outgrows_its_room() {
    let root = super::root();
    let mut files: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in super::files_of("rs") {
        let folder = path.parent().unwrap_or(&root);
        let folder = folder.strip_prefix(&root).unwrap_or(folder);
        *files.entry(folder.to_owned()).or_default() += 1;
    }
    let complaints: Vec<String> = files
        .iter()
        .filter(|(_, count)| **count > MAX_FOLDER_FILES)
        .map(|(folder, count)| format!("{}: {count} source files", folder.display()))
        .collect();
    assert!(
        complaints.is_empty(),
        "make rooms\n{}",
        complaints.join("\n")
    );
}

/// A test that prints this by itself is neither recorded nor failed where its prerequisite is required.
#[test]
fn only_the_testkit_skips_tests() {
    every_source(|path, text| {
        let prints = text.contains(concat!("\"skip", "ped: "));
        match prints && !path.starts_with("crates/support/testkit") {
            true => vec![format!(
                "{}: call voile_testkit::prerequisites::skip",
                path.display()
            )],
            false => vec![],
        }
    });
}

#[test]
fn an_expect_outside_tests_states_its_invariant() {
    every_source(|path, text| {
        if path
            .components()
            .filter_map(|part| part.as_os_str().to_str())
            // Assertions are the purpose of fuzzing.
            .any(|part| ["tests", "tests.rs", "testkit", "fuzz"].contains(&part))
        {
            return vec![];
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        code.lines()
            .enumerate()
            .filter(|(_, line)| line.contains(".expect(\"") && !line.contains("invariant"))
            .map(|(number, line)| format!("{}:{}: {}", path.display(), number + 1, line.trim()))
            .collect()
    });
}

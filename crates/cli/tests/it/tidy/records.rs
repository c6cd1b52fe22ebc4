//! The committed records of the lab: small in all, and present where a page cites them.

use std::fs;
use std::path::Path;

/// Bytes of all files in `benchmarks/records`.
const MAX_BYTES: u64 = 15_000_000;

fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let sizes = entries.flatten().map(|entry| {
        let data = entry.metadata().expect("the entry can be read");
        match data.is_dir() {
            true => bytes_in(&entry.path()),
            false => data.len(),
        }
    });
    sizes.sum()
}

#[test]
fn records_stay_small() {
    let bytes = bytes_in(&super::root().join("benchmarks/records"));
    assert!(
        bytes <= MAX_BYTES,
        "benchmarks/records holds {bytes} bytes, more than {MAX_BYTES}: remove older records (benchmarks/records/README.md)"
    );
}

#[test]
fn cited_records_are_committed() {
    let records = super::root().join("benchmarks/records");
    let pages = super::files_of("md");
    let missing: Vec<String> = pages
        .iter()
        .flat_map(|path| {
            let text = fs::read_to_string(path).expect("the page can be read");
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let cited = words.filter(|word| is_record_name(word));
            let missing = cited.filter(|name| !records.join(name).is_dir());
            missing
                .map(|name| format!("{}: {name}", path.display()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

/// True for a date and a name: `2026-11-24-nodes`.
fn is_record_name(word: &str) -> bool {
    word.len() > 11
        && word.char_indices().take(11).all(|(at, c)| match at {
            4 | 7 | 10 => c == '-',
            _ => c.is_ascii_digit(),
        })
        && word.as_bytes()[11].is_ascii_lowercase()
}

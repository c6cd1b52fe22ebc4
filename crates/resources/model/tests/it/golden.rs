//! Golden tables: `golden/*.txt` hold cases of a name, YAML, and the exact problems it must give. With `VOILE_BLESS=1` the
//! answers are rewritten; read the difference before you commit it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::{check_text, render};

const CASE: &str = "=== ";
const ANSWER: &str = ">>>\n";

#[test]
fn every_case_gives_exactly_its_problems() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let mut tables: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    tables.sort();
    assert!(tables.len() >= 5, "the tables are missing");
    let mut wrong = String::new();
    for table in tables {
        let text = std::fs::read_to_string(&table).unwrap();
        let mut blessed = String::new();
        for case in text.split(CASE).skip(1) {
            let (name, rest) = case.split_once('\n').unwrap();
            let (yaml, expected) = rest.split_once(ANSWER).expect("a case has an answer");
            let found = render(&check_text(yaml).1);
            if found.trim() != expected.trim() {
                writeln!(wrong, "--- {name}\nexpected:\n{expected}\nfound:\n{found}").unwrap();
            }
            write!(blessed, "{CASE}{name}\n{yaml}{ANSWER}{found}\n").unwrap();
        }
        if std::env::var_os("VOILE_BLESS").is_some() {
            std::fs::write(&table, blessed.trim_end().to_owned() + "\n").unwrap();
        }
    }
    assert!(
        std::env::var_os("VOILE_BLESS").is_some() || wrong.is_empty(),
        "{wrong}"
    );
}

//! Golden tables for whole meshes: `golden/*.txt` hold a name, YAML that is valid resource by resource, and the exact
//! problems of it as a whole; `folded/*.txt` the same as people see them. With `VOILE_BLESS=1` the answers are rewritten; read the difference before you commit it.

mod agreement;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use voile_model::folding::fold;
use voile_model::ignored::IgnoredRules;
use voile_model::{Diagnostic, SourceFile, check};

const CASE: &str = "=== ";
const ANSWER: &str = ">>>\n";

/// The time of all cases: 2027-01-01.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_798_761_600)
}

fn answer(yaml: &str) -> String {
    let files = [SourceFile::new("mesh.yaml", yaml)];
    let (mesh, diagnostics) = check(&files, None);
    let is_code = |word: &str| tables().iter().any(|(code, _)| *code == word);
    let all = diagnostics
        .into_iter()
        .chain(voile_analysis::analyze(&mesh, now()))
        .chain(IgnoredRules::of(&files).unknown(is_code));
    all.map(|diagnostic| format!("{diagnostic}\n")).collect()
}

/// The same as people see it: what follows from a cause is folded below it.
fn folded(yaml: &str) -> String {
    let files = [SourceFile::new("mesh.yaml", yaml)];
    let (mesh, mut diagnostics) = check(&files, None);
    diagnostics.extend(voile_analysis::analyze(&mesh, now()));
    Diagnostic::sort(&mut diagnostics);
    let all = fold(diagnostics, &files).into_iter();
    all.map(|one| format!("{one}\n")).collect()
}

#[test]
fn every_mesh_gives_exactly_its_problems() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let bless = std::env::var_os("VOILE_BLESS").is_some();
    let mut wrong = String::new();
    let mut cases = 0;
    type Answer = fn(&str) -> String;
    for (kind, answer) in [("golden", answer as Answer), ("folded", folded)] {
        for table in std::fs::read_dir(folder.join(kind)).unwrap() {
            let table = table.unwrap().path();
            let text = std::fs::read_to_string(&table).unwrap();
            let mut blessed = String::new();
            for case in text.split(CASE).skip(1) {
                let (name, rest) = case.split_once('\n').unwrap();
                let (yaml, expected) = rest.split_once(ANSWER).unwrap();
                let found = answer(yaml);
                if found.trim() != expected.trim() {
                    writeln!(wrong, "--- {name}\nexpected:\n{expected}\nfound:\n{found}").unwrap();
                }
                write!(blessed, "{CASE}{name}\n{yaml}{ANSWER}{found}\n").unwrap();
                cases += 1;
            }
            if bless {
                std::fs::write(&table, blessed.trim_end().to_owned() + "\n").unwrap();
            }
        }
    }
    assert!(cases >= 10, "the tables are missing");
    assert!(bless || wrong.is_empty(), "{wrong}");
}

/// Codes with their meanings, of both crates.
fn tables() -> Vec<(&'static str, &'static str)> {
    let all = voile_model::codes::TABLE.iter();
    all.chain(voile_analysis::codes::TABLE).copied().collect()
}

#[test]
fn every_code_has_a_page_that_says_what_the_table_says() {
    let pages: Vec<_> = voile_analysis::explanations::all()
        .map(|page| (page.code, page.meaning))
        .collect();
    assert_eq!(pages, tables());
    for page in voile_analysis::explanations::all() {
        let title = format!("# {}\n", page.code);
        assert!(page.page.starts_with(&title), "{}", page.code);
        assert!(page.why.len() > 20, "{} says little", page.code);
    }
}

#[test]
fn every_example_of_wrong_gives_its_code_and_no_example_of_right_does() {
    let mut wrong = String::new();
    for page in voile_analysis::explanations::all() {
        let said = match (page.before, page.wrong.starts_with("ln ")) {
            (Some(before), _) => edited(before, page.wrong),
            // The test of the command covers examples about files.
            (None, true) => format!("[{}]", page.code),
            (None, false) => answer(page.wrong),
        };
        if !said.contains(&format!("[{}]", page.code)) {
            writeln!(wrong, "{}: wrong gives\n{said}", page.code).unwrap();
        }
        let said = match page.before {
            Some(before) => edited(before, page.right),
            None => answer(page.right),
        };
        // A right example may use a feature that is not yet in force (V0105); it has no other error.
        let errors = said.lines().filter(|line| line.contains(": error["));
        let others = errors.filter(|line| !line.contains("error[V0105]")).count();
        if said.contains(&format!("[{}]", page.code)) || others > 0 {
            writeln!(wrong, "{}: right gives\n{said}", page.code).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn edited(before: &str, after: &str) -> String {
    let (mesh, _) = check(&[SourceFile::new("mesh.yaml", before)], None);
    let (mesh, diagnostics) = check(&[SourceFile::new("mesh.yaml", after)], Some(&mesh));
    let all = diagnostics
        .into_iter()
        .chain(voile_analysis::analyze(&mesh, now()));
    all.map(|diagnostic| format!("{diagnostic}\n")).collect()
}

#[test]
fn the_page_of_codes_is_fresh() {
    let mut page = "# What `voile analyze` can say\n\nGenerated from the tables in `crates/resources/model/src/codes.rs` and `crates/resources/analysis/src/codes.rs` by\n\
        `VOILE_BLESS=1 cargo test -p voile-analysis`. A code never changes its meaning. Each has a page with an example of wrong and right,\n\
         which `voile explain-code CODE` prints too.\n\n| code | meaning |\n|---|---|\n"
        .to_owned();
    let mut codes: Vec<&str> = Vec::new();
    for (code, meaning) in tables() {
        assert!(!codes.contains(&code), "{code} is used twice");
        codes.push(code);
        writeln!(page, "| [{code}](codes/{code}.md) | {meaning} |").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/diagnostics.md");
    if std::env::var_os("VOILE_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, page, "the page is stale: run with VOILE_BLESS=1");
}

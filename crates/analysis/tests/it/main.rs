//! Golden tables for whole meshes: `golden/*.txt` hold a name, YAML that is valid resource by resource, and the exact
//! problems of it as a whole. With `VOILE_BLESS=1` the answers are rewritten; read the difference before you commit it.

use std::fmt::Write as _;
use std::path::Path;

use voile_model::{SourceFile, check};

const CASE: &str = "=== ";
const ANSWER: &str = ">>>\n";

fn answer(yaml: &str) -> String {
    let (mesh, diagnostics) = check(&[SourceFile::new("mesh.yaml", yaml)], None);
    let all = diagnostics
        .into_iter()
        .chain(voile_analysis::analyze(&mesh));
    all.map(|diagnostic| format!("{diagnostic}\n")).collect()
}

#[test]
fn every_mesh_gives_exactly_its_problems() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let bless = std::env::var_os("VOILE_BLESS").is_some();
    let mut wrong = String::new();
    let mut cases = 0;
    for table in std::fs::read_dir(folder).unwrap() {
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
    assert!(cases >= 10, "the tables are missing");
    assert!(bless || wrong.is_empty(), "{wrong}");
}

#[test]
fn every_code_of_the_table_is_shown_by_some_case() {
    let text = concat!(
        include_str!("golden/authorization.txt"),
        include_str!("golden/mesh.txt"),
        include_str!("golden/telemetry.txt"),
        include_str!("golden/tokens.txt")
    );
    for (code, meaning) in voile_analysis::codes::TABLE {
        assert!(
            text.contains(&format!("[{code}]")),
            "no case shows {code} ({meaning})"
        );
    }
}

#[test]
fn the_page_of_codes_is_fresh() {
    let mut page = "# What `voile analyze` can say\n\nGenerated from the tables in `crates/model/src/codes.rs` and `crates/analysis/src/codes.rs` by\n\
        `VOILE_BLESS=1 cargo test -p voile-analysis`. A code never changes its meaning.\n\n| code | meaning |\n|---|---|\n"
        .to_owned();
    let mut codes: Vec<&str> = Vec::new();
    for (code, meaning) in voile_model::codes::TABLE
        .iter()
        .chain(voile_analysis::codes::TABLE)
    {
        assert!(!codes.contains(code), "{code} is used twice");
        codes.push(code);
        writeln!(page, "| {code} | {meaning} |").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/diagnostics.md");
    if std::env::var_os("VOILE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, page, "the page is stale: run with VOILE_BLESS=1");
}

//! The page of Gateway API's conformance cases says what the tests here do: a case that it calls replayed stands in the table that it
//! names, by the suite's own name, and a table has none of which the page says otherwise.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/reference/gateway-api-conformance.md";
const HERE: &str = "crates/cli/tests/it/gateway_api";
const MODEL: &str = "crates/resources/model/tests/it";
/// Cases of the suite at the version that the page names.
const ALL: usize = 153;
/// Tables whose headings name cases.
const TABLES: [&str; 8] = [
    "matching",
    "filters",
    "references",
    "listeners",
    "grpc",
    "connections",
    "mesh",
    "conditions",
];
/// Prefixes of the cases' names.
const KINDS: [&str; 9] = [
    "BackendTLSPolicy",
    "GRPC",
    "Gateway",
    "HTTPRoute",
    "ListenerSet",
    "Mesh",
    "TCPRoute",
    "TLSRoute",
    "UDPRoute",
];
/// Words that begin so and are kinds.
const NO_CASES: [&str; 4] = ["GatewayClass", "GRPCRoute", "Gateways", "ListenerSets"];

fn text(path: impl AsRef<Path>) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The file that the page calls so.
fn file(place: &str) -> PathBuf {
    match place {
        "conditions" => Path::new(MODEL).join("gateway_api.txt"),
        "made" => Path::new(MODEL).join("gateway_api.rs"),
        "https" | "backend_tls" | "client_certificates" => {
            Path::new(HERE).join(format!("{place}.rs"))
        }
        table => Path::new(HERE).join(format!("cases/{table}.txt")),
    }
}

/// Names of cases in a file: in headings of a table, in comments of a test.
fn named(place: &str) -> Vec<String> {
    let text = text(file(place));
    let says = if TABLES.contains(&place) {
        "=== "
    } else {
        "//"
    };
    let lines = text.lines().filter(|line| line.starts_with(says));
    let words = lines.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()));
    let case = |word: &&str| {
        let begins = KINDS
            .iter()
            .any(|kind| word.starts_with(kind) && word != kind);
        (begins || *word == "BackendTLSPolicy" || *word == "UDPRoute") && !NO_CASES.contains(word)
    };
    words.filter(case).map(str::to_owned).collect()
}

/// The page's row of one case.
struct Row {
    state: String,
    places: Vec<String>,
    note: String,
}

fn rows(page: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", name, state, places, note, ""] = cells.as_slice() else {
            continue;
        };
        if !KINDS.iter().any(|kind| name.starts_with(kind)) {
            continue;
        }
        let row = Row {
            state: (*state).to_owned(),
            places: places
                .split(", ")
                .filter(|place| !place.is_empty())
                .map(str::to_owned)
                .collect(),
            note: (*note).to_owned(),
        };
        let name = name.trim_end_matches(" *").to_owned();
        assert!(rows.insert(name.clone(), row).is_none(), "{name} twice");
    }
    rows
}

#[test]
fn the_page_of_conformance_says_of_each_case_what_the_tests_do() {
    let page = text(PAGE);
    let rows = rows(&page);
    assert_eq!(rows.len(), ALL);
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, row) in &rows {
        *counts.entry(&row.state).or_default() += 1;
        let whole = match &*row.state {
            "passes" => !row.places.is_empty(),
            "in part" => !row.places.is_empty() && !row.note.is_empty(),
            "refused" => row.note.starts_with('V') && row.note.contains(": "),
            "not here" | "missing" => row.places.is_empty() && !row.note.is_empty(),
            _ => false,
        };
        if !whole {
            wrong.push(format!("{name}: the row lacks something"));
        }
        for place in &row.places {
            let stands = match row.state.as_str() {
                // By what its refusal says.
                "refused" => text(file(place)).contains(row.note.split(": ").last().unwrap_or("")),
                // By itself, and no replay.
                _ if place == "suite" => true,
                _ => named(place).contains(name),
            };
            if !stands {
                wrong.push(format!("{name}: {place} has no such case"));
            }
        }
    }
    for (state, count) in counts {
        let said = format!("{count} {state}");
        if !page.contains(&said) {
            wrong.push(format!("the page does not say: {said}"));
        }
    }
    let files = ["https", "backend_tls", "client_certificates", "made"];
    for place in TABLES.iter().chain(&files) {
        for name in named(place) {
            let row = rows.get(&name);
            let said = row.is_some_and(|row| row.places.iter().any(|one| one == place));
            if !said {
                wrong.push(format!(
                    "{name}: the page does not say that it is in {place}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_table_of_cases_is_played_by_a_test() {
    let sources = ["data.rs", "streams.rs", "mesh.rs"];
    let sources = sources.map(|name| text(Path::new(HERE).join(name)));
    let played = |table: &&&str| {
        let included = format!("include_str!(\"cases/{table}.txt\")");
        sources.iter().any(|source| source.contains(&included))
    };
    let own: Vec<_> = TABLES
        .iter()
        .filter(|table| **table != "conditions")
        .collect();
    assert!(own.iter().all(played));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gateway_api/cases");
    let files = std::fs::read_dir(folder).expect("the tables").count();
    assert_eq!(files, own.len());
}

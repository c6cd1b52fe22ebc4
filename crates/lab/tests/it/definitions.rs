//! Mistakes in a definition are told with file, line, column and what would be right.

use std::collections::BTreeSet;
use std::time::Duration;

use voile_lab::{Definition, Overrides, Plan, quick};

const GOOD: &str = r#"name = "mine"
rounds = 8
slice = "1s"
warmup = "100ms"

[load]
rate = 500
connections = 4
size = 10
protocol = "http1"

[proxy]
workers = 1

[[cells]]
contestants = ["baseline"]
modes = ["baseline"]
arrivals = ["uniform"]

[[cells]]
contestants = ["relay"]
modes = ["both"]
arrivals = ["poisson"]
"#;

#[test]
fn a_good_definition_is_read() {
    let definition = Definition::parse("mine.toml", GOOD).expect("good");
    assert_eq!(
        (
            definition.rounds,
            definition.cells[0].rate,
            definition.cells.len()
        ),
        (8, 500, 2)
    );
    assert_eq!(definition.slice, Duration::from_secs(1));
    assert!(definition.control.is_none());
}

/// What is written instead of what, and what the reader must be told.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "rounds = 8",
        "rounds = 0",
        "mine.toml:2:10: rounds is 0; it must lie between 1 and 1000",
    ),
    (
        "rounds = 8",
        "rounds = \"8\"",
        "mine.toml:2:10: invalid type",
    ),
    (
        "rounds = 8",
        "rouds = 8",
        "mine.toml:2:1: unknown field `rouds`",
    ),
    ("rounds = 8\n", "", "missing field `rounds`"),
    (
        "\"mine\"",
        "\"../mine\"",
        "mine.toml:1:8: name \"../mine\" becomes a folder's name",
    ),
    ("\"1s\"", "\"1 fortnight\"", "mine.toml:3:9: slice"),
    (
        "\"1s\"",
        "\"1ms\"",
        "mine.toml:3:9: slice: 1ms must lie between",
    ),
    (
        "rate = 500",
        "rate = -1",
        "mine.toml:7:8: invalid value: integer `-1`",
    ),
    (
        "\"http1\"",
        "\"http3\"",
        "mine.toml:10:12: protocol \"http3\" is unknown; known: http1",
    ),
    (
        "[\"relay\"]",
        "[\"voil\"]",
        "contestant \"voil\" is unknown; known: baseline, voile, envoy, nginx, haproxy, relay",
    ),
    (
        "[\"both\"]",
        "[\"bth\"]",
        "mine.toml:22:10: mode \"bth\" is unknown",
    ),
    (
        "[\"both\"]",
        "[\"both\"]\ntls = true",
        "mine.toml:22:10: tls needs a sidecar on both sides",
    ),
    ("[\"both\"]", "[\"baseline\"]", "baseline has no proxy"),
    (
        "[\"poisson\"]",
        "[\"poisson\", \"poisson\"]",
        "is there twice",
    ),
    (
        "workers = 1",
        "workers = [",
        "mine.toml:16:1: missing comma",
    ),
    (
        "[proxy]",
        "[control]\ncontestant = \"voile\"\nmode = \"both\"\narrival = \"uniform\"\n[proxy]",
        "is not one of the cells",
    ),
];

#[test]
fn mistakes_are_told_with_their_place() {
    for (from, to, expected) in MISTAKES {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from} is not in the text");
        let error = Definition::parse("mine.toml", &text)
            .expect_err(expected)
            .to_string();
        assert!(
            error.starts_with("mine.toml:") && error.contains(*expected),
            "wanted `{expected}`, got `{error}`"
        );
    }
}

#[test]
fn the_command_line_changes_only_what_it_may() {
    let only = |names: &[&str]| {
        Some(
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<BTreeSet<_>>(),
        )
    };
    let relay = quick()
        .with(&Overrides {
            only: only(&["relay"]),
            ..Overrides::default()
        })
        .expect("relay is there");
    assert!(
        relay
            .cells
            .iter()
            .all(|cell| ["relay", "baseline"].contains(&cell.contestant.as_str()))
    );
    assert!(
        relay.control.is_none(),
        "the control's contestant is not wanted"
    );
    let error = quick()
        .with(&Overrides {
            only: only(&["nginx"]),
            ..Overrides::default()
        })
        .expect_err("not there");
    assert!(
        error.contains("nginx") && error.contains("relay"),
        "{error}"
    );
    assert!(
        quick()
            .with(&Overrides {
                rounds: Some(0),
                ..Overrides::default()
            })
            .is_err()
    );
    assert!(
        quick()
            .with(&Overrides {
                slice: Some(Duration::ZERO),
                ..Overrides::default()
            })
            .is_err()
    );
}

#[test]
fn a_smoke_test_is_planned_under_twenty_seconds() {
    let smoke = quick()
        .with(&Overrides {
            smoke: true,
            ..Overrides::default()
        })
        .expect("always");
    let plan = Plan::new(&smoke, &|cell| cell.contestant != "envoy");
    assert!(
        plan.duration() < Duration::from_secs(20),
        "{:?}",
        plan.duration()
    );
}

/// The founders' experiments are run unattended: each must be readable, and end in well under ten minutes.
#[test]
fn the_committed_definitions_are_good_and_short() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.display().to_string();
        let definition = Definition::parse(&name, &text).unwrap_or_else(|e| panic!("{e}"));
        let takes = Plan::new(&definition, &|_| true).duration();
        assert!(takes <= Duration::from_secs(9 * 60), "{name}: {takes:?}");
        seen += 1;
    }
    assert!(seen > 8, "{seen} definitions");
}

//! Errors in a definition have file, line, column and a correct value.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use voile_lab::{Definition, Overrides, SlicePlan, quick};

pub(crate) const GOOD: &str = r#"name = "mine"
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

#[test]
fn configuration_by_number_is_an_axis_and_what_cannot_be_made_is_named() {
    let text = GOOD.replace(
        "contestants = [\"relay\"]\nmodes = [\"both\"]",
        "contestants = [\"voile\", \"envoy\", \"envoy-xds\", \"relay\"]\nmodes = [\"both\"]\nservices = [0, 1000]\npolicies = [50]\nroutes = [7]",
    );
    let definition = Definition::parse("mine.toml", &text).expect("good");
    let sizes: Vec<String> = definition
        .cells
        .iter()
        .map(|cell| format!("{} {}", cell.contestant, cell.shape))
        .collect();
    assert_eq!(
        sizes,
        [
            "baseline ",
            "voile 50 policies, 7 routes, last one hit",
            "voile 50 policies, 7 routes, 1000 services, last one hit",
            "envoy 50 policies, 7 routes, last one hit",
            "envoy-xds 50 policies, 7 routes, last one hit",
            "envoy-xds 50 policies, 7 routes, 1000 services, last one hit",
            "relay "
        ]
    );
    let missing = definition.missing.join("\n");
    for words in [
        "envoy: it supports generated policies, issuers, routes and endpoints only",
        "relay: generated configuration is supported for voile, envoy-xds and envoy only",
    ] {
        assert!(missing.contains(words), "{words}: {missing}");
    }
}

#[test]
fn every_definition_in_the_folder_of_examples_is_one() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../benchmarks");
    let files = std::fs::read_dir(folder).expect("the folder").flatten();
    let files = files.map(|file| file.path());
    let is_definition = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "toml");
    let files: Vec<PathBuf> = files.filter(is_definition).collect();
    assert!(files.len() > 20, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("it is there");
        let name = file.file_stem().and_then(|name| name.to_str());
        let definition = Definition::parse("it", &text);
        let definition = definition.unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        assert_eq!(Some(definition.name.as_str()), name);
        assert!(
            definition.missing.is_empty(),
            "{name:?}: {:?}",
            definition.missing
        );
        for target in &definition.targets {
            let measured =
                |who: &String| definition.cells.iter().any(|cell| cell.contestant == *who);
            assert!(target.of.iter().all(measured), "{name:?}: {}", target.row);
        }
    }
}

#[test]
fn verdicts_are_an_axis_of_cells_with_policies() {
    let with = |words: &str| {
        GOOD.replace(
            "contestants = [\"relay\"]\nmodes = [\"both\"]",
            &format!("contestants = [\"voile\"]\nmodes = [\"both\"]\n{words}"),
        )
    };
    let text = with("paths = [0, 10]\nverdicts = [\"allow-last\", \"deny-first\"]");
    let definition = Definition::parse("mine.toml", &text).expect("good");
    let cells: Vec<String> = definition
        .cells
        .iter()
        .filter(|cell| cell.contestant == "voile")
        .map(|cell| cell.shape.to_string())
        .collect();
    assert_eq!(cells, ["", "10 paths, allow-last", "10 paths, deny-first"]);
    for (words, told) in [
        (
            "paths = [1]\nverdicts = [\"alow-last\"]",
            "verdict \"alow-last\" is unknown; known: allow-first, allow-last",
        ),
        (
            "principals = [1]\nverdicts = [\"allow-last\"]",
            "the caller's identity is known over mutual TLS only",
        ),
        (
            "paths = [1]\nprotocol = \"grpc\"\nverdicts = [\"deny-last\"]",
            "rules with paths match requests over http1 and http2 only",
        ),
        (
            "source_ips = [1]\nprotocol = \"tcp\"\nverdicts = [\"deny-last\"]",
            "over tcp a refusal has no answer",
        ),
    ] {
        let error = Definition::parse("mine.toml", &with(words)).expect_err(words);
        assert!(error.to_string().contains(told), "{words}: {error}");
    }
}

/// Voile and Envoy in mode both, with these words.
fn routed(words: &str) -> String {
    GOOD.replace(
        "contestants = [\"relay\"]\nmodes = [\"both\"]",
        &format!("contestants = [\"voile\", \"envoy\"]\nmodes = [\"both\"]\n{words}"),
    )
}

#[test]
fn hits_are_an_axis_of_cells_with_routes_and_without_a_word_the_last_is_hit() {
    for (words, expected) in [
        (
            "routes = [0, 10]\nhits = [\"first\", \"miss\"]",
            vec![
                "",
                "10 routes, first one hit",
                "10 routes, none of them hit",
            ],
        ),
        ("prefix_routes = [9]", vec!["9 prefix_routes, last one hit"]),
        (
            "header_routes = [9]\nprotocol = \"http2\"",
            vec!["9 header_routes, last one hit"],
        ),
        (
            "routes = [9]\npaths = [7]",
            vec!["7 paths, 9 routes, last one hit"],
        ),
    ] {
        let definition = Definition::parse("mine.toml", &routed(words)).expect("good");
        assert_eq!(definition.missing, Vec::<String>::new(), "{words}");
        for contestant in ["voile", "envoy"] {
            let own = definition.cells.iter();
            let own = own.filter(|cell| cell.contestant == contestant);
            let shapes: Vec<String> = own.map(|cell| cell.shape.to_string()).collect();
            assert_eq!(shapes, expected, "{contestant}: {words}");
        }
    }
}

#[test]
fn routes_that_no_request_could_take_are_mistakes() {
    for (words, told) in [
        (
            "routes = [1]\nhits = [\"lst\"]",
            "hit \"lst\" is unknown; known: first, last, miss; did you mean \"last\"?",
        ),
        (
            "routes = [1]\nprefix_routes = [1]",
            "one kind of routes at a time",
        ),
        (
            "routes = [1]\nprotocol = \"tcp\"",
            "over http1 and http2 only",
        ),
        (
            "routes = [1]\nprotocol = \"grpc\"",
            "over http1 and http2 only",
        ),
        (
            "routes = [1]\nkind = \"idle\"",
            "opens connections with requests that match no route",
        ),
        (
            "routes = [1]\npaths = [1]\nverdicts = [\"allow-last\"]",
            "which rules with paths do not match",
        ),
    ] {
        let error = Definition::parse("mine.toml", &routed(words)).expect_err(words);
        assert!(error.to_string().contains(told), "{words}: {error}");
    }
    let text = routed("routes = [1]").replace("[\"both\"]", "[\"serveronly\"]");
    let error = Definition::parse("mine.toml", &text).expect_err("the client's");
    assert!(
        error.to_string().contains("need the client's sidecar"),
        "{error}"
    );
    let events = "[[events]]\nat = \"400ms\"\naction = \"restart-proxy\"\n";
    let text = routed("routes = [1]") + events;
    let error = Definition::parse("mine.toml", &text).expect_err("no path of theirs");
    assert!(
        error.to_string().contains("a definition of their own"),
        "{error}"
    );
}

#[test]
fn endpoints_are_an_axis_of_the_clients_sidecar_and_have_no_baseline() {
    let with = |words: &str| {
        GOOD.replace(
            "contestants = [\"relay\"]\nmodes = [\"both\"]",
            &format!("contestants = [\"voile\", \"envoy\"]\n{words}"),
        )
    };
    let words =
        "modes = [\"clientonly\"]\nendpoints = [10]\nfeatures = [\"default\", \"least-request\"]";
    let definition = Definition::parse("mine.toml", &with(words)).expect("good");
    let cells: Vec<String> = definition.cells[1..]
        .iter()
        .map(|cell| format!("{} {}", cell.contestant, cell.shape))
        .collect();
    let expected = [
        "voile 10 endpoints",
        "voile+least-request 10 endpoints",
        "envoy 10 endpoints",
        "envoy+least-request 10 endpoints",
    ];
    assert_eq!(cells, expected);
    assert!(definition.missing.is_empty(), "{:?}", definition.missing);
    let (baseline, voile) = (&definition.cells[0], &definition.cells[1]);
    assert!(
        !baseline.shape.same_load(&voile.shape),
        "its server is quick"
    );
    for (words, told) in [
        ("modes = [\"both\"]\nendpoints = [10]", "mode clientonly"),
        (
            "modes = [\"clientonly\"]\nendpoints = [1]",
            "must lie between 2 and 100",
        ),
        (
            "modes = [\"clientonly\"]\nprotocol = \"tcp\"\nendpoints = [2]",
            "slow endpoints need requests",
        ),
        (
            "modes = [\"clientonly\"]\nkind = \"idle\"\nendpoints = [2]",
            "selected per request",
        ),
    ] {
        let error = Definition::parse("mine.toml", &with(words)).expect_err(words);
        assert!(error.to_string().contains(told), "{words}: {error}");
    }
    let words = "modes = [\"clientonly\"]\nendpoints = [2]";
    let text = format!("isolation = \"netns\"\n{}", with(words));
    let error = Definition::parse("mine.toml", &text).expect_err("one machine's loopback");
    assert!(
        error.to_string().contains("isolation \"loopback\""),
        "{error}"
    );
}

#[test]
fn tokens_are_an_axis_and_issuers_without_a_word_about_them_have_one() {
    let with = |words: &str| {
        GOOD.replace(
            "contestants = [\"relay\"]\nmodes = [\"both\"]",
            &format!("contestants = [\"voile\", \"envoy\"]\nmodes = [\"both\"]\n{words}"),
        )
    };
    let cells = |words: &str, of: &str| -> Vec<String> {
        let definition = Definition::parse("mine.toml", &with(words)).expect("good");
        assert_eq!(definition.missing, Vec::<String>::new(), "{words}");
        let own = definition.cells.iter().filter(|cell| cell.contestant == of);
        own.map(|cell| cell.shape.to_string()).collect()
    };
    let usual = ["same token", "2 issuers, same token"];
    assert_eq!(cells("issuers = [0, 2]", "voile"), usual);
    assert_eq!(cells("issuers = [0, 2]", "envoy"), usual);
    let words = "issuers = [0, 2]\ntokens = [\"none\", \"fresh\", \"forged\"]";
    let all = [
        "",
        "fresh tokens",
        "2 issuers",
        "2 issuers, fresh tokens",
        "2 issuers, forged token",
    ];
    assert_eq!(cells(words, "envoy"), all);
    assert_eq!(cells(words, "baseline"), [""]);
    let words =
        "request_principals = [9]\nverdicts = [\"allow-last\"]\ntokens = [\"none\", \"same\"]";
    let all = [
        "9 request_principals, allow-last",
        "9 request_principals, allow-last, same token",
    ];
    assert_eq!(cells(words, "voile"), all);
    for (words, told) in [
        (
            "issuers = [1]\ntokens = [\"stale\"]",
            "token \"stale\" is unknown; known: none, same",
        ),
        (
            "issuers = [1]\nprotocol = \"tcp\"",
            "tokens are request headers",
        ),
        ("paths = [1]\ntokens = [\"forged\"]", "needs issuers"),
        (
            "request_principals = [1]\npaths = [1]\ntokens = [\"none\"]",
            "other policies beside request_principals",
        ),
    ] {
        let error = Definition::parse("mine.toml", &with(words)).expect_err(words);
        assert!(error.to_string().contains(told), "{words}: {error}");
    }
}

/// Mistakes: the replaced text, the text in its place, and the message that the reader must get.
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
    (
        "rounds = 8\n",
        "",
        "missing field `rounds`; such as rounds = 9",
    ),
    (
        "protocol = \"http1\"\n",
        "",
        "mine.toml:6:1: missing field `protocol`; such as protocol = \"http1\"",
    ),
    (
        "[proxy]\nworkers = 1\n",
        "",
        "missing field `proxy`; such as [proxy] with workers = 2",
    ),
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
        "contestant \"voil\" is unknown; known: baseline, voile, envoy, envoy-xds, nginx, haproxy, relay",
    ),
    (
        "[\"both\"]",
        "[\"bth\"]",
        "mine.toml:22:10: mode \"bth\" is unknown",
    ),
    (
        "[\"both\"]",
        "[\"both\"]\ntls = true",
        "mine.toml:22:10: tls needs sidecars with TLS on both sides",
    ),
    ("[\"both\"]", "[\"baseline\"]", "baseline has no proxy"),
    (
        "[\"poisson\"]",
        "[\"poisson\", \"poisson\"]",
        "appears twice",
    ),
    ("[\"both\"]", "[\"boht\"]", "; did you mean \"both\"?"),
    ("rounds = 8", "ronds = 8", "; did you mean \"rounds\"?"),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\nfeatures = [\"demoo\"]",
        "mine.toml:24:13: feature set \"demoo\" is unknown",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\ncpus = [\"split\"]",
        "mine.toml:24:9: CPU set \"split\" is unknown; known: all",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[cpus.split]\nlod = \"0\"",
        "mine.toml:25:1: role \"lod\" is unknown",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[cpus.split]\nload = \"x\"",
        "mine.toml:25:8: cores of load: \"x\": expected numbers",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[limits]\nmemory = \"512MB\"",
        "mine.toml:25:10: memory: \"512MB\": expected a number and KiB",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\nresponse_sizes = [1, 99999999999]",
        "mine.toml:24:22: response_sizes is 99999999999",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\nprotocols = [\"tcp\"]\nrequest_sizes = [1]",
        "over tcp the server echoes",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[[events]]\nat = \"500ms\"\naction = \"push-polcy\"",
        "mine.toml:26:10: action \"push-polcy\" is unknown",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[[events]]\nat = \"2s\"\naction = \"push-policy\"",
        "mine.toml:25:6: at: 2s must lie between 300ms and 700ms",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[[events]]\nat = \"500ms\"\naction = \"hook\"",
        "a hook needs its command",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[[events]]\nat = \"500ms\"\naction = \"hook\"\ncount = 7",
        "count belongs to action \"change-policies\"",
    ),
    (
        "[\"poisson\"]",
        "[\"poisson\"]\n[[events]]\nat = \"500ms\"\naction = \"change-policies\"\ncount = 1",
        "count is 1; it must lie between 4 and 100000",
    ),
    (
        "rounds = 8",
        "rounds = 8\nisolation = \"netn\"",
        "; did you mean \"netns\"?",
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
    let plan = SlicePlan::new(&smoke, &|cell| cell.contestant != "envoy");
    assert!(
        plan.duration() < Duration::from_secs(20),
        "{:?}",
        plan.duration()
    );
}

/// The founders' experiments are run unattended: each must be readable, and end in well under ten minutes.
#[test]
fn the_committed_definitions_are_good_and_short() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../benchmarks");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.display().to_string();
        let definition = Definition::parse(&name, &text).unwrap_or_else(|e| panic!("{e}"));
        let takes = SlicePlan::new(&definition, &|_| true).duration();
        assert!(takes <= Duration::from_secs(9 * 60), "{name}: {takes:?}");
        seen += 1;
    }
    assert!(seen > 8, "{seen} definitions");
}

#[test]
fn a_cold_start_is_an_axis_and_takes_the_time_of_starting_instead_of_warming_up() {
    let with = |more: &str| {
        let text = GOOD.replace("arrivals = [\"poisson\"]", more);
        Definition::parse("mine.toml", &text)
    };
    let both = with("starts = [\"warm\", \"cold\"]").expect("good");
    let starts: Vec<&str> = both.cells.iter().map(|c| &*c.shape.start).collect();
    assert_eq!(starts, ["", "", "cold"]);
    let takes = |starts: &str| {
        let definition = with(starts).expect("good");
        SlicePlan::new(&definition, &|_| true).duration()
    };
    let warm = with("starts = [\"warm\", \"warm\"]").expect_err("twice the same");
    assert!(warm.to_string().contains("appears twice"), "{warm}");
    let one = takes("starts = [\"warm\"]");
    let cold = takes("starts = [\"cold\"]");
    assert_eq!(
        cold - one,
        Duration::from_millis(8 * (1000 - 100)),
        "eight rounds"
    );
    for (wrong, words) in [
        (
            "starts = [\"hot\"]",
            "start \"hot\" is unknown; known: warm, cold",
        ),
        (
            "starts = [\"cold\"]\nkind = \"idle\"",
            "start \"cold\" needs requests",
        ),
        (
            "starts = [\"cold\"]\n[[cells]]\ncontestants = [\"baseline\"]\nmodes = [\"baseline\"]\nstarts = [\"cold\"]",
            "start \"cold\" needs a proxy to start",
        ),
    ] {
        let error = with(wrong).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// A group is the product of all its axes; impossible cells are left out if others remain.
#[test]
fn a_matrix_is_the_product_of_its_axes() {
    let text = GOOD.replace(
        "contestants = [\"relay\"]\nmodes = [\"both\"]\narrivals = [\"poisson\"]\n",
        "contestants = [\"baseline\", \"voile\", \"relay\"]\nmodes = [\"baseline\", \"both\"]\ntls = [false, true]\n\
         arrivals = [\"poisson\"]\nprotocols = [\"http1\", \"http2\"]\nrates = [100, 200]\nresponse_sizes = [0, 1024]\n\
         workers = [1, 2]\ncpus = [\"all\", \"split\"]\nfeatures = [\"default\", \"demo\", \"routes\"]\n\
         [cpus.split]\nload = \"0\"\nsidecar = \"1\"\n",
    );
    let definition = Definition::parse("mine.toml", &text).expect("good");
    let of = |name: &str| {
        definition
            .cells
            .iter()
            .filter(|c| c.contestant == name)
            .count()
    };
    let loads = 2 * 2 * 2 * 2; // protocols, rates, sizes, CPU sets
    assert_eq!(
        of("baseline"),
        1 + loads,
        "a baseline has neither TLS nor workers"
    );
    assert_eq!(of("voile"), loads * 2 * 2);
    assert_eq!(of("voile+demo"), loads * 2 * 2);
    assert_eq!(of("relay"), loads * 2, "no TLS");
    assert_eq!(definition.cells.len(), 1 + loads * 11);
    assert_eq!(definition.cpus["split"]["server-sidecar"], [1]);
    let missing = definition.missing.join("; ");
    assert!(
        missing.contains("feature set routes: is an axis of its own"),
        "{missing}"
    );
}

#[test]
fn what_is_not_built_is_named_and_the_rest_is_measured() {
    let text = GOOD.replace("\"relay\"", "\"envoy\", \"haproxy\"");
    let text = text.replace(
        "[\"poisson\"]",
        "[\"poisson\"]\nfeatures = [\"default\", \"demo\"]",
    );
    let definition = Definition::parse("mine.toml", &text).expect("good");
    let names: BTreeSet<&str> = definition
        .cells
        .iter()
        .map(|cell| cell.contestant.as_str())
        .collect();
    assert_eq!(
        names,
        BTreeSet::from(["baseline", "envoy", "envoy+demo", "haproxy"])
    );
    let missing = definition.missing.join("; ");
    assert!(
        missing.contains("haproxy with feature set demo") && !missing.contains("envoy"),
        "{missing}"
    );
}

#[test]
fn another_build_is_measured_wherever_voile_is() {
    let program = std::env::current_exe().expect("a program");
    let with = |contestant: String| {
        quick().with(&Overrides {
            contestants: vec![contestant],
            ..Overrides::default()
        })
    };
    let both = with(format!("old={}", program.display())).expect("good");
    let of = |name: &str| both.cells.iter().filter(|c| c.contestant == name).count();
    assert!(of("voile") > 0);
    assert_eq!(of("old"), of("voile"));
    for (wrong, word) in [
        ("old".to_owned(), "expected NAME=PATH"),
        ("old=/no/such".to_owned(), "No such file"),
        (format!("envoy={}", program.display()), "a name of its own"),
        (format!("a b={}", program.display()), "a name of its own"),
    ] {
        let error = with(wrong).expect_err(word);
        assert!(error.contains(word), "{error}");
    }
}

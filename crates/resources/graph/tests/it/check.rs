//! Graphs as a whole: circles, floods, what nothing reaches; and the examples that are shipped.

use voile_graph::weigh::weigh;

use crate::{good, read, said};

#[test]
fn circles_are_named_and_only_those_that_end_are_taken() {
    for (script, expected, taken) in [
        (
            "a: [{call: a}]",
            "error[V0701]: calls form an endless cycle: a → a",
            false,
        ),
        (
            "a: [{call: b}]; b: [{call: c}]; c: [{call: a}]",
            "calls form an endless cycle: a → b → c → a",
            false,
        ),
        (
            "a: [{call: b}]; b: [{call: {service: a, probability: 90}}]",
            "warning[V0702]: calls form a cycle: a → b → a",
            true,
        ),
        // Two calls of 60 % are more than one.
        (
            "a: [{call: b}]; b: [{call: {service: a, probability: 60}}, {call: {service: a, probability: 60}}]",
            "each round turns one request into 1.",
            false,
        ),
        (
            "a: [{call: b}]; b: [{call: {service: b, probability: 99.95%}}]",
            "calls form an endless cycle: b → b",
            false,
        ),
        ("a: [{call: b}]; b: []", "", true),
    ] {
        let services: Vec<String> = script
            .split("; ")
            .map(|service| {
                let (name, script) = service.split_once(": ").expect("a script");
                format!(
                    "- name: {name}\n  isEntrypoint: {}\n  script: {script}\n",
                    name == "a"
                )
            })
            .collect();
        let (graph, problems) = read(&format!("services:\n{}", services.concat()));
        let said = said(&problems);
        assert!(said.contains(expected), "{script}:\n{said}");
        assert_eq!(graph.is_some(), taken, "{script}:\n{said}");
    }
}

#[test]
fn expected_requests_are_counted_through_probabilities_and_circles() {
    let graph = good(
        "services:
- {name: a, isEntrypoint: true, script: [{call: b}, [{call: b}, {call: {service: c, probability: 25}}]]}
- {name: b, script: [{call: c}]}
- {name: c, script: [{call: {service: c, probability: 50}}]}
",
    );
    let weights = weigh(&graph, 0);
    let rounded: Vec<f64> = weights
        .requests
        .iter()
        .map(|requests| (requests * 1e6).round() / 1e6)
        .collect();
    // c: 2.25 from above, twice as many with its own.
    assert_eq!(rounded, [1.0, 2.0, 4.5]);
    assert_eq!(weights.depth, 3);
}

#[test]
fn a_flood_is_refused() {
    let mut text = String::from("services:\n");
    for level in 0..20 {
        let entry = level == 0;
        text.push_str(&format!(
            "- {{name: s{level}, isEntrypoint: {entry}, script: [[{{call: s{0}}}, {{call: s{0}}}]]}}\n",
            level + 1
        ));
    }
    text.push_str("- name: s20\n");
    let (graph, problems) = read(&text);
    assert!(graph.is_none());
    let said = said(&problems);
    assert!(
        said.contains("error[V0706]: one request to `s0` would cause 2097151 requests"),
        "{said}"
    );
}

#[test]
fn what_nothing_reaches_and_what_has_no_effect_is_said() {
    let (graph, problems) = read("services: [{name: a, script: [{call: b}]}, {name: b}]");
    assert!(graph.is_some());
    assert!(
        said(&problems).contains("V0704]: no service is an entry point"),
        "{}",
        said(&problems)
    );
    let (graph, problems) =
        read("services: [{name: a, isEntrypoint: true, cluster: x}, {name: b}]");
    assert!(graph.is_some());
    let said = said(&problems);
    for expected in [
        "V0705]: no service calls `b`",
        "V0707]: `cluster` of `a` has no effect",
    ] {
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn clusters_are_told_apart_by_the_time_of_calls_between_them_or_said_to_be_without_effect() {
    let services = |defaults: &str, [a, b, c]: [&str; 3]| {
        format!(
            "defaults: {{{defaults}}}\nservices:\n- {{name: a, isEntrypoint: true{a}, script: [{{call: b}}, {{call: c}}]}}\n\
             - {{name: b{b}}}\n- {{name: c{c}}}\n"
        )
    };
    let (near, far) = (", cluster: near", ", cluster: far");
    let latency = "clusterLatency: 5ms";
    for (defaults, clusters, between, unheeded) in [
        (latency, [near, far, near], [5, 0], &[][..]),
        (latency, [near, far, ""], [5, 0], &[]),
        (
            "",
            [", cluster: near, clusterLatency: 7ms", far, far],
            [7, 7],
            &[],
        ),
        (
            "",
            [near, ", cluster: far, clusterLatency: 7ms", ""],
            [0, 0],
            &["`cluster` of `a`", "`clusterLatency` of `b`"],
        ),
        ("", [near, far, ""], [0, 0], &["`cluster` of `a`"]),
        (
            latency,
            ["", far, ""],
            [0, 0],
            &["`cluster` of `b`", "`clusterLatency` of `a`"],
        ),
        (latency, ["", "", ""], [0, 0], &["`clusterLatency` of `a`"]),
        ("", ["", "", ""], [0, 0], &[]),
    ] {
        let text = services(defaults, clusters);
        let (graph, problems) = read(&text);
        let graph = graph.expect("a graph");
        let of = |to| graph.between_clusters(0, to).as_millis();
        assert_eq!([of(1), of(2)], between, "{text}");
        let said = said(&problems);
        for what in unheeded {
            assert!(
                said.contains(&format!("V0707]: {what} has no effect")),
                "{what}: {said}"
            );
        }
        assert_eq!(problems.len(), unheeded.len(), "{text}: {said}");
        // Each service is given its piece of the graph, and must know as much.
        let (again, _) = read(&voile_graph::to_yaml(&graph.excerpt(0)));
        let again = again.expect("its piece");
        assert_eq!(
            [1, 2].map(|to| again.between_clusters(0, to).as_millis()),
            between,
            "{text}"
        );
    }
    let (graph, problems) = read("services: [{name: a, clusterLatency: 11s}]");
    assert!(graph.is_none() && said(&problems).contains("longer than the 10s allowed"));
}

#[test]
fn shipped_examples_have_no_problem() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/graphs");
    let files = voile_model::files::read_directory(folder.as_ref()).expect("the folder");
    assert!(files.len() >= 6, "{} examples", files.len());
    for file in files {
        let (graph, problems) = voile_graph::read(&file);
        assert!(problems.is_empty(), "{}", said(&problems));
        let graph = graph.expect("a graph");
        if file.name.ends_with("load-test-19.yaml") {
            let weights = weigh(&graph, 0);
            assert_eq!(
                (weights.total(), weights.depth, graph.services.len()),
                (19.0, 3, 19)
            );
        }
    }
}

#[test]
fn the_reference_names_every_code() {
    let page = include_str!("../../../../../docs/reference/graph.md");
    for (code, meaning) in voile_graph::codes::TABLE {
        let line = format!("| {code} | {meaning} |");
        assert!(
            page.contains(&line),
            "docs/reference/graph.md lacks: {line}"
        );
    }
}

#[test]
fn hostile_texts_are_refused_in_no_time() {
    let wide = format!("services: [{}]", "{name: a}, ".repeat(20_000));
    let deep = format!("services: {}{}", "[".repeat(5_000), "]".repeat(5_000));
    let long = format!(
        "services:\n- name: a\n  script:\n{}",
        "  - call: a\n".repeat(20_000)
    );
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\nservices: [{name: a}]".to_owned();
    // Everybody calls everybody.
    let names: Vec<String> = (0..300).map(|n| format!("s{n}")).collect();
    let all: String = names
        .iter()
        .map(|name| format!("{{call: {name}}}, "))
        .collect();
    let dense: String = names
        .iter()
        .map(|name| format!("- {{name: {name}, script: [{all}]}}\n"))
        .collect();
    for text in [wide, deep, long, bomb, format!("services:\n{dense}")] {
        let (graph, problems) = read(&text);
        assert!(graph.is_none() && !problems.is_empty());
    }
}

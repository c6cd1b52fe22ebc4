//! The files of deploy/monitoring name metrics and labels that our programs serve, and counters end as OpenMetrics wants.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;

/// Words of PromQL, Prometheus and Grafana among those that may be labels.
const OTHER_LABELS: &[&str] = &["instance", "le"];

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Words between double quotes of all sources that run, and the same sources without spaces.
fn literals() -> (BTreeSet<String>, String) {
    let (mut words, mut dense) = (BTreeSet::new(), String::new());
    for path in super::files_of("rs") {
        if !path.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        let text = read_to_string(&path).expect("the source can be read");
        let quoted = text.split('"').filter(|part| part.chars().all(is_of_word));
        words.extend(quoted.map(str::to_owned));
        dense.extend(text.split_whitespace());
    }
    (words, dense)
}

/// The expressions of a file of rules or of a dashboard.
pub(crate) fn expressions(path: &Path) -> Vec<String> {
    let text = read_to_string(path).expect("the file can be read");
    if path.extension().is_some_and(|ending| ending == "json") {
        let board: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let panels = board["panels"].as_array().expect("panels").iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
        let of_panels = targets.map(|target| target["expr"].as_str());
        let variables = board["templating"]["list"].as_array().expect("variables");
        let variables = variables.iter().filter(|one| one["type"] == "query");
        let of_variables = variables.map(|one| one["query"].as_str());
        let all = of_panels.chain(of_variables);
        return all
            .map(|one| one.expect("an expression").to_owned())
            .collect();
    }
    let rules = text.split("expr:").skip(1);
    let rules = rules.map(|rule| rule.split("\n    for:").next().unwrap_or_default());
    let rules = rules.map(|rule| rule.split("\n    labels:").next().unwrap_or_default());
    let rules = rules.map(|rule| rule.split("\n  - ").next().unwrap_or_default());
    rules.map(str::to_owned).collect()
}

/// Names of our metrics in an expression, without what Prometheus adds to a histogram's.
fn metrics(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|letter| !is_of_word(letter) && letter != ':');
    let ours = words.filter(|word| {
        let prefixes = ["istio_", "voile_", "process_"];
        prefixes.iter().any(|prefix| word.starts_with(prefix))
    });
    ours.map(|word| {
        let ends = ["_bucket", "_sum", "_count"];
        let base = ends.iter().find_map(|end| word.strip_suffix(end));
        base.unwrap_or(word)
    })
}

/// Labels of an expression: those that are matched, and those of `by` and `on`.
fn labels(expression: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for part in expression.split('{').skip(1) {
        let matchers = part.split('}').next().unwrap_or_default();
        // Every other part is a value in quotes.
        for outside in matchers.split('"').step_by(2) {
            found.extend(outside.split(|letter| !is_of_word(letter)));
        }
    }
    for word in ["by (", "on ("] {
        for part in expression.split(word).skip(1) {
            let list = part.split(')').next().unwrap_or_default();
            found.extend(list.split(',').map(str::trim));
        }
    }
    if let Some(values) = expression.strip_prefix("label_values(") {
        let last = values.trim_end_matches(')').rsplit(',').next();
        found.extend(last.map(str::trim));
    }
    found.retain(|label| !label.is_empty());
    found
}

#[test]
fn rules_and_dashboards_name_metrics_and_labels_that_are_served() {
    let (words, _) = literals();
    let folder = super::root().join("deploy/monitoring");
    let mut files = vec![folder.join("rules.yaml")];
    for entry in std::fs::read_dir(folder.join("dashboards")).expect("dashboards") {
        files.push(entry.expect("a dashboard").path());
    }
    let (mut checked, mut unknown) = (0, BTreeSet::new());
    for file in &files {
        for expression in expressions(file) {
            let other = |label: &&str| OTHER_LABELS.contains(label);
            let labels = labels(&expression).into_iter().filter(|one| !other(one));
            for word in metrics(&expression).chain(labels) {
                checked += 1;
                if !words.contains(word) {
                    unknown.insert(format!("{}: {word}", file.display()));
                }
            }
        }
    }
    assert!(checked > 150, "{checked} names were found");
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn counters_end_in_total_and_gauges_do_not() {
    let (_, dense) = literals();
    let mut seen = 0;
    for (kind, is_counter) in [("counter", true), ("gauge", false)] {
        for end in [format!("\",\"{kind}\""), format!("\",kind:\"{kind}\"")] {
            let parts: Vec<&str> = dense.split(&end).collect();
            let names = parts.iter().take(parts.len() - 1);
            for name in names.filter_map(|part| part.rsplit('"').next()) {
                seen += 1;
                assert_eq!(name.ends_with("_total"), is_counter, "{kind} {name}");
            }
        }
    }
    assert!(seen > 50, "{seen} families were found");
}

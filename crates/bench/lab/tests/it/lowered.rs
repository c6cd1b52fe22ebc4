//! Findings of a scene's record in the form of the files of older builds, to be compared with what those hold.

use serde_json::{Value, json};

/// The record with `findings`, `figures` and `sizes` as the older file has them.
pub(crate) fn old_findings(held: &Value, mut record: Value) -> Value {
    let scene = record["scene"].clone();
    let findings = list(&scene["findings"]);
    let of_part = |part: &Value| -> Vec<&Value> {
        let own = findings.iter().filter(|one| one["what"] == part["title"]);
        own.collect()
    };
    let parts = list(&scene["parts"]);
    let found: Value = match scene["kind"].as_str().expect("a kind") {
        "agreement" => parts
            .iter()
            .map(|part| agreement(part, &of_part(part)))
            .collect(),
        "generators" => parts
            .iter()
            .flat_map(|part| generators(part, &of_part(part)))
            .collect(),
        "decisions" => list(&held["findings"])
            .iter()
            .map(|held| decision(held, &findings))
            .collect(),
        _ => Value::Null,
    };
    record["findings"] = found;
    if held["figures"].is_array() {
        let runs = list(&record["runs"]);
        record["figures"] = figures(&Value::Null, &findings);
        let mesh = |run: &Value| {
            let mut mesh = run["measured"].clone();
            mesh["figures"] = figures(&run["mode"], &findings);
            mesh
        };
        if held["sizes"].is_array() {
            record["sizes"] = runs.iter().skip(1).map(mesh).collect();
        }
    }
    record
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn agreement(part: &Value, findings: &[&Value]) -> Value {
    let none = Value::Null;
    let (first, second) = match findings {
        [first] => (*first, &none),
        [first, second] => (*first, *second),
        _ => panic!("{part}"),
    };
    let means = part["against_mean"] == true;
    let fortio = if means { second } else { first };
    json!({
        "scene": part["name"], "figure": part["figure"], "voile": first["value"],
        "from_due": if means { &none } else { &second["value"] },
        "fortio": fortio["other"], "ratio": fortio["ratio"],
        "mean": if means { &first["other"] } else { &none },
        "pass": first["outcome"] == "reached",
    })
}

fn generators(part: &Value, findings: &[&Value]) -> Vec<Value> {
    let one = |one: &&Value| {
        json!({
            "scene": part["name"], "of": one["beside"]["label"], "figure": one["of"]["figure"],
            "voile": one["value"], "other": one["other"], "ratio": one["ratio"],
            "outcome": one["outcome"],
        })
    };
    findings.iter().map(one).collect()
}

/// That finding of the older file, with what was found for it.
fn decision(held: &Value, findings: &[Value]) -> Value {
    let name = |size: &Value, hit: &str| {
        let kind = held["kind"].as_str().expect("a kind");
        format!("{kind}:{}:{} {hit}", size[0], size[1])
    };
    let hit = held["hit"].as_str().expect("a hit");
    let beside = held["beside"].as_str().unwrap_or(hit);
    let own = findings.iter().find(|one| {
        one["of"]["figure"] == name(&held["many"], hit)
            && one["beside"]["figure"] == name(&held["few"], beside)
    });
    let own = own.unwrap_or_else(|| panic!("no finding of {held}"));
    let mut found = held.clone();
    for (old, new) in [("ns", "value"), ("ratio", "ratio"), ("outcome", "outcome")] {
        found[old] = own[new].clone();
    }
    found
}

/// Figures of the mesh whose slice has that mode.
fn figures(mode: &Value, findings: &[Value]) -> Value {
    let own = findings.iter().filter(|one| one["of"]["part"] == *mode);
    let figure = |one: &Value| {
        let bound = &one["bounds"][0];
        let least = !bound["at_least"].is_null();
        json!({
            "what": one["what"], "measure": one["measure"], "key": one["key"],
            "unit": one["unit"], "seen": one["value"]["median"], "at_least": least,
            "asked": if least { &bound["at_least"] } else { &bound["at_most"] },
        })
    };
    own.map(figure).collect()
}

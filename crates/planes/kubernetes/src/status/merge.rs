//! A status as it should be, put into the one that an object has: pure. Entries and conditions of other controllers stay, and a
//! condition that holds as before keeps the time since when it does.

use serde_json::{Map, Value, json};
use voile_model::mesh::gateway_api::CONTROLLERS;

/// Reasons by which a new Gateway waits. They may pass by themselves, so they are no event.
const WAITING: [&str; 3] = ["Pending", "AddressNotAssigned", "AddressNotUsable"];

/// The object whose status is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed<'a> {
    /// Its status now.
    pub(crate) status: &'a Value,
    /// Its generation; core kinds have none.
    pub(crate) generation: Option<i64>,
    /// The time of the write.
    pub(crate) now: &'a str,
}

/// The fields that differ, with their new values; empty if none does.
pub(crate) fn changes(desired: &Map<String, Value>, object: Observed<'_>) -> Map<String, Value> {
    let mut changed = Map::new();
    for (field, wanted) in desired {
        let current = &object.status[field];
        let merged = match (&**field, wanted) {
            ("conditions", Value::Array(wanted)) => conditions(wanted, current, true, object),
            ("listeners", Value::Array(wanted)) => listeners(wanted, current, object),
            ("parents" | "ancestors", Value::Array(wanted)) => entries(wanted, current, object),
            // A ServiceEntry keeps the addresses that clients know, whoever gave them.
            ("addresses", Value::Array(wanted)) if same_hosts(wanted, current) => current.clone(),
            _ => wanted.clone(),
        };
        let is_empty = |value: &Value| value.is_null() || *value == json!([]);
        if merged != *current && !(is_empty(&merged) && is_empty(current)) {
            changed.insert(field.clone(), merged);
        }
    }
    changed
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Conditions by their type. `shared`: those of other types stay.
fn conditions(wanted: &[Value], current: &Value, shared: bool, object: Observed<'_>) -> Value {
    let find = |all: &[Value], kind: &Value| all.iter().find(|one| one["type"] == *kind).cloned();
    let known: Vec<Value> = items(current).cloned().collect();
    let mut merged = Vec::new();
    for one in &known {
        match find(wanted, &one["type"]) {
            Some(wanted) if wanted["status"].is_null() => {}
            Some(wanted) => merged.push(condition(wanted, Some(one), object)),
            None if shared => merged.push(one.clone()),
            None => {}
        }
    }
    for one in wanted.iter().filter(|one| !one["status"].is_null()) {
        if find(&known, &one["type"]).is_none() {
            merged.push(condition(one.clone(), None, object));
        }
    }
    merged.into()
}

fn condition(mut wanted: Value, known: Option<&Value>, object: Observed<'_>) -> Value {
    let since = known.filter(|known| known["status"] == wanted["status"]);
    let since = since.and_then(|known| known["lastTransitionTime"].as_str());
    wanted["lastTransitionTime"] = since.unwrap_or(object.now).into();
    if let Some(generation) = object.generation {
        wanted["observedGeneration"] = generation.into();
    }
    wanted
}

/// Listeners in our order; all of them are ours.
fn listeners(wanted: &[Value], current: &Value, object: Observed<'_>) -> Value {
    let merged = wanted.iter().map(|one| {
        let known = items(current).find(|known| known["name"] == one["name"]);
        with_conditions(one, known, object)
    });
    merged.collect()
}

/// Parents of a route or ancestors of a policy: those of other controllers, then ours.
fn entries(wanted: &[Value], current: &Value, object: Observed<'_>) -> Value {
    let is_ours = |one: &&Value| one["controllerName"] == CONTROLLERS[0];
    let others = items(current).filter(|one| !is_ours(one)).cloned();
    let ours = wanted.iter().map(|one| {
        let same = |known: &&Value| {
            ["parentRef", "ancestorRef"]
                .iter()
                .all(|reference| known[reference] == one[reference])
        };
        let known = items(current).filter(is_ours).find(same);
        with_conditions(one, known, object)
    });
    others.chain(ours).collect()
}

fn with_conditions(wanted: &Value, known: Option<&Value>, object: Observed<'_>) -> Value {
    let none = Value::Null;
    let known = known.map_or(&none, |known| &known["conditions"]);
    let all: Vec<Value> = items(&wanted["conditions"]).cloned().collect();
    let mut merged = wanted.clone();
    merged["conditions"] = conditions(&all, known, false, object);
    merged
}

fn same_hosts(wanted: &[Value], current: &Value) -> bool {
    let hosts = |all: &mut dyn Iterator<Item = &Value>| -> Option<Vec<String>> {
        let hosts = all.map(|one| one["host"].as_str().map(str::to_owned));
        let mut hosts: Vec<String> = hosts.collect::<Option<_>>()?;
        hosts.sort();
        hosts.dedup();
        Some(hosts)
    };
    let (wanted, current) = (hosts(&mut wanted.iter()), hosts(&mut items(current)));
    wanted.is_some_and(|hosts| !hosts.is_empty() && current == Some(hosts))
}

/// Types of conditions that became false by a change of these fields.
pub(super) fn failures(
    changed: &Map<String, Value>,
    before: &Value,
) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    collect(&Value::Object(changed.clone()), before, &mut found);
    found.dedup();
    found
}

fn collect(now: &Value, before: &Value, found: &mut Vec<(String, String, String)>) {
    match now {
        Value::Array(all) => {
            for one in all {
                let same = |known: &&Value| {
                    ["type", "name", "parentRef", "ancestorRef", "controllerName"]
                        .iter()
                        .all(|field| known[field] == one[field])
                };
                let known = items(before).find(same).unwrap_or(&Value::Null);
                collect(one, known, found);
            }
        }
        Value::Object(fields) if fields.contains_key("lastTransitionTime") => {
            let waits = WAITING.iter().any(|reason| now["reason"] == *reason);
            let is_bad = now["status"] == "False" && now["type"] != "Conflicted" && !waits;
            if is_bad && before["status"] != "False" {
                let text = |field: &str| now[field].as_str().unwrap_or_default().to_owned();
                found.push((text("type"), text("reason"), text("message")));
            }
        }
        Value::Object(fields) => {
            for (field, value) in fields {
                collect(value, &before[field], found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(desired: Value, status: &Value, generation: i64) -> Value {
        let object = Observed {
            status,
            generation: Some(generation),
            now: "later",
        };
        let Value::Object(desired) = desired else {
            panic!("no fields")
        };
        changes(&desired, object).into()
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "reason": "R", "message": ""})
    }

    fn written(kind: &str, status: &str, time: &str, generation: i64) -> Value {
        json!({
            "type": kind, "status": status, "reason": "R", "message": "",
            "lastTransitionTime": time, "observedGeneration": generation,
        })
    }

    #[test]
    fn a_condition_that_holds_as_before_keeps_its_time_and_others_stay() {
        let of_others = json!({"type": "Other", "status": "True", "lastTransitionTime": "t"});
        let status = json!({"conditions": [of_others, written("Accepted", "True", "early", 1)]});
        let wanted = json!({"conditions": [condition("Accepted", "True")]});
        assert_eq!(merged(wanted.clone(), &status, 1), json!({}));
        let again = merged(wanted, &status, 2);
        let kept = json!({"conditions": [of_others, written("Accepted", "True", "early", 2)]});
        assert_eq!(again, kept);
        let wanted = json!({"conditions": [condition("Accepted", "False")]});
        let turned = json!({"conditions": [of_others, written("Accepted", "False", "later", 1)]});
        assert_eq!(merged(wanted, &status, 1), turned);
        let removed = json!({"conditions": [{"type": "Accepted", "status": null}]});
        assert_eq!(
            merged(removed, &status, 1),
            json!({"conditions": [of_others]})
        );
    }

    #[test]
    fn entries_of_other_controllers_stay_and_own_ones_that_are_over_go() {
        let entry = |controller: &str, parent: &str, conditions: Value| {
            json!({
                "controllerName": controller,
                "parentRef": {"name": parent},
                "conditions": conditions,
            })
        };
        let others = entry("example.com/other", "a", json!([]));
        let old = entry(CONTROLLERS[0], "old", json!([]));
        let status = json!({"parents": [others, old]});
        let new = |one| entry(CONTROLLERS[0], "new", json!([one]));
        let wanted = json!({"parents": [new(condition("Accepted", "True"))]});
        let after = json!({"parents": [others, new(written("Accepted", "True", "later", 3))]});
        assert_eq!(merged(wanted.clone(), &status, 3), after);
        assert_eq!(merged(wanted, &after, 3), json!({}));
        assert_eq!(
            merged(json!({"parents": []}), &json!({"parents": [others]}), 3),
            json!({})
        );
    }

    #[test]
    fn given_addresses_stay_while_their_hosts_do() {
        let given =
            |host: &str, value: &str| json!({"addresses": [{"host": host, "value": value}]});
        let current = given("a.example", "240.240.0.1");
        assert_eq!(
            merged(given("a.example", "240.240.9.9"), &current, 1),
            json!({})
        );
        let moved = given("b.example", "240.240.9.9");
        assert_eq!(merged(moved.clone(), &current, 1), moved);
        assert_eq!(merged(moved.clone(), &Value::Null, 1), moved);
    }

    #[test]
    fn a_failure_is_told_once() {
        let before = json!({"conditions": [written("Accepted", "True", "early", 1)]});
        let wanted = json!({"conditions": [condition("Accepted", "False")]});
        let changed = merged(wanted, &before, 1);
        let changed = changed.as_object().expect("fields");
        let told = [("Accepted".to_owned(), "R".to_owned(), String::new())];
        assert_eq!(failures(changed, &before), told);
        assert_eq!(failures(changed, &Value::Object(changed.clone())), []);
    }
}

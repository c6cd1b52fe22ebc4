//! A user's container merged over the injected one of the same name, as Kubernetes' strategic merge does: maps are merged, named
//! lists by their names, other values are replaced.

use serde_json::{Map, Value};

/// Image by which a user says that the injected one is meant.
const AUTO_IMAGE: &str = "auto";
const IMAGE_FIELDS: [&str; 2] = ["image", "imagePullPolicy"];
/// Lists of a container whose elements have a name, and the field that is their name.
const NAMED_LISTS: [(&str, &str); 4] = [
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
];
/// Probes have one of several actions: a user's action takes the place of ours.
const PROBES: [&str; 3] = ["startupProbe", "readinessProbe", "livenessProbe"];
const ACTIONS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];

/// Merges the user's container over ours.
pub(super) fn container(ours: &mut Value, user: &Value) {
    let (Some(ours), Some(user)) = (ours.as_object_mut(), user.as_object()) else {
        return;
    };
    let is_auto = user.get("image").is_some_and(|image| image == AUTO_IMAGE);
    for (field, value) in user {
        // For an image without a tag, the API server has set a policy that is not the user's.
        if value.is_null() || is_auto && IMAGE_FIELDS.contains(&field.as_str()) {
            continue;
        }
        if let Some((_, key)) = NAMED_LISTS.iter().find(|(list, _)| list == field) {
            named_list(ours, field, key, value);
            continue;
        }
        if PROBES.contains(&field.as_str())
            && ACTIONS.iter().any(|action| value[action].is_object())
            && let Some(probe) = ours.get_mut(field).and_then(Value::as_object_mut)
        {
            probe.retain(|key, _| !ACTIONS.contains(&key.as_str()));
        }
        overlay(ours.entry(field.clone()).or_insert(Value::Null), value);
    }
}

fn named_list(ours: &mut Map<String, Value>, field: &str, key: &str, user: &Value) {
    let list = ours.entry(field).or_insert_with(|| Value::Array(vec![]));
    let (Some(list), Some(user)) = (list.as_array_mut(), user.as_array()) else {
        return;
    };
    for element in user {
        match list.iter_mut().find(|one| one[key] == element[key]) {
            // A variable has a value or a source of one, not both.
            Some(one) if field == "env" => one.clone_from(element),
            Some(one) => overlay(one, element),
            None => list.push(element.clone()),
        }
    }
}

/// Merges maps; replaces everything else.
fn overlay(ours: &mut Value, user: &Value) {
    match (ours, user) {
        (Value::Object(ours), Value::Object(user)) => {
            for (field, value) in user {
                overlay(ours.entry(field.clone()).or_insert(Value::Null), value);
            }
        }
        (ours, user) => ours.clone_from(user),
    }
}

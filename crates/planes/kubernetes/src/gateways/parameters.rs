//! What users change of a Gateway's objects: the ConfigMap of `spec.infrastructure.parametersRef`, merged over each object as a
//! strategic merge patch.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use voile_model::SourceFile;

use super::GatewayError;
use super::plan::PlannedGateway;

/// Keys of the ConfigMap.
pub(super) const KEYS: [&str; 5] = [
    "serviceAccount",
    "deployment",
    "service",
    "horizontalPodAutoscaler",
    "podDisruptionBudget",
];
/// Lists whose elements are merged by a field, as in Kubernetes' schema. The first of the fields that an element has is its key.
const MERGED_LISTS: [(&str, &[&str]); 10] = [
    ("containers", &["name"]),
    ("env", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("ports", &["containerPort", "port"]),
    ("topologySpreadConstraints", &["topologyKey"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];
/// Field with what happens to a map or to an element of a list: `delete`, `replace` or `merge`.
const DIRECTIVE: &str = "$patch";

/// Patches by the key of the ConfigMap.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<&'static str, Value>);

impl Parameters {
    /// The patch of an object, if users wrote one.
    pub(super) fn patch(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }
}

/// The parameters of a Gateway.
///
/// # Errors
/// The ConfigMap is missing, has unknown keys, or a value that is no YAML mapping.
pub(super) fn of_gateway(
    planned: &PlannedGateway,
    files: &[Arc<SourceFile>],
) -> Result<Parameters, GatewayError> {
    let reference = &planned.gateway["spec"]["infrastructure"]["parametersRef"];
    let Some(name) = reference["name"].as_str() else {
        return Ok(Parameters::default());
    };
    let file = planned.file("configmaps", name);
    let fail = |what: String| GatewayError(format!("spec.infrastructure.parametersRef: {what}"));
    let found = files.iter().find(|one| *one.name == *file);
    let text = found.and_then(|one| one.text.as_ref().ok());
    let text = text.ok_or_else(|| fail(format!("{file} is missing; create it")))?;
    let map: Value =
        serde_json::from_str(text).map_err(|error| fail(format!("{file}: {error}")))?;
    let mut parameters = Parameters::default();
    for (key, value) in map["data"].as_object().into_iter().flatten() {
        let Some(known) = KEYS.into_iter().find(|one| one == key) else {
            let keys = KEYS.join(", ");
            return Err(fail(format!(
                "{file}: the key `{key}` is unknown; the keys are {keys}"
            )));
        };
        let read = serde_saphyr::from_str(value.as_str().unwrap_or_default());
        match read {
            Ok(patch @ Value::Object(_)) => drop(parameters.0.insert(known, patch)),
            Ok(Value::Null) => drop(parameters.0.insert(known, Value::Object(Map::new()))),
            Ok(_) => {
                return Err(fail(format!(
                    "{file}: `{key}` is no mapping; write the fields of the object that change"
                )));
            }
            Err(error) => {
                return Err(fail(format!("{file}: `{key}` is no YAML: {error}")));
            }
        }
    }
    Ok(parameters)
}

/// Merges a patch over an object: maps by field, lists of `MERGED_LISTS` by their keys, other values replaced. `null` removes.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() || fields.get(DIRECTIVE).is_some_and(|word| word == "replace") {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else {
        return;
    };
    for (name, value) in fields.iter().filter(|(name, _)| *name != DIRECTIVE) {
        let is_deleted = value.get(DIRECTIVE).is_some_and(|word| word == "delete");
        if value.is_null() || is_deleted {
            target.remove(name);
            continue;
        }
        let keys = MERGED_LISTS.iter().find(|(list, _)| list == name);
        match (keys, value.as_array()) {
            (Some((_, keys)), Some(elements)) => {
                let list = target.entry(name).or_insert(Value::Null);
                merge_list(list, elements, keys);
            }
            _ => merge(target.entry(name).or_insert(Value::Null), value),
        }
    }
}

fn merge_list(target: &mut Value, elements: &[Value], keys: &[&str]) {
    if !target.is_array() || elements.iter().any(|one| one[DIRECTIVE] == "replace") {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else {
        return;
    };
    for element in elements {
        let key = keys.iter().find(|key| !element[**key].is_null());
        let is_same = |one: &Value| key.is_some_and(|key| one[*key] == element[*key]);
        match &element[DIRECTIVE] {
            Value::String(word) if word == "delete" => list.retain(|one| !is_same(one)),
            Value::String(word) if word == "replace" => {}
            _ => match list.iter_mut().find(|one| is_same(one)) {
                Some(one) => merge(one, element),
                None => {
                    let mut new = Value::Null;
                    merge(&mut new, element);
                    list.push(new);
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_merged_as_strategic_merge_patches_are() {
        for (target, patch, merged) in [
            (
                "{a: 1, b: {c: 2}}",
                "{b: {d: 3}}",
                "{a: 1, b: {c: 2, d: 3}}",
            ),
            ("{a: 1, b: 2}", "{a: null}", "{b: 2}"),
            ("{args: [a, b]}", "{args: [c]}", "{args: [c]}"),
            (
                "{containers: [{name: a, image: i, env: [{name: X, value: x}]}]}",
                "{containers: [{name: a, env: [{name: Y, value: y}]}, {name: b}]}",
                "{containers: [{name: a, image: i, env: [{name: X, value: x}, {name: Y, value: y}]}, {name: b}]}",
            ),
            (
                "{ports: [{name: http, port: 80}]}",
                "{ports: [{port: 80, nodePort: 30080}, {port: 81}]}",
                "{ports: [{name: http, port: 80, nodePort: 30080}, {port: 81}]}",
            ),
            (
                "{volumes: [{name: a}, {name: b}]}",
                "{volumes: [{name: a, $patch: delete}]}",
                "{volumes: [{name: b}]}",
            ),
            (
                "{volumes: [{name: a}, {name: b}]}",
                "{volumes: [{$patch: replace}, {name: c}]}",
                "{volumes: [{name: c}]}",
            ),
            (
                "{limits: {cpu: 1, memory: 2}}",
                "{limits: {$patch: replace, cpu: 3}}",
                "{limits: {cpu: 3}}",
            ),
            ("{limits: {cpu: 1}}", "{limits: {$patch: delete}}", "{}"),
        ] {
            let read = |text: &str| serde_saphyr::from_str::<Value>(text).expect("YAML");
            let mut found = read(target);
            merge(&mut found, &read(patch));
            assert_eq!(found, read(merged), "{target} and {patch}");
        }
    }
}

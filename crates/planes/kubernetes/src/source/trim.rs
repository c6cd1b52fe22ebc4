//! What the mesh needs of an object. The rest is not kept: memory follows the mesh, not the verbosity of its objects.

use serde_json::{Map, Value, json};

/// Largest annotation of `kubectl apply`: a copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The text of an object's file. The name of the kind decides which parts stay.
pub(crate) fn text(kind: &str, api_version: &str, mut object: Value) -> String {
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        // A uid says that an API server knows the object, and to which pod a token is bound.
        keep(
            metadata,
            &[
                "name",
                "namespace",
                "labels",
                "annotations",
                "creationTimestamp",
                "ownerReferences",
                "uid",
                // Conditions say which generation they are about.
                "generation",
                "deletionTimestamp",
            ],
        );
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(LAST_APPLIED);
        }
    }
    match kind {
        "Pod" => pod(&mut object),
        // The condition `Healthy`, written by whoever probes the workload.
        "WorkloadEntry" => {}
        "Namespace" | "ServiceAccount" => {
            if let Some(all) = object.as_object_mut() {
                keep(all, &["apiVersion", "kind", "metadata"]);
            }
        }
        _ => {
            if let Some(all) = object.as_object_mut() {
                all.remove("status");
            }
        }
    }
    object.to_string()
}

/// Of a Pod: where it runs, as whom, under which names of ports, and whether it is ready.
fn pod(object: &mut Value) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        keep(
            spec,
            &[
                "serviceAccountName",
                "nodeName",
                "hostNetwork",
                "containers",
                "initContainers",
                "restartPolicy",
                "terminationGracePeriodSeconds",
            ],
        );
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                if let Some(container) = container.as_object_mut() {
                    keep(container, &["name", "image", "ports"]);
                }
            }
        }
    }
    let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    keep(status, &["phase", "podIP", "podIPs", "conditions"]);
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| condition["type"] == "Ready");
        for condition in conditions {
            if let Some(condition) = condition.as_object_mut() {
                keep(condition, &["type", "status"]);
            }
        }
    }
}

fn keep(all: &mut Map<String, Value>, names: &[&str]) {
    all.retain(|name, _| names.contains(&&**name));
}

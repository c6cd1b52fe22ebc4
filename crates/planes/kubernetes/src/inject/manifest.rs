//! Injection of a file of Kubernetes objects, for `voile inject`: Pods, and the templates of Pods in other objects. Objects
//! without Pods pass unchanged.

use serde_json::{Map, Value};
use voile_model::mesh::MeshConfig;

use super::{InjectionOutcome, InjectorOptions, inject};
use crate::inject::request::{InjectionRequest, PathSettings};

/// Kinds with a template of Pods, and the way to it.
const TEMPLATES: [(&str, &str); 8] = [
    ("Deployment", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("Job", "/spec/template"),
    ("DeploymentConfig", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];

/// Objects of a file, injected.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InjectedManifest {
    /// The objects, in order.
    pub documents: Vec<Value>,
    /// Sentences for the person: warnings, and why Pods are skipped. Each begins with the object's name.
    pub notes: Vec<String>,
    /// Why objects cannot be injected; they are unchanged. Each begins with the object's name.
    pub faults: Vec<String>,
}

/// A text that is no YAML.
#[derive(Debug, thiserror::Error)]
#[error("no YAML: {0}")]
pub struct ManifestError(String);

/// Reads objects from YAML or JSON, as `kubectl` does: numbers with a leading zero are octal.
///
/// # Errors
/// When the text is no YAML.
pub fn read_manifest(text: &str) -> Result<Vec<Value>, ManifestError> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| ManifestError(error.to_string()))?;
    Ok(documents.into_iter().filter(|one| !one.is_null()).collect())
}

/// Writes objects as YAML.
///
/// # Errors
/// When an object cannot be written.
pub fn write_manifest(documents: &[Value]) -> Result<String, ManifestError> {
    let written = documents.iter().map(|document| {
        let text = serde_saphyr::to_string(document);
        text.map_err(|error| ManifestError(error.to_string()))
    });
    Ok(written.collect::<Result<Vec<_>, _>>()?.join("---\n"))
}

/// Injects objects. `namespace` is that of objects that name none. The labels of namespaces are not known, and every Pod that does
/// not refuse gets a proxy.
#[must_use]
pub fn inject_manifest(
    documents: Vec<Value>,
    namespace: &str,
    options: &InjectorOptions,
    mesh: &MeshConfig,
) -> InjectedManifest {
    let mut manifest = InjectedManifest::default();
    for mut document in documents {
        inject_object(&mut document, namespace, options, mesh, &mut manifest);
        manifest.documents.push(document);
    }
    manifest
}

fn inject_object(
    object: &mut Value,
    namespace: &str,
    options: &InjectorOptions,
    mesh: &MeshConfig,
    manifest: &mut InjectedManifest,
) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if kind == "List" {
        let items = object.get_mut("items").and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            inject_object(item, namespace, options, mesh, manifest);
        }
        return;
    }
    let template = TEMPLATES.iter().find(|(of, _)| *of == kind);
    if kind != "Pod" && template.is_none() {
        return;
    }
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"]
        .as_str()
        .unwrap_or(namespace)
        .to_owned();
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let pod = match template {
        None => Some(&mut *object),
        Some((_, path)) => object.pointer_mut(path),
    };
    let title = format!("{kind} {namespace}/{name}");
    let Some(pod) = pod.filter(|pod| pod["spec"].is_object()) else {
        manifest
            .faults
            .push(format!("{title}: there is no spec of a Pod"));
        return;
    };
    if !pod["metadata"].is_object() {
        pod["metadata"] = Value::Object(Map::new());
    }
    let request = InjectionRequest {
        pod,
        namespace: &namespace,
        namespace_labels: None,
        workload: template.map(|_| name.as_str()),
        path_settings: &PathSettings::default(),
    };
    match inject(&request, options, mesh) {
        Ok(InjectionOutcome::Skipped(reason)) => {
            manifest
                .notes
                .push(format!("{title} is not injected: {reason}"));
        }
        Ok(InjectionOutcome::Injected(injected)) => {
            let warnings = injected.warnings.iter();
            manifest
                .notes
                .extend(warnings.map(|warning| format!("{title}: {warning}")));
            *pod = injected.pod;
        }
        Err(error) => {
            let faults = error.0.iter();
            manifest
                .faults
                .extend(faults.map(|fault| format!("{title}: {fault}")));
        }
    }
}

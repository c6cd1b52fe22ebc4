//! Labels and annotations of an injected Pod.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use voile_model::Labels;
use voile_model::check::{canonical_name, canonical_revision};
use voile_model::mesh::network::NETWORK;
use voile_model::mesh::workload::TUNNEL;

use super::InjectorOptions;
use super::annotations::{PodSettings, Template};
use crate::inject::request::{InjectionRequest, PROXY_CONTAINER, items, text_of};
use crate::revision::REVISION;

/// Annotation that records an injection.
pub(crate) const STATUS: &str = "sidecar.istio.io/status";
const TLS_MODE: &str = "security.istio.io/tlsMode";
const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
const DEFAULT_CONTAINERS: [&str; 2] = [
    "kubectl.kubernetes.io/default-container",
    "kubectl.kubernetes.io/default-logs-container",
];

/// The network of the Pod: its label's, the path's or the injector's.
pub(super) fn network(request: &InjectionRequest<'_>, options: &InjectorOptions) -> Option<String> {
    let label = text_of(request.pod, "labels", NETWORK);
    let network = label.or(request.path_settings.network.as_deref());
    let network = network.unwrap_or(&options.network);
    (!network.is_empty()).then(|| network.to_owned())
}

/// Names of the parts that an injection added.
pub(super) struct Added {
    pub(super) init_containers: Vec<String>,
    pub(super) containers: Vec<String>,
    pub(super) volumes: Vec<String>,
}

/// Sets labels and annotations; what the user wrote stays.
pub(super) fn set(
    pod: &mut Value,
    request: &InjectionRequest<'_>,
    settings: &PodSettings,
    options: &InjectorOptions,
    added: &Added,
) {
    let labels = pod["metadata"]["labels"].as_object();
    let pairs = labels.into_iter().flatten();
    let known: Labels = pairs
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect();
    let owner = workload(request);
    let mut labels = vec![
        (
            CANONICAL_NAME,
            canonical_name(&known, &owner.into()).to_string(),
        ),
        (CANONICAL_REVISION, canonical_revision(&known).to_string()),
        (REVISION, options.revision.clone()),
    ];
    if settings.template == Template::Sidecar {
        labels.push((TLS_MODE, "istio".to_owned()));
        // Node proxies reach a sidecar under STRICT by tunnels only.
        labels.push((TUNNEL.0, TUNNEL.1.to_owned()));
    }
    labels.extend(network(request, options).map(|network| (NETWORK, network)));
    let group = group(pod, "labels");
    for (key, value) in labels.into_iter().filter(|(_, value)| !value.is_empty()) {
        group.entry(key).or_insert(value.into());
    }
    let first = items(&pod["spec"], "containers")
        .filter_map(|container| container["name"].as_str())
        .find(|name| *name != PROXY_CONTAINER)
        .map(str::to_owned);
    let annotations = self::group(pod, "annotations");
    for key in DEFAULT_CONTAINERS {
        if let Some(name) = &first {
            annotations.entry(key).or_insert(name.as_str().into());
        }
    }
    annotations.insert(STATUS.to_owned(), status(options, added).into());
}

/// The revision whose injector changed this Pod, by Istio's record of it. A label of the Pod may name a tag instead.
pub(crate) fn injected_by(annotations: &BTreeMap<String, String>) -> Option<String> {
    let status: Value = serde_json::from_str(annotations.get(STATUS)?).ok()?;
    status["revision"].as_str().map(str::to_owned)
}

/// Istio's record of an injection. It writes `null` for an empty list.
fn status(options: &InjectorOptions, added: &Added) -> String {
    let list = |names: &[String]| match names {
        [] => Value::Null,
        names => json!(names),
    };
    json!({
        "initContainers": list(&added.init_containers),
        "containers": list(&added.containers),
        "volumes": list(&added.volumes),
        "imagePullSecrets": list(&options.image_pull_secrets),
        "revision": options.revision,
    })
    .to_string()
}

fn group<'a>(pod: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    let group = &mut pod["metadata"][name];
    if !group.is_object() {
        *group = json!({});
    }
    group.as_object_mut().expect("invariant: it is an object")
}

/// Name of the controller that owns the Pod, as Istio finds it: a Deployment behind its ReplicaSet, a CronJob behind its Job.
fn workload(request: &InjectionRequest<'_>) -> String {
    if let Some(workload) = request.workload {
        return workload.to_owned();
    }
    let metadata = &request.pod["metadata"];
    let mut owners = items(metadata, "ownerReferences").filter(|owner| owner["controller"] == true);
    let owner = owners.next();
    let name = owner.and_then(|owner| owner["name"].as_str());
    let kind = owner.and_then(|owner| owner["kind"].as_str());
    let hash = text_of(request.pod, "labels", "pod-template-hash");
    match (kind, name) {
        (Some("ReplicaSet"), Some(name)) => {
            let deployment = hash.and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'));
            deployment.unwrap_or(name).to_owned()
        }
        (Some("Job"), Some(name)) => {
            let cron_job = name.rsplit_once('-').filter(|(_, minute)| {
                minute.len() >= 8 && minute.bytes().all(|byte| byte.is_ascii_digit())
            });
            cron_job.map_or(name, |(cron_job, _)| cron_job).to_owned()
        }
        (_, Some(name)) => name.to_owned(),
        (_, None) => {
            let generated = metadata["generateName"].as_str().unwrap_or_default();
            let own = metadata["name"].as_str().filter(|name| !name.is_empty());
            own.unwrap_or(generated.trim_end_matches('-')).to_owned()
        }
    }
}

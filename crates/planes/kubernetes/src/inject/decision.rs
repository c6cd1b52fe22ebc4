//! Whether a Pod gets a proxy. The rules are those of Istio's webhooks (selectors of namespaces and Pods) and of its injector.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::InjectorOptions;
use crate::inject::request::{InjectionRequest, PROXY_CONTAINER, items, text_of};
use crate::revision::{DEFAULT_REVISION, REVISION};
use crate::trust::roots::SYSTEM_NAMESPACES;

pub(crate) const INJECT: &str = "sidecar.istio.io/inject";
const INJECTION: &str = "istio-injection";

/// Why a Pod stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// The Pod has its node's network, where rules would redirect the node's connections.
    HostNetwork,
    /// The Pod is for Windows.
    Windows,
    /// The namespace is one of Kubernetes itself.
    IgnoredNamespace,
    /// The Pod has a proxy.
    AlreadyInjected,
    /// The Pod's label or annotation `sidecar.istio.io/inject` says so.
    PodRefuses,
    /// A selector of `neverInjectSelector` matches the Pod.
    NeverSelected,
    /// The namespace's label `istio-injection` says so.
    NamespaceRefuses,
    /// Another control plane injects the Pod.
    OtherRevision(String),
    /// Neither the Pod nor its namespace asks for a proxy.
    NotAsked,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostNetwork => write!(f, "the Pod has its node's network (hostNetwork: true)"),
            Self::Windows => write!(f, "the Pod is for Windows"),
            Self::IgnoredNamespace => write!(f, "Pods of this namespace are never injected"),
            Self::AlreadyInjected => write!(f, "the Pod has a proxy already"),
            Self::PodRefuses => write!(f, "the Pod says {INJECT} without `true`"),
            Self::NeverSelected => write!(f, "a neverInjectSelector matches the Pod"),
            Self::NamespaceRefuses => {
                write!(f, "the namespace says {INJECTION} without `enabled`")
            }
            Self::OtherRevision(revision) => {
                write!(f, "the revision `{revision}` injects the Pod")
            }
            Self::NotAsked => write!(
                f,
                "neither the Pod nor its namespace asks for it (label {INJECTION}, {REVISION} or {INJECT})"
            ),
        }
    }
}

/// Returns why the Pod stays as it is; `None` if it gets a proxy.
pub(super) fn decide(
    request: &InjectionRequest<'_>,
    options: &InjectorOptions,
) -> Option<SkipReason> {
    let pod = request.pod;
    if let Some(labels) = request.namespace_labels
        && let Some(reason) = unselected(pod, labels, options)
    {
        return Some(reason);
    }
    if pod["spec"]["hostNetwork"] == true {
        return Some(SkipReason::HostNetwork);
    }
    if pod["spec"]["os"]["name"] == "windows" {
        return Some(SkipReason::Windows);
    }
    if SYSTEM_NAMESPACES.contains(&request.namespace) {
        return Some(SkipReason::IgnoredNamespace);
    }
    if is_injected(pod) {
        return Some(SkipReason::AlreadyInjected);
    }
    by_policy(pod, options)
}

/// What the selectors of Istio's webhooks decide: those for namespaces and Pods of a revision, and, for the default revision,
/// those for `istio-injection` and `sidecar.istio.io/inject`.
fn unselected(
    pod: &Value,
    namespace: &BTreeMap<String, String>,
    options: &InjectorOptions,
) -> Option<SkipReason> {
    let label = text_of(pod, "labels", INJECT);
    if label == Some("false") {
        return Some(SkipReason::PodRefuses);
    }
    let other = |revision: &str| {
        let is_ours = options.answers_for(revision);
        (!is_ours).then(|| SkipReason::OtherRevision(revision.to_owned()))
    };
    match namespace.get(INJECTION).map(String::as_str) {
        Some("enabled") => return other(DEFAULT_REVISION),
        Some(_) => return Some(SkipReason::NamespaceRefuses),
        None => {}
    }
    if let Some(revision) = namespace.get(REVISION) {
        return other(revision);
    }
    if let Some(revision) = text_of(pod, "labels", REVISION) {
        return other(revision);
    }
    match label {
        Some("true") => other(DEFAULT_REVISION),
        _ => Some(SkipReason::NotAsked),
    }
}

/// Returns true if the record of an injection and its container are there. A copied annotation alone is no proxy.
fn is_injected(pod: &Value) -> bool {
    let spec = &pod["spec"];
    let mut all = items(spec, "initContainers").chain(items(spec, "containers"));
    let status = text_of(pod, "annotations", super::metadata::STATUS);
    let is_recorded = status.is_some_and(|status| status.contains(PROXY_CONTAINER));
    is_recorded && all.any(|container| container["name"] == PROXY_CONTAINER)
}

/// What Istio's injector decides about a Pod that a webhook was asked about.
fn by_policy(pod: &Value, options: &InjectorOptions) -> Option<SkipReason> {
    let label = text_of(pod, "labels", INJECT);
    let word = label.or_else(|| text_of(pod, "annotations", INJECT));
    let word = word.unwrap_or_default().to_lowercase();
    match word.as_str() {
        "y" | "yes" | "true" | "on" => return None,
        "" => {}
        _ => return Some(SkipReason::PodRefuses),
    }
    let labels = &pod["metadata"]["labels"];
    if options.never_inject.iter().any(|one| one.selects(labels)) {
        return Some(SkipReason::NeverSelected);
    }
    let is_wanted =
        options.inject_by_default || options.always_inject.iter().any(|one| one.selects(labels));
    (!is_wanted).then_some(SkipReason::NotAsked)
}

//! Injection of the proxy into Pods: pure functions from a Pod as JSON to the changed Pod and its JSON patch. The webhook
//! server and `voile inject` call them. The names, the rules and the resulting Pod are Istio's, with a native sidecar.
//!
//! ```text
//! Pod ──decision──▶ skipped, or: annotations ──▶ PodSettings ──▶ containers, probes, metadata ──▶ patch
//! ```

mod annotations;
mod containers;
mod decision;
mod manifest;
mod merge;
mod metadata;
mod options;
mod pod;
mod probes;
mod prometheus;
mod proxy_config;

use std::collections::BTreeMap;
use std::fmt;

use json_patch::Patch;
use serde_json::Value;
use voile_model::mesh::MeshConfig;

pub(crate) use containers::PROXY_USER;
pub(crate) use decision::INJECT;
pub use decision::SkipReason;
pub use manifest::{
    InjectedManifest, ManifestError, inject_manifest, read_manifest, write_manifest,
};
pub(crate) use metadata::{STATUS, injected_by};
pub use options::{InjectorOptions, LabelSelector};

/// Container of the proxy.
pub(crate) const PROXY_CONTAINER: &str = "istio-proxy";
/// Init container that sets the redirect rules.
pub(crate) const INIT_CONTAINER: &str = "istio-init";
/// Argument of a sidecar that others redirect connections to.
pub(crate) const CAPTURE_ARGUMENT: &str = "--capture=redirect-by-user";
/// Begins the argument with the address at which a sidecar answers DNS questions.
pub(crate) const DNS_ARGUMENT: &str = "--dns=";

/// A Pod that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct InjectionRequest<'a> {
    /// The Pod as JSON, or an object with `metadata` and `spec` of one.
    pub pod: &'a Value,
    /// Its namespace; the Pod need not have it.
    pub namespace: &'a str,
    /// Labels of its namespace. `None` if the selectors of the webhook have chosen the Pod already: then the labels of the
    /// namespace decide nothing, since a cache of them may be older than the API server's decision.
    pub namespace_labels: Option<&'a BTreeMap<String, String>>,
    /// Name of the controller that owns the Pod, where its owner references do not say it (`voile inject`).
    pub workload: Option<&'a str>,
    /// Cluster and network that the webhook's path names; they replace those of the options.
    pub path_settings: &'a PathSettings,
}

/// Settings in the path of a webhook: `/inject/cluster/NAME/net/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathSettings {
    /// Name of the cluster.
    pub cluster: Option<String>,
    /// Name of the network.
    pub network: Option<String>,
    /// Further variables of the proxy.
    pub variables: BTreeMap<String, String>,
}

impl PathSettings {
    /// Reads the path of a request. A `/` in a value is written `--slash--`, as in Istio. A last key without a value is
    /// ignored.
    #[must_use]
    pub fn parse(path: &str) -> Self {
        let mut read = Self::default();
        let rest = path.strip_prefix("/inject").unwrap_or_default();
        let mut words = rest.trim_matches('/').split('/');
        while let (Some(key), Some(value)) = (words.next(), words.next()) {
            let value = value.replace("--slash--", "/");
            match key {
                "cluster" => read.cluster = Some(value),
                "net" => read.network = Some(value),
                "" => {}
                _ => drop(read.variables.insert(key.to_uppercase(), value)),
            }
        }
        read
    }
}

/// What becomes of a Pod.
#[derive(Debug, Clone, PartialEq)]
pub enum InjectionOutcome {
    /// The Pod stays as it is.
    Skipped(SkipReason),
    /// The Pod gets a proxy.
    Injected(Box<InjectedPod>),
}

/// A Pod with a proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct InjectedPod {
    /// The whole Pod.
    pub pod: Value,
    /// The difference to the Pod of the request.
    pub patch: Patch,
    /// Sentences about annotations without effect and about dangers, for the person who creates the Pod.
    pub warnings: Vec<String>,
}

/// Why a Pod cannot be injected; it must not be created without its proxy. Each fault is a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InjectionError(pub Vec<String>);

impl fmt::Display for InjectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.join("; "))
    }
}

/// Decides about a Pod, and gives it a proxy.
///
/// # Errors
/// When the Pod asks for a proxy in words that cannot be obeyed.
pub fn inject(
    request: &InjectionRequest<'_>,
    options: &InjectorOptions,
    mesh: &MeshConfig,
) -> Result<InjectionOutcome, InjectionError> {
    if let Some(reason) = decision::decide(request, options) {
        return Ok(InjectionOutcome::Skipped(reason));
    }
    let mut faults = Vec::new();
    if !request.pod["spec"]["containers"].is_array() {
        faults.push("the object has no `spec.containers`: it is no Pod".to_owned());
        return Err(InjectionError(faults));
    }
    let (settings, mut warnings) = annotations::read(request, options, mesh, &mut faults);
    if !faults.is_empty() {
        return Err(InjectionError(faults));
    }
    let mut pod = request.pod.clone();
    pod::inject(&mut pod, request, &settings, options, &mut warnings);
    let patch = json_patch::diff(request.pod, &pod);
    Ok(InjectionOutcome::Injected(Box::new(InjectedPod {
        pod,
        patch,
        warnings,
    })))
}

/// The text of a label or annotation of the Pod.
fn text_of<'a>(pod: &'a Value, group: &str, key: &str) -> Option<&'a str> {
    pod["metadata"][group][key].as_str()
}

/// The elements of a list; none if the field is not there.
fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

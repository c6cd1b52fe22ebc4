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
pub(crate) mod request;

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
pub use request::{InjectionRequest, PathSettings};

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

//! Everything that one Envoy needs to stand for one workload: listeners, routes, clusters and endpoints by name, as its discovery
//! services give them, and what of the mesh could not be said.

pub(crate) mod cluster;
mod inbound;
mod manager;
pub(crate) mod names;
mod outbound;
mod security;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use voile_model::mesh::{KeySource, Mesh, RequestAuthentication, TokenRule, Workload};

use crate::limit::{Limit, LimitName};
pub(crate) use cluster::Target;
pub use tls::{IDENTITY, ROOT, identity_secret, root_secret};

/// How long the first bytes may take where the mesh does not say; Istio's own default waits for ever and hangs protocols whose
/// server speaks first.
const DETECTION_TIMEOUT: Duration = Duration::from_millis(100);

/// How connections get to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capture {
    /// Clients connect to listeners of the Sidecar resource.
    None,
    /// The kernel redirects them, by Istio's rules.
    Redirect,
}

/// Who knows the keys of token issuers.
pub trait Keys {
    /// A rule's key set (JSON); none where nobody knows it.
    fn of(&self, resource: &RequestAuthentication, rule: &TokenRule) -> Option<Arc<str>>;
}

/// Only those that are written into the resources.
#[derive(Debug, Clone, Copy, Default)]
pub struct WrittenKeys;

impl Keys for WrittenKeys {
    fn of(&self, _: &RequestAuthentication, rule: &TokenRule) -> Option<Arc<str>> {
        match &rule.keys {
            KeySource::Inline(keys) => Some(keys.clone()),
            KeySource::Uri(_) | KeySource::Discovery => None,
        }
    }
}

/// What an Envoy is told, each by its name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    /// Listeners.
    pub listeners: BTreeMap<String, Value>,
    /// Route configurations.
    pub routes: BTreeMap<String, Value>,
    /// Clusters.
    pub clusters: BTreeMap<String, Value>,
    /// Cluster load assignments.
    pub endpoints: BTreeMap<String, Value>,
    /// What could not be said.
    pub limits: BTreeSet<Limit>,
}

pub(crate) type Made = Configuration;

impl Configuration {
    fn limit(&mut self, name: LimitName, about: impl fmt::Display, why: &str) {
        self.limits.insert(Limit::new(name, about, why));
    }
}

/// What the Envoy beside a workload is told.
#[must_use]
pub fn translate(
    mesh: &Mesh,
    workload: &Workload,
    capture: Capture,
    keys: &dyn Keys,
) -> Configuration {
    let mut made = Made::default();
    let security = security::of(mesh, workload, keys, &mut made.limits);
    if let Some(asked) = &security.asked {
        made.clusters.extend(asked.clusters(mesh, &mut made.limits));
        let target = Target::new(mesh, &asked.service, &asked.port);
        made.endpoints
            .extend(target.and_then(|target| target.endpoints()));
    }
    inbound::translate(mesh, workload, capture, &security, &mut made);
    outbound::translate(mesh, workload, capture, &mut made);
    untranslated(mesh, workload, &mut made);
    made
}

/// What is said of a workload's proxy that stock Envoy has no words for, or that is not translated.
fn untranslated(mesh: &Mesh, workload: &Workload, made: &mut Made) {
    let about = format!("workload {}", workload.key);
    for telemetry in mesh.telemetry_for(workload) {
        let why = "metrics, spans and access logs of Telemetry resources are not translated; the mesh's own access log is";
        made.limit(
            LimitName::Telemetry,
            format!("Telemetry {}", telemetry.name),
            why,
        );
    }
    if !mesh.config.default_providers.tracing.is_empty() {
        made.limit(
            LimitName::Telemetry,
            "MeshConfig defaultProviders.tracing",
            "spans are not translated",
        );
    }
    if mesh.config.proxy.keeps_source {
        let why =
            "applications see the proxy's address, not their client's (interceptionMode TPROXY)";
        made.limit(LimitName::KeepsSource, &about, why);
    }
    if workload.topology.proxy_protocol {
        let why =
            "PROXY headers before plaintext are not read: such connections are not understood";
        made.limit(LimitName::ProxyProtocol, &about, why);
    }
    let limits = mesh.config.proxy.limits;
    if limits != voile_model::mesh::ProxyLimits::default() {
        let why = "limits of `runtimeValues` hold for Voile's proxies alone";
        made.limit(LimitName::OwnLimits, &about, why);
    }
}

/// How long the first bytes of a connection may take before it counts as bytes.
fn detection_timeout(mesh: &Mesh) -> Duration {
    match mesh.config.protocol_detection_timeout {
        Duration::ZERO => DETECTION_TIMEOUT,
        said => said,
    }
}

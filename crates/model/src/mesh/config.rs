//! Mesh-wide settings: what the ConfigMap `istio` says, with Istio's defaults where it is silent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::names::{Labels, Namespace, ResourceName, TrustDomain};
use crate::source::Source;

/// Settings of the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// Where it was written; `None` when all of it is default.
    pub source: Option<Source>,
    /// Trust domain of our own identities.
    pub trust_domain: TrustDomain,
    /// Other trust domains whose identities count as ours.
    pub trust_domain_aliases: Vec<TrustDomain>,
    /// Namespace whose policies hold for the whole mesh.
    pub root_namespace: Namespace,
    /// Whether clients speak mutual TLS to every workload that can.
    pub enable_auto_mtls: bool,
    /// What happens to traffic for hosts nobody declared.
    pub outbound_policy: OutboundPolicy,
    /// TCP connect timeout.
    pub connect_timeout: Duration,
    /// How long detection may wait for first bytes; zero waits for ever in Istio, and is replaced by a named default in our proxy.
    pub protocol_detection_timeout: Duration,
    /// Access log of every proxy; `None` is off.
    pub access_log: Option<AccessLog>,
    /// Settings of every proxy (`defaultConfig`).
    pub proxy: ProxySettings,
    /// Providers by name; named by later resources.
    pub extension_providers: BTreeMap<Arc<str>, ExtensionProvider>,
}

impl Default for MeshConfig {
    fn default() -> Self {
        let known = "invariant: a constant valid name";
        Self {
            source: None,
            trust_domain: TrustDomain::new("cluster.local").expect(known),
            trust_domain_aliases: Vec::new(),
            root_namespace: Namespace::new("istio-system").expect(known),
            enable_auto_mtls: true,
            outbound_policy: OutboundPolicy::AllowAny,
            connect_timeout: Duration::from_secs(10),
            protocol_detection_timeout: Duration::ZERO,
            access_log: None,
            proxy: ProxySettings::default(),
            extension_providers: BTreeMap::new(),
        }
    }
}

/// What happens to traffic for hosts nobody declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutboundPolicy {
    /// It goes where it was going.
    AllowAny,
    /// It is refused.
    RegistryOnly,
}

/// Where the access log goes and how it looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// `/dev/stdout` or a file.
    pub path: Arc<str>,
    /// How it looks.
    pub encoding: AccessLogEncoding,
}

/// How the access log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessLogEncoding {
    /// One line of text a request.
    Text,
    /// One JSON object a line.
    Json,
}

/// Settings of one proxy or of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    /// Worker threads; `None` leaves the choice to the proxy.
    pub concurrency: Option<u32>,
    /// How long old listeners drain after a change.
    pub drain_duration: Duration,
    /// How long connections drain at termination.
    pub termination_drain_duration: Duration,
    /// Whether the application waits for its proxy.
    pub hold_application_until_proxy_starts: bool,
    /// `host:port` of the control plane, if set.
    pub discovery_address: Option<Arc<str>>,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            concurrency: None,
            drain_duration: Duration::from_secs(45),
            termination_drain_duration: Duration::from_secs(5),
            hold_application_until_proxy_starts: false,
            discovery_address: None,
        }
    }
}

/// A named provider (authorization, tracing, access logs): parsed so that mistakes show, used by later resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionProvider {
    /// Its name.
    pub name: Arc<str>,
    /// Istio's field that says what it is, such as `envoyExtAuthzHttp`.
    pub kind: Arc<str>,
    /// Where it was written.
    pub source: Source,
}

/// Istio's ProxyConfig resource: settings for the proxies it selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
    /// Worker threads.
    pub concurrency: Option<u32>,
    /// Extra environment of the proxy.
    pub environment: BTreeMap<Arc<str>, Arc<str>>,
}

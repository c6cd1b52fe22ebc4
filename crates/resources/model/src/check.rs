//! From text to mesh: `check` is the one entry point. A bad resource is left out by name and never hides the good ones;
//! when it was good before, its last good version stays.
//!
//! ```text
//! files ─▶ documents ─▶ (read, check) per kind ─▶ resources by identity ─▶ last good of the bad ─▶ assemble ─▶ Mesh
//! ```

mod capture;
mod config;
#[cfg(test)]
mod definitions;
mod loading;
mod policies;
mod routing;
mod telemetry;
mod workloads;

use loading::{
    assemble, beside, checker, document, header, istio_metadata, kinds, last_good, merge,
    read_files, values,
};

use workloads::{controller, endpoint_slice, kubernetes, networking, pod, probe, slices, topology};

use routing::{
    destination, gateway_api, health_check, intents, service_entry, sidecar, traffic_policy,
    virtual_service, workload_group,
};

use policies::{
    authorization, fail_closed, peer_authentication, rate_limit, request_authentication,
};

pub use beside::{check_beside, diagnose};
pub use capture::{PREFIX as CAPTURE_PREFIX, capture_scope};
pub use checker::{CheckOutcome, Checker, MeshPatch, Patch, ResourceReach, Turn};
pub use istio_metadata::{INJECTED, MetadataEffect, is_boolean, is_quantity, metadata_effect};
pub use kinds::{ResourceKind, ResourceScope, kinds, unsupported_kinds};
pub use networking::{GROUP, HEALTH_CHECKED, canonical_name, canonical_revision};
pub use pod::{DATAPLANE_MODE, REDIRECTION, asks_for_node_proxy};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::mesh::Mesh;
use crate::mesh::gateway_api as api;
use crate::mesh::routing_intent::{Gateway, RoutingIntent};
use crate::mesh::{
    AuthorizationPolicy, ConfigMap, Deployment, DestinationRule, EndpointSlice, HealthCheck,
    MeshConfig, MeshService, NamespaceResource, PeerAuthentication, Pod, ProxyConfig, RateLimit,
    RequestAuthentication, Secret, ServiceAccount, Sidecar, Telemetry, VirtualService, Workload,
    WorkloadGroup,
};
use crate::names::{Namespace, ResourceName};
use crate::source::{Source, SourceFile};

/// Identity of a resource, under which its last good version is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ResourceId {
    pub(crate) kind: &'static str,
    /// `None` for what belongs to the whole cluster.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) name: Arc<str>,
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// A resource that is valid by itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CheckedResource {
    Namespace(Arc<NamespaceResource>),
    ServiceAccount(Arc<ServiceAccount>),
    /// A Kubernetes Service, or a ServiceEntry: one service for each host, and a workload for each endpoint.
    Services(Vec<Arc<MeshService>>, Vec<Arc<Workload>>),
    /// An EndpointSlice, or an Endpoints.
    EndpointSlice(Arc<EndpointSlice>),
    /// An IPAddress that a cluster gave to a Service without an address of its own.
    IpAddress(Arc<GivenAddress>),
    /// A WorkloadEntry.
    Workload(Arc<Workload>),
    Pod(Arc<Pod>),
    Deployment(Arc<Deployment>),
    Sidecar(Arc<Sidecar>),
    PeerAuthentication(Arc<PeerAuthentication>),
    AuthorizationPolicy(Arc<AuthorizationPolicy>),
    RequestAuthentication(Arc<RequestAuthentication>),
    DestinationRule(Arc<DestinationRule>),
    VirtualService(Arc<VirtualService>),
    Gateway(Arc<Gateway>),
    Telemetry(Arc<Telemetry>),
    RateLimit(Arc<RateLimit>),
    HealthCheck(Arc<HealthCheck>),
    MeshConfig(Arc<MeshConfig>),
    ConfigMap(Arc<ConfigMap>),
    ProxyConfig(Arc<ProxyConfig>),
    Secret(Arc<Secret>),
    WorkloadGroup(Arc<WorkloadGroup>),
    GatewayClass(Arc<api::GatewayClass>),
    /// Gateway API's Gateway.
    ApiGateway(Arc<api::Gateway>),
    ListenerSet(Arc<api::ListenerSet>),
    /// A route of any kind.
    ApiRoute(Arc<api::GatewayApiRoute>),
    /// A BackendTLSPolicy.
    BackendTls(Arc<api::BackendTls>),
    /// A ReferenceGrant.
    Grant(Arc<api::ReferenceGrant>),
}

/// An address that was given to a Service.
#[derive(Debug, PartialEq)]
pub(crate) struct GivenAddress {
    pub(crate) address: IpAddr,
    pub(crate) service: ResourceName,
}

/// A good resource and the place of its document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredResource {
    pub(crate) source: Source,
    /// True if it sets its own exports.
    pub(crate) says_exports: bool,
    pub(crate) checked: CheckedResource,
}

/// Every good resource by identity, from which the mesh is put together.
pub(crate) type Resources = BTreeMap<ResourceId, StoredResource>;

/// Checks all files together. With `previous`, a resource that was good there and is bad now keeps its last good version.
pub fn check(sources: &[SourceFile], previous: Option<&Mesh>) -> (Mesh, Vec<Diagnostic>) {
    let files: Vec<Arc<SourceFile>> = sources.iter().cloned().map(Arc::new).collect();
    Checker::default().fresh(&files, previous)
}

/// The result of parsing all files.
#[derive(Debug, Default)]
pub(crate) struct ReadFiles {
    good: Resources,
    /// Resources that are there and bad, with the place of their document.
    bad: BTreeMap<ResourceId, Source>,
    /// Resources that are not yet in force.
    intents: Vec<RoutingIntent>,
    /// Documents that cannot be told by name, by file.
    lost: BTreeMap<Arc<str>, Vec<LostDocument>>,
    /// Security kinds of which a document may be that cannot be told by kind, with one such document each.
    may_be: BTreeMap<&'static str, Source>,
    /// Those documents of ours, with the kinds that each may be.
    unknown: BTreeMap<Source, BTreeSet<&'static str>>,
    /// Security resources among the bad ones, with their targets.
    broken: BTreeMap<ResourceId, StoredResource>,
    diagnostics: Vec<Diagnostic>,
}

impl ReadFiles {
    fn add_good(&mut self, id: ResourceId, stored: StoredResource) {
        if let Some(first) = self.good.get(&id) {
            let message = format!(
                "{id} is declared a second time; the first is in {}",
                first.source
            );
            let help = "remove one of the two, or give it another name";
            self.diagnostics
                .push(Diagnostic::error(codes::DECLARED_TWICE, stored.source, message).help(help));
        } else {
            self.good.insert(id, stored);
        }
    }

    fn add_lost(&mut self, lost: LostDocument) {
        let of_file = self.lost.entry(lost.source.file.clone()).or_default();
        match of_file.len() < MAX_LOST_PER_FILE {
            true => of_file.push(lost),
            // From here on one stands for all: it may be any of the file.
            false => of_file[0] = LostDocument::unknown(lost.source),
        }
    }

    /// A document may be a resource of these kinds, and says no more of itself.
    fn add_may_be(&mut self, kinds: impl IntoIterator<Item = &'static str>, source: &Source) {
        for kind in kinds {
            self.add_perhaps([kind], source);
            self.unknown.entry(source.clone()).or_default().insert(kind);
        }
    }

    /// A document may be a resource of these kinds, or none at all, such as a template.
    fn add_perhaps(&mut self, kinds: impl IntoIterator<Item = &'static str>, source: &Source) {
        for kind in kinds {
            self.may_be.entry(kind).or_insert_with(|| source.clone());
        }
    }

    /// Errors of documents that may be any resource of a security kind, for which no earlier version is known.
    fn never_read(&self) -> impl Iterator<Item = Diagnostic> {
        self.unknown.iter().map(|(source, kinds)| {
            let kinds: Vec<&str> = kinds.iter().copied().collect();
            let message = format!(
                "this document may be {}, cannot be read, and has no earlier version: a mesh does not start with it",
                kinds.join(" or ")
            );
            Diagnostic::error(codes::NEVER_READ, source.clone(), message)
                .help("correct it, or move it out of the folder")
        })
    }
}

/// Most documents of a file that are told apart though they have lost their names: each resource that is missing is compared with each.
const MAX_LOST_PER_FILE: usize = 64;

/// A document without a readable name: its kind and name, as far as readable.
#[derive(Debug, Clone)]
pub(crate) struct LostDocument {
    source: Source,
    kind: Option<&'static str>,
    called: values::DocumentName,
}

impl LostDocument {
    /// One of which nothing can be read.
    fn unknown(source: Source) -> Self {
        Self {
            source,
            kind: None,
            called: values::DocumentName::default(),
        }
    }

    /// Returns true if the document may be a resource that was in its file before.
    fn may_be(&self, id: &ResourceId) -> bool {
        let Self { kind, called, .. } = self;
        let namespace = called.namespace.as_ref().zip(id.namespace.as_ref());
        kind.is_none_or(|kind| kind == id.kind)
            && called.name.as_ref().is_none_or(|name| *name == id.name)
            && namespace.is_none_or(|(one, other)| one == other)
    }
}

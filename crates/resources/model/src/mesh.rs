//! The checked mesh. Every resource in it is valid by itself and has its location in the source files. Checks across
//! resources belong to `voile-analysis`.

pub mod config;
mod routing;
mod security;
pub mod telemetry;
mod workloads;

pub use workloads::{
    capture, endpoint_slice, health_check, network, service, workload, workload_group,
};
use workloads::{probe, relations};

pub use routing::{action, gateway_api, routing_intent, sidecar, traffic, waypoint};
use routing::{delegate, destination, gateway_ingress, route};

pub use security::{authorization, peer_authentication, rate_limit, request_authentication};

use std::collections::BTreeMap;
use std::sync::Arc;

pub use authorization::AuthorizationPolicy;
pub use capture::{CaptureScope, CaptureSelection};
pub use config::{
    AccessLog, AlsProvider, BodyInCheck, DEFAULT_RETRIES, DefaultExports, DefaultProviders,
    Exports, ExtAuthzProvider, ExtAuthzTransport, ExtensionProvider, FileLogProvider,
    HttpAuthorizer, MAX_BODY_IN_CHECK, MeshConfig, OpenTelemetryProvider, OtlpTransport,
    OutboundPolicy, PathNormalization, Provider, ProviderHeader, ProviderService, ProxyConfig,
    ProxyLimits, ProxySettings, ProxyTracing, RetrySettings,
};
pub use destination::{
    DestinationRule, DestinationRules, PolicyLevel, RuleClient, Subset, TrafficPolicy,
};
pub use endpoint_slice::{
    EndpointSlice, EndpointSlices, EndpointStanding, EndpointSubset, Readiness, SliceEndpoint,
    SliceKind, SlicePort,
};
pub(crate) use gateway_ingress::trusted;
pub use gateway_ingress::{HostRouting, TrustedCertificates, believed, certificate, gateway_name};
pub use health_check::HealthCheck;
pub use peer_authentication::{MutualTlsMode, PeerAuthentication, PortMode};
pub use probe::{Probe, ProbeAction, Probes};
pub use rate_limit::RateLimit;
pub use relations::{POD_LABEL, ReachableService, ServiceWorkload, WorkloadService};
pub use request_authentication::{
    ClaimOutput, HeaderPlace, KeySource, RequestAuthentication, TokenRule, UNREADABLE_KEYS,
    token_rules,
};
pub use route::{
    CLAIMS, Criteria, Criterion, Delegate, HttpMatch, HttpRoute, LayerFourRoute, MESH,
    RouteAttachment, RouteDestination, RouteDestinationKind, Routing, ServicesByHost, Subject,
    TextMatch, VirtualService, WeightedDestination, claim, holding,
};
pub use service::{
    AddressRange, EndpointAddress, Location, MeshService, Protocol, Resolution,
    ServiceEntryEndpoint, ServiceOrigin, ServicePort, TargetPort, TrafficDistribution, Transport,
    Visibility,
};
pub use sidecar::{
    CaptureMode, DefaultEndpoint, EgressHost, EgressListener, EgressNamespace, EndpointHost,
    IngressListener, ListenerPort, Sidecar,
};
pub use telemetry::Telemetry;
pub use traffic::{ConnectionPool, LoadBalancer, OutlierDetection, PortTraffic};
pub use workload::{
    ClientCertificateDetails, Container, ContainerPort, ControllerKind, CountOrPercent, Deployment,
    EnvFrom, EnvValue, ForwardClientCertificate, Forwards, Pod, PodNumbering, PodPhase,
    PodTemplate, Restart, SecurityContext, Strategy, TEMPLATES, Topology, Workload, WorkloadKind,
    WorkloadType,
};
pub use workload_group::{HealthProbe, WorkloadGroup};

use crate::names::{Labels, Namespace, ResourceName, ServiceKey, WorkloadKey};
use crate::source::Source;

/// Everything a configuration folder says. Cheap to clone; equal folders make equal meshes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mesh {
    /// Mesh-wide settings.
    pub config: Arc<MeshConfig>,
    /// Declared namespaces. Resources may live in others.
    pub namespaces: BTreeMap<Namespace, Arc<NamespaceResource>>,
    /// Declared service accounts.
    pub service_accounts: BTreeMap<ResourceName, Arc<ServiceAccount>>,
    /// Services, from Kubernetes Services and ServiceEntries.
    pub services: BTreeMap<ServiceKey, Arc<MeshService>>,
    /// Workloads, from Pods with an address, WorkloadEntries, endpoints of ServiceEntries, and endpoints of
    /// EndpointSlices at addresses without another workload.
    pub workloads: BTreeMap<WorkloadKey, Arc<Workload>>,
    /// EndpointSlices, and Endpoints.
    pub endpoint_slices: EndpointSlices,
    /// Pods as declared, with or without an address.
    pub pods: BTreeMap<ResourceName, Arc<Pod>>,
    /// Deployments and other controllers of Pods, by `Deployment::key`.
    pub deployments: BTreeMap<ResourceName, Arc<Deployment>>,
    /// Sidecar resources.
    pub sidecars: BTreeMap<ResourceName, Arc<Sidecar>>,
    /// PeerAuthentications, oldest first (creation time, then the order of the documents).
    pub peer_authentications: Vec<Arc<PeerAuthentication>>,
    /// AuthorizationPolicies.
    pub authorization_policies: BTreeMap<ResourceName, Arc<AuthorizationPolicy>>,
    /// RequestAuthentications, oldest first (creation time, then the order of the documents).
    pub request_authentications: Vec<Arc<RequestAuthentication>>,
    /// DestinationRules, oldest first (creation time, then the order of the documents).
    pub destination_rules: DestinationRules,
    /// VirtualServices, for the proxies of the mesh and for gateways, oldest first (creation time, then the order of the documents).
    pub virtual_services: Vec<Arc<VirtualService>>,
    /// Istio's Gateways, oldest first (creation time, then the order of the documents).
    pub gateways: Vec<Arc<routing_intent::Gateway>>,
    /// Telemetry resources, oldest first (creation time, then the order of the documents).
    pub telemetries: Vec<Arc<Telemetry>>,
    /// RateLimits.
    pub rate_limits: BTreeMap<ResourceName, Arc<RateLimit>>,
    /// HealthChecks.
    pub health_checks: BTreeMap<ResourceName, Arc<HealthCheck>>,
    /// ProxyConfig resources.
    pub proxy_configs: BTreeMap<ResourceName, Arc<ProxyConfig>>,
    /// WorkloadGroups: templates for workloads that join by themselves.
    pub workload_groups: BTreeMap<ResourceName, Arc<WorkloadGroup>>,
    /// Secrets.
    pub secrets: BTreeMap<ResourceName, Arc<Secret>>,
    /// ConfigMaps other than the mesh configuration.
    pub config_maps: BTreeMap<ResourceName, Arc<ConfigMap>>,
    /// Gateway API's resources. The parts in force are also among Gateways, VirtualServices, Deployments and Services.
    pub gateway_api: gateway_api::GatewayApi,
    /// Routes, gateways and destinations as written, in force or not.
    pub intents: routing_intent::RoutingIntents,
    pub(crate) resources: crate::check::Resources,
}

/// A declared namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceResource {
    /// Its name.
    pub name: Namespace,
    /// Its labels.
    pub labels: Labels,
    /// File and line of its definition.
    pub source: Source,
}

/// A declared service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
}

/// A Secret. `Debug` hides its data.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Its name.
    pub name: ResourceName,
    /// Its type, such as `kubernetes.io/tls`.
    pub kind: Arc<str>,
    /// Its decoded entries.
    pub data: BTreeMap<Arc<str>, Arc<[u8]>>,
    /// File and line of its definition.
    pub source: Source,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.name)
            .field("keys", &self.data.keys())
            .finish_non_exhaustive()
    }
}

/// A ConfigMap, kept as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMap {
    /// Its name.
    pub name: ResourceName,
    /// Its entries.
    pub data: BTreeMap<Arc<str>, Arc<str>>,
    /// File and line of its definition.
    pub source: Source,
}

//! Mesh-wide settings: the ConfigMap `istio`, with Istio's defaults for unset fields.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use voile_traffic::{DEFAULT_RETRIES, RetrySettings};

use super::authorization::StringMatch;
use super::service::Visibility;
use super::traffic::LocalitySetting;
use super::workload::Forwards;
use crate::logs::log_format::LogFormat;
use crate::mesh::telemetry::{CustomTag, SamplingShare};
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName, TrustDomain};
use crate::source::Source;

/// Settings of the whole mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// File and line of its definition; `None` if everything is default.
    pub source: Option<Source>,
    /// Trust domain of our own identities.
    pub trust_domain: TrustDomain,
    /// Other trust domains whose identities belong to this mesh.
    pub trust_domain_aliases: Vec<TrustDomain>,
    /// Namespace whose policies hold for the whole mesh.
    pub root_namespace: Namespace,
    /// True if clients speak mutual TLS to every workload that can.
    pub enable_auto_mtls: bool,
    /// True if proxies serve the metrics of their applications, too (`enablePrometheusMerge`).
    pub merges_metrics: bool,
    /// Policy for traffic to undeclared hosts.
    pub outbound_policy: OutboundPolicy,
    /// TCP connect timeout.
    pub connect_timeout: Duration,
    /// Time limit for the first bytes in protocol detection. Zero waits forever in Istio; our proxy replaces it by a
    /// named default.
    pub protocol_detection_timeout: Duration,
    /// True if HTTP/1.1 is carried as HTTP/2 between sidecars (`h2UpgradePolicy`).
    pub http2_upgrade: bool,
    /// Retries of requests without a more specific policy (`defaultHttpRetryPolicy`); `None` is the proxy's default.
    pub default_retry: Option<RetrySettings>,
    /// Access log of every proxy for which no Telemetry says otherwise; `None` is off.
    pub access_log: Option<AccessLog>,
    /// Format of log lines if the provider sets none (`accessLogFormat`, `accessLogEncoding`).
    pub access_log_format: LogFormat,
    /// True if proxies make spans.
    pub enable_tracing: bool,
    /// Providers where no Telemetry names one.
    pub default_providers: DefaultProviders,
    /// Settings of every proxy (`defaultConfig`).
    pub proxy: ProxySettings,
    /// Normalisation of paths before policies compare them (`pathNormalization`).
    pub path_normalization: PathNormalization,
    /// Providers by name; named by later resources.
    pub extension_providers: BTreeMap<Arc<str>, ExtensionProvider>,
    /// Preference of near endpoints if no DestinationRule sets it (`localityLbSetting`).
    pub locality: Option<LocalitySetting>,
    /// Default exports of resources (`defaultServiceExportTo` and the like).
    pub default_exports: DefaultExports,
}

/// Default exports of resources that set no `exportTo`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefaultExports {
    /// Services and ServiceEntries.
    pub services: Exports,
    /// VirtualServices.
    pub virtual_services: Exports,
    /// DestinationRules.
    pub destination_rules: Exports,
}

/// Namespaces that a resource is exported to, independent of its own namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Exports {
    /// Every namespace.
    #[default]
    All,
    /// These.
    Some {
        /// Its own namespace.
        own: bool,
        /// And others.
        namespaces: Vec<Namespace>,
    },
}

impl Exports {
    /// The visibility of a resource in `namespace`; `None` is every namespace.
    #[must_use]
    pub fn of(&self, namespace: &Namespace) -> Option<Visibility> {
        let Self::Some { own, namespaces } = self else {
            return None;
        };
        let own = own.then(|| namespace.clone());
        let mut all: Vec<Namespace> = own.into_iter().chain(namespaces.iter().cloned()).collect();
        all.sort_unstable();
        all.dedup();
        Some(Visibility::Namespaces(all))
    }
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
            merges_metrics: true,
            outbound_policy: OutboundPolicy::AllowAny,
            connect_timeout: Duration::from_secs(10),
            protocol_detection_timeout: Duration::ZERO,
            http2_upgrade: false,
            default_retry: None,
            access_log: None,
            access_log_format: LogFormat::default_text(),
            enable_tracing: true,
            default_providers: DefaultProviders::default(),
            proxy: ProxySettings::default(),
            path_normalization: PathNormalization::Base,
            extension_providers: BTreeMap::new(),
            locality: None,
            default_exports: DefaultExports::default(),
        }
    }
}

/// Normalisation of a request's path, for policies and for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PathNormalization {
    /// As it came.
    None,
    /// RFC 3986: no `.` and `..`, unreserved characters decoded, `\` is `/`.
    #[default]
    Base,
    /// That, and several `/` are one.
    MergeSlashes,
    /// Before that, `%2F` and `%5C` are decoded.
    DecodeAndMergeSlashes,
}

/// Policy for traffic to undeclared hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutboundPolicy {
    /// It goes where it was going.
    AllowAny,
    /// It is refused.
    RegistryOnly,
}

/// Destination and format of the access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// `/dev/stdout` or a file.
    pub path: Arc<str>,
    /// Its format.
    pub format: LogFormat,
}

/// `defaultProviders`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefaultProviders {
    /// Of spans; the first counts.
    pub tracing: Vec<Arc<str>>,
    /// Of metrics.
    pub metrics: Vec<Arc<str>>,
    /// Of access logs.
    pub access_logging: Vec<Arc<str>>,
}

/// `defaultConfig.tracing`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyTracing {
    /// Share of requests that are traced where no Telemetry says otherwise.
    pub sampling: Option<SamplingShare>,
    /// Longest path in a span, in bytes.
    pub max_path_tag_length: Option<u32>,
    /// Tags of every span.
    pub custom_tags: BTreeMap<Arc<str>, CustomTag>,
    /// True if spans carry Istio's own tags.
    pub istio_tags: Option<bool>,
}

/// Settings of one proxy or of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    /// Worker threads; `None` leaves the choice to the proxy.
    pub concurrency: Option<u32>,
    /// Drain time of connections at termination.
    pub termination_drain_duration: Duration,
    /// True if the application starts after its proxy.
    pub hold_application_until_proxy_starts: bool,
    /// `host:port` of the control plane, if set.
    pub discovery_address: Option<Arc<str>>,
    /// Spans.
    pub tracing: ProxyTracing,
    /// Limits of a proxy (`runtimeValues`).
    pub limits: ProxyLimits,
    /// `interceptionMode: TPROXY`: applications see their clients' addresses, unless their Pod says otherwise.
    pub keeps_source: bool,
    /// Number of trusted proxies in front of a proxy; their entries in `x-forwarded-for` are trusted
    /// (`gatewayTopology.numTrustedProxies`).
    pub trusted_proxies: u32,
    /// True if each connection to a gateway begins with a PROXY header that names the client
    /// (`gatewayTopology.proxyProtocol`).
    pub proxy_protocol: bool,
    /// Treatment of `x-forwarded-client-cert`, unless a Pod sets its own.
    pub forwards: Forwards,
}

/// Limits of a proxy, and the time for which it follows an unused service; `None` leaves the choice to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProxyLimits {
    /// Downstream connections.
    pub connections: Option<u32>,
    /// Requests in flight, of all clients to all destinations.
    pub requests: Option<u32>,
    /// Requests in flight to one port of one service.
    pub requests_per_destination: Option<u32>,
    /// Resident memory, in bytes.
    pub memory: Option<u64>,
    /// Time for which the proxy follows a service that is no longer used.
    pub service_idle: Option<Duration>,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            concurrency: None,
            termination_drain_duration: Duration::from_secs(5),
            hold_application_until_proxy_starts: false,
            discovery_address: None,
            tracing: ProxyTracing::default(),
            limits: ProxyLimits::default(),
            keeps_source: false,
            trusted_proxies: 0,
            proxy_protocol: false,
            forwards: Forwards::default(),
        }
    }
}

/// A named provider (authorization, tracing, access logs): parsed so that mistakes show, used by later resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionProvider {
    /// Its name.
    pub name: Arc<str>,
    /// Istio's field for the kind of provider, such as `envoyExtAuthzHttp`.
    pub kind: Arc<str>,
    /// Settings of the provider.
    pub provider: Provider,
    /// File and line of its definition.
    pub source: Source,
}

/// A provider's kind and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// `envoyFileAccessLog`.
    File(FileLogProvider),
    /// `envoyHttpAls`: requests, to a gRPC service.
    HttpAls(AlsProvider),
    /// `envoyTcpAls`: opaque connections, to a gRPC service.
    TcpAls(AlsProvider),
    /// `opentelemetry`: spans.
    OpenTelemetry(OpenTelemetryProvider),
    /// `prometheus`: metrics, which are scraped.
    Prometheus,
    /// `envoyExtAuthzHttp` and `envoyExtAuthzGrpc`: decides about requests.
    ExtAuthz(ExtAuthzProvider),
    /// A provider that Voile cannot use.
    Other,
}

/// A file of access logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLogProvider {
    /// `/dev/stdout` or a file.
    pub path: Arc<str>,
    /// Format of the lines; `None` is the mesh's.
    pub format: Option<LogFormat>,
    /// True if missing values are left out and not written as `-` or `null`.
    pub omit_empty: bool,
}

/// A service of the mesh that takes telemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderService {
    /// Namespace that declares the service; `None` is any.
    pub namespace: Option<Namespace>,
    /// Its name.
    pub host: Hostname,
    /// Its port.
    pub port: Port,
}

/// A gRPC access log service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlsProvider {
    /// The receiving service.
    pub service: ProviderService,
    /// `log_name` of the stream.
    pub log_name: Arc<str>,
    /// Request headers sent along, in lower case.
    pub request_headers: Vec<Arc<str>>,
    /// Response headers sent along, in lower case.
    pub response_headers: Vec<Arc<str>>,
    /// Response trailers sent along, in lower case.
    pub response_trailers: Vec<Arc<str>>,
}

/// An external service that decides about requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtAuthzProvider {
    /// The service to ask.
    pub service: ProviderService,
    /// Time limit of a check; `None` is the proxy's default.
    pub timeout: Option<Duration>,
    /// True if requests pass while the service cannot be asked.
    pub fail_open: bool,
    /// Status for clients when the service cannot be asked; `None` is 403.
    pub status_on_error: Option<u16>,
    /// Part of the request's body that the service gets; `None` is nothing.
    pub body: Option<BodyInCheck>,
    /// Protocol of the check.
    pub transport: ExtAuthzTransport,
}

/// The part of a request's body that an external service gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyInCheck {
    /// Most bytes that are held and shown; 1..=[`MAX_BODY_IN_CHECK`].
    pub max_bytes: u32,
    /// True if the service gets a part of a longer body; otherwise the request is refused.
    pub allow_partial: bool,
    /// True if gRPC carries the body as bytes, not as text.
    pub pack_as_bytes: bool,
}

/// Most bytes of a body that a proxy holds while an external service is asked: with Istio's usual 8 KiB in mind, what one
/// request may cost in memory stays far below what a proxy has.
pub const MAX_BODY_IN_CHECK: u32 = 1024 * 1024;

/// Protocol of a check by an external service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtAuthzTransport {
    /// `envoy.service.auth.v3.Authorization/Check`.
    Grpc,
    /// A request like the one that it is about.
    Http(HttpAuthorizer),
}

/// Headers in an HTTP check and in its response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpAuthorizer {
    /// Before the request's own path.
    pub path_prefix: Arc<str>,
    /// Headers of the request that it is told, besides those that it always is; in lower case.
    pub request_headers: Vec<StringMatch>,
    /// Headers that every check has, independent of the request; names in lower case.
    pub additional_headers: Vec<(Arc<str>, Arc<str>)>,
    /// Headers of its yes that the application is told.
    pub upstream_on_allow: Vec<StringMatch>,
    /// Headers of its no that the client is told.
    pub downstream_on_deny: Vec<StringMatch>,
    /// Headers of its yes that the client is told.
    pub downstream_on_allow: Vec<StringMatch>,
}

/// A header sent to a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderHeader {
    /// Its name, in lower case.
    pub name: Arc<str>,
    /// Its value.
    pub value: Arc<str>,
    /// True if the value is the name of a variable of the proxy's environment.
    pub from_environment: bool,
}

/// Transport of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtlpTransport {
    /// gRPC.
    Grpc,
    /// HTTP/1.1 with protobuf.
    Http {
        /// Path of the request.
        path: Arc<str>,
    },
}

/// A collector of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTelemetryProvider {
    /// The receiving service.
    pub service: ProviderService,
    /// Transport of the spans.
    pub transport: OtlpTransport,
    /// Time limit of one export; `None` is the proxy's default.
    pub timeout: Option<Duration>,
    /// Sent along.
    pub headers: Vec<ProviderHeader>,
    /// Longest path in a span, in bytes.
    pub max_tag_length: Option<u32>,
    /// True if `OTEL_RESOURCE_ATTRIBUTES` of the proxy's environment is part of the resource.
    pub environment_detector: bool,
}

impl MeshConfig {
    /// A provider by name, Istio's built-in ones included.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<Provider> {
        let folded = |known: &Arc<str>| known.eq_ignore_ascii_case(name);
        if let Some((_, found)) = self
            .extension_providers
            .iter()
            .find(|(known, _)| folded(known))
        {
            return Some(found.provider.clone());
        }
        match name {
            "envoy" => Some(Provider::File(FileLogProvider {
                path: "/dev/stdout".into(),
                format: None,
                omit_empty: false,
            })),
            "prometheus" => Some(Provider::Prometheus),
            _ => None,
        }
    }
}

/// Istio's ProxyConfig resource: settings for the proxies it selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
}

//! Settings of the mesh that a stock Envoy, or a stock gRPC, cannot follow. Each limit has a name that does not change, so that
//! people can look it up and programs can tell limits apart. No limit is dropped in silence.

use std::fmt;

/// Which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitName {
    /// A CUSTOM policy names a provider that is not there; what it matches is denied.
    UnknownProvider,
    /// CUSTOM policies of one workload name several providers; what they match is denied.
    SeveralProviders,
    /// A CUSTOM policy on a port that is not HTTP; what it matches is denied.
    CustomOverTcp,
    /// A CUSTOM policy in dry run: nothing is reported of it.
    CustomDryRun,
    /// Keys of a token issuer are not known here; its tokens are refused.
    KeysMissing,
    /// The client's address decides the endpoint of a passthrough service, which needs redirected connections.
    PassthroughService,
    /// Each host of a wildcard is resolved by itself.
    DynamicDns,
    /// A wildcard host has no endpoints that a resolver could be asked for.
    WildcardDns,
    /// One answer of DNS for each connection, of several names.
    DnsRoundRobin,
    /// A service has a range of addresses.
    AddressRange,
    /// A headless service that is not HTTP: its pods' addresses are not told apart from addresses outside.
    HeadlessTcp,
    /// Telemetry resources and tracing are not translated.
    Telemetry,
    /// The application is to see its client's address.
    KeepsSource,
    /// A PROXY header before plaintext alone.
    ProxyProtocol,
    /// Limits of MeshConfig's `runtimeValues`.
    OwnLimits,
    /// Two listeners at one address.
    ListenerTwice,
    /// A listener that would forward to itself.
    ForwardsToItself,
    /// A workload without an address has no listeners.
    NoAddress,
    /// A route of a VirtualService does what Envoy would do otherwise: requests that take it are refused.
    VirtualService,
    /// Destinations of one route keep requests together by different values.
    ConsistentHash,
    /// A new endpoint is to come to its share slowly, where Envoy knows no such thing.
    Warmup,
    /// Nearby endpoints come first, which is a different answer for each client.
    Locality,
    /// A RateLimit is not translated: nothing is counted.
    RateLimit,
    /// A HealthCheck is not translated: nobody is asked.
    HealthCheck,
    /// Routes of connections are not translated: they go to the service itself.
    ConnectionRoutes,
    /// TLS that a DestinationRule wants of clients is not made: the service is left out.
    TlsOrigination,
    /// A server of a Gateway that does not speak HTTP, or does not end TLS with a certificate of its own.
    GatewayServer,
    /// CORS of a route that answers by itself: Envoy asks none there.
    CorsOfAnswer,
    /// A waypoint stands before a service, and nobody is led through it: the service is left out.
    Waypoint,
    /// Endpoints on other networks are reached through gateways, and are left out.
    Network,
    /// Endpoints with a node proxy in place of a sidecar are called without a tunnel, or left out.
    Tunnel,
    /// A workload that is called by its own address is called in plaintext.
    WorkloadAddress,
    /// A gateway is to be called over UDP as well, where nobody listens.
    Http3,
    /// Load balancing works differently (gRPC).
    LoadBalancer,
    /// Nobody is put out for answering badly (gRPC).
    OutlierDetection,
    /// Bounds of connections that are not told (gRPC).
    ConnectionPool,
    /// Attempts are not bounded by what is under way (gRPC).
    RetryBudget,
    /// Attempts that are not made (gRPC).
    Retries,
    /// Endpoints take calls in turn, whatever their weights (gRPC).
    EndpointWeights,
    /// The name that clients are to ask for is not asked for (gRPC).
    ServerName,
    /// A server that is to take plaintext and mutual TLS takes mutual TLS alone (gRPC).
    Permissive,
    /// Some endpoints speak mutual TLS and some do not: those that do not are left out (gRPC).
    PlaintextEndpoints,
    /// Policies that are only reported are not (gRPC).
    Audit,
}

impl LimitName {
    /// All of them.
    pub const ALL: [Self; 43] = [
        Self::UnknownProvider,
        Self::SeveralProviders,
        Self::CustomOverTcp,
        Self::CustomDryRun,
        Self::KeysMissing,
        Self::PassthroughService,
        Self::DynamicDns,
        Self::WildcardDns,
        Self::DnsRoundRobin,
        Self::AddressRange,
        Self::HeadlessTcp,
        Self::Telemetry,
        Self::KeepsSource,
        Self::ProxyProtocol,
        Self::OwnLimits,
        Self::ListenerTwice,
        Self::ForwardsToItself,
        Self::NoAddress,
        Self::VirtualService,
        Self::ConsistentHash,
        Self::Warmup,
        Self::Locality,
        Self::RateLimit,
        Self::HealthCheck,
        Self::ConnectionRoutes,
        Self::TlsOrigination,
        Self::GatewayServer,
        Self::CorsOfAnswer,
        Self::Waypoint,
        Self::Network,
        Self::Tunnel,
        Self::WorkloadAddress,
        Self::Http3,
        Self::LoadBalancer,
        Self::OutlierDetection,
        Self::ConnectionPool,
        Self::RetryBudget,
        Self::Retries,
        Self::EndpointWeights,
        Self::ServerName,
        Self::Permissive,
        Self::PlaintextEndpoints,
        Self::Audit,
    ];

    /// Returns true if every mesh meets it whose calls are redirected and may go anywhere: it is reported, and is no reason to
    /// print nothing.
    #[must_use]
    pub fn is_usual(self) -> bool {
        self == Self::WorkloadAddress
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownProvider => "unknown-provider",
            Self::SeveralProviders => "several-providers",
            Self::CustomOverTcp => "custom-over-tcp",
            Self::CustomDryRun => "custom-dry-run",
            Self::KeysMissing => "keys-missing",
            Self::PassthroughService => "passthrough-service",
            Self::DynamicDns => "dynamic-dns",
            Self::WildcardDns => "wildcard-dns",
            Self::DnsRoundRobin => "dns-round-robin",
            Self::AddressRange => "address-range",
            Self::HeadlessTcp => "headless-tcp",
            Self::Telemetry => "telemetry",
            Self::KeepsSource => "keeps-source",
            Self::ProxyProtocol => "proxy-protocol",
            Self::OwnLimits => "own-limits",
            Self::ListenerTwice => "listener-twice",
            Self::ForwardsToItself => "forwards-to-itself",
            Self::NoAddress => "no-address",
            Self::VirtualService => "virtual-service",
            Self::ConsistentHash => "consistent-hash",
            Self::Warmup => "warmup",
            Self::Locality => "locality",
            Self::RateLimit => "rate-limit",
            Self::HealthCheck => "health-check",
            Self::ConnectionRoutes => "connection-routes",
            Self::TlsOrigination => "tls-origination",
            Self::GatewayServer => "gateway-server",
            Self::CorsOfAnswer => "cors-of-answer",
            Self::Waypoint => "waypoint",
            Self::Network => "network",
            Self::Tunnel => "tunnel",
            Self::WorkloadAddress => "workload-address",
            Self::Http3 => "http3",
            Self::LoadBalancer => "load-balancer",
            Self::OutlierDetection => "outlier-detection",
            Self::ConnectionPool => "connection-pool",
            Self::RetryBudget => "retry-budget",
            Self::Retries => "retries",
            Self::EndpointWeights => "endpoint-weights",
            Self::ServerName => "server-name",
            Self::Permissive => "permissive",
            Self::PlaintextEndpoints => "plaintext-endpoints",
            Self::Audit => "audit",
        }
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A limit that was met.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit {
    /// Which one.
    pub name: LimitName,
    /// Its subject: a resource, a port.
    pub about: String,
    /// Its meaning for this proxy.
    pub why: String,
}

impl Limit {
    /// One that was met.
    #[must_use]
    pub fn new(name: LimitName, about: impl fmt::Display, why: impl Into<String>) -> Self {
        Self {
            name,
            about: about.to_string(),
            why: why.into(),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.name, self.about, self.why)
    }
}

//! The checked `trafficPolicy` of a DestinationRule: load balancing, outlier detection and connection limits. Unset
//! values are the proxy's own defaults.

use std::sync::Arc;
use std::time::Duration;

pub use voile_traffic::balance::{Algorithm, HashCookie, HashKey, Warmup};
pub use voile_traffic::{OutlierDetection, RetryBudget, SuccessRate};

use crate::names::ResourceName;

/// All that holds for one port of a service, or of one of its subsets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortTraffic {
    /// `loadBalancer`.
    pub balancer: LoadBalancer,
    /// `outlierDetection`; without it no endpoint is ejected.
    pub outliers: Option<OutlierDetection>,
    /// `connectionPool`.
    pub pool: ConnectionPool,
    /// `retryBudget`.
    pub retry_budget: Option<RetryBudget>,
    /// `tls`; unset means detection by the mesh.
    pub tls: Option<ClientTls>,
    /// `proxyProtocol`: the header that begins each connection, before TLS.
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// The version of the PROXY header, which names the original client to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Bytes.
    V2,
}

impl PortTraffic {
    /// Returns true if a caller with a known locality ranks endpoints by theirs. As in Istio, there is no failover
    /// without outlier detection.
    pub fn ranks_localities(&self) -> bool {
        match &self.balancer.locality {
            None => self.outliers.is_some(),
            Some(said) => {
                let always = said.always || !said.distribute.is_empty();
                said.enabled && (self.outliers.is_some() || always)
            }
        }
    }
}

/// `tls`: how clients speak to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientTls {
    /// DISABLE: plaintext to every endpoint.
    Disable,
    /// ISTIO_MUTUAL: the mesh's mutual TLS and nothing else; with `sni` clients ask for that name.
    Mutual(Option<Arc<str>>),
    /// SIMPLE and MUTUAL: TLS of the world's, which the proxy makes, and nothing else.
    Originate(Arc<TlsOrigin>),
}

/// TLS that a proxy originates for plaintext traffic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsOrigin {
    /// MUTUAL: it shows a certificate of its own, too.
    pub mutual: bool,
    /// Trusted authorities.
    pub authorities: Authorities,
    /// `credentialName`: a Secret in the namespace of the gateway that connects. Sidecars have none.
    pub credential: Option<Arc<str>>,
    /// The Secret of that name, where Gateway API's rules permit it to the gateway: it may be of another namespace. Proxies do not
    /// know it.
    pub granted: Option<ResourceName>,
    /// `caCrl`: CRLs of those authorities, in a file on the proxy's machine.
    pub revocations: Option<Arc<str>>,
    /// `clientCertificate` and `privateKey`: files of the proxy's own.
    pub certificate: Option<(Arc<str>, Arc<str>)>,
    /// `sni`: the name that is asked for, and that the certificate must have. None: the host's.
    pub server_name: Option<Arc<str>>,
    /// `subjectAltNames`: instead of it the certificate must have one of these.
    pub subject_alt_names: Vec<Arc<str>>,
    /// `insecureSkipVerify`: the certificate is not looked at.
    pub unverified: bool,
}

/// Trusted authorities for certificates of servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Authorities {
    /// The system's of the proxy, unless its credential has some.
    System,
    /// These, in PEM.
    Pem(Arc<[u8]>),
    /// `caCertificates`: those of a file of the proxy's own.
    File(Arc<str>),
}

/// `localityLbSetting`, or `zoneAwareLbSetting`. Without either, the nearest endpoints come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalitySetting {
    /// True if localities matter.
    pub enabled: bool,
    /// Shares of the requests from some localities.
    pub distribute: Vec<Distribute>,
    /// From a region, which one comes first after it.
    pub failover: Vec<(Arc<str>, Arc<str>)>,
    /// Labels by which endpoints are near, the most telling first.
    pub priority: Vec<Arc<str>>,
    /// True if near endpoints come first even without outlier detection: set by a Service, or by `zoneAwareLbSetting`.
    pub always: bool,
    /// `zoneAwareLbSetting`: in our own region requests stay in their zone as far as its part of the endpoints allows for its part
    /// of the callers, where so many endpoints are well (`minClusterSize`); other regions come after it.
    pub zone_aware: Option<u32>,
}

/// Labels that say where a workload is, which its locality and its node say as well.
pub const REGION: &str = "topology.kubernetes.io/region";
/// The same of its zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The same of its subzone.
pub const SUBZONE: &str = "topology.istio.io/subzone";
/// The same of its node.
pub const NODE: &str = "kubernetes.io/hostname";

impl Default for LocalitySetting {
    fn default() -> Self {
        Self {
            enabled: true,
            distribute: Vec::new(),
            failover: Vec::new(),
            priority: Vec::new(),
            always: false,
            zone_aware: None,
        }
    }
}

/// One of `distribute`. Localities are `region/zone/subzone`, or begin so and end in `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribute {
    /// The callers' locality.
    pub from: Arc<str>,
    /// Destination localities, with a percentage each.
    pub to: Vec<(Arc<str>, u32)>,
}

/// `loadBalancer`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadBalancer {
    /// `simple`, or what `consistentHash` builds.
    pub algorithm: Algorithm,
    /// By what requests keep together: of `consistentHash`.
    pub key: Option<HashKey>,
    /// Warm-up of a new endpoint.
    pub warmup: Option<Warmup>,
    /// Locality preference; `None` if unset.
    pub locality: Option<LocalitySetting>,
}

/// `connectionPool`. A field without a number has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionPool {
    /// `http.h2UpgradePolicy`; `None` (DEFAULT) is the mesh's.
    pub http2_upgrade: Option<bool>,
    /// `http.useClientProtocol`: the proxy keeps the client's protocol and upgrades nothing.
    pub use_client_protocol: bool,
    /// `tcp.maxConnections`.
    pub max_connections: Option<u32>,
    /// `tcp.connectTimeout`.
    pub connect_timeout: Option<Duration>,
    /// `tcp.idleTimeout`.
    pub tcp_idle: Option<Duration>,
    /// `tcp.tcpKeepalive`.
    pub keep_alive: Option<TcpKeepAlive>,
    /// `http.http1MaxPendingRequests`.
    pub max_pending: Option<u32>,
    /// `http.http2MaxRequests`.
    pub max_requests: Option<u32>,
    /// `http.maxRetries`.
    pub max_retries: Option<u32>,
    /// `http.maxRequestsPerConnection`.
    pub requests_per_connection: Option<u32>,
    /// `http.idleTimeout`.
    pub http_idle: Option<Duration>,
    /// `http.maxConcurrentStreams`.
    pub max_streams: Option<u32>,
    /// `tcp.maxConnectionDuration`.
    pub max_duration: Option<Duration>,
}

/// `tcpKeepalive`; unset fields are the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpKeepAlive {
    /// Unanswered probes after which a connection is dead.
    pub probes: Option<u32>,
    /// Idle time before the first probe.
    pub time: Option<Duration>,
    /// From one to the next.
    pub interval: Option<Duration>,
}

//! Configuration of a worker: the checked answers of the control plane, joined into one closed state. No part of
//! a plan refers to anything outside it.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use voile_identity::{Identity, Revocations, TrustDomain};
use voile_model::{Port, ServiceKey, mesh};
use voile_telemetry::{PeerLabels, ServiceLabels};
use voile_traffic::balance::{Algorithm, HashKey, Spread, Warmup, Zones};
use voile_traffic::{RetryBudget, RetryPolicy};
use voile_transport::{KeepAlive, proxy_protocol};
use voile_xds::wire::{
    Authorizer, ClientCertificateDetails, Collector, ForwardClientCertificate, MutualTls,
    ProxyConfiguration, RemoteGateway, ServerKind, Telemetry, WireProtocol, protocol_of,
};

use crate::authorization::Authorization;
use crate::health::{Gate, Watch};
use crate::http::{FieldPlacement, HeadAmendment, UpstreamTerms};
use crate::rate_limits::RateLimits;
use crate::registry::outside;
use crate::registry::routes::CompiledRoutes;
use crate::tokens::Tokens;

/// Names a listener for as long as it lives; never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ListenerId(pub(crate) u32);

impl ListenerId {
    /// Listener of redirected outbound connections.
    pub(crate) const CAPTURED_OUTBOUND: Self = Self(u32::MAX - 1);
    /// Listener of redirected inbound connections.
    pub(crate) const CAPTURED_INBOUND: Self = Self(u32::MAX - 2);
    /// Listener of HBONE tunnels.
    pub(crate) const TUNNELS: Self = Self(u32::MAX - 3);
}

/// Everything at once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProxyPlan {
    pub(crate) own: PeerLabels,
    pub(crate) inbound: Vec<InboundPlan>,
    pub(crate) outbound: Vec<OutboundPlan>,
    /// Listeners of a gateway.
    pub(crate) gateway: Vec<GatewayPlan>,
    /// None where nothing is captured, and then nothing captured is served.
    pub(crate) capture: Option<CapturePlan>,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) trust_domain_aliases: Vec<TrustDomain>,
    /// Certificates that are taken back; none where there are no lists of them.
    pub(crate) revocations: Option<Arc<Revocations>>,
    pub(crate) settings: Settings,
    /// None where no policy holds.
    pub(crate) authorization: Option<Authorization>,
    /// External service of the CUSTOM policies; none without such policies, or if it cannot be asked.
    pub(crate) authorizer: Option<AuthorizerPlan>,
    /// None where no rule about tokens holds.
    pub(crate) tokens: Option<Tokens>,
    pub(crate) telemetry: Arc<TelemetryPlan>,
    /// None where nothing limits how many requests come.
    pub(crate) rate_limits: Option<SharedPart<RateLimits>>,
    /// Rate limit services, as the rate limits name them.
    pub(crate) limiters: Vec<LimiterPlan>,
}

impl ProxyPlan {
    /// Rules about tokens in force, of each set once, at however many destinations it holds.
    pub(crate) fn token_rules(&self) -> usize {
        let servers = self.gateway.iter().flat_map(|gateway| &gateway.servers);
        let doors = servers.filter_map(|server| server.door.as_ref()?.tokens.as_ref());
        let mut sets: Vec<&Tokens> = Vec::new();
        for set in self.tokens.iter().chain(doors) {
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets.into_iter().map(Tokens::len).sum()
    }
}

/// An external service that decides, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AuthorizerPlan {
    pub(crate) settings: Authorizer,
    pub(crate) service: ServicePlan,
}

/// A service that counts for several proxies, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LimiterPlan {
    /// As RateLimits name it.
    pub(crate) key: (ServiceKey, Port),
    pub(crate) service: ServicePlan,
}

/// Telemetry settings, and the services of the collectors.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct TelemetryPlan {
    pub(crate) telemetry: Telemetry,
    /// Telemetry settings of waypoint destinations that have their own.
    pub(crate) apart: Vec<Arc<Telemetry>>,
    pub(crate) collectors: HashMap<Collector, ServicePlan>,
}

/// Settings of every connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) detection_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) header_timeout: Duration,
    pub(crate) source_address: Option<IpAddr>,
    /// True if plaintext connections begin with a PROXY header that names their client.
    pub(crate) proxy_protocol: bool,
    /// Mode of `x-forwarded-client-cert`.
    pub(crate) forwards: ForwardClientCertificate,
    /// Parts of a client's certificate that are forwarded.
    pub(crate) details: ClientCertificateDetails,
}

/// One inbound listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InboundPlan {
    pub(crate) name: Arc<str>,
    pub(crate) bind: SocketAddr,
    pub(crate) protocol: WireProtocol,
    pub(crate) mutual_tls: MutualTls,
    pub(crate) endpoint: SocketAddr,
    pub(crate) service: ServiceLabels,
}

/// One outbound listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutboundPlan {
    pub(crate) name: Arc<str>,
    pub(crate) bind: SocketAddr,
    pub(crate) protocol: WireProtocol,
    pub(crate) services: Vec<ServicePlan>,
    /// Destination of requests that name none of several services, or if there is no service.
    pub(crate) otherwise: PassthroughMode,
    /// True if no service has this address: only a host name selects a service. Then even a single service takes no
    /// requests that do not name it.
    pub(crate) by_name: bool,
}

/// One listener of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GatewayPlan {
    pub(crate) name: Arc<str>,
    pub(crate) bind: SocketAddr,
    /// Proxies in front whose word in `x-forwarded-for` is believed.
    pub(crate) trusted_proxies: u32,
    /// Normalization of paths before policies and routes compare them.
    pub(crate) normalization: mesh::PathNormalization,
    pub(crate) servers: Vec<ServerPlan>,
    /// True if the listener takes tunnels, each for one of the servers.
    pub(crate) waypoint: bool,
    /// HTTP/3 of the HTTPS servers, if enabled.
    pub(crate) http3: Option<Arc<Http3Plan>>,
}

/// Settings of a listener over UDP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Http3Plan {
    /// Field that announces HTTP/3 to clients over TCP.
    pub(crate) offered: Arc<HeadAmendment>,
}

/// Time in seconds for which a client may remember the announcement. Envoy's value.
const OFFERED_FOR: u32 = 86_400;

impl Http3Plan {
    /// Clients call this port.
    pub(crate) fn new(port: Port) -> Self {
        let value = format!("h3=\":{port}\"; ma={OFFERED_FOR}");
        let offered = HeadAmendment {
            name: "alt-svc".into(),
            value: value.into_bytes().into(),
            manner: FieldPlacement::Overwrite,
        };
        Self {
            offered: offered.into(),
        }
    }
}

/// TLS termination of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct TlsPlan {
    /// Source of its certificate, for people.
    pub(crate) credential: Arc<str>,
    /// None without a certificate: no client is accepted.
    pub(crate) config: Option<Arc<ServerConfig>>,
    /// True for the mesh's own TLS, with the proxy's own certificate, whatever `config` is.
    pub(crate) mesh: bool,
    /// True if certificates of clients are not verified: they are told to nobody.
    pub(crate) unverified: bool,
}

impl PartialEq for TlsPlan {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.config, &other.config) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() == other.is_none(),
        };
        let settings = |plan: &Self| (plan.mesh, plan.unverified);
        same && self.credential == other.credential && settings(self) == settings(other)
    }
}

/// Server that takes some of a gateway's connections.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerPlan {
    /// Names that clients of TLS ask for; `*` is any, and none.
    pub(crate) names: Vec<Arc<str>>,
    /// TLS termination; `None` is plaintext, or TLS passthrough.
    pub(crate) tls: Option<TlsPlan>,
    pub(crate) kind: ServerKind,
    /// Destinations: a service for each virtual host, or one for all connections. These services have routes and no endpoints.
    pub(crate) way: OutboundPlan,
    /// Virtual hosts whose clients in plaintext are sent to `https`.
    pub(crate) redirects: HashSet<Arc<str>>,
    /// Set for a waypoint: targets and policies of the destination.
    pub(crate) door: Option<DoorPlan>,
}

/// A destination of a waypoint, as tunnels find it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DoorPlan {
    /// Addresses that tunnels ask for.
    pub(crate) called: Vec<SocketAddr>,
    /// The same by name and port, where it has one.
    pub(crate) host: Option<(Arc<str>, u16)>,
    /// None where no policy holds.
    pub(crate) authorization: Option<Authorization>,
    /// None where no rule about tokens does.
    pub(crate) tokens: Option<Tokens>,
    /// Among the plan's that are apart; none where the proxy's own holds.
    pub(crate) telemetry: Option<usize>,
}

/// Captured destination that workers ask for: an address, or for an address without a service, the host that the client
/// named.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CapturedDestination {
    pub(crate) to: SocketAddr,
    /// Lower case, without port and without the root's dot.
    pub(crate) host: Option<Arc<str>>,
}

impl std::fmt::Display for CapturedDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            None => write!(f, "{}", self.to),
            Some(host) => write!(f, "{host} at {}", self.to),
        }
    }
}

/// See [`OutboundPlan::otherwise`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassthroughMode {
    /// Nowhere: an explicit listener knows no other destination (404).
    NoRoute,
    /// Nowhere: the mesh allows registered destinations only (502).
    BlackHole,
    /// To this one of the services.
    Service(usize),
}

/// The inbound half of capture.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CapturePlan {
    /// Mode of ports that are not listed.
    pub(crate) mutual_tls: MutualTls,
    pub(crate) ports: HashMap<u16, CapturedPortPlan>,
    /// Our own ports by the hosts and ports of the services that we are behind: so asks who comes from another network, where
    /// our addresses mean nothing.
    pub(crate) named: HashMap<Arc<str>, HashMap<u16, u16>>,
}

/// One captured port of our own workload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CapturedPortPlan {
    pub(crate) protocol: WireProtocol,
    pub(crate) mutual_tls: MutualTls,
    /// Address of the application's socket, if it is not the called address.
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) service: Option<ServiceLabels>,
}

/// Istio's name for calls to ports that belong to no service.
const INBOUND_PASSTHROUGH: &str = "InboundPassthroughCluster";

impl CapturePlan {
    /// Plan of calls to one of our own addresses.
    pub(crate) fn inbound(&self, to: SocketAddr) -> InboundPlan {
        let port = self.ports.get(&to.port());
        let undeclared = || {
            let said = Port::new(to.port()).map(mesh::Protocol::undeclared);
            said.and_then(protocol_of).unwrap_or(WireProtocol::Auto)
        };
        InboundPlan {
            name: format!("captured/{to}").into(),
            bind: to,
            protocol: port.map_or_else(undeclared, |port| port.protocol),
            mutual_tls: port.map_or(self.mutual_tls, |port| port.mutual_tls),
            endpoint: port.and_then(|port| port.endpoint).unwrap_or(to),
            service: port
                .and_then(|port| port.service.clone())
                .unwrap_or_else(|| outside(INBOUND_PASSTHROUGH)),
        }
    }
}

/// One port of one service as seen from one listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServicePlan {
    pub(crate) service: ServiceLabels,
    pub(crate) port: u16,
    /// The part of the service that this is; `None` is the whole.
    pub(crate) subset: Option<Arc<str>>,
    /// Protocol of the servers.
    pub(crate) protocol: WireProtocol,
    /// HTTP/1.1 travels to its sidecars as HTTP/2.
    pub(crate) http2_upgrade: bool,
    /// True if the client's protocol is used upstream, whatever is declared.
    pub(crate) client_protocol: bool,
    pub(crate) authorities: Vec<Arc<str>>,
    pub(crate) endpoints: Vec<EndpointPlan>,
    pub(crate) traffic: TrafficPlan,
    pub(crate) retry: RetryPolicy,
    pub(crate) retry_budget: RetryBudget,
    /// Routes of the service, if a VirtualService has any.
    pub(crate) routes: Option<Box<RoutesPlan>>,
}

/// Traffic settings of a DestinationRule for a destination.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct TrafficPlan {
    pub(crate) balance: BalancePlan,
    /// Source of the consistent-hash key.
    pub(crate) key: Option<HashKey>,
    /// Ejected endpoints, as all workers see them; none without health checks or outlier detection.
    pub(crate) watch: Option<SharedPart<Watch>>,
    /// Limits of the load in flight, of all workers; none without limits.
    pub(crate) breaker: Option<SharedPart<Gate>>,
    /// Connect timeout.
    pub(crate) connect_timeout: Option<Duration>,
    /// Idle timeout of an opaque connection.
    pub(crate) tcp_idle: Option<Duration>,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) upstream: UpstreamTerms,
    /// TLS to every endpoint.
    pub(crate) origination: Option<SharedPart<Origination>>,
    /// Version of the PROXY protocol header that names the client.
    pub(crate) introduces: Option<proxy_protocol::Version>,
}

impl TrafficPlan {
    /// Plan without settings, except for the other callers.
    pub(crate) fn among(zones: Option<Box<Zones>>) -> Self {
        let balance = BalancePlan {
            zones,
            ..BalancePlan::default()
        };
        Self {
            balance,
            ..Self::default()
        }
    }
}

/// Load balancing over a destination's endpoints.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct BalancePlan {
    pub(crate) algorithm: Algorithm,
    /// Share of a new endpoint; its full share by default.
    pub(crate) warmup: Option<Warmup>,
    pub(crate) spread: Spread,
    /// Callers besides us, if zones share the endpoints.
    pub(crate) zones: Option<Box<Zones>>,
}

/// One thing that plans share: equal is only what is the same.
#[derive(Debug)]
pub(crate) struct SharedPart<T>(pub(crate) Arc<T>);

impl<T> Clone for SharedPart<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> PartialEq for SharedPart<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Routes of a service. A change of endpoints changes the targets only.
#[derive(Debug, Clone)]
pub(crate) struct RoutesPlan {
    pub(crate) compiled: Arc<CompiledRoutes>,
    /// Destinations of the compiled routes, in their order, or the missing destination. They have no routes of their
    /// own.
    pub(crate) targets: Vec<Result<ServicePlan, Arc<str>>>,
}

impl PartialEq for RoutesPlan {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.compiled, &other.compiled) && self.targets == other.targets
    }
}

/// One workload behind a service port.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndpointPlan {
    /// Address of the endpoint; for a name that was never resolved, any address and the port.
    pub(crate) address: SocketAddr,
    /// The name that leads there, where the control plane knows no address.
    pub(crate) name: Option<NamePlan>,
    /// Identities of which the server must prove one in the mesh's mutual TLS; `None` accepts any server.
    /// Never empty.
    pub(crate) expected: Option<Vec<Identity>>,
    /// Further TLS; most endpoints have none.
    pub(crate) origination: Option<SharedPart<Origination>>,
    pub(crate) weight: u32,
    pub(crate) available: bool,
    pub(crate) rank: EndpointRank,
    pub(crate) peer: PeerLabels,
}

/// TLS towards a destination, as a DestinationRule wants it.
pub(crate) enum Origination {
    /// The mesh's own, which asks for this name.
    Mesh(ServerName<'static>),
    /// The mesh's own, shared by many connections, each of them a tunnel of HBONE.
    Tunnel,
    /// The same with a waypoint; the tunnel names the target by address, or by name and port.
    Through(Arc<str>),
    /// The mesh's own TLS with an expected identity, inside a tunnel through a gateway of another network.
    Far(FarPlan),
    /// No TLS of ours: the client's bytes are the mesh's own TLS already, and are passed on unread.
    Unread,
    /// The world's.
    World(WorldTls),
    /// It cannot be made, and nothing goes without it: why.
    Unmade(Arc<str>),
}

/// The way to another network.
#[derive(Debug)]
pub(crate) struct FarPlan {
    /// Entry gateways of the other network, with their identities: any of these. Never empty.
    pub(crate) gates: Vec<RemoteGateway>,
    /// Target of the tunnel, at the gateway and behind it: the service by its name. Addresses mean something
    /// else there.
    pub(crate) called: Arc<str>,
}

impl Origination {
    /// Returns true for HBONE.
    pub(crate) fn is_tunnel(&self) -> bool {
        matches!(self, Self::Tunnel | Self::Through(_) | Self::Far(_))
    }
}

/// TLS with a server outside the mesh.
pub(crate) struct WorldTls {
    /// Server name, which the certificate must also have unless other names are set.
    pub(crate) name: ServerName<'static>,
    /// Configuration by the protocol inside.
    pub(crate) http: Arc<ClientConfig>,
    pub(crate) http2: Arc<ClientConfig>,
    pub(crate) tcp: Arc<ClientConfig>,
}

impl EndpointPlan {
    /// The host that a client named, where the endpoint is that.
    pub(crate) fn host_on_demand(&self) -> Option<&str> {
        let name = self.name.as_ref().filter(|name| name.on_demand);
        name.map(|name| &*name.host)
    }

    /// Returns true if a sidecar answers in mutual TLS, and not a node proxy with the application behind its tunnel.
    pub(crate) fn is_sidecar(&self) -> bool {
        let tunnelled = |one: &SharedPart<Origination>| one.0.is_tunnel();
        self.expected.is_some() && !self.origination.as_ref().is_some_and(tunnelled)
    }

    /// Returns true if the endpoint is on another network.
    pub(crate) fn is_far(&self) -> bool {
        let origination = self.origination.as_ref().map(|SharedPart(one)| &**one);
        matches!(origination, Some(Origination::Far(_)))
    }
}

impl std::fmt::Debug for Origination {
    /// Shows no secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mesh(name) => f.debug_tuple("Mesh").field(name).finish(),
            Self::Tunnel => f.write_str("Tunnel"),
            Self::Unread => f.write_str("Unread"),
            Self::Through(called) => f.debug_tuple("Through").field(called).finish(),
            Self::Far(far) => f.debug_tuple("Far").field(far).finish(),
            Self::World(tls) => f.debug_tuple("World").field(&tls.name).finish(),
            Self::Unmade(why) => f.debug_tuple("Unmade").field(why).finish(),
        }
    }
}

/// Rank of an endpoint among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct EndpointRank {
    /// 0 is asked first.
    pub(crate) priority: u32,
    /// Its locality among those that share the priority by weight.
    pub(crate) locality: u32,
    /// The weight of that; 0 everywhere: localities do not matter.
    pub(crate) locality_weight: u32,
}

/// An endpoint known by a DNS name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamePlan {
    pub(crate) host: Arc<str>,
    /// The endpoint is the name: when its address moves, open connections stay. Otherwise it is the address.
    pub(crate) logical: bool,
    /// It leads out of the mesh and is asked for when a client names it. A pattern stands for all hosts that it covers.
    pub(crate) on_demand: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: voile_transport::CONNECT_TIMEOUT,
            detection_timeout: voile_transport::DETECTION_TIMEOUT,
            idle_timeout: voile_transport::IDLE_TIMEOUT,
            header_timeout: crate::http::limits::HEADER_TIMEOUT,
            source_address: None,
            proxy_protocol: false,
            forwards: ForwardClientCertificate::default(),
            details: ClientCertificateDetails::default(),
        }
    }
}

impl Settings {
    /// As a configuration says.
    pub(crate) fn of(configuration: &ProxyConfiguration) -> Self {
        let (said, own) = (configuration.connection, Self::default());
        Self {
            connect_timeout: said.connect_timeout.unwrap_or(own.connect_timeout),
            detection_timeout: said.detection_timeout.unwrap_or(own.detection_timeout),
            idle_timeout: said.idle_timeout.unwrap_or(own.idle_timeout),
            header_timeout: said.header_timeout.unwrap_or(own.header_timeout),
            source_address: configuration.source_address,
            proxy_protocol: configuration.proxy_protocol,
            forwards: configuration.forwards,
            details: configuration.certificate_details.unwrap_or_default(),
        }
    }
}

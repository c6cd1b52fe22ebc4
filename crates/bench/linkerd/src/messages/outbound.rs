//! `io.linkerd.proxy.outbound`: what is done with calls of an address: which routes, which balancer behind them.

use super::meta::Metadata;
use super::net::TcpAddress;

/// A caller and its target.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TrafficSpec {
    /// Workload name from the proxy's settings.
    #[prost(string, tag = "1")]
    pub source_workload: String,
    /// Target of the calls.
    #[prost(oneof = "OutboundTarget", tags = "2, 3")]
    pub target: Option<OutboundTarget>,
}

/// Target of calls.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum OutboundTarget {
    /// An address.
    #[prost(message, tag = "2")]
    Addr(TcpAddress),
    /// A name and a port.
    #[prost(string, tag = "3")]
    Authority(String),
}

/// Policy for calls.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OutboundPolicy {
    /// Routes by the protocol of the calls.
    #[prost(message, optional, tag = "1")]
    pub protocol: Option<ProxyProtocol>,
    /// The called resource.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<Metadata>,
}

/// Routes by the protocol of the calls.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ProxyProtocol {
    /// The protocol.
    #[prost(oneof = "OutboundProtocol", tags = "1, 2")]
    pub kind: Option<OutboundProtocol>,
}

/// The ways that are said here.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum OutboundProtocol {
    /// The proxy looks.
    #[prost(message, tag = "1")]
    Detect(Detect),
    /// Bytes.
    #[prost(message, tag = "2")]
    Opaque(Opaque),
}

/// Routes by the detected protocol.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Detect {
    /// Time limit of the detection.
    #[prost(message, optional, tag = "1")]
    pub timeout: Option<prost_types::Duration>,
    /// Bytes.
    #[prost(message, optional, tag = "2")]
    pub opaque: Option<Opaque>,
    /// HTTP/1.
    #[prost(message, optional, tag = "3")]
    pub http1: Option<HttpRoutes>,
    /// HTTP/2.
    #[prost(message, optional, tag = "4")]
    pub http2: Option<HttpRoutes>,
}

/// Routes of bytes: at most one.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Opaque {
    /// The routes.
    #[prost(message, repeated, tag = "1")]
    pub routes: Vec<OpaqueRoute>,
}

/// Routes of HTTP of either version, which are two types of the same numbers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRoutes {
    /// The routes.
    #[prost(message, repeated, tag = "1")]
    pub routes: Vec<HttpRoute>,
}

/// A route of bytes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OpaqueRoute {
    /// Which resource says so.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    /// Exactly one.
    #[prost(message, repeated, tag = "3")]
    pub rules: Vec<OpaqueRule>,
}

/// Destination of opaque bytes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OpaqueRule {
    /// The backends.
    #[prost(message, optional, tag = "1")]
    pub backends: Option<Distribution>,
}

/// A route of HTTP.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRoute {
    /// Resource that the route comes from.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    /// By path, in order.
    #[prost(message, repeated, tag = "3")]
    pub rules: Vec<HttpRule>,
}

/// Destination of requests.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRule {
    /// Requests that the rule takes.
    #[prost(message, repeated, tag = "1")]
    pub matches: Vec<HttpRouteMatch>,
    /// The backends.
    #[prost(message, optional, tag = "3")]
    pub backends: Option<Distribution>,
}

/// Which requests.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRouteMatch {
    /// By path.
    #[prost(message, optional, tag = "1")]
    pub path: Option<PathMatch>,
}

/// Which paths.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PathMatch {
    /// Which.
    #[prost(oneof = "Path", tags = "2")]
    pub kind: Option<Path>,
}

/// The matches that this control plane sends.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Path {
    /// Prefix of the path.
    #[prost(string, tag = "2")]
    Prefix(String),
}

/// Distribution among backends. Linkerd's API has one type for bytes and one for HTTP, with the
/// same numbers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Distribution {
    /// The distribution.
    #[prost(oneof = "TrafficDistribution", tags = "2")]
    pub kind: Option<TrafficDistribution>,
}

/// The distributions that this control plane sends.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum TrafficDistribution {
    /// The first that can.
    #[prost(message, tag = "2")]
    FirstAvailable(FirstAvailable),
}

/// The first that can.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FirstAvailable {
    /// In order.
    #[prost(message, repeated, tag = "1")]
    pub backends: Vec<RouteBackend>,
}

/// A backend of a route.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RouteBackend {
    /// The backend.
    #[prost(message, optional, tag = "1")]
    pub backend: Option<Backend>,
}

/// Those behind a service.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Backend {
    /// The service.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    /// Choice of an endpoint.
    #[prost(oneof = "BackendChoice", tags = "3")]
    pub kind: Option<BackendChoice>,
    /// Queue of requests that wait for an endpoint.
    #[prost(message, optional, tag = "4")]
    pub queue: Option<Queue>,
}

/// The choices that this control plane sends.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum BackendChoice {
    /// The better of two.
    #[prost(message, tag = "3")]
    Balancer(BalanceP2c),
}

/// The better of two, by its recent answers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BalanceP2c {
    /// Discovery of the endpoints.
    #[prost(message, optional, tag = "1")]
    pub discovery: Option<EndpointDiscovery>,
    /// Measure of an endpoint's load.
    #[prost(oneof = "Load", tags = "2")]
    pub load: Option<Load>,
}

/// Measure of an endpoint's load.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Load {
    /// By the time of answers, weighted to the recent.
    #[prost(message, tag = "2")]
    PeakEwma(PeakEwma),
}

/// By the time of answers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PeakEwma {
    /// Assumed time of an endpoint that has not answered.
    #[prost(message, optional, tag = "1")]
    pub default_rtt: Option<prost_types::Duration>,
    /// Decay time of earlier answers.
    #[prost(message, optional, tag = "2")]
    pub decay: Option<prost_types::Duration>,
}

/// Discovery of endpoints.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EndpointDiscovery {
    /// Kind of the discovery.
    #[prost(oneof = "Discovery", tags = "1")]
    pub kind: Option<Discovery>,
}

/// The kinds that this control plane sends.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Discovery {
    /// By `Destination.Get`.
    #[prost(message, tag = "1")]
    Get(DestinationGet),
}

/// By `Destination.Get`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DestinationGet {
    /// `NAME:PORT`.
    #[prost(string, tag = "1")]
    pub path: String,
}

/// Queue of waiting requests.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Queue {
    /// Most requests that wait.
    #[prost(uint32, tag = "1")]
    pub capacity: u32,
    /// Time without an endpoint after which waiting requests fail at once.
    #[prost(message, optional, tag = "2")]
    pub failfast_timeout: Option<prost_types::Duration>,
}

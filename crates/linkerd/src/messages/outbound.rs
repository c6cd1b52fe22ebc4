//! `io.linkerd.proxy.outbound`: what is done with calls of an address: which routes, which balancer behind them.

use super::meta::Metadata;
use super::net::TcpAddress;

/// Who calls what.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TrafficSpec {
    /// What the proxy was told to call itself.
    #[prost(string, tag = "1")]
    pub source_workload: String,
    /// What is called.
    #[prost(oneof = "Target", tags = "2, 3")]
    pub target: Option<Target>,
}

/// What is called.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Target {
    /// An address.
    #[prost(message, tag = "2")]
    Addr(TcpAddress),
    /// A name and a port.
    #[prost(string, tag = "3")]
    Authority(String),
}

/// What is done with calls.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OutboundPolicy {
    /// By what they speak.
    #[prost(message, optional, tag = "1")]
    pub protocol: Option<ProxyProtocol>,
    /// What was called.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<Metadata>,
}

/// By what calls speak.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ProxyProtocol {
    /// Which.
    #[prost(oneof = "Protocol", tags = "1, 2")]
    pub kind: Option<Protocol>,
}

/// The ways that are said here.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Protocol {
    /// The proxy looks.
    #[prost(message, tag = "1")]
    Detect(Detect),
    /// Bytes.
    #[prost(message, tag = "2")]
    Opaque(Opaque),
}

/// Routes by what the proxy finds.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Detect {
    /// How long it looks.
    #[prost(message, optional, tag = "1")]
    pub timeout: Option<prost_types::Duration>,
    /// Bytes.
    #[prost(message, optional, tag = "2")]
    pub opaque: Option<Opaque>,
    /// HTTP/1.
    #[prost(message, optional, tag = "3")]
    pub http1: Option<Http>,
    /// HTTP/2.
    #[prost(message, optional, tag = "4")]
    pub http2: Option<Http>,
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
pub struct Http {
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

/// Where bytes go.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OpaqueRule {
    /// To whom.
    #[prost(message, optional, tag = "1")]
    pub backends: Option<Distribution>,
}

/// A route of HTTP.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRoute {
    /// Which resource says so.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    /// By path, in order.
    #[prost(message, repeated, tag = "3")]
    pub rules: Vec<HttpRule>,
}

/// Where requests go.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRule {
    /// Which of them.
    #[prost(message, repeated, tag = "1")]
    pub matches: Vec<HttpRouteMatch>,
    /// To whom.
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

/// The matches that are said here.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Path {
    /// Whose paths begin so.
    #[prost(string, tag = "2")]
    Prefix(String),
}

/// Who takes it. Of bytes and of HTTP these are two types of the same numbers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Distribution {
    /// Which.
    #[prost(oneof = "Share", tags = "2")]
    pub kind: Option<Share>,
}

/// The distributions that are said here.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Share {
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
    /// How one of them is chosen.
    #[prost(oneof = "Choice", tags = "3")]
    pub kind: Option<Choice>,
    /// Where requests wait for one.
    #[prost(message, optional, tag = "4")]
    pub queue: Option<Queue>,
}

/// The choices that are said here.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Choice {
    /// The better of two.
    #[prost(message, tag = "3")]
    Balancer(BalanceP2c),
}

/// The better of two, by its recent answers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BalanceP2c {
    /// How they are found.
    #[prost(message, optional, tag = "1")]
    pub discovery: Option<EndpointDiscovery>,
    /// What better means.
    #[prost(oneof = "Load", tags = "2")]
    pub load: Option<Load>,
}

/// What better means.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Load {
    /// By the time of answers, weighted to the recent.
    #[prost(message, tag = "2")]
    PeakEwma(PeakEwma),
}

/// By the time of answers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PeakEwma {
    /// Of one that has not answered.
    #[prost(message, optional, tag = "1")]
    pub default_rtt: Option<prost_types::Duration>,
    /// How fast the past is forgotten.
    #[prost(message, optional, tag = "2")]
    pub decay: Option<prost_types::Duration>,
}

/// How endpoints are found.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EndpointDiscovery {
    /// Which way.
    #[prost(oneof = "Discovery", tags = "1")]
    pub kind: Option<Discovery>,
}

/// The ways that are said here.
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

/// Where requests wait.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Queue {
    /// How many.
    #[prost(uint32, tag = "1")]
    pub capacity: u32,
    /// After how long without anybody to take them they fail at once.
    #[prost(message, optional, tag = "2")]
    pub failfast_timeout: Option<prost_types::Duration>,
}

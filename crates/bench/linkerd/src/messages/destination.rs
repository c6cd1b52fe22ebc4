//! `io.linkerd.proxy.destination`: endpoints of a name, and profiles of names and addresses.

use super::net::TcpAddress;

/// Target of a query.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetDestination {
    /// `NAME:PORT` or `ADDRESS:PORT`.
    #[prost(string, tag = "2")]
    pub path: String,
    /// Context token from the proxy's settings.
    #[prost(string, tag = "3")]
    pub context_token: String,
}

/// A change of the endpoints.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Update {
    /// The change.
    #[prost(oneof = "Change", tags = "1, 3")]
    pub update: Option<Change>,
}

/// The changes that this control plane sends: no endpoint is ever removed.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Change {
    /// Further endpoints.
    #[prost(message, tag = "1")]
    Add(WeightedAddrSet),
    /// No endpoints.
    #[prost(message, tag = "3")]
    NoEndpoints(NoEndpoints),
}

/// Who answers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WeightedAddrSet {
    /// Each.
    #[prost(message, repeated, tag = "1")]
    pub addrs: Vec<WeightedAddr>,
}

/// The target has no endpoints.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NoEndpoints {
    /// True if the name exists.
    #[prost(bool, tag = "1")]
    pub exists: bool,
}

/// An endpoint with its weight.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WeightedAddr {
    /// Its address.
    #[prost(message, optional, tag = "1")]
    pub addr: Option<TcpAddress>,
    /// Its share beside others.
    #[prost(uint32, tag = "3")]
    pub weight: u32,
    /// Its identity for mutual TLS; None for plaintext.
    #[prost(message, optional, tag = "5")]
    pub tls_identity: Option<TlsIdentity>,
    /// Protocols that its proxy accepts besides the application's.
    #[prost(message, optional, tag = "6")]
    pub protocol_hint: Option<ProtocolHint>,
}

/// Expected identity of the server.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TlsIdentity {
    /// Kind of the name.
    #[prost(oneof = "Strategy", tags = "1")]
    pub strategy: Option<Strategy>,
    /// SNI for the handshake.
    #[prost(message, optional, tag = "4")]
    pub server_name: Option<DnsLike>,
}

/// Kinds of names.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Strategy {
    /// Like a DNS name.
    #[prost(message, tag = "1")]
    Dns(DnsLike),
}

/// A name like a DNS name.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DnsLike {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Protocols that a proxy accepts besides its application's.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ProtocolHint {
    /// The protocol.
    #[prost(oneof = "LinkerdProtocolHint", tags = "1, 3")]
    pub protocol: Option<LinkerdProtocolHint>,
    /// Port for bytes after a header with the destination port.
    #[prost(message, optional, tag = "2")]
    pub opaque_transport: Option<OpaqueTransport>,
}

/// Port for bytes after a header with the destination port.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OpaqueTransport {
    /// The proxy's own port.
    #[prost(uint32, tag = "1")]
    pub inbound_port: u32,
}

/// The hints that this control plane sends.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum LinkerdProtocolHint {
    /// All HTTP/2.
    #[prost(message, tag = "1")]
    H2(H2),
    /// Opaque bytes, without protocol detection.
    #[prost(message, tag = "3")]
    Opaque(Opaque),
}

/// Opaque bytes, without protocol detection.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Opaque {}

/// All HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct H2 {}

/// Profile of an address.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DestinationProfile {
    /// A service's name, where it is one.
    #[prost(string, tag = "5")]
    pub fully_qualified_name: String,
}

//! `io.linkerd.proxy.destination`: who answers at a name, and what a name or address is.

use super::net::TcpAddress;

/// What is asked about.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetDestination {
    /// `NAME:PORT` or `ADDRESS:PORT`.
    #[prost(string, tag = "2")]
    pub path: String,
    /// What the proxy was told to say of itself.
    #[prost(string, tag = "3")]
    pub context_token: String,
}

/// A change of who answers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Update {
    /// Which.
    #[prost(oneof = "Change", tags = "1, 3")]
    pub update: Option<Change>,
}

/// The changes that are said here: nobody leaves.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Change {
    /// These answer, too.
    #[prost(message, tag = "1")]
    Add(WeightedAddrSet),
    /// Nobody does.
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

/// Nobody answers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NoEndpoints {
    /// Whether there is such a name.
    #[prost(bool, tag = "1")]
    pub exists: bool,
}

/// One who answers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WeightedAddr {
    /// Where.
    #[prost(message, optional, tag = "1")]
    pub addr: Option<TcpAddress>,
    /// Its share beside others.
    #[prost(uint32, tag = "3")]
    pub weight: u32,
    /// As whom over mutual TLS; in plaintext otherwise.
    #[prost(message, optional, tag = "5")]
    pub tls_identity: Option<TlsIdentity>,
    /// What its proxy takes beside what the application speaks.
    #[prost(message, optional, tag = "6")]
    pub protocol_hint: Option<ProtocolHint>,
}

/// Who must be at the far end.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TlsIdentity {
    /// By which kind of name.
    #[prost(oneof = "Strategy", tags = "1")]
    pub strategy: Option<Strategy>,
    /// What to say in the handshake (SNI).
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

/// What a proxy takes beside what its application speaks.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ProtocolHint {
    /// Which.
    #[prost(oneof = "Hint", tags = "1, 3")]
    pub protocol: Option<Hint>,
    /// Where bytes are taken with a header that says for which port.
    #[prost(message, optional, tag = "2")]
    pub opaque_transport: Option<OpaqueTransport>,
}

/// Where bytes are taken with a header that says for which port.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OpaqueTransport {
    /// The proxy's own port.
    #[prost(uint32, tag = "1")]
    pub inbound_port: u32,
}

/// The hints that are said here.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Hint {
    /// All HTTP as HTTP/2.
    #[prost(message, tag = "1")]
    H2(H2),
    /// Bytes that nobody looks at.
    #[prost(message, tag = "3")]
    Opaque(Opaque),
}

/// Bytes that nobody looks at.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Opaque {}

/// All HTTP as HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct H2 {}

/// What an address is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DestinationProfile {
    /// A service's name, where it is one.
    #[prost(string, tag = "5")]
    pub fully_qualified_name: String,
}

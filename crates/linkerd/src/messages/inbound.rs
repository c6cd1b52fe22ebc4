//! `io.linkerd.proxy.inbound`: what a port of a workload speaks and who may call it.

use std::collections::HashMap;

use super::meta::Metadata;
use super::net::IpNetwork;

/// A port of a workload.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PortSpec {
    /// What the proxy was told to call itself.
    #[prost(string, tag = "1")]
    pub workload: String,
    /// The port.
    #[prost(uint32, tag = "2")]
    pub port: u32,
}

/// What is served there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Server {
    /// How it speaks.
    #[prost(message, optional, tag = "1")]
    pub protocol: Option<ProxyProtocol>,
    /// Who may call; nobody else may.
    #[prost(message, repeated, tag = "3")]
    pub authorizations: Vec<Authz>,
    /// Its `group`, `kind` and `name`.
    #[prost(map = "string, string", tag = "4")]
    pub labels: HashMap<String, String>,
}

/// How a port speaks.
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

/// Bytes that nobody looks at.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Opaque {}

/// The proxy looks; without routes it makes one for all.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Detect {
    /// How long it looks.
    #[prost(message, optional, tag = "1")]
    pub timeout: Option<prost_types::Duration>,
}

/// Some who may call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Authz {
    /// From where.
    #[prost(message, repeated, tag = "1")]
    pub networks: Vec<Network>,
    /// As whom.
    #[prost(message, optional, tag = "2")]
    pub authentication: Option<Authn>,
    /// Which resource says so.
    #[prost(message, optional, tag = "4")]
    pub metadata: Option<Metadata>,
}

/// A range of callers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Network {
    /// The range.
    #[prost(message, optional, tag = "1")]
    pub net: Option<IpNetwork>,
}

/// As whom one may call.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Authn {
    /// Which.
    #[prost(oneof = "Permit", tags = "1, 2")]
    pub permit: Option<Permit>,
}

/// Who is permitted.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Permit {
    /// Anybody, in plaintext too.
    #[prost(message, tag = "1")]
    Unauthenticated(Anybody),
    /// Who shows a certificate of the mesh.
    #[prost(message, tag = "2")]
    MeshTls(MeshTls),
}

/// Anybody.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Anybody {}

/// Who shows a certificate of the mesh.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MeshTls {
    /// Which of them.
    #[prost(oneof = "Clients", tags = "2")]
    pub clients: Option<Clients>,
}

/// Which clients of the mesh.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Clients {
    /// Of these names.
    #[prost(message, tag = "2")]
    Identities(Identities),
}

/// Names.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Identities {
    /// The names.
    #[prost(message, repeated, tag = "1")]
    pub identities: Vec<Identity>,
}

/// A name.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Identity {
    /// Like a DNS name.
    #[prost(string, tag = "1")]
    pub name: String,
}

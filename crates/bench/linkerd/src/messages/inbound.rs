//! `io.linkerd.proxy.inbound`: what a port of a workload speaks and who may call it.

use std::collections::HashMap;

use super::meta::Metadata;
use super::net::IpNetwork;

/// A port of a workload.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PortSpec {
    /// Workload name from the proxy's settings.
    #[prost(string, tag = "1")]
    pub workload: String,
    /// The port.
    #[prost(uint32, tag = "2")]
    pub port: u32,
}

/// Policy of a port.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InboundServer {
    /// Protocol of the port.
    #[prost(message, optional, tag = "1")]
    pub protocol: Option<ProxyProtocol>,
    /// Clients that may call; all others are refused.
    #[prost(message, repeated, tag = "3")]
    pub authorizations: Vec<Authz>,
    /// Its `group`, `kind` and `name`.
    #[prost(map = "string, string", tag = "4")]
    pub labels: HashMap<String, String>,
}

/// Protocol of a port.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ProxyProtocol {
    /// The protocol.
    #[prost(oneof = "InboundProtocol", tags = "1, 2")]
    pub kind: Option<InboundProtocol>,
}

/// The protocols that this control plane sends.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum InboundProtocol {
    /// The proxy looks.
    #[prost(message, tag = "1")]
    Detect(Detect),
    /// Bytes.
    #[prost(message, tag = "2")]
    Opaque(Opaque),
}

/// Opaque bytes, without protocol detection.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Opaque {}

/// Protocol detection; without routes the proxy makes one for all requests.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Detect {
    /// Time limit of the detection.
    #[prost(message, optional, tag = "1")]
    pub timeout: Option<prost_types::Duration>,
}

/// An authorization of clients.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Authz {
    /// Networks of the clients.
    #[prost(message, repeated, tag = "1")]
    pub networks: Vec<Network>,
    /// Identities of the clients.
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

/// Identities that an authorization accepts.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Authn {
    /// Which.
    #[prost(oneof = "Permit", tags = "1, 2")]
    pub permit: Option<Permit>,
}

/// Kinds of permission.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Permit {
    /// Every client, in plaintext too.
    #[prost(message, tag = "1")]
    Unauthenticated(UnauthenticatedClients),
    /// Clients with a certificate of the mesh.
    #[prost(message, tag = "2")]
    MeshTls(MeshTls),
}

/// Every client.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UnauthenticatedClients {}

/// Clients with a certificate of the mesh.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MeshTls {
    /// The permitted clients among them.
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

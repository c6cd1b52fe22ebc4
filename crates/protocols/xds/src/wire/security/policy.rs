//! Policy of clients' calls to a service ⇄ `voile.proxy.v1.ServicePolicy`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use voile_model::mesh::{PortTraffic, RetrySettings};
use voile_model::{Labels, Port};
use voile_proto::proxy as wire;

use crate::wire::fields::forms::{or_default, required};
use crate::wire::fields::{wire_key, wire_type};
use crate::wire::{WireError, WireProtocol, WireType};

/// Policy of calls to a service, or to a workload at its own address, port by port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePolicy {
    /// By service port, or by the workload's.
    pub ports: BTreeMap<Port, PortPolicy>,
    /// Of a workload: whether ports that are not listed take plaintext only.
    pub plaintext: bool,
    /// Of a DNS name's addresses only the first is used for new connections.
    pub first_address_only: bool,
    /// Parts of the service that routes may lead to, by name.
    pub subsets: BTreeMap<Arc<str>, Subset>,
    /// Policies of clients with these labels, in place of this one; the first that selects a client
    /// counts.
    pub for_clients: Vec<ClientPolicy>,
}

wire_type! {
    ServicePolicy as wire::ServicePolicy {
        ports,
        plaintext,
        first_address_only,
        subsets,
        for_clients,
    }
}

/// Policy of a service for some clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPolicy {
    /// The clients have all of these.
    pub labels: Labels,
    /// The policy.
    pub policy: ServicePolicy,
}

wire_type! {
    ClientPolicy as wire::ClientPolicy { labels, policy with required, }
    verify for_no_others
}

fn for_no_others(client: &ClientPolicy) -> Result<(), WireError> {
    match client.policy.for_clients.is_empty() {
        true => Ok(()),
        false => Err(WireError::new(
            "policy",
            "nested for_clients are not allowed",
        )),
    }
}

/// A part of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subset {
    /// Name of the part.
    pub name: Arc<str>,
    /// Its workloads have all of these.
    pub labels: Labels,
    /// Settings that differ by port.
    pub ports: BTreeMap<Port, SubsetPort>,
}

wire_type! { Subset as wire::Subset { name, labels, ports, } }
wire_key! { Subset by name: Arc<str> }

/// Policy of calls to a port of a subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsetPort {
    /// The port.
    pub port: Port,
    /// HTTP/1.1 travels to its sidecars as HTTP/2.
    pub http2_upgrade: bool,
    /// True if the proxy keeps the client's protocol, whatever is declared.
    pub client_protocol: bool,
    /// Load balancing and connection limits.
    pub traffic: PortTraffic,
}

wire_type! {
    SubsetPort as wire::SubsetPort {
        port,
        http2_upgrade,
        client_protocol,
        traffic with or_default,
    }
}
wire_key! { SubsetPort by port: Port }

/// Policy of calls to one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortPolicy {
    /// The port.
    pub port: Port,
    /// Protocol of the port.
    pub protocol: WireProtocol,
    /// Workloads (uid) to be spoken to in plaintext although they have a sidecar.
    pub plaintext_workloads: BTreeSet<Arc<str>>,
    /// HTTP/1.1 travels to this port's sidecars as HTTP/2.
    pub http2_upgrade: bool,
    /// True if the proxy keeps the client's protocol, whatever is declared.
    pub client_protocol: bool,
    /// Retry policy of requests; `None` is the proxy's default.
    pub retry: Option<RetrySettings>,
    /// Load balancing and connection limits.
    pub traffic: PortTraffic,
}

wire_type! {
    PortPolicy as wire::PortPolicy {
        port,
        protocol,
        plaintext_workloads,
        http2_upgrade,
        client_protocol,
        retry,
        traffic with or_default,
    }
}
wire_key! { PortPolicy by port: Port }

impl ServicePolicy {
    /// Checks the bytes of a `voile.proxy.v1.ServicePolicy`.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Self::from_wire(wire::ServicePolicy::decode(bytes)?)
    }

    /// The policy for a client with these labels.
    #[must_use]
    pub fn for_client(&self, labels: &Labels) -> &Self {
        let mut all = self.for_clients.iter();
        let selecting = all.find(|client| client.labels.selects(labels));
        selecting.map_or(self, |client| &client.policy)
    }

    /// Returns true if the service has a subset of this name for any client.
    #[must_use]
    pub fn has_subset(&self, name: &str) -> bool {
        let others = self.for_clients.iter().map(|client| &client.policy);
        let mut all = std::iter::once(self).chain(others);
        all.any(|policy| policy.subsets.contains_key(name))
    }
}

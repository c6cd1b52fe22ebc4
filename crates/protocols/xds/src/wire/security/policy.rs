//! Policy of clients' calls to a service, checked from `voile.proxy.v1.ServicePolicy`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use voile_model::mesh::{PortTraffic, RetrySettings};
use voile_model::{Labels, Port};
use voile_proto::proxy as wire;

use crate::wire::traffic::{check_traffic, time};
use crate::wire::{WireError, WireProtocol, labels_of, milliseconds, port};

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
    pub for_clients: Vec<(Labels, Self)>,
}

/// A part of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subset {
    /// Its workloads have all of these.
    pub labels: Labels,
    /// Settings that differ by port.
    pub ports: BTreeMap<Port, SubsetPort>,
}

/// Policy of calls to a port of a subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsetPort {
    /// HTTP/1.1 travels to its sidecars as HTTP/2.
    pub http2_upgrade: bool,
    /// True if the proxy keeps the client's protocol, whatever is declared.
    pub client_protocol: bool,
    /// Load balancing and connection limits.
    pub traffic: PortTraffic,
}

/// Policy of calls to one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortPolicy {
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

/// Retries as a message.
#[must_use]
pub fn encode_retry(settings: &RetrySettings) -> wire::RetryPolicy {
    wire::RetryPolicy {
        retries: settings.retries,
        on: settings.on.iter().map(ToString::to_string).collect(),
        per_try_timeout_ms: settings.per_try_timeout.map_or(0, milliseconds),
        backoff_ms: settings.backoff.map_or(0, milliseconds),
    }
}

pub(in crate::wire) fn check_retry(message: &wire::RetryPolicy) -> RetrySettings {
    RetrySettings {
        retries: message.retries,
        on: message.on.iter().map(|name| name.as_str().into()).collect(),
        per_try_timeout: time(message.per_try_timeout_ms),
        backoff: time(message.backoff_ms),
    }
}

impl ServicePolicy {
    /// Checks the bytes of a `voile.proxy.v1.ServicePolicy`.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Self::check(&wire::ServicePolicy::decode(bytes)?)
    }

    /// Checks a message.
    pub fn check(message: &wire::ServicePolicy) -> Result<Self, WireError> {
        let mut checked = Self::check_own(message)?;
        for (index, entry) in message.for_clients.iter().enumerate() {
            let field = format!("for_clients[{index}].policy");
            let Some(policy) = &entry.policy else {
                return Err(WireError::new(field, "missing".to_owned()));
            };
            if !policy.for_clients.is_empty() {
                let reason = "nested for_clients are not allowed".to_owned();
                return Err(WireError::new(field, reason));
            }
            let policy = Self::check_own(policy).map_err(|error| error.within(&field))?;
            let of = (labels_of(&entry.labels), policy);
            checked.for_clients.push(of);
        }
        Ok(checked)
    }

    /// The policy for a client with these labels.
    #[must_use]
    pub fn for_client(&self, labels: &Labels) -> &Self {
        let mut all = self.for_clients.iter();
        let selecting = all.find(|(selector, _)| selector.selects(labels));
        selecting.map_or(self, |(_, policy)| policy)
    }

    /// Returns true if the service has a subset of this name for any client.
    #[must_use]
    pub fn has_subset(&self, name: &str) -> bool {
        let others = self.for_clients.iter().map(|(_, policy)| policy);
        let mut all = std::iter::once(self).chain(others);
        all.any(|policy| policy.subsets.contains_key(name))
    }

    fn check_own(message: &wire::ServicePolicy) -> Result<Self, WireError> {
        let mut ports = BTreeMap::new();
        for (index, entry) in message.ports.iter().enumerate() {
            let field = format!("ports[{index}]");
            let number = port(&format!("{field}.port"), entry.port)?;
            let policy = PortPolicy {
                protocol: WireProtocol::from_proxy(&format!("{field}.protocol"), entry.protocol)?,
                plaintext_workloads: entry
                    .plaintext_workloads
                    .iter()
                    .map(|uid| uid.as_str().into())
                    .collect(),
                http2_upgrade: entry.http2_upgrade,
                client_protocol: entry.client_protocol,
                retry: entry.retry.as_ref().map(check_retry),
                traffic: check_traffic(entry.traffic.as_ref())
                    .map_err(|error| error.within(&format!("{field}.traffic")))?,
            };
            if ports.insert(number, policy).is_some() {
                let reason = format!("port {number} appears twice");
                return Err(WireError::new(format!("{field}.port"), reason));
            }
        }
        let mut subsets = BTreeMap::new();
        for (index, entry) in message.subsets.iter().enumerate() {
            let subset =
                Subset::check(entry).map_err(|e| e.within(&format!("subsets[{index}]")))?;
            if subsets.insert(entry.name.as_str().into(), subset).is_some() {
                let reason = format!("`{}` appears twice", crate::wire::shown(&entry.name));
                return Err(WireError::new(format!("subsets[{index}].name"), reason));
            }
        }
        Ok(Self {
            ports,
            plaintext: message.plaintext,
            first_address_only: message.first_address_only,
            subsets,
            for_clients: Vec::new(),
        })
    }
}

impl Subset {
    fn check(message: &wire::Subset) -> Result<Self, WireError> {
        let mut ports = BTreeMap::new();
        for (index, entry) in message.ports.iter().enumerate() {
            let number = port(&format!("ports[{index}].port"), entry.port)?;
            let said = SubsetPort {
                http2_upgrade: entry.http2_upgrade,
                client_protocol: entry.client_protocol,
                traffic: check_traffic(entry.traffic.as_ref())
                    .map_err(|error| error.within(&format!("ports[{index}].traffic")))?,
            };
            ports.insert(number, said);
        }
        Ok(Self {
            labels: labels_of(&message.labels),
            ports,
        })
    }
}

//! WorkloadGroups: templates for workloads that join the mesh by themselves.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::probe::Probe;
use crate::mesh::service::AddressRange;
use crate::names::{Labels, Port, ResourceName};
use crate::source::Source;

/// Template for workloads that join by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadGroup {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// Labels of its members: the template's, then those of `metadata`.
    pub labels: Labels,
    /// Annotations of its members' entries.
    pub annotations: Labels,
    /// Ports by name.
    pub ports: BTreeMap<Arc<str>, Port>,
    /// Their network, empty for ours.
    pub network: Arc<str>,
    /// `region/zone/subzone`, empty when not said.
    pub locality: Arc<str>,
    /// The share of the load that each of them takes.
    pub weight: Option<u32>,
    /// Service account, in the group's namespace, that a member must prove.
    pub service_account: Arc<str>,
    /// Addresses that a member may claim besides the one it connects from.
    pub member_addresses: Vec<AddressRange>,
    /// Health check of its members; without it a member is healthy while it is connected.
    pub probe: Option<HealthProbe>,
}

/// Health check of a member by its proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthProbe {
    /// The probe and its interval.
    pub probe: Probe,
    /// Target address, if not the member's own.
    pub host: Option<IpAddr>,
}

impl WorkloadGroup {
    /// Name of a member at this address, as Istio writes it. Names have no colons, so an IPv6 address is written as all
    /// its groups of hexadecimal digits, with dashes.
    #[must_use]
    pub fn member(group: &str, address: IpAddr) -> String {
        match address {
            IpAddr::V4(address) => format!("{group}-{address}"),
            IpAddr::V6(address) => {
                let parts = address.segments().map(|part| format!("{part:x}"));
                format!("{group}-{}", parts.join("-"))
            }
        }
    }
}

//! WorkloadGroups: what a workload is that joins the mesh by itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::probe::Probe;
use super::service::AddressRange;
use crate::names::{Labels, Port, ResourceName};
use crate::source::Source;

/// Who may join by itself, and what its entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadGroup {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
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
    /// Who may join: whoever proves to be this service account of the group's namespace.
    pub service_account: Arc<str>,
    /// Addresses that a member may claim besides the one it connects from.
    pub member_addresses: Vec<AddressRange>,
    /// How its members are asked how they are; without it they are well while they are there.
    pub probe: Option<HealthProbe>,
}

/// How the proxy beside a member asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthProbe {
    /// What is asked, and how often.
    pub probe: Probe,
    /// Where, if not at the member's own address.
    pub host: Option<IpAddr>,
}

impl WorkloadGroup {
    /// What a member at this address is called, as Istio calls it; colons are no part of a name, so that groups of hexadecimal
    /// digits are written out, with dashes.
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

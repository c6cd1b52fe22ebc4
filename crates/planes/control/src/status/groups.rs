//! WorkloadGroups and who joined them, as an operator sees them: those of all control planes, since all of them are in the mesh.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use voile_model::mesh::{Mesh, WorkloadGroup};
use voile_model::{ResourceName, Source};

/// A group.
#[derive(Debug, Serialize)]
pub(super) struct WorkloadGroupStatus {
    name: String,
    service_account: String,
    /// True if the members' health is probed.
    probed: bool,
    declared: String,
    members: Vec<Member>,
}

/// One of its members.
#[derive(Debug, Serialize)]
struct Member {
    name: String,
    address: Option<IpAddr>,
    /// It takes traffic.
    healthy: bool,
    document: String,
}

/// Every group of a mesh, in order.
pub(super) fn groups(mesh: &Mesh) -> Vec<WorkloadGroupStatus> {
    let mut members: BTreeMap<&ResourceName, Vec<Member>> = BTreeMap::new();
    let place = |source: &Source| source.to_string();
    for workload in mesh.workloads.values() {
        if let Some(group) = &workload.group {
            members.entry(group).or_default().push(Member {
                name: workload.key.name.to_string(),
                address: workload.addresses.first().copied(),
                healthy: workload.ready,
                document: place(&workload.source),
            });
        }
    }
    let group = |group: &Arc<WorkloadGroup>| WorkloadGroupStatus {
        name: group.name.to_string(),
        service_account: group.service_account.to_string(),
        probed: group.probe.is_some(),
        declared: place(&group.source),
        members: members.remove(&group.name).unwrap_or_default(),
    };
    mesh.workload_groups.values().map(group).collect()
}

//! From one snapshot to the next where it is known what changed: only what depends on that is made again.
//!
//! | changed | made again |
//! |---|---|
//! | a workload | its address, policy and configuration; of the services that it stands or stood behind: who is behind them, and their policy |
//! | an AuthorizationPolicy | it; the configurations of its namespace, or of all if it is the root namespace; likewise the addresses of ambient workloads, which name policies |
//! | an ambient workload | what is to be said of the policies that select it |
//! | the first or last ambient workload | everything |
//! | where the mesh's addresses are | all configurations |
//! | anything else (a service among them) | everything |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_model::check::{Changes, Turn};
use voile_model::mesh::{Mesh, Service, Workload};
use voile_model::{ServiceKey, WorkloadKey};

use super::{Making, capture};
use crate::snapshot::MeshSnapshot;

/// Makes the snapshot that follows on `previous`, which was made of the mesh before these changes. None when that is not enough.
pub(crate) fn update(
    mesh: &Mesh,
    previous: &MeshSnapshot,
    changes: &Changes,
) -> Option<MeshSnapshot> {
    if changes.everything || !changes.services.is_empty() {
        return None;
    }
    let is_ambient = |one: &Option<Arc<Workload>>| one.as_ref().is_some_and(|one| one.ambient);
    let turns = || changes.workloads.values();
    let ambient_changed = turns().any(|(old, new)| is_ambient(old) || is_ambient(new));
    if ambient_changed
        && previous.ambient != mesh.workloads.values().any(|workload| workload.ambient)
    {
        return None;
    }
    let mut making = Making::new(mesh, Some(previous), previous.clone());
    let mut obeying: BTreeSet<&WorkloadKey> = BTreeSet::new();
    let mut services: BTreeMap<ServiceKey, Arc<Service>> = BTreeMap::new();
    for (key, (old, new)) in &changes.workloads {
        for workload in [old, new].into_iter().flatten() {
            let of = mesh.services_of(workload).into_iter();
            services.extend(of.map(|member| (member.service.key.clone(), member.service)));
        }
        making.turn(old.as_deref(), new.as_deref());
        obeying.insert(key);
    }
    if ambient_changed {
        making.judge(turns().flat_map(|(old, new)| [old, new]).flatten());
    }
    for (key, service) in services {
        making.members(&service, key.to_string().into());
    }
    let mut everybody = false;
    for name in &changes.policies {
        match mesh.authorization_policies.get(name) {
            Some(policy) => making.authorization(policy),
            None => {
                let name = name.to_string();
                making.snapshot.authorization.remove(&name);
                making.snapshot.node_policies.remove(&name);
            }
        }
        everybody |= name.namespace == mesh.config.root_namespace;
        let own = mesh.workloads_in(&name.namespace);
        obeying.extend(own.map(|workload| &workload.key));
    }
    if changes.workloads.values().any(moves) {
        let ranges = capture::mesh_ranges(mesh);
        if *ranges != *making.snapshot.mesh_ranges {
            making.snapshot.mesh_ranges = ranges.into();
            everybody = true;
        }
    }
    if everybody {
        obeying.extend(mesh.workloads.keys());
    }
    for key in obeying {
        match mesh.workloads.get(key) {
            Some(workload) if workload.has_sidecar => making.configuration(workload),
            Some(workload) if workload.ambient => {
                making.workload(workload);
                making.without_configuration(&key.to_string());
            }
            _ => making.without_configuration(&key.to_string()),
        }
    }
    if making.obeyed_anew {
        making.gather();
    }
    let mut snapshot = making.snapshot;
    snapshot.seal();
    Some(snapshot)
}

impl Making<'_> {
    /// A workload takes the place of another.
    fn turn(&mut self, old: Option<&Workload>, new: Option<&Workload>) {
        let snapshot = &mut self.snapshot;
        for (workload, count) in [(old, -1), (new, 1)] {
            if workload.is_some_and(|one| !one.ready) {
                snapshot.unready = snapshot.unready.saturating_add_signed(count);
            }
        }
        if let Some(old) = old
            && new.is_none_or(|new| new.uid != old.uid)
        {
            snapshot.remove_address(&old.uid);
            snapshot.plain.remove(&old.uid);
            snapshot.before.remove(&old.uid);
            snapshot.policies.remove(&old.uid);
        }
        if let Some(new) = new {
            self.workload(new);
        }
    }

    /// Says again what of policies cannot be kept: that depends on whom they select.
    fn judge<'w>(&mut self, workloads: impl Iterator<Item = &'w Arc<Workload>>) {
        let mut selecting = BTreeMap::new();
        for workload in workloads {
            let all = self.mesh.authorization_for(workload).into_iter();
            selecting.extend(all.map(|policy| (policy.name.clone(), policy.clone())));
        }
        for policy in selecting.values() {
            self.authorization(policy);
        }
    }
}

/// Whether it is somewhere else than it was, as far as every sidecar is told.
fn moves((old, new): &Turn<Workload>) -> bool {
    let place = |workload: &Option<Arc<Workload>>| {
        let workload = workload.as_ref().filter(|one| one.has_sidecar);
        workload.map(|one| one.addresses.clone())
    };
    place(old) != place(new)
}

//! From one snapshot to the next where it is known what changed: only what depends on that is made again.
//!
//! | changed | made again |
//! |---|---|
//! | a workload | its address, policy and configuration; of the services that it stands or stood behind: who is behind them, and their policy |
//! | an AuthorizationPolicy | it; the configurations of its namespace, or of all if it is the root namespace |
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
    for (key, service) in services {
        making.members(&service, key.to_string().into());
    }
    let mut everybody = false;
    for name in &changes.policies {
        match mesh.authorization_policies.get(name) {
            Some(policy) => making.authorization(policy),
            None => drop(making.snapshot.authorization.remove(&name.to_string())),
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
        match mesh.workloads.get(key).filter(|one| one.has_sidecar) {
            Some(workload) => making.configuration(workload),
            None => making.without_configuration(&key.to_string()),
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
            snapshot.before.remove(&old.uid);
            snapshot.policies.remove(&old.uid);
        }
        if let Some(new) = new {
            self.workload(new);
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

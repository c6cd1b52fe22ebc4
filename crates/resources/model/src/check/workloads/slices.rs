//! Makes workloads for addresses in EndpointSlices at which no workload is known. A patch updates only Services whose
//! slices, or whose workloads at these addresses, changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::check::checker::{MeshPatch, Turn};
use crate::check::{CheckedResource, ResourceId, StoredResource};
use crate::mesh::endpoint_slice::{Owners, Places, stranger_prefix};
use crate::mesh::{EndpointAddress, Mesh, MeshService, ServiceOrigin, Workload, WorkloadKind};
use crate::names::{CLUSTER_DOMAIN, Hostname, ResourceName, ServiceKey, WorkloadKey};

/// Makes the workloads of a mesh that is put together anew.
pub(in crate::check) fn settle(mesh: &mut Mesh) {
    if mesh.endpoint_slices.is_empty() {
        return;
    }
    let services: BTreeSet<ResourceName> = mesh.endpoint_slices.services().cloned().collect();
    for service in &services {
        mesh.endpoint_slices.put_together(service);
    }
    let owners = mesh.owners(&mesh.slice_addresses(&services));
    for service in &services {
        let made = strangers(mesh, service, &owners);
        mesh.workloads.extend(made);
    }
}

/// Addresses from slices that are about to change, by Service.
pub(in crate::check) type Said = BTreeMap<ResourceName, Places>;

/// The addresses before these slices are added or removed.
pub(in crate::check) fn said<'a>(
    mesh: &Mesh,
    all: impl Iterator<Item = &'a (ResourceId, StoredResource)>,
) -> Said {
    let mut said = Said::new();
    for (_, stored) in all {
        if let CheckedResource::EndpointSlice(slice) = &stored.checked {
            let service = slice.for_service();
            let places = mesh.endpoint_slices.places(&service);
            let places = || places.cloned().unwrap_or_default();
            said.entry(service).or_insert_with(places);
        }
    }
    said
}

/// Makes what follows from resources that came and went; `said` is what their slices said before.
pub(in crate::check) fn follow(mesh: &mut Mesh, said: &Said, changes: &mut MeshPatch) {
    if mesh.endpoint_slices.is_empty() && said.is_empty() {
        return;
    }
    for service in said.keys() {
        mesh.endpoint_slices.put_together(service);
    }
    let concerned = concerned(mesh, said, changes);
    if concerned.is_empty() {
        return;
    }
    let before = said.values().flat_map(BTreeMap::keys);
    let before = before.filter_map(|address| match address {
        EndpointAddress::Ip(address) => Some(*address),
        EndpointAddress::Dns(_) => None,
    });
    let mut addresses: BTreeSet<IpAddr> = before.collect();
    addresses.extend(mesh.slice_addresses(&concerned));
    let owners = mesh.owners(&addresses);
    for service in &concerned {
        replace_strangers(mesh, service, &owners, changes);
        if let Some(before) = said.get(service) {
            note_known(mesh, (service, before), &owners, changes);
        }
        changes
            .endpoints
            .extend(found(mesh, service).map(|one| one.key.clone()));
    }
}

/// The Services whose endpoints may have changed.
fn concerned(mesh: &Mesh, said: &Said, changes: &MeshPatch) -> BTreeSet<ResourceName> {
    let slices = &mesh.endpoint_slices;
    let mut concerned: BTreeSet<ResourceName> = said.keys().cloned().collect();
    let services = changes.services.values();
    for service in services.flat_map(|(old, new)| old.iter().chain(new)) {
        let name = ResourceName::new(service.key.namespace.clone(), service.name.clone());
        if service.origin == ServiceOrigin::Kubernetes && slices.places(&name).is_some() {
            concerned.insert(name);
        }
    }
    let moved = changes.workloads.values().filter(|turn| moves(turn));
    for workload in moved.flat_map(|(old, new)| old.iter().chain(new)) {
        for address in &workload.addresses {
            concerned.extend(slices.services_at(*address).cloned());
        }
    }
    concerned
}

/// Returns true if a workload's addresses or network changed.
fn moves((old, new): &Turn<Workload>) -> bool {
    let at = |one: &Option<Arc<Workload>>| {
        let one = one.as_ref()?;
        let known = matches!(one.kind, WorkloadKind::Pod | WorkloadKind::WorkloadEntry);
        known.then(|| (one.addresses.clone(), one.network.clone()))
    };
    at(old) != at(new)
}

fn found<'a>(mesh: &'a Mesh, name: &ResourceName) -> Option<&'a Arc<MeshService>> {
    let host = format!("{}.{}.svc.{CLUSTER_DOMAIN}", name.name, name.namespace);
    let key = ServiceKey::new(name.namespace.clone(), Hostname::new(&host)?);
    let found = mesh.services.get(&key)?;
    (found.origin == ServiceOrigin::Kubernetes).then_some(found)
}

/// The workloads that a Service's slices make.
fn strangers(
    mesh: &Mesh,
    service: &ResourceName,
    owners: &Owners,
) -> BTreeMap<WorkloadKey, Arc<Workload>> {
    let service = found(mesh, service);
    let made = service.map(|service| mesh.strangers(service, owners));
    let made = made.into_iter().flatten();
    made.map(|one| (one.key.clone(), Arc::new(one))).collect()
}

/// Puts the workloads that a Service's slices make now in the place of those before.
fn replace_strangers(
    mesh: &mut Mesh,
    service: &ResourceName,
    owners: &Owners,
    changes: &mut MeshPatch,
) {
    let made = strangers(mesh, service, owners);
    let prefix = stranger_prefix(&service.name);
    let from = WorkloadKey::new(service.namespace.clone(), &*prefix);
    let own =
        |key: &WorkloadKey| key.namespace == service.namespace && key.name.starts_with(&*prefix);
    let old = mesh.workloads.range(from..);
    let old = old.take_while(|(key, _)| own(key));
    let gone: Vec<WorkloadKey> = old
        .filter(|(key, old)| made.get(*key) != Some(*old))
        .map(|(key, _)| key.clone())
        .collect();
    for key in gone {
        let old = mesh.workloads.remove(&key);
        changes.workloads.entry(key).or_default().0 = old;
    }
    for (key, new) in made {
        if !mesh.workloads.contains_key(&key) {
            mesh.workloads.insert(key.clone(), new.clone());
            changes.workloads.entry(key).or_default().1 = Some(new);
        }
    }
}

/// Notes the workloads whose slices changed: the workloads are unchanged, but their services are not.
fn note_known(
    mesh: &Mesh,
    (service, before): (&ResourceName, &Places),
    owners: &Owners,
    changes: &mut MeshPatch,
) {
    let none = BTreeMap::new();
    let now = mesh.endpoint_slices.places(service).unwrap_or(&none);
    let addresses: BTreeSet<&EndpointAddress> = before.keys().chain(now.keys()).collect();
    let others = addresses
        .into_iter()
        .filter(|address| before.get(*address) != now.get(*address));
    for address in others {
        let EndpointAddress::Ip(address) = address else {
            continue;
        };
        for key in owners.get(address).into_iter().flatten() {
            if let Some(known) = mesh.workloads.get(key) {
                let turn = || (Some(known.clone()), Some(known.clone()));
                changes.workloads.entry(key.clone()).or_insert_with(turn);
            }
        }
    }
}

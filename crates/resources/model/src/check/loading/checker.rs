//! Checks the same files repeatedly. An unchanged file is not parsed again. If there is no error, a change is patched
//! into the mesh without assembling it anew.
//!
//! ```text
//! files ─ same as before? ─▶ what was read of them ─┬ all is well, kinds that touch nothing else ─▶ patch the mesh ─▶ Changes
//!            └ changed ─▶ read                      └ anything else ─▶ merge ─▶ last good ─▶ assemble ─▶ Mesh
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attach::GENERATED;
use crate::check::read_files::KnownFiles;
use crate::check::{
    CheckedResource, ReadFiles, ResourceId, StoredResource, assemble, fail_closed, intents,
    last_good, slices,
};
use crate::diagnostic::Diagnostic;
use crate::mesh::authorization::PolicyTarget;
use crate::mesh::gateway_api::GATEWAY_NAME;
use crate::mesh::{HttpRoute, Mesh, MeshService, VirtualService, Workload, WorkloadKind};
use crate::names::{Hostname, Labels, Namespace, ResourceName, ServiceKey, WorkloadKey};
use crate::source::SourceFile;

/// See the module.
#[derive(Debug, Default)]
pub struct Checker {
    files: KnownFiles,
    /// Nothing was wrong when the mesh was last put together, and nothing in it needs to be looked at as a whole.
    plain: bool,
}

/// The result of a check.
#[derive(Debug)]
pub enum CheckOutcome {
    /// The mesh that was given was patched.
    Patched(Patch, Box<MeshPatch>),
    /// The mesh was put together anew.
    Whole(Box<Mesh>, Vec<Diagnostic>),
}

/// The resources by which two readings differ.
#[derive(Debug, Default)]
pub struct Patch {
    removed: Vec<(ResourceId, StoredResource)>,
    added: Vec<(ResourceId, StoredResource)>,
}

/// Something of a mesh before and after; absent where it was not there.
pub type Turn<T> = (Option<Arc<T>>, Option<Arc<T>>);

/// The workloads that a resource applies to: those of a namespace, or all if it is the root namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceReach {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its selector, if it has one.
    pub selector: Option<Labels>,
}

impl ResourceReach {
    fn of(name: &ResourceName, selector: Option<&Labels>) -> Self {
        Self {
            namespace: name.namespace.clone(),
            selector: selector.cloned(),
        }
    }
}

/// The changes that a patch made in a mesh.
#[derive(Debug, Default)]
pub struct MeshPatch {
    /// Something changed that may be of consequence anywhere.
    pub everything: bool,
    /// Services.
    pub services: BTreeMap<ServiceKey, Turn<MeshService>>,
    /// Workloads.
    pub workloads: BTreeMap<WorkloadKey, Turn<Workload>>,
    /// Services whose endpoints changed: their EndpointSlices changed, or the workloads at an address that these name.
    pub endpoints: BTreeSet<ServiceKey>,
    /// AuthorizationPolicies.
    pub policies: BTreeSet<ResourceName>,
    /// The hosts of VirtualServices, and of those that hand over to them; `None` where none of them changed.
    pub routes: Option<BTreeSet<Hostname>>,
    /// Workloads of changed Sidecars and PeerAuthentications, before and after. Their listeners, and the way to call
    /// them, may change.
    pub inbound: Vec<ResourceReach>,
    /// Some of these were PeerAuthentications.
    pub peers: bool,
    /// Workloads of changed RequestAuthentications, before and after.
    pub tokens: Vec<ResourceReach>,
    /// Workloads of changed Telemetries, before and after.
    pub telemetry: Vec<ResourceReach>,
    /// Workloads of changed RateLimits, before and after.
    pub rate_limits: Vec<ResourceReach>,
    /// Workloads of changed HealthChecks, before and after; without a selector, all gateways.
    pub health_checks: Vec<ResourceReach>,
}

impl MeshPatch {
    /// Returns true if nothing changed that proxies receive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.everything
            && self.services.is_empty()
            && self.workloads.is_empty()
            && self.endpoints.is_empty()
            && self.policies.is_empty()
            && self.routes.is_none()
            && self.inbound.is_empty()
            && self.tokens.is_empty()
            && self.telemetry.is_empty()
            && self.rate_limits.is_empty()
            && self.health_checks.is_empty()
    }
}

impl Checker {
    /// Checks all files together. A resource that was valid in `mesh` and is invalid now keeps its last valid version.
    /// If possible, `mesh` is patched. An unchanged file is not compared if it is the same `Arc` as in the last call.
    pub fn check(&mut self, files: &[Arc<SourceFile>], mesh: Option<&mut Mesh>) -> CheckOutcome {
        let changed = self.files.follow(files);
        let previous = match mesh {
            Some(mesh) => {
                if let Some((patch, changes)) = self.patch(&changed, mesh) {
                    return CheckOutcome::Patched(patch, changes.into());
                }
                Some(&*mesh)
            }
            None => None,
        };
        let (mesh, diagnostics) = self.whole(previous);
        CheckOutcome::Whole(Box::new(mesh), diagnostics)
    }

    /// Checks files of which none is known.
    pub(in crate::check) fn fresh(
        &mut self,
        files: &[Arc<SourceFile>],
        previous: Option<&Mesh>,
    ) -> (Mesh, Vec<Diagnostic>) {
        self.files.follow(files);
        self.whole(previous)
    }

    /// Diagnostics of the current files, while none has an error.
    #[must_use]
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let all = self.files.reads().flat_map(|read| &read.diagnostics);
        let mut all: Vec<Diagnostic> = all.cloned().collect();
        Diagnostic::sort(&mut all);
        all
    }

    /// Returns true if the next change may be applied as a patch.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Forgets that all was well: the mesh is not the one that was put together last.
    pub fn distrust(&mut self) {
        self.plain = false;
    }

    fn patch(
        &mut self,
        changed: &[Turn<ReadFiles>],
        mesh: &mut Mesh,
    ) -> Option<(Patch, MeshPatch)> {
        let well = |read: &Option<Arc<ReadFiles>>| read.as_ref().is_none_or(|read| read.is_well());
        if !self.plain || !changed.iter().all(|(_, now)| well(now)) {
            return None;
        }
        let patch = Patch::between(changed)?;
        if !mesh.gateway_api.is_empty() && patch.concerns_gateway_api() {
            return None;
        }
        if mesh.may_have_default_gateways(patch.removed.len()) && patch.concerns_gateways() {
            return None;
        }
        let changes = patch.apply(mesh);
        // A clash: only a check of all resources knows the first one.
        self.plain = changes.is_some();
        Some((patch, changes?))
    }

    fn whole(&mut self, previous: Option<&Mesh>) -> (Mesh, Vec<Diagnostic>) {
        let mut read = ReadFiles::default();
        for one in self.files.reads() {
            read.add(one);
        }
        match previous {
            Some(previous) => last_good::keep(&mut read, &previous.resources),
            None => {
                let never_read: Vec<Diagnostic> = read.never_read().collect();
                read.diagnostics.extend(never_read);
            }
        }
        let well = read.is_well();
        let ReadFiles {
            good,
            bad: _,
            lost: _,
            may_be: _,
            unknown: _,
            broken,
            intents,
            mut diagnostics,
        } = read;
        let said = diagnostics.len();
        let mut mesh = assemble::assemble(good, &mut diagnostics);
        mesh.intents = intents::collect(intents);
        fail_closed::shut(&mut mesh, broken, &mut diagnostics);
        let alone =
            |stored: &StoredResource| !matches!(stored.checked, CheckedResource::IpAddress(_));
        self.plain = well && diagnostics.len() == said && mesh.resources.values().all(alone);
        Diagnostic::sort(&mut diagnostics);
        (mesh, diagnostics)
    }
}

impl ReadFiles {
    /// Everything in it is good.
    fn is_well(&self) -> bool {
        self.bad.is_empty()
            && self.lost.is_empty()
            && self.may_be.is_empty()
            && !self.diagnostics.iter().any(Diagnostic::is_error)
    }

    /// Adds what was read of a later file.
    fn add(&mut self, other: &Self) {
        let Self {
            good,
            bad,
            lost,
            may_be,
            unknown,
            broken,
            intents,
            diagnostics,
        } = other;
        for (id, stored) in good {
            self.add_good(id.clone(), stored.clone());
        }
        for (id, source) in bad {
            self.bad.entry(id.clone()).or_insert_with(|| source.clone());
        }
        for one in lost.values().flatten() {
            self.add_lost(one.clone());
        }
        for (kind, source) in may_be {
            self.add_perhaps([*kind], source);
        }
        self.unknown.extend(unknown.clone());
        for (id, stored) in broken {
            let entry = self.broken.entry(id.clone());
            entry.or_insert_with(|| stored.clone());
        }
        self.intents.extend(intents.iter().cloned());
        self.diagnostics.extend(diagnostics.iter().cloned());
    }
}

impl Patch {
    /// None when a kind is among them on which others depend.
    fn between(changed: &[Turn<ReadFiles>]) -> Option<Self> {
        let mut patch = Self::default();
        let none = BTreeMap::new();
        for (before, now) in changed {
            let before = before.as_ref().map_or(&none, |read| &read.good);
            let now = now.as_ref().map_or(&none, |read| &read.good);
            let gone = before.iter().filter(|(id, old)| now.get(id) != Some(old));
            let came = now.iter().filter(|(id, new)| before.get(id) != Some(new));
            let copy = |(id, stored): (&ResourceId, &StoredResource)| (id.clone(), stored.clone());
            patch.removed.extend(gone.map(copy));
            patch.added.extend(came.map(copy));
        }
        let all = patch.removed.iter().chain(&patch.added);
        let alone = |(_, stored): &(ResourceId, StoredResource)| stands_alone(&stored.checked);
        all.into_iter().all(alone).then_some(patch)
    }

    /// Returns true if a resource changed that Gateway API's resources refer to, or that runs them.
    fn concerns_gateway_api(&self) -> bool {
        let all = self.removed.iter().chain(&self.added);
        let concerned = |(_, stored): &(ResourceId, StoredResource)| match &stored.checked {
            CheckedResource::Services(..)
            | CheckedResource::Secret(_)
            | CheckedResource::ConfigMap(_)
            | CheckedResource::Deployment(_) => true,
            CheckedResource::Pod(pod) => pod.template.labels.get(GATEWAY_NAME).is_some(),
            _ => false,
        };
        all.into_iter().any(concerned)
    }

    /// Returns true if a resource changed that may be a gateway by its labels.
    fn concerns_gateways(&self) -> bool {
        let mut all = self.removed.iter().chain(&self.added);
        all.any(|(_, stored)| match &stored.checked {
            CheckedResource::Services(..)
            | CheckedResource::Workload(_)
            | CheckedResource::Deployment(_) => true,
            CheckedResource::Pod(pod) => pod.template.annotations.get(GENERATED).is_none(),
            _ => false,
        })
    }

    /// Does it to a mesh of the same resources. None when two resources claim one name: the mesh is spoiled then.
    #[must_use]
    pub fn apply(&self, mesh: &mut Mesh) -> Option<MeshPatch> {
        let mut changes = MeshPatch::default();
        let said = slices::said(mesh, self.removed.iter().chain(&self.added));
        for (id, stored) in &self.removed {
            if shares_service(mesh, &stored.checked, |held, own| held.ports != own.ports) {
                return None;
            }
            changes.before(mesh, &stored.checked);
            mesh.resources.remove(id);
        }
        let mut clashes = Vec::new();
        for (id, stored) in &self.added {
            if mesh.resources.insert(id.clone(), stored.clone()).is_some() {
                return None;
            }
            if shares_service(mesh, &stored.checked, |_, _| true) {
                return None;
            }
            assemble::second_round(id, stored, mesh, &mut clashes);
            if let CheckedResource::VirtualService(one) = &stored.checked {
                mesh.intents.virtual_services.push(one.clone());
            }
            assemble::by_age(&stored.checked, mesh);
            changes.after(mesh, &stored.checked);
        }
        slices::follow(mesh, &said, &mut changes);
        if changes.routes.is_some() {
            assemble::in_order_of_age(&mut mesh.virtual_services);
            let written = &mut mesh.intents.virtual_services;
            written.sort_by(|one, other| one.source.cmp(&other.source));
        }
        clashes.is_empty().then_some(changes)
    }
}

/// Returns true if the mesh has a service that `checked` defines too and `differs` holds for both. Two ServiceEntries
/// then define one service.
fn shares_service(
    mesh: &Mesh,
    checked: &CheckedResource,
    differs: impl Fn(&MeshService, &MeshService) -> bool,
) -> bool {
    let CheckedResource::Services(services, _) = checked else {
        return false;
    };
    services.iter().any(|own| {
        let held = mesh.services.get(&own.key);
        held.is_some_and(|held| differs(held, own))
    })
}

/// Returns true if the resource does not change how other resources are assembled.
fn stands_alone(checked: &CheckedResource) -> bool {
    matches!(
        checked,
        CheckedResource::ServiceAccount(_)
            | CheckedResource::Services(..)
            | CheckedResource::Workload(_)
            | CheckedResource::EndpointSlice(_)
            | CheckedResource::Pod(_)
            | CheckedResource::Deployment(_)
            | CheckedResource::AuthorizationPolicy(_)
            | CheckedResource::VirtualService(_)
            | CheckedResource::Sidecar(_)
            | CheckedResource::PeerAuthentication(_)
            | CheckedResource::RequestAuthentication(_)
            | CheckedResource::Telemetry(_)
            | CheckedResource::RateLimit(_)
            | CheckedResource::HealthCheck(_)
            | CheckedResource::ConfigMap(_)
            | CheckedResource::Secret(_)
    )
}

impl MeshPatch {
    /// Takes a resource out of the mesh.
    fn before(&mut self, mesh: &mut Mesh, checked: &CheckedResource) {
        match checked {
            CheckedResource::Services(services, workloads) => {
                for service in services {
                    let old = mesh.services.remove(&service.key);
                    self.services.entry(service.key.clone()).or_default().0 = old;
                }
                for workload in workloads {
                    self.workload_before(mesh, &workload.key);
                }
            }
            CheckedResource::Workload(workload) => self.workload_before(mesh, &workload.key),
            CheckedResource::EndpointSlice(one) => mesh.endpoint_slices.remove(one),
            CheckedResource::Pod(pod) => {
                mesh.pods.remove(&pod.name);
                let key = WorkloadKey::new(pod.name.namespace.clone(), pod.name.name.clone());
                // One without an address is no workload, and another may have its name.
                let own = |workload: &Arc<Workload>| workload.kind == WorkloadKind::Pod;
                if mesh.workloads.get(&key).is_some_and(own) {
                    self.workload_before(mesh, &key);
                }
            }
            CheckedResource::AuthorizationPolicy(policy) => {
                mesh.authorization_policies.remove(&policy.name);
                self.policies.insert(policy.name.clone());
            }
            CheckedResource::VirtualService(one) => {
                self.routed(mesh, one);
                let other = |other: &Arc<VirtualService>| other.name != one.name;
                mesh.virtual_services.retain(other);
                mesh.intents.virtual_services.retain(other);
            }
            CheckedResource::Sidecar(one) => {
                mesh.sidecars.remove(&one.name);
                self.note(checked);
            }
            CheckedResource::PeerAuthentication(one) => {
                mesh.peer_authentications
                    .retain(|other| other.name != one.name);
                self.note(checked);
            }
            CheckedResource::RequestAuthentication(one) => {
                mesh.request_authentications
                    .retain(|other| other.name != one.name);
                self.note(checked);
            }
            CheckedResource::Telemetry(one) => {
                mesh.telemetries.retain(|other| other.name != one.name);
                self.note(checked);
            }
            CheckedResource::RateLimit(one) => {
                mesh.rate_limits.remove(&one.name);
                self.note(checked);
            }
            CheckedResource::HealthCheck(one) => {
                mesh.health_checks.remove(&one.name);
                self.note(checked);
            }
            CheckedResource::ServiceAccount(account) => {
                drop(mesh.service_accounts.remove(&account.name));
            }
            CheckedResource::Deployment(one) => drop(mesh.deployments.remove(&one.key())),
            CheckedResource::ConfigMap(map) => {
                mesh.config_maps.remove(&map.name);
                self.everything = true;
            }
            CheckedResource::Secret(secret) => {
                mesh.secrets.remove(&secret.name);
                self.everything = true;
            }
            _ => self.everything = true,
        }
    }

    fn workload_before(&mut self, mesh: &mut Mesh, key: &WorkloadKey) {
        let old = mesh.workloads.remove(key);
        self.workloads.entry(key.clone()).or_default().0 = old;
    }

    /// Notes what a resource brought into the mesh.
    fn after(&mut self, mesh: &Mesh, checked: &CheckedResource) {
        match checked {
            CheckedResource::Services(services, workloads) => {
                for service in services {
                    let new = mesh.services.get(&service.key).cloned();
                    self.services.entry(service.key.clone()).or_default().1 = new;
                }
                for workload in workloads {
                    self.workload_after(mesh, &workload.key);
                }
            }
            CheckedResource::Workload(workload) => self.workload_after(mesh, &workload.key),
            CheckedResource::Pod(pod) => {
                let key = WorkloadKey::new(pod.name.namespace.clone(), pod.name.name.clone());
                let own = |workload: &Arc<Workload>| workload.kind == WorkloadKind::Pod;
                if mesh.workloads.get(&key).is_some_and(own) {
                    self.workload_after(mesh, &key);
                }
            }
            CheckedResource::AuthorizationPolicy(policy) => {
                self.policies.insert(policy.name.clone());
            }
            CheckedResource::VirtualService(one) => self.routed(mesh, one),
            CheckedResource::Sidecar(_)
            | CheckedResource::PeerAuthentication(_)
            | CheckedResource::RequestAuthentication(_)
            | CheckedResource::Telemetry(_)
            | CheckedResource::RateLimit(_)
            | CheckedResource::HealthCheck(_) => self.note(checked),
            // Changes that follow from slices are computed after all other changes.
            CheckedResource::ServiceAccount(_)
            | CheckedResource::Deployment(_)
            | CheckedResource::EndpointSlice(_) => {}
            _ => self.everything = true,
        }
    }

    /// Notes the services whose routes follow from a VirtualService in the mesh.
    fn routed(&mut self, mesh: &Mesh, one: &VirtualService) {
        let to_it = |route: &HttpRoute| {
            let delegate = route.delegate.as_ref();
            delegate.is_some_and(|delegate| delegate.name == one.name)
        };
        let hands_over = |other: &&Arc<VirtualService>| {
            let mut routes = other.http.iter();
            routes.any(to_it)
        };
        let handing = mesh.virtual_services.iter().filter(hands_over);
        let handing = handing.flat_map(|other| &other.hosts);
        let hosts = one.hosts.iter().chain(handing);
        let hosts = hosts.map(|(host, _)| host.clone());
        self.routes.get_or_insert_default().extend(hosts);
    }

    /// Notes the workloads of a resource with settings for workloads.
    fn note(&mut self, checked: &CheckedResource) {
        match checked {
            CheckedResource::Sidecar(one) => {
                self.inbound
                    .push(ResourceReach::of(&one.name, one.selector.as_ref()));
            }
            CheckedResource::PeerAuthentication(one) => {
                self.inbound
                    .push(ResourceReach::of(&one.name, one.selector.as_ref()));
                self.peers = true;
            }
            CheckedResource::RequestAuthentication(one) => {
                let selector = match &one.target {
                    PolicyTarget::Workloads(selector) => Some(selector),
                    PolicyTarget::Everything | PolicyTarget::References(_) => None,
                };
                self.tokens.push(ResourceReach::of(&one.name, selector));
            }
            CheckedResource::Telemetry(one) => {
                self.telemetry
                    .push(ResourceReach::of(&one.name, one.selector.as_ref()));
            }
            CheckedResource::RateLimit(one) => {
                self.rate_limits
                    .push(ResourceReach::of(&one.name, one.selector.as_ref()));
            }
            CheckedResource::HealthCheck(one) => {
                self.health_checks
                    .push(ResourceReach::of(&one.name, one.selector.as_ref()));
            }
            _ => {}
        }
    }

    fn workload_after(&mut self, mesh: &Mesh, key: &WorkloadKey) {
        let new = mesh.workloads.get(key).cloned();
        self.workloads.entry(key.clone()).or_default().1 = new;
    }
}

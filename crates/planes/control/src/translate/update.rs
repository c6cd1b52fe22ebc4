//! From one snapshot to the next where it is known what changed: only what depends on that is made again.
//!
//! | changed | made again |
//! |---|---|
//! | EndpointSlices of a service, or who is known at their addresses | who is behind the service, and its policy; what it makes of workloads changes these |
//! | a workload | its address, policy and configuration; of the services that it stands or stood behind: who is behind them, and their policy |
//! | a service | its address and policy, what stands behind it; address, policy and configuration of the workloads that it selects or selected; configurations that list services (egress listeners) or lead to it (providers, services that count for RateLimits) |
//! | a VirtualService | the routes of its hosts, and of the hosts of those that hand over to it; configurations of gateways |
//! | which hosts there are, who sees them, which ports they have | the routes of all services that have any, and configurations of gateways |
//! | which hosts there are, who sees them, ranges of addresses | what is searched: names, ranges |
//! | an AuthorizationPolicy | it; the configurations of its namespace, or of all if it is the root namespace; likewise the addresses of ambient workloads, which name policies |
//! | an ambient workload | what is to be said of the policies that select it |
//! | the first or last ambient workload | everything |
//! | keys of token issuers | RequestAuthentications; the configurations of the namespaces of those that say something else |
//! | a Sidecar, a PeerAuthentication | policy and configuration of the workloads for which it is or was; policy of the services that they stand behind |
//! | a RequestAuthentication | all of them; configurations of the workloads for which it is or was |
//! | a Telemetry, a RateLimit, a HealthCheck | configurations of the workloads for which it is or was |
//! | where there are ambient workloads, a PeerAuthentication | everything |
//! | where waypoints are, or are named; where other networks are entered, or ours | everything |
//! | where the mesh's addresses are | all configurations |
//! | anything else | everything |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_model::check::{MeshPatch, ResourceReach, Turn};
use voile_model::mesh::{
    CaptureMode, Mesh, MeshService, Provider, Resolution, Sidecar, Visibility, Workload,
};
use voile_model::{Hostname, Namespace, ServiceKey, WorkloadKey};

use super::{address, names};
use crate::keys::Texts;
use crate::snapshot::MeshSnapshot;
use crate::translate::builder::SnapshotBuilder;

/// Makes the snapshot that follows on `previous`, which was made of the mesh before these changes; of `keys` is said whether they
/// are others than before. None when that is not enough.
pub(crate) fn update(
    mesh: &Mesh,
    previous: &MeshSnapshot,
    changes: &MeshPatch,
    (keys, anew): (&Texts, bool),
) -> Option<MeshSnapshot> {
    // The services and policies of a waypoint depend on all services and policies together. So do calls to and from other
    // networks.
    let together = previous.together || names_waypoint(changes);
    if changes.everything || (changes.peers && previous.ambient) || together {
        return None;
    }
    if is_ambient_concerned(changes)
        && previous.ambient != mesh.workloads.values().any(|workload| workload.ambient)
    {
        return None;
    }
    let mut following = TrackedChanges {
        mesh,
        changes,
        making: SnapshotBuilder::new(mesh, Some(previous), previous.clone()),
        obeying: BTreeSet::new(),
        everybody: false,
    };
    following.workloads();
    following.services();
    following.routes();
    following.policies();
    following.inbound();
    if anew || !changes.tokens.is_empty() {
        following.keys(keys);
    }
    let obeying = changes.tokens.iter().chain(&changes.telemetry);
    let obeying = obeying.chain(&changes.rate_limits);
    obeying.for_each(|reach| following.obey(reach));
    changes
        .health_checks
        .iter()
        .for_each(|reach| following.ask(reach));
    following.places();
    Some(following.finish())
}

/// Returns true if one of these is the first to name a waypoint. Gateways and namespaces change everything.
fn names_waypoint(changes: &MeshPatch) -> bool {
    let mut services = changes
        .services
        .values()
        .filter_map(|(_, new)| new.as_ref());
    let mut workloads = changes
        .workloads
        .values()
        .filter_map(|(_, new)| new.as_ref());
    services.any(|service| service.names_waypoint()) || workloads.any(|one| one.names_waypoint())
}

fn is_ambient_concerned(changes: &MeshPatch) -> bool {
    let is_ambient = |one: &Option<Arc<Workload>>| one.as_ref().is_some_and(|one| one.ambient);
    let mut turns = changes.workloads.values();
    turns.any(|(old, new)| is_ambient(old) || is_ambient(new))
}

/// The changes being applied.
struct TrackedChanges<'a> {
    mesh: &'a Mesh,
    changes: &'a MeshPatch,
    making: SnapshotBuilder<'a>,
    /// Workloads whose configurations are to be made again.
    obeying: BTreeSet<&'a WorkloadKey>,
    everybody: bool,
}

impl<'a> TrackedChanges<'a> {
    fn workloads(&mut self) {
        let mut services: BTreeMap<ServiceKey, Arc<MeshService>> = BTreeMap::new();
        for (key, (old, new)) in &self.changes.workloads {
            for workload in [old, new].into_iter().flatten() {
                let of = self.mesh.services_of(workload).into_iter();
                services.extend(of.map(|member| (member.service.key.clone(), member.service)));
            }
            self.making.turn(old.as_deref(), new.as_deref());
            self.obeying.insert(key);
        }
        let endpoints = self.changes.endpoints.iter();
        services.extend(endpoints.filter_map(|key| {
            let service = self.mesh.services.get(key)?;
            Some((key.clone(), service.clone()))
        }));
        if is_ambient_concerned(self.changes) {
            let turns = self.changes.workloads.values();
            let both = turns.flat_map(|(old, new)| [old, new]);
            self.making.judge(both.flatten());
        }
        for (key, service) in services {
            self.making.members(&service, key.to_string().into());
        }
    }

    fn services(&mut self) {
        let all = &self.changes.services;
        for (key, (old, new)) in all {
            self.making.service_turn(old.as_deref(), new.as_deref());
            for service in [old, new].into_iter().flatten() {
                for member in self.mesh.workloads_of(service) {
                    self.making.workload(&member.workload);
                    let found = self.mesh.workloads.get_key_value(&member.workload.key);
                    self.obeying.extend(found.map(|(key, _)| key));
                }
            }
            let providers = self.mesh.config.extension_providers.values();
            let mut hosts = providers.filter_map(|one| host_of(&one.provider));
            self.everybody |= hosts.any(|host| *host == key.hostname);
            let limits = self.mesh.rate_limits.values();
            let counting = limits.filter(|one| {
                let global = one.global.as_ref();
                global.is_some_and(|global| global.service.host == key.hostname)
            });
            for one in counting {
                self.obey(&ResourceReach {
                    namespace: one.name.namespace.clone(),
                    selector: one.selector.clone(),
                });
            }
        }
        if all.is_empty() {
            return;
        }
        if all
            .values()
            .any(|turn| differ(turn, |one| one.address_ranges.clone()))
        {
            self.making.snapshot.ranges = Arc::new(address::ranges(self.mesh));
        }
        let found_by = |one: &MeshService| (one.visibility.clone(), one.origin, one.name.clone());
        if all.values().any(|turn| differ(turn, found_by)) {
            let names = names::of(self.mesh);
            if names != *self.making.snapshot.names {
                self.making.snapshot.names = Arc::new(names);
            }
        }
        if self.mesh.sidecars.values().any(|one| lists(one)) {
            let all = self.mesh.workloads.iter();
            let listing = |workload: &Workload| {
                workload.has_sidecar
                    && self
                        .mesh
                        .sidecar_for(workload)
                        .is_some_and(|one| lists(one))
            };
            let listing = all.filter(|(_, workload)| listing(workload));
            self.obeying.extend(listing.map(|(key, _)| key));
        }
    }

    /// Routes name services, their ports and subsets; of rules that have these everything is made again. Other routes are made
    /// again where a VirtualService of theirs changed.
    fn routes(&mut self) {
        let named = |one: &MeshService| {
            let ports = one.ports.iter();
            let ports: Vec<_> = ports.map(|port| (port.number, port.transport)).collect();
            let alias = matches!(one.resolution, Resolution::Alias(_));
            (one.visibility.clone(), one.location, alias, ports)
        };
        let mut services = self.changes.services.values();
        let everywhere = services.any(|turn| differ(turn, named));
        let hosts = self.changes.routes.as_ref();
        if everywhere || hosts.is_some() {
            self.making.routes(hosts.filter(|_| !everywhere));
            // Inbound traffic from outside is routed by the gateways' own configurations.
            let all = self.mesh.workloads.iter();
            let gateways = all.filter(|(_, workload)| workload.gateway);
            self.obeying.extend(gateways.map(|(key, _)| key));
        }
    }

    fn policies(&mut self) {
        for name in &self.changes.policies {
            match self.mesh.authorization_policies.get(name) {
                Some(policy) => self.making.authorization(policy),
                None => {
                    let gone = name.to_string();
                    self.making.snapshot.authorization.remove(&gone);
                    self.making.snapshot.node_policies.remove(&gone);
                }
            }
            self.obey_in(&name.namespace);
        }
    }

    fn keys(&mut self, keys: &Texts) {
        let before = self.making.snapshot.tokens.clone();
        self.making.tokens(keys);
        for policy in &self.mesh.request_authentications {
            let name = policy.name.to_string();
            // It names its key sets, which are called by what they say.
            if before.get(&name) != self.making.snapshot.tokens.get(&name) {
                self.obey_in(&policy.name.namespace);
            }
        }
    }

    /// Applies changes of the workloads' inbound side, which also change their clients' policies.
    fn inbound(&mut self) {
        let mut services: BTreeMap<ServiceKey, Arc<MeshService>> = BTreeMap::new();
        for reach in &self.changes.inbound {
            for workload in self.reached(reach) {
                self.making.workload(workload);
                self.obeying.insert(&workload.key);
                let of = self.mesh.services_of(workload).into_iter();
                services.extend(of.map(|member| (member.service.key.clone(), member.service)));
            }
        }
        for (key, service) in services {
            self.making.members(&service, key.to_string().into());
        }
    }

    fn obey(&mut self, reach: &ResourceReach) {
        let reached = self.reached(reach);
        let keys = reached.into_iter().map(|workload| &workload.key);
        self.obeying.extend(keys);
    }

    /// Applies a change of a HealthCheck. Without a selector it holds at gateways of any namespace, if it is for a service beside
    /// it.
    fn ask(&mut self, reach: &ResourceReach) {
        if reach.selector.is_some() {
            return self.obey(reach);
        }
        let gateways = self.mesh.workloads.iter();
        let gateways = gateways.filter(|(_, workload)| workload.gateway);
        self.obeying.extend(gateways.map(|(key, _)| key));
    }

    /// For whom it is. In the root namespace some kinds are for all and some for its own: all are not too many.
    fn reached(&self, reach: &ResourceReach) -> Vec<&'a Arc<Workload>> {
        let selected = |workload: &&'a Arc<Workload>| {
            let selector = reach.selector.as_ref();
            selector.is_none_or(|labels| labels.selects(&workload.labels))
        };
        match reach.namespace == self.mesh.config.root_namespace {
            true => self.mesh.workloads.values().filter(selected).collect(),
            false => {
                let own = self.mesh.workloads_in(&reach.namespace);
                own.filter(selected).collect()
            }
        }
    }

    /// A resource of a namespace holds for the namespace's workloads; one of the root namespace holds for all.
    fn obey_in(&mut self, namespace: &Namespace) {
        self.everybody |= *namespace == self.mesh.config.root_namespace;
        let own = self.mesh.workloads_in(namespace);
        self.obeying.extend(own.map(|workload| &workload.key));
    }

    /// Updates the address ranges of the mesh.
    fn places(&mut self) {
        let service = |one: &MeshService| {
            let ranges = one.address_ranges.clone();
            (one.addresses.clone(), ranges, one.resolution.clone())
        };
        let moved = self.changes.workloads.values();
        let moved: Vec<_> = moved.filter(|turn| moves(turn)).collect();
        let others = self.changes.services.values();
        let others: Vec<_> = others.filter(|turn| differ(turn, service)).collect();
        if moved.is_empty() && others.is_empty() {
            return;
        }
        let places = Arc::make_mut(&mut self.making.snapshot.places);
        for (old, new) in moved {
            old.iter().for_each(|old| places.remove_workload(old));
            new.iter().for_each(|new| places.add_workload(new));
        }
        for (old, new) in others {
            old.iter().for_each(|old| places.remove_service(old));
            new.iter().for_each(|new| places.add_service(new));
        }
        let ranges = places.ranges();
        if ranges != self.making.snapshot.mesh_ranges {
            self.making.snapshot.mesh_ranges = ranges;
            self.everybody = true;
        }
    }

    fn finish(mut self) -> MeshSnapshot {
        if self.everybody {
            self.obeying.extend(self.mesh.workloads.keys());
        }
        for key in self.obeying {
            match self.mesh.workloads.get(key) {
                Some(workload) if workload.has_sidecar => self.making.configuration(workload),
                Some(workload) if workload.ambient => {
                    self.making.workload(workload);
                    self.making.without_configuration(&key.to_string());
                }
                _ => self.making.without_configuration(&key.to_string()),
            }
        }
        if self.making.obeyed_anew {
            self.making.gather();
        }
        let mut snapshot = self.making.snapshot;
        snapshot.seal();
        snapshot
    }
}

impl SnapshotBuilder<'_> {
    /// A workload takes the place of another.
    fn turn(&mut self, old: Option<&Workload>, new: Option<&Workload>) {
        let snapshot = &mut self.snapshot;
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

    /// A service takes the place of another of its name.
    fn service_turn(&mut self, old: Option<&MeshService>, new: Option<&MeshService>) {
        if let Some(old) = old {
            let name = old.key.to_string();
            for endpoint in address::named_endpoints(self.mesh, old) {
                self.snapshot.remove_address(&endpoint.name);
                self.snapshot.plain.remove(&endpoint.name);
                self.snapshot.before.remove(&endpoint.name);
            }
            if new.is_none() {
                self.snapshot.remove_address(&name);
                self.snapshot.plain.remove(&name);
                self.snapshot.behind.remove(&name);
                self.snapshot.policies.remove(&name);
                self.snapshot.policies_apart.remove(&name);
            }
            if new.is_none_or(|new| new.visibility == Visibility::Public) {
                self.snapshot.kept_close.remove(&name);
            }
        }
        if let Some(new) = new {
            self.service(new);
        }
    }
}

/// Returns true if a workload's addresses changed, as far as every sidecar is told of them.
fn moves((old, new): &Turn<Workload>) -> bool {
    let place = |workload: &Option<Arc<Workload>>| {
        let workload = workload.as_ref().filter(|one| one.has_sidecar);
        workload.map(|one| one.addresses.clone())
    };
    place(old) != place(new)
}

/// Returns true if a service changed in this respect.
fn differ<T: PartialEq>((old, new): &Turn<MeshService>, of: impl Fn(&MeshService) -> T) -> bool {
    old.as_deref().map(&of) != new.as_deref().map(&of)
}

/// Returns true if the Sidecar's workloads get a list of all services that they may call.
fn lists(sidecar: &Sidecar) -> bool {
    let mut listeners = sidecar.egress.iter();
    listeners.any(|one| one.capture_mode == CaptureMode::None)
}

/// The hosts of the services that providers are.
pub(super) fn provided(mesh: &Mesh) -> BTreeSet<Hostname> {
    let providers = mesh.config.extension_providers.values();
    let hosts = providers.filter_map(|one| host_of(&one.provider));
    hosts.cloned().collect()
}

/// The host of the service that a provider is.
fn host_of(provider: &Provider) -> Option<&Hostname> {
    match provider {
        Provider::HttpAls(als) | Provider::TcpAls(als) => Some(&als.service.host),
        Provider::OpenTelemetry(collector) => Some(&collector.service.host),
        Provider::ExtAuthz(authorizer) => Some(&authorizer.service.host),
        Provider::File(_) | Provider::Prometheus | Provider::Other => None,
    }
}

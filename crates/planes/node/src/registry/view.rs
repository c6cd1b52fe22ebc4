//! Immutable view of the mesh at one moment. A view shares unchanged parts with the view before.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use voile_identity::{MeshRoots, Revocations};
use voile_model::mesh::Visibility;
use voile_model::names::{Candidate, Hosts};
use voile_model::{Namespace, ServiceKey, masked};
use voile_policy::connections::ConnectionPolicies;
use voile_xds::wire::{NetworkEntrance, WaypointAddress, WireWorkload};

use super::{
    Body, Place, Resident, ServedService, Subscription, VersionedResource, address_of, place_of,
};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RegistryView {
    pub(super) subscription: Subscription,
    /// With a subscription to all: whether all was told.
    pub(super) whole: bool,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) population: Arc<WorkloadMap>,
    /// Addresses without a workload or service.
    pub(super) absent: HashSet<IpAddr>,
    /// Services that are not there.
    pub(super) missing: HashSet<ServiceKey>,
    /// Entrances of other networks without a gateway.
    pub(super) empty: HashSet<Place>,
    /// Addresses of resources that cannot be understood.
    pub(super) obscure: HashSet<IpAddr>,
    pub(crate) policies: ConnectionPolicies,
    /// Certificates that are taken back.
    pub(crate) revocations: Arc<Revocations>,
    pub(crate) roots: Arc<MeshRoots>,
    /// True once the control plane has sent the policies.
    pub(crate) is_told: bool,
}

/// Services of a view.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    at: HashMap<IpAddr, Vec<Arc<ServedService>>>,
    by_key: HashMap<ServiceKey, Arc<ServedService>>,
    /// Services by address range and by host. Only with a subscription to everything, which asks for no single name.
    ranges: Ranges,
    hosts: Hosts<Arc<ServedService>>,
}

/// Workloads of a view.
#[derive(Debug, Default)]
pub(super) struct WorkloadMap {
    at: HashMap<IpAddr, Arc<Resident>>,
    behind: HashMap<ServiceKey, Vec<Arc<Resident>>>,
    /// Workloads on other networks, by network and address there.
    away: HashMap<Place, Arc<Resident>>,
    /// Some workload is on another network.
    reaches_out: bool,
}

/// Services by ranges of addresses: one look for each length of prefix in use.
#[derive(Debug, Default)]
struct Ranges {
    prefixes: BTreeSet<Reverse<u8>>,
    services: HashMap<(u8, IpAddr), Vec<Arc<ServedService>>>,
}

impl Ranges {
    /// Those of the narrowest range around an address.
    fn around(&self, address: IpAddr) -> Option<&[Arc<ServedService>]> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let mut fitting = self.prefixes.iter().filter(|prefix| prefix.0 <= bits);
        let found = fitting.find_map(|Reverse(prefix)| {
            let network = masked(address, *prefix);
            self.services.get(&(*prefix, network))
        });
        found.map(Vec::as_slice)
    }
}

/// Puts it among those with this place, once.
fn put(at: &mut Vec<Arc<ServedService>>, served: &Arc<ServedService>) {
    if !at.iter().any(|one| one.service.key == served.service.key) {
        at.push(Arc::clone(served));
    }
}

impl Catalogue {
    pub(super) fn of(
        all: &BTreeMap<Arc<str>, VersionedResource>,
        subscription: Subscription,
    ) -> Self {
        let mut made = Self::default();
        let mut by_key: BTreeMap<&ServiceKey, &Arc<ServedService>> = BTreeMap::new();
        for (name, held) in all {
            let Body::Service(served) = &held.body else {
                continue;
            };
            by_key.insert(&served.service.key, served);
            // A range of addresses is known by the names under which it was asked for.
            let names = held.aliases.iter().chain([name]);
            for address in names.filter_map(|name| address_of(name)) {
                put(made.at.entry(address).or_default(), served);
            }
        }
        for served in by_key.values() {
            for address in &served.service.addresses {
                put(made.at.entry(*address).or_default(), served);
            }
        }
        if subscription == Subscription::All {
            for served in by_key.values() {
                for range in &served.service.ranges {
                    let network = masked(range.address, range.prefix);
                    made.ranges.prefixes.insert(Reverse(range.prefix));
                    let services = &mut made.ranges.services;
                    put(services.entry((range.prefix, network)).or_default(), served);
                }
            }
            made.hosts = by_key.values().map(|served| candidate(served)).collect();
        }
        let owned = by_key.into_iter();
        made.by_key = owned
            .map(|(key, served)| (key.clone(), Arc::clone(served)))
            .collect();
        made
    }
}

/// A service as names find it.
fn candidate(served: &Arc<ServedService>) -> Candidate<Arc<ServedService>> {
    let service = &served.service;
    let (name, key) = (&service.name, &service.key);
    let short = format!("{name}.{}.svc.", key.namespace);
    let kubernetes = key.hostname.as_str().starts_with(&short);
    Candidate {
        key: key.clone(),
        visibility: match served.private {
            true => Visibility::Namespaces(vec![key.namespace.clone()]),
            false => Visibility::Public,
        },
        canonical: served.canonical,
        kubernetes: kubernetes.then(|| Arc::clone(name)),
        found: Arc::clone(served),
    }
}

impl WorkloadMap {
    pub(super) fn of(all: &BTreeMap<Arc<str>, VersionedResource>) -> Self {
        let mut made = Self::default();
        let mut by_uid: BTreeMap<&str, &Arc<Resident>> = BTreeMap::new();
        for held in all.values() {
            if let Body::Workload(resident) = &held.body {
                by_uid.insert(&resident.workload.uid, resident);
            }
        }
        for resident in by_uid.into_values() {
            // Another network's addresses are not ours.
            made.reaches_out |= resident.workload.away.is_some();
            for address in &resident.workload.addresses {
                match &resident.workload.away {
                    None if resident.on_host => None,
                    None => made.at.insert(*address, Arc::clone(resident)),
                    Some(away) => {
                        let place = (Arc::clone(&away.network), *address);
                        made.away.insert(place, Arc::clone(resident))
                    }
                };
            }
            for key in resident.workload.services.keys() {
                let behind = made.behind.entry(key.clone()).or_default();
                behind.push(Arc::clone(resident));
            }
        }
        made
    }
}

impl RegistryView {
    /// Returns true if the proxy subscribes to everything and has received everything. A name or address that the
    /// view lacks then does not exist.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Returns true if the proxy subscribes to everything and has not yet received everything.
    pub(crate) fn awaits_all(&self) -> bool {
        self.subscription == Subscription::All && !self.whole
    }

    /// Returns true if a workload or service is known at this address.
    pub(crate) fn names(&self, address: IpAddr) -> bool {
        self.population.at.contains_key(&address) || !self.services(address).is_empty()
    }

    /// Returns true if it is known which workload or service has this address, or that none has.
    pub(crate) fn knows(&self, address: IpAddr) -> bool {
        let nobody = || self.whole && !self.obscure.contains(&address);
        self.names(address) || self.absent.contains(&address) || nobody()
    }

    /// Returns true if this waypoint is known, or known to be absent.
    pub(crate) fn knows_waypoint(&self, waypoint: &WaypointAddress) -> bool {
        match waypoint {
            WaypointAddress::Address(address) => self.knows(*address),
            WaypointAddress::Service(key) => self.knows_service(key),
            WaypointAddress::Nobody(_) => true,
        }
    }

    /// Returns true if this service is known, or known to be absent.
    pub(crate) fn knows_service(&self, key: &ServiceKey) -> bool {
        self.whole || self.catalogue.by_key.contains_key(key) || self.missing.contains(key)
    }

    /// Returns true if the gateway at this entrance of another network is known, or known to be absent.
    pub(crate) fn knows_entrance(&self, entrance: &NetworkEntrance) -> bool {
        let place = place_of(entrance);
        self.whole || self.population.away.contains_key(&place) || self.empty.contains(&place)
    }

    /// Returns the gateway at this entrance.
    pub(crate) fn keeper(&self, entrance: &NetworkEntrance) -> Option<&Arc<Resident>> {
        self.population.away.get(&place_of(entrance))
    }

    /// Returns true if some workload is known to be on another network.
    pub(crate) fn knows_others(&self) -> bool {
        self.population.reaches_out
    }

    /// The service of this name.
    pub(crate) fn service(&self, key: &ServiceKey) -> Option<&Arc<ServedService>> {
        self.catalogue.by_key.get(key)
    }

    /// The service that a host name means to pods of a namespace. Only where all is told is it known without a question.
    pub(crate) fn named(&self, namespace: &Namespace, host: &str) -> Option<&Arc<ServedService>> {
        self.catalogue.hosts.find(Some(namespace), host)
    }

    /// The workload with this address.
    pub(crate) fn workload(&self, address: IpAddr) -> Option<&Arc<Resident>> {
        self.population.at.get(&address)
    }

    /// The services with this address, by name; else those with the narrowest range around it.
    pub(crate) fn services(&self, address: IpAddr) -> &[Arc<ServedService>] {
        let alone = self.catalogue.at.get(&address).map(Vec::as_slice);
        alone
            .or_else(|| self.catalogue.ranges.around(address))
            .unwrap_or_default()
    }

    /// The workloads behind a service.
    pub(crate) fn behind(&self, service: &ServiceKey) -> &[Arc<Resident>] {
        self.population
            .behind
            .get(service)
            .map_or(&[], Vec::as_slice)
    }

    /// Workloads known, each once.
    pub(crate) fn workloads(&self) -> Vec<&WireWorkload> {
        let all = self
            .population
            .at
            .values()
            .chain(self.population.away.values());
        let by_uid: BTreeMap<&str, &WireWorkload> = all
            .map(|resident| (&*resident.workload.uid, &resident.workload))
            .collect();
        by_uid.into_values().collect()
    }

    /// Services known, in the order of their names.
    pub(crate) fn known_services(&self) -> Vec<&ServiceKey> {
        let mut all: Vec<_> = self.catalogue.by_key.keys().collect();
        all.sort_unstable();
        all
    }

    /// Policies known, for people.
    pub(crate) fn policies_known(&self) -> usize {
        self.policies.len()
    }
}

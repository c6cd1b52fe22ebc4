//! State of the discovery subscription: workloads and services by address, and policies. The discovery client feeds
//! it. It gives out [`RegistryView`]s, which never change, so that a worker's decisions take no lock.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use prost::Message;
use voile_identity::{MeshRoots, Revocations};
use voile_model::ServiceKey;
use voile_policy::connections::ConnectionPolicies;
use voile_proto::proxy::RevocationLists;
use voile_proto::type_url;
use voile_proto::workload as proto;
use voile_xds::client::{Rejection, ResourceUpdate, Update};
use voile_xds::wire::{
    NetworkEntrance, Service, WaypointAddress, WireWorkload, decode_connection_policy,
    parse_away_address, parse_service_key,
};

mod searches;
mod view;

use searches::NameSearches;
pub(crate) use searches::SearchResult;
pub(crate) use view::RegistryView;
use view::{Catalogue, WorkloadMap};

/// Part of the mesh that the proxy subscribes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subscription {
    /// Everything, as a ztunnel does: a resource that was not received does not exist.
    All,
    /// Addresses and names, as connections and lookups need them. This requires a control plane that later announces
    /// a resource under a name that was absent when the proxy subscribed.
    #[default]
    OnDemand,
}

/// Addresses followed at once. Beyond them the one asked for first makes room, and is asked for again when it is called
/// again: an application that scans a network must not fill the node's memory.
pub(crate) const MAX_FOLLOWED: usize = 8192;

/// Waypoints followed at once, beyond which services behind others are refused.
const MAX_WAYPOINTS: usize = 1024;

/// Entrances of other networks followed at once. Beyond them, endpoints behind further entrances are refused.
const MAX_ENTRANCES: usize = 1024;

/// Services followed at once that tunnels asked a waypoint of another program for by their names.
const MAX_MEANT: usize = 256;

/// A workload, with fields that the checked type leaves out.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) workload: WireWorkload,
    /// The policies that it names.
    pub(crate) policies: Vec<Arc<str>>,
    /// The workload's addresses are its node's, which others share: a connection to such an address is not for this
    /// workload.
    on_host: bool,
}

/// A service, with fields that the checked type leaves out.
#[derive(Debug)]
pub(crate) struct ServedService {
    pub(crate) service: Service,
    /// Attributes that a near endpoint shares with the client, most important first.
    pub(crate) preference: Vec<proto::load_balancing::Scope>,
    /// Only endpoints that have all of it.
    pub(crate) strict: bool,
    /// Also endpoints that are not well.
    pub(crate) unhealthy_too: bool,
    /// Of several services of its host, those in other namespaces mean this one.
    pub(crate) canonical: bool,
    /// Its name is its own namespace's alone.
    pub(crate) private: bool,
}

#[derive(Debug, Clone)]
enum Body {
    Workload(Arc<Resident>),
    Service(Arc<ServedService>),
}

#[derive(Debug)]
struct VersionedResource {
    body: Body,
    aliases: Vec<Arc<str>>,
}

/// An address on another network.
type Place = (Arc<str>, IpAddr);

fn place_of(entrance: &NetworkEntrance) -> Place {
    (Arc::clone(&entrance.network), entrance.at.ip())
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    subscription: Subscription,
    /// With a subscription to all: whether all was told.
    whole: bool,
    held: BTreeMap<Arc<str>, VersionedResource>,
    /// Parts of the last view that still match `held`.
    catalogue: OnceLock<Arc<Catalogue>>,
    population: OnceLock<Arc<WorkloadMap>>,
    /// Names of resources that exist and cannot be understood, with their addresses.
    obscure: HashMap<Arc<str>, Vec<IpAddr>>,
    policies: ConnectionPolicies,
    revocations: Option<Arc<Revocations>>,
    /// Roots that came with them. Those that were told last stay.
    roots: Arc<MeshRoots>,
    is_told: bool,
    absent: HashSet<IpAddr>,
    /// Services that were asked for by name, and those of them that are not there.
    named: HashSet<ServiceKey>,
    missing: HashSet<ServiceKey>,
    /// Services that tunnels meant by their names, the first first.
    meant: VecDeque<ServiceKey>,
    /// Requested entrances of other networks, and those of them without a gateway.
    entrances: HashSet<Place>,
    empty: HashSet<Place>,
    /// Addresses that were asked for, the first first; and those of our own pods, which stay.
    asked: VecDeque<IpAddr>,
    own: HashSet<IpAddr>,
    /// Names that pods look up.
    searches: NameSearches,
}

/// Changes of subscription for the discovery client.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DiscoveryRequest {
    pub(crate) subscribe: Option<String>,
    pub(crate) unsubscribe: Option<String>,
}

/// Returns the resource name of an address. This proxy's own network has no name.
pub(crate) fn name_of(address: IpAddr) -> String {
    format!("/{address}")
}

fn address_of(name: &str) -> Option<IpAddr> {
    name.strip_prefix('/')?.parse().ok()
}

impl Registry {
    /// Of a mesh that is asked for so.
    pub(crate) fn subscribed_to(subscription: Subscription) -> Self {
        Self {
            subscription,
            ..Self::default()
        }
    }

    /// Returns true if the proxy subscribes to everything.
    pub(crate) fn is_told_all(&self) -> bool {
        self.subscription == Subscription::All
    }

    /// Requests the workload or service at an address.
    pub(crate) fn ask(&mut self, address: IpAddr) -> DiscoveryRequest {
        let mut wish = DiscoveryRequest::default();
        let followed = |one: &Self| one.own.contains(&address) || one.asked.contains(&address);
        if self.is_told_all() || followed(self) {
            return wish;
        }
        if self.asked.len() >= MAX_FOLLOWED
            && let Some(oldest) = self.asked.pop_front()
        {
            self.absent.remove(&oldest);
            wish.unsubscribe = Some(name_of(oldest));
        }
        self.asked.push_back(address);
        wish.subscribe = Some(name_of(address));
        wish
    }

    /// Requests a waypoint. Waypoints are few; the proxy follows each one that was called once.
    pub(crate) fn ask_waypoint(&mut self, waypoint: &WaypointAddress) -> DiscoveryRequest {
        match waypoint {
            WaypointAddress::Address(address) => self.ask(*address),
            WaypointAddress::Service(key) => {
                let room = !self.is_told_all() && self.named.len() < MAX_WAYPOINTS;
                let anew = room && self.named.insert(key.clone());
                DiscoveryRequest {
                    subscribe: anew.then(|| key.to_string()),
                    unsubscribe: None,
                }
            }
            WaypointAddress::Nobody(_) => DiscoveryRequest::default(),
        }
    }

    /// Requests a service that a tunnel names. Any identity of the mesh may name one, so the oldest of too many is
    /// dropped.
    pub(crate) fn ask_service(&mut self, key: &ServiceKey) -> DiscoveryRequest {
        let mut wish = DiscoveryRequest::default();
        if self.is_told_all() || self.named.contains(key) || self.meant.contains(key) {
            return wish;
        }
        if self.meant.len() >= MAX_MEANT
            && let Some(first) = self.meant.pop_front()
            && !self.named.contains(&first)
        {
            self.missing.remove(&first);
            wish.unsubscribe = Some(first.to_string());
        }
        self.meant.push_back(key.clone());
        wish.subscribe = Some(key.to_string());
        wish
    }

    /// Requests the gateway at an entrance of another network. The proxy follows each entrance that was used once.
    pub(crate) fn ask_entrance(&mut self, entrance: &NetworkEntrance) -> DiscoveryRequest {
        let room = !self.is_told_all() && self.entrances.len() < MAX_ENTRANCES;
        let anew = room && self.entrances.insert(place_of(entrance));
        DiscoveryRequest {
            subscribe: anew.then(|| entrance.name()),
            unsubscribe: None,
        }
    }

    /// Requests a name that a pod looks up. The caller limits the number of names.
    pub(crate) fn search(&mut self, name: &Arc<str>) -> DiscoveryRequest {
        self.searches.begin(name);
        DiscoveryRequest {
            subscribe: Some(name.to_string()),
            unsubscribe: None,
        }
    }

    /// No pod looks it up any more.
    pub(crate) fn search_no_more(&mut self, name: &Arc<str>) -> DiscoveryRequest {
        self.searches.end(name);
        DiscoveryRequest {
            subscribe: None,
            unsubscribe: Some(name.to_string()),
        }
    }

    /// Returns the result of a search, if there is one.
    pub(crate) fn sought(&self, name: &str) -> Option<SearchResult> {
        self.searches.result(name)
    }

    /// Returns true if a response only reports failed searches, which no view contains.
    pub(crate) fn is_of_searches(&self, update: &Update) -> bool {
        *update.type_url == *type_url::ADDRESS
            && !self.is_told_all()
            && update.added.is_empty()
            && update
                .removed
                .iter()
                .all(|name| !self.held.contains_key(name))
            && update
                .absent
                .iter()
                .all(|name| self.searches.includes(name))
    }

    /// A pod of ours has this address: it is followed as long as it is ours.
    pub(crate) fn own(&mut self, address: IpAddr) -> DiscoveryRequest {
        if self.is_told_all() {
            return DiscoveryRequest::default();
        }
        self.asked.retain(|asked| *asked != address);
        let subscribe = self.own.insert(address).then(|| name_of(address));
        DiscoveryRequest {
            subscribe,
            unsubscribe: None,
        }
    }

    /// It is ours no more.
    pub(crate) fn disown(&mut self, address: IpAddr) -> DiscoveryRequest {
        let unsubscribe = self.own.remove(&address).then(|| name_of(address));
        self.absent.remove(&address);
        DiscoveryRequest {
            subscribe: None,
            unsubscribe,
        }
    }

    /// Applies a response; returns the resources that cannot be used.
    pub(crate) fn apply(&mut self, update: &Update) -> Vec<Rejection> {
        match &*update.type_url {
            type_url::ADDRESS => self.addresses(update),
            type_url::AUTHORIZATION => self.authorizations(update),
            type_url::REVOCATION_LISTS => self.revoke(update),
            _ => Vec::new(),
        }
    }

    fn addresses(&mut self, update: &Update) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        for name in &update.removed {
            self.obscure.remove(name);
            if let Some(old) = self.held.remove(name) {
                self.made_anew(&old.body);
            }
        }
        for name in &update.absent {
            match address_of(name) {
                Some(address) => drop(self.absent.insert(address)),
                None if self.searches.includes(name) => self.searches.vain(name),
                None => match self.asked_place(name) {
                    Some(place) => drop(self.empty.insert(place)),
                    None => self.missing.extend(parse_service_key(name)),
                },
            }
        }
        for resource in &update.added {
            match decode(resource) {
                Ok(body) => {
                    let aliases = resource.aliases.clone();
                    for name in aliases.iter().chain([&resource.name]) {
                        if let Some(address) = address_of(name) {
                            self.absent.remove(&address);
                        } else if let Some(place) = self.asked_place(name) {
                            self.empty.remove(&place);
                        }
                    }
                    if let Body::Service(served) = &body {
                        self.missing.remove(&served.service.key);
                        self.searches.found(&served.service.key, &aliases);
                    }
                    self.obscure.remove(&resource.name);
                    self.made_anew(&body);
                    let held = VersionedResource { body, aliases };
                    if let Some(old) = self.held.insert(Arc::clone(&resource.name), held) {
                        self.made_anew(&old.body);
                    }
                }
                Err(reason) => {
                    let name = Arc::clone(&resource.name);
                    if self.is_told_all() {
                        // A workload that may need a tunnel is never called in plaintext.
                        let at = addresses_in(&resource.body);
                        self.obscure.insert(Arc::clone(&name), at);
                    }
                    rejections.push(Rejection { name, reason });
                }
            }
        }
        // A control plane answers a subscription in one response: istiod does, and so does Voile's.
        self.whole = self.is_told_all();
        rejections
    }

    /// Drops the cached part of the view that this resource changes.
    fn made_anew(&mut self, body: &Body) {
        match body {
            Body::Workload(_) => drop(self.population.take()),
            Body::Service(_) => drop(self.catalogue.take()),
        }
    }

    /// The entrance that was asked for by this name.
    fn asked_place(&self, name: &str) -> Option<Place> {
        let (network, address) = parse_away_address(name)?;
        let place: Place = (network.into(), address);
        self.entrances.contains(&place).then_some(place)
    }

    fn authorizations(&mut self, update: &Update) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        self.is_told = true;
        for name in &update.removed {
            self.policies.remove(name);
        }
        for resource in &update.added {
            let name = Arc::clone(&resource.name);
            match decode_connection_policy(&resource.body) {
                Ok(policy) => self.policies.set(name, policy),
                Err((closed, reason)) => {
                    // The last good version stays in force; a policy that never was good denies.
                    if !self.policies.contains(&name) {
                        self.policies.set(Arc::clone(&name), closed);
                    }
                    let reason = reason.to_string();
                    rejections.push(Rejection { name, reason });
                }
            }
        }
        rejections
    }

    /// Applies revocation lists. An unreadable list leaves the last good one in force; without a last good one, no
    /// peer is trusted.
    fn revoke(&mut self, update: &Update) -> Vec<Rejection> {
        if !update.removed.is_empty() || !update.absent.is_empty() {
            self.revocations = None;
        }
        let mut rejections = Vec::new();
        for resource in &update.added {
            let said = RevocationLists::decode(&*resource.body);
            let read = said.map_err(|error| error.to_string()).and_then(|said| {
                let read = Revocations::told(&said.lists).map_err(|error| error.to_string())?;
                let roots = MeshRoots::told(said.roots, said.issuer_key_id);
                Ok((read, roots.map_err(|error| error.to_string())?))
            });
            match read {
                Ok((read, roots)) => {
                    self.revocations = Some(Arc::new(read));
                    self.roots = Arc::new(roots);
                }
                Err(reason) => {
                    let closed = || Arc::new(Revocations::closed());
                    self.revocations.get_or_insert_with(closed);
                    rejections.push(Rejection {
                        name: Arc::clone(&resource.name),
                        reason,
                    });
                }
            }
        }
        rejections
    }

    /// Returns the current view.
    pub(crate) fn view(&self) -> RegistryView {
        let catalogue = || Arc::new(Catalogue::of(&self.held, self.subscription));
        let population = || Arc::new(WorkloadMap::of(&self.held));
        RegistryView {
            subscription: self.subscription,
            whole: self.whole,
            catalogue: Arc::clone(self.catalogue.get_or_init(catalogue)),
            population: Arc::clone(self.population.get_or_init(population)),
            absent: self.absent.clone(),
            missing: self.missing.clone(),
            empty: self.empty.clone(),
            obscure: self.obscure.values().flatten().copied().collect(),
            policies: self.policies.clone(),
            revocations: self.revocations.clone().unwrap_or_default(),
            roots: Arc::clone(&self.roots),
            is_told: self.is_told,
        }
    }
}

/// Returns the addresses, on the proxy's own network, of a resource that cannot be used, as far as they can be read.
fn addresses_in(body: &[u8]) -> Vec<IpAddr> {
    use proto::address::Type;
    let said = proto::Address::decode(body).ok();
    let said = said.and_then(|message| message.r#type);
    let bytes: Vec<Vec<u8>> = match said {
        Some(Type::Workload(workload)) if workload.network.is_empty() && !is_on_host(&workload) => {
            workload.addresses
        }
        Some(Type::Service(service)) => {
            let near = service.addresses.into_iter();
            let near = near.filter(|address| address.network.is_empty());
            near.map(|address| address.address).collect()
        }
        Some(Type::Workload(_)) | None => Vec::new(),
    };
    let read = |bytes: &Vec<u8>| match <[u8; 4]>::try_from(&**bytes) {
        Ok(four) => Some(IpAddr::from(four)),
        Err(_) => <[u8; 16]>::try_from(&**bytes).ok().map(IpAddr::from),
    };
    bytes.iter().filter_map(read).collect()
}

fn is_on_host(workload: &proto::Workload) -> bool {
    workload.network_mode == proto::NetworkMode::HostNetwork as i32
}

fn decode(resource: &ResourceUpdate) -> Result<Body, String> {
    let message = proto::Address::decode(&*resource.body);
    let message = message.map_err(|error| format!("not a message of its type: {error}"))?;
    match message.r#type {
        Some(proto::address::Type::Workload(message)) => {
            let workload = WireWorkload::check(&message).map_err(|error| error.to_string())?;
            let policies = message.authorization_policies.iter();
            Ok(Body::Workload(Arc::new(Resident {
                workload,
                policies: policies.map(|name| name.as_str().into()).collect(),
                on_host: is_on_host(&message),
            })))
        }
        Some(proto::address::Type::Service(message)) => {
            use proto::load_balancing::{HealthPolicy, Mode, Scope};
            let service = Service::check(&message).map_err(|error| error.to_string())?;
            let balancing = message.load_balancing.unwrap_or_default();
            let scopes = balancing.routing_preference.iter();
            let preference = scopes.map(|scope| match Scope::try_from(*scope) {
                Ok(scope) if scope != Scope::UnspecifiedScope => Ok(scope),
                _ => Err(format!(
                    "load_balancing.routing_preference: {scope} is unknown"
                )),
            });
            Ok(Body::Service(Arc::new(ServedService {
                service,
                preference: preference.collect::<Result<_, _>>()?,
                strict: balancing.mode == Mode::Strict as i32,
                unhealthy_too: balancing.health_policy == HealthPolicy::AllowAll as i32,
                canonical: message.canonical,
                private: message.visibility == proto::service::Visibility::Namespace as i32,
            })))
        }
        None => Err("neither workload nor service".to_owned()),
    }
}

#[cfg(test)]
pub(crate) mod tests;

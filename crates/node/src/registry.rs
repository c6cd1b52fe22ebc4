//! What the control plane said, and what was asked of it: workloads and services by address, and who may connect. It is told
//! by the discovery client and gives [`View`]s, which never change: a worker's decisions take no lock.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use voile_identity::Revocations;
use voile_model::ServiceKey;
use voile_proto::proxy::RevocationLists;
use voile_proto::type_url;
use voile_proto::workload as proto;
use voile_xds::client::{Rejection, ResourceUpdate, Update};
use voile_xds::wire::{
    Entrance, Service, WaypointAddress, Workload, parse_away_address, parse_service_key,
};

use crate::policy::{Policies, Policy};

mod searches;

use searches::Searches;
pub(crate) use searches::Sought;

/// Addresses followed at once. Beyond them the one asked for first makes room, and is asked for again when it is called
/// again: an application that scans a network must not fill the node's memory.
pub(crate) const MAX_FOLLOWED: usize = 8192;

/// Waypoints followed at once, beyond which services behind others are refused.
const MAX_WAYPOINTS: usize = 1024;

/// Entrances of other networks followed at once, beyond which nobody is called through others.
const MAX_ENTRANCES: usize = 1024;

/// Services followed at once that tunnels asked a waypoint of another program for by their names.
const MAX_MEANT: usize = 256;

/// A workload, and what the checked type leaves out.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) workload: Workload,
    /// The policies that it names.
    pub(crate) policies: Vec<Arc<str>>,
}

/// A service, and what the checked type leaves out.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) service: Service,
    /// What a near endpoint has in common with the client, most important first.
    pub(crate) preference: Vec<proto::load_balancing::Scope>,
    /// Only endpoints that have all of it.
    pub(crate) strict: bool,
    /// Also endpoints that are not well.
    pub(crate) unhealthy_too: bool,
}

#[derive(Debug, Clone)]
enum Body {
    Workload(Arc<Resident>),
    Service(Arc<Served>),
}

#[derive(Debug)]
struct Held {
    body: Body,
    aliases: Vec<Arc<str>>,
}

/// An address on another network.
type Place = (Arc<str>, IpAddr);

fn place_of(entrance: &Entrance) -> Place {
    (Arc::clone(&entrance.network), entrance.at.ip())
}

/// What is known at one moment.
#[derive(Debug, Default)]
pub(crate) struct View {
    workloads: HashMap<IpAddr, Arc<Resident>>,
    services: HashMap<IpAddr, Vec<Arc<Served>>>,
    by_key: HashMap<ServiceKey, Arc<Served>>,
    behind: HashMap<ServiceKey, Vec<Arc<Resident>>>,
    /// Who is on other networks, by these and their addresses there.
    away: HashMap<Place, Arc<Resident>>,
    absent: HashSet<IpAddr>,
    /// Services that are not there.
    missing: HashSet<ServiceKey>,
    /// Places on other networks where nobody is.
    empty: HashSet<Place>,
    /// Some workload is on another network.
    reaches_out: bool,
    pub(crate) policies: Policies,
    /// Certificates that are taken back.
    pub(crate) revocations: Arc<Revocations>,
    /// Whether the control plane has said which policies there are.
    pub(crate) is_told: bool,
}

impl View {
    /// Whether it is known who is there, if anybody.
    pub(crate) fn knows(&self, address: IpAddr) -> bool {
        self.workloads.contains_key(&address)
            || self.services.contains_key(&address)
            || self.absent.contains(&address)
    }

    /// Whether it is known who this waypoint is, if anybody.
    pub(crate) fn knows_waypoint(&self, waypoint: &WaypointAddress) -> bool {
        match waypoint {
            WaypointAddress::Address(address) => self.knows(*address),
            WaypointAddress::Service(key) => self.knows_service(key),
            WaypointAddress::Nobody(_) => true,
        }
    }

    /// Whether it is known what this service is, or that there is none.
    pub(crate) fn knows_service(&self, key: &ServiceKey) -> bool {
        self.by_key.contains_key(key) || self.missing.contains(key)
    }

    /// Whether it is known who stands where another network is entered, if anybody.
    pub(crate) fn knows_entrance(&self, entrance: &Entrance) -> bool {
        let place = place_of(entrance);
        self.away.contains_key(&place) || self.empty.contains(&place)
    }

    /// Who stands there.
    pub(crate) fn keeper(&self, entrance: &Entrance) -> Option<&Arc<Resident>> {
        self.away.get(&place_of(entrance))
    }

    /// Whether anybody is known to be on another network.
    pub(crate) fn knows_others(&self) -> bool {
        self.reaches_out
    }

    /// The service of this name.
    pub(crate) fn service(&self, key: &ServiceKey) -> Option<&Arc<Served>> {
        self.by_key.get(key)
    }

    /// The workload with this address.
    pub(crate) fn workload(&self, address: IpAddr) -> Option<&Arc<Resident>> {
        self.workloads.get(&address)
    }

    /// The services with this address, by name.
    pub(crate) fn services(&self, address: IpAddr) -> &[Arc<Served>] {
        self.services.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The workloads behind a service.
    pub(crate) fn behind(&self, service: &ServiceKey) -> &[Arc<Resident>] {
        self.behind.get(service).map_or(&[], Vec::as_slice)
    }

    /// Workloads, services and policies known, for people.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (
            self.workloads.len(),
            self.services.len(),
            self.policies.len(),
        )
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    held: BTreeMap<Arc<str>, Held>,
    policies: Policies,
    revocations: Option<Arc<Revocations>>,
    is_told: bool,
    absent: HashSet<IpAddr>,
    /// Services that were asked for by name, and those of them that are not there.
    named: HashSet<ServiceKey>,
    missing: HashSet<ServiceKey>,
    /// Services that tunnels meant by their names, the first first.
    meant: VecDeque<ServiceKey>,
    /// Entrances of other networks that were asked for, and those of them where nobody is.
    entrances: HashSet<Place>,
    empty: HashSet<Place>,
    /// Addresses that were asked for, the first first; and those of our own pods, which stay.
    asked: VecDeque<IpAddr>,
    own: HashSet<IpAddr>,
    /// Names that pods look up.
    searches: Searches,
}

/// What to tell the discovery client.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) subscribe: Option<String>,
    pub(crate) unsubscribe: Option<String>,
}

/// How an address is asked for; our own network has no name.
pub(crate) fn name_of(address: IpAddr) -> String {
    format!("/{address}")
}

fn address_of(name: &str) -> Option<IpAddr> {
    name.strip_prefix('/')?.parse().ok()
}

impl Registry {
    /// Somebody wants to know who is there.
    pub(crate) fn ask(&mut self, address: IpAddr) -> Wish {
        let mut wish = Wish::default();
        if self.own.contains(&address) || self.asked.contains(&address) {
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

    /// Somebody wants to know who this waypoint is. Waypoints are few; those that were called once are followed.
    pub(crate) fn ask_waypoint(&mut self, waypoint: &WaypointAddress) -> Wish {
        match waypoint {
            WaypointAddress::Address(address) => self.ask(*address),
            WaypointAddress::Service(key) => {
                let room = self.named.len() < MAX_WAYPOINTS;
                let anew = room && self.named.insert(key.clone());
                Wish {
                    subscribe: anew.then(|| key.to_string()),
                    unsubscribe: None,
                }
            }
            WaypointAddress::Nobody(_) => Wish::default(),
        }
    }

    /// A tunnel asks for a service by its name. So may anybody with an identity of the mesh: of many the first is let go of.
    pub(crate) fn ask_service(&mut self, key: &ServiceKey) -> Wish {
        let mut wish = Wish::default();
        if self.named.contains(key) || self.meant.contains(key) {
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

    /// Somebody wants to know who stands where another network is entered. Those that were gone through once are followed.
    pub(crate) fn ask_entrance(&mut self, entrance: &Entrance) -> Wish {
        let room = self.entrances.len() < MAX_ENTRANCES;
        let anew = room && self.entrances.insert(place_of(entrance));
        Wish {
            subscribe: anew.then(|| entrance.name()),
            unsubscribe: None,
        }
    }

    /// A pod looks a name up. Names are counted by who asks.
    pub(crate) fn search(&mut self, name: &Arc<str>) -> Wish {
        self.searches.begin(name);
        Wish {
            subscribe: Some(name.to_string()),
            unsubscribe: None,
        }
    }

    /// No pod looks it up any more.
    pub(crate) fn search_no_more(&mut self, name: &Arc<str>) -> Wish {
        self.searches.end(name);
        Wish {
            subscribe: None,
            unsubscribe: Some(name.to_string()),
        }
    }

    /// What came of a search, as far as anything did.
    pub(crate) fn sought(&self, name: &str) -> Option<Sought> {
        self.searches.result(name)
    }

    /// Whether a response that comes says no more than that searches were in vain, which no view speaks of.
    pub(crate) fn is_of_searches(&self, update: &Update) -> bool {
        *update.type_url == *type_url::ADDRESS
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
    pub(crate) fn own(&mut self, address: IpAddr) -> Wish {
        self.asked.retain(|asked| *asked != address);
        let subscribe = self.own.insert(address).then(|| name_of(address));
        Wish {
            subscribe,
            unsubscribe: None,
        }
    }

    /// It is ours no more.
    pub(crate) fn disown(&mut self, address: IpAddr) -> Wish {
        let unsubscribe = self.own.remove(&address).then(|| name_of(address));
        self.absent.remove(&address);
        Wish {
            subscribe: None,
            unsubscribe,
        }
    }

    /// Takes a response; what cannot be used is named.
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
            self.held.remove(name);
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
                    let held = Held { body, aliases };
                    self.held.insert(Arc::clone(&resource.name), held);
                }
                Err(reason) => rejections.push(Rejection {
                    name: Arc::clone(&resource.name),
                    reason,
                }),
            }
        }
        rejections
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
            match Policy::decode(&resource.body) {
                Ok(policy) => self.policies.set(name, policy),
                Err((closed, reason)) => {
                    // What it said before goes on; one that never was good closes.
                    if !self.policies.contains(&name) {
                        self.policies.set(Arc::clone(&name), closed);
                    }
                    rejections.push(Rejection { name, reason });
                }
            }
        }
        rejections
    }

    /// Takes lists in. What cannot be read leaves what was good before, and where nothing was, nobody is believed.
    fn revoke(&mut self, update: &Update) -> Vec<Rejection> {
        if !update.removed.is_empty() || !update.absent.is_empty() {
            self.revocations = None;
        }
        let mut rejections = Vec::new();
        for resource in &update.added {
            let said = RevocationLists::decode(&*resource.body);
            let read = said.map_err(|error| error.to_string());
            let read = read
                .and_then(|said| Revocations::told(&said.lists).map_err(|error| error.to_string()));
            match read {
                Ok(read) => self.revocations = Some(Arc::new(read)),
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

    /// What is known now.
    pub(crate) fn view(&self) -> View {
        let mut view = View {
            absent: self.absent.clone(),
            missing: self.missing.clone(),
            empty: self.empty.clone(),
            policies: self.policies.clone(),
            revocations: self.revocations.clone().unwrap_or_default(),
            is_told: self.is_told,
            ..View::default()
        };
        let mut by_uid: BTreeMap<&str, &Arc<Resident>> = BTreeMap::new();
        let mut by_key: BTreeMap<&ServiceKey, &Arc<Served>> = BTreeMap::new();
        for (name, held) in &self.held {
            match &held.body {
                Body::Workload(resident) => {
                    by_uid.insert(&resident.workload.uid, resident);
                }
                Body::Service(served) => {
                    by_key.insert(&served.service.key, served);
                    // A range of addresses is known by the names under which it was asked for.
                    let names = held.aliases.iter().chain([name]);
                    for address in names.filter_map(|name| address_of(name)) {
                        let at = view.services.entry(address).or_default();
                        if !at.iter().any(|one| one.service.key == served.service.key) {
                            at.push(Arc::clone(served));
                        }
                    }
                }
            }
        }
        for resident in by_uid.into_values() {
            // Another network's addresses are not ours.
            view.reaches_out |= resident.workload.away.is_some();
            for address in &resident.workload.addresses {
                match &resident.workload.away {
                    None => view.workloads.insert(*address, Arc::clone(resident)),
                    Some(away) => {
                        let place = (Arc::clone(&away.network), *address);
                        view.away.insert(place, Arc::clone(resident))
                    }
                };
            }
            for key in resident.workload.services.keys() {
                let behind = view.behind.entry(key.clone()).or_default();
                behind.push(Arc::clone(resident));
            }
        }
        for (key, served) in by_key {
            view.by_key.insert(key.clone(), Arc::clone(served));
            for address in &served.service.addresses {
                let at = view.services.entry(*address).or_default();
                if !at.iter().any(|one| one.service.key == *key) {
                    at.push(Arc::clone(served));
                }
            }
        }
        view
    }
}

fn decode(resource: &ResourceUpdate) -> Result<Body, String> {
    let message = proto::Address::decode(&*resource.body);
    let message = message.map_err(|error| format!("not a message of its type: {error}"))?;
    match message.r#type {
        Some(proto::address::Type::Workload(message)) => {
            let workload = Workload::check(&message).map_err(|error| error.to_string())?;
            let policies = message.authorization_policies.iter();
            Ok(Body::Workload(Arc::new(Resident {
                workload,
                policies: policies.map(|name| name.as_str().into()).collect(),
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
                    "load_balancing.routing_preference: {scope} is not known"
                )),
            });
            Ok(Body::Service(Arc::new(Served {
                service,
                preference: preference.collect::<Result<_, _>>()?,
                strict: balancing.mode == Mode::Strict as i32,
                unhealthy_too: balancing.health_policy == HealthPolicy::AllowAll as i32,
            })))
        }
        None => Err("neither workload nor service".to_owned()),
    }
}

#[cfg(test)]
pub(crate) mod tests;

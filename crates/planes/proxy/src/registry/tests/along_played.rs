//! Both ends of the subscriptions beside an Address, under bad luck. Addresses move, calls come and go, and streams break; the
//! control plane knows the questions at some times and not at others. A service with routes and a policy is never called without
//! them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use voile_xds::client::{PendingChanges, Subscriptions};
use voile_xds::server::{DiscoveryStream, Resolution, Resource, Snapshot};

use super::*;
use crate::registry::path_questions::ALONG;

/// Addresses that may be called.
const ADDRESSES: [&str; 3] = ["10.96.0.1", "10.96.0.2", "10.96.0.3"];
const SERVICES: [&str; 3] = ["web", "shop", "bank"];

/// Deterministic luck (a linear congruential generator).
struct Luck(u64);

impl Luck {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

/// State of the simulated mesh.
#[derive(Debug, Clone, Default)]
struct World {
    /// Address of each service; two may share one.
    places: [usize; SERVICES.len()],
    /// By type, as in `ALONG`: true if the service has such a resource. It never changes.
    told: [[bool; SERVICES.len()]; ALONG.len()],
    /// It answers what is asked along.
    knows: bool,
}

fn full_name(service: &str) -> String {
    format!("{SHOP}/{service}.test")
}

impl World {
    fn of(&self, kind: &str, service: usize) -> Option<Arc<Resource>> {
        let (name, place) = (SERVICES[service], self.places[service]);
        let (body, aliases) = match ALONG.iter().position(|of| *of == kind) {
            None => {
                let address = ADDRESSES[place];
                let body = service_body(name, address, 80, false);
                (body, vec![format!("/{address}").into()])
            }
            Some(of) if !self.told[of][service] => return None,
            Some(_) if *kind == *type_url::SERVICE_ROUTES => {
                (proxy::Routes::default().encode_to_vec(), Vec::new())
            }
            Some(_) => (port_policy().encode_to_vec(), Vec::new()),
        };
        Some(Arc::new(Resource {
            name: full_name(name).into(),
            version: format!("{place}").into(),
            aliases,
            body: body.into(),
        }))
    }

    /// The services that a name stands for.
    fn meant(&self, name: &str) -> Vec<usize> {
        let all = 0..SERVICES.len();
        let is_meant = |service: &usize| match name.strip_prefix('/') {
            Some(address) => ADDRESSES[self.places[*service]] == address,
            None => full_name(SERVICES[*service]) == name,
        };
        all.filter(is_meant).collect()
    }
}

impl Snapshot<()> for World {
    fn version(&self) -> Arc<str> {
        format!("{:?}", self.places).into()
    }

    fn resolve(&self, (): &(), kind: &str, name: &str) -> Resolution {
        let is_question = name.starts_with('/') && ALONG.contains(&kind);
        let meant = self.meant(name);
        if meant.is_empty() || (is_question && !self.knows) {
            return Resolution::Unknown;
        }
        let found = meant.iter().filter_map(|one| self.of(kind, *one));
        let found: Vec<_> = found.collect();
        match found.is_empty() {
            false => Resolution::Found(found),
            true if is_question => {
                let names = meant.iter().map(|one| full_name(SERVICES[*one]).into());
                Resolution::Lacking(names.collect())
            }
            true => Resolution::Unknown,
        }
    }

    fn everything(&self, (): &(), _: &str) -> Resolution {
        Resolution::Unknown
    }
}

/// Policy of a service that speaks HTTP.
fn port_policy() -> proxy::ServicePolicy {
    let port = proxy::PortPolicy {
        port: 80,
        protocol: proxy::Protocol::Http.into(),
        ..proxy::PortPolicy::default()
    };
    proxy::ServicePolicy {
        ports: vec![port],
        ..proxy::ServicePolicy::default()
    }
}

/// A proxy, as its control thread is, and its control plane.
struct Play {
    world: World,
    server: DiscoveryStream<()>,
    up: VecDeque<DeltaDiscoveryRequest>,
    down: VecDeque<DeltaDiscoveryResponse>,
    registry: Registry,
    subscriptions: Subscriptions,
    changes: PendingChanges,
    called: BTreeSet<usize>,
    /// Asked for by their own names.
    named: BTreeSet<Arc<str>>,
    /// Calls decided before the service's own name was answered.
    early: usize,
}

fn target(address: usize) -> CapturedDestination {
    at(format!("{}:80", ADDRESSES[address])
        .parse()
        .expect("an address"))
}

fn question(address: usize) -> Arc<str> {
    format!("/{}", ADDRESSES[address]).into()
}

impl Play {
    fn new(luck: &mut Luck) -> Self {
        let mut world = World::default();
        for is_there in world.told.iter_mut().flatten() {
            *is_there = luck.below(2) == 0;
        }
        let mut play = Self {
            world,
            server: DiscoveryStream::new(()),
            up: VecDeque::new(),
            down: VecDeque::new(),
            registry: Registry::default(),
            subscriptions: Subscriptions::new(Node::default()),
            changes: PendingChanges::default(),
            called: BTreeSet::new(),
            named: BTreeSet::new(),
            early: 0,
        };
        configure(&mut play.registry, proxy::OutboundPolicy::RegistryOnly);
        play.move_services(luck);
        play.reconnect(luck);
        play
    }

    fn step(&mut self, luck: &mut Luck, seed: u64) {
        let address = luck.below(ADDRESSES.len());
        match luck.below(16) {
            0 => self.reconnect(luck),
            1 => self.move_services(luck),
            2 | 3 => self.call(address, seed),
            4 => self.let_go(address, seed),
            5..8 => self.turn(),
            8..12 => self.ask(),
            _ => self.tell(seed),
        }
    }

    fn move_services(&mut self, luck: &mut Luck) {
        let service = luck.below(SERVICES.len());
        self.world.places[service] = luck.below(ADDRESSES.len());
        self.server.changed();
    }

    fn reconnect(&mut self, luck: &mut Luck) {
        self.subscriptions.closed();
        self.turn();
        self.world.knows = luck.below(4) > 0;
        self.server = DiscoveryStream::new(());
        self.up = self.subscriptions.open().into();
        self.down.clear();
    }

    fn call(&mut self, address: usize, seed: u64) {
        if !self.called.insert(address) {
            return;
        }
        let asked = question(address);
        self.registry.forget_name(&asked);
        self.changes
            .want(&type_url::ADDRESS.into(), Arc::clone(&asked));
        if self.registry.begin_along(&target(address), &asked) {
            for kind in ALONG {
                self.changes.want(&kind.into(), Arc::clone(&asked));
            }
        }
        self.publish(seed);
    }

    fn let_go(&mut self, address: usize, seed: u64) {
        if self.called.remove(&address) {
            let asked = question(address);
            self.registry.forget_name(&asked);
            self.changes.let_go(&type_url::ADDRESS.into(), asked);
            self.publish(seed);
        }
    }

    /// Publishes, as the control thread does after each response.
    fn publish(&mut self, seed: u64) {
        let wanted = self.called.iter();
        let wanted = wanted.flat_map(|address| self.registry.policies_wanted(&target(*address)));
        let wanted: BTreeSet<Arc<str>> = wanted.collect();
        for name in wanted.difference(&self.named) {
            self.registry.forget_absent(type_url::SERVICE_POLICY, name);
            for kind in ALONG {
                self.changes.want(&kind.into(), Arc::clone(name));
            }
        }
        for name in self.named.difference(&wanted) {
            for kind in ALONG {
                self.changes.let_go(&kind.into(), Arc::clone(name));
            }
            self.registry.forget_routes(name);
            self.registry.forget_policy(name);
        }
        self.named = wanted;
        for address in self.called.clone() {
            self.check(address, seed);
        }
        let targets: Vec<_> = self.called.iter().map(|one| target(*one)).collect();
        let targets = targets
            .iter()
            .zip(self.called.iter().map(|one| question(*one)));
        for (kind, over) in self.registry.told_along(targets) {
            self.changes.let_go(&kind.into(), over);
        }
    }

    /// A call that has a plan must have the right one.
    fn check(&mut self, address: usize, seed: u64) {
        let Some(plan) = self.registry.destination(&target(address)) else {
            return;
        };
        for service in &plan.services {
            let number = SERVICES
                .iter()
                .position(|name| *name == service.service.name);
            let Some(number) = number else { continue };
            let [routed, spoken] = self.world.told.map(|of| of[number]);
            let name: Arc<str> = full_name(SERVICES[number]).into();
            let shown = format!("seed {seed}: {name} at {address}");
            assert_eq!(service.routes.is_some(), routed, "{shown}: its routes");
            let speaks = service.protocol == WireProtocol::Http;
            assert_eq!(speaks, spoken, "{shown}: its policy");
            let early = !self.registry.is_absent(type_url::SERVICE_ROUTES, &name);
            self.early += usize::from(!routed && early);
        }
    }

    fn turn(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        self.up.extend(changes.apply(&mut self.subscriptions));
    }

    /// The server takes one request in, and answers what it can.
    fn ask(&mut self) {
        let now = Instant::now();
        if let Some(request) = self.up.pop_front() {
            self.server.receive(request, now).expect("a plain question");
        }
        while let Some(response) = self.server.next(&self.world, now) {
            self.down.push_back(response);
        }
    }

    /// The proxy takes one response in.
    fn tell(&mut self, seed: u64) {
        if let Some(response) = self.down.pop_front() {
            let update = self.subscriptions.receive(response);
            let rejections = self.registry.apply(&update);
            assert_eq!(rejections, []);
            self.up
                .push_back(self.subscriptions.finish(update, rejections));
            self.publish(seed);
        }
    }

    /// All answers have come: each call leads to the right service.
    fn settle(&mut self, seed: u64) {
        for _ in 0..100 {
            self.turn();
            self.ask();
            self.tell(seed);
        }
        for address in &self.called {
            let plan = self.registry.destination(&target(*address));
            let plan = plan.unwrap_or_else(|| panic!("seed {seed}: {address} is not known"));
            let found = plan.services.iter().map(|one| one.service.name.as_str());
            let meant = self.world.meant(&question(*address)).into_iter();
            let meant: BTreeSet<_> = meant.map(|one| SERVICES[one]).collect();
            assert_eq!(found.collect::<BTreeSet<_>>(), meant, "seed {seed}");
        }
        assert_eq!(
            self.registry.along.len(),
            0,
            "seed {seed}: all is known by name"
        );
        assert_eq!(self.subscriptions.unanswered(), None, "seed {seed}");
    }
}

#[test]
fn after_any_bad_luck_nobody_is_called_without_the_routes_and_the_policy_that_it_has() {
    let mut early = BTreeMap::from([(true, 0), (false, 0)]);
    for seed in 0..1500 {
        let mut luck = Luck(seed);
        let mut play = Play::new(&mut luck);
        for _ in 0..80 {
            play.step(&mut luck, seed);
        }
        play.settle(seed);
        *early.entry(play.early > 0).or_default() += 1;
    }
    assert!(
        early[&true] > 300,
        "decided before own names were answered: {early:?}"
    );
}

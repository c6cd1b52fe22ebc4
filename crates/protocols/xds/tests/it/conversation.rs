//! Both ends together, under bad luck: streams that break at any point, responses that are lost, doubled or late. When
//! the luck turns, the client holds exactly what there is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use voile_xds::client::{PendingChanges, Subscriptions};
use voile_xds::server::{DiscoveryStream, Names};

use crate::server::{TYPE, Things};

/// Deterministic luck (a linear congruential generator).
struct Luck(u64);

impl Luck {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct World {
    client: Subscriptions,
    server: DiscoveryStream<()>,
    to_server: VecDeque<DeltaDiscoveryRequest>,
    to_client: VecDeque<DeltaDiscoveryResponse>,
    things: Things,
    wanted: BTreeSet<Arc<str>>,
    /// Said, and not yet taken in by the client.
    changes: PendingChanges,
    held: BTreeMap<Arc<str>, Arc<str>>,
    /// Resource that each wanted name resolved to; `None` for one that does not exist.
    answers: BTreeMap<Arc<str>, Option<Arc<str>>>,
    /// Names reported as not existing, each time.
    absent: Vec<Arc<str>>,
}

impl World {
    fn new(luck: &mut Luck) -> Self {
        let mut world = Self {
            client: Subscriptions::new(Node::default()),
            server: DiscoveryStream::new(()),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            things: things(luck),
            wanted: BTreeSet::new(),
            changes: PendingChanges::default(),
            held: BTreeMap::new(),
            answers: BTreeMap::new(),
            absent: Vec::new(),
        };
        world.reconnect();
        world
    }

    fn step(&mut self, luck: &mut Luck) {
        match luck.below(12) {
            0 => self.reconnect(),
            1 | 2 => {
                let before = std::mem::replace(&mut self.things, things(luck));
                match luck.below(3) {
                    0 => self.server.changed(),
                    _ => self.touch(&before),
                }
            }
            3 => self.change_wish(luck),
            5 => self.turn(),
            4 => {
                // A response arrives twice: the second is applied again and its answer is stale.
                if let Some(front) = self.to_client.front().cloned() {
                    self.to_client.push_front(front);
                }
            }
            _ => self.deliver(),
        }
    }

    /// The server is told only which of the names it depends on are answered otherwise.
    fn touch(&mut self, before: &Things) {
        let touched = |name: &Arc<str>| before.0.get(&**name) != self.things.0.get(&**name);
        let known = self.server.depends_on();
        let by_type: Vec<(Arc<str>, Names)> = known
            .map(|(of, names)| {
                let names = names.iter().filter(|name| touched(name));
                (of.clone(), names.cloned().collect())
            })
            .collect();
        for (of, names) in by_type {
            self.server.touched(&of, Some(names));
        }
    }

    /// Names are wanted and let go in any order, several between two turns of the client; what is let go is forgotten at once.
    fn change_wish(&mut self, luck: &mut Luck) {
        for _ in 0..=luck.below(4) {
            let search = if luck.below(2) == 0 { "*/" } else { "" };
            let name: Arc<str> = format!("{search}s{}", luck.below(4)).into();
            if luck.below(2) == 0 {
                self.wanted.insert(name.clone());
                self.changes.want(&TYPE.into(), name);
            } else {
                self.wanted.remove(&name);
                self.answers.remove(&name);
                let another = self.answers.values().flatten().any(|other| *other == name);
                if !another {
                    self.held.remove(&name);
                }
                self.changes.let_go(&TYPE.into(), name);
            }
        }
    }

    fn turn(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        self.to_server.extend(changes.apply(&mut self.client));
    }

    fn deliver(&mut self) {
        let now = Instant::now();
        self.ask(now);
        self.tell();
    }

    /// The server takes one request in, and answers what it can.
    fn ask(&mut self, now: Instant) {
        if let Some(request) = self.to_server.pop_front() {
            self.server.receive(request, now).unwrap();
        }
        while let Some(response) = self.server.next(&self.things, now) {
            self.to_client.push_back(response);
        }
    }

    /// The client takes one response in.
    fn tell(&mut self) {
        if let Some(response) = self.to_client.pop_front() {
            let update = self.client.receive(response);
            for name in &update.removed {
                self.held.remove(name);
                self.answers
                    .retain(|_, answer| answer.as_ref() != Some(name));
            }
            for name in &update.absent {
                self.absent.push(name.clone());
                self.answers.insert(name.clone(), None);
            }
            for resource in &update.added {
                let version = resource.version.split('+').next().unwrap_or_default();
                self.held.insert(resource.name.clone(), version.into());
                for name in resource.aliases.iter().chain([&resource.name]) {
                    self.answers
                        .insert(name.clone(), Some(resource.name.clone()));
                }
            }
            self.to_server
                .push_back(self.client.finish(update, Vec::new()));
        }
    }

    /// Everything under way is lost.
    fn reconnect(&mut self) {
        self.client.closed();
        self.turn();
        self.server = DiscoveryStream::new(());
        self.to_server = self.client.open().into();
        self.to_client.clear();
    }

    fn truth(&self) -> BTreeMap<Arc<str>, Arc<str>> {
        let asked = self.wanted.iter();
        asked
            .flat_map(|name| self.things.0.get(&**name).into_iter().flatten())
            .map(|resource| (resource.name.clone(), resource.version.clone()))
            .collect()
    }

    /// Every name that is wanted has an answer, and it is the right one.
    fn check_answers(&self, seed: u64) {
        for name in &self.wanted {
            let found = self.things.0.get(&**name);
            let truth = found.map(|resources| resources[0].name.clone());
            let told = self.answers.get(name);
            assert_eq!(told, Some(&truth), "seed {seed}, {name}");
        }
        // Or the client would lose its patience with a server that has said all there is.
        assert_eq!(self.client.unanswered(), None, "seed {seed}");
    }
}

/// Up to four services with some of five shared workloads, each in one of three versions.
fn things(luck: &mut Luck) -> Things {
    let versions: Vec<u64> = (0..5).map(|_| luck.below(3)).collect();
    let mut entries = Vec::new();
    for service in 0..4 {
        if luck.below(4) == 0 {
            continue;
        }
        let mut entry = format!("s{service}: s{service}@{}", luck.below(3));
        for (workload, version) in versions.iter().enumerate() {
            if luck.below(2) == 0 {
                entry = format!("{entry} w{workload}@{version}");
            }
        }
        // The same is found by searching.
        entries.push(format!("*/{entry}"));
        entries.push(entry);
    }
    Things::new(&entries.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn after_any_bad_luck_the_client_holds_exactly_what_there_is() {
    for seed in 0..2000 {
        let mut luck = Luck(seed);
        let mut world = World::new(&mut luck);
        for _ in 0..60 {
            world.step(&mut luck);
        }
        world.turn();
        for _ in 0..60 {
            world.deliver();
        }
        assert_eq!(world.held, world.truth(), "seed {seed}");
        world.check_answers(seed);
    }
}

#[test]
fn what_is_asked_for_again_is_never_taken_for_absent_because_it_was_let_go() {
    let mut absences = 0;
    for seed in 0..4000 {
        let mut luck = Luck(seed);
        let mut world = World::new(&mut luck);
        for _ in 0..80 {
            // The world stays the same, and every message arrives once and in order, as late as possible.
            match luck.below(20) {
                0 => world.reconnect(),
                1..=5 => world.change_wish(&mut luck),
                6..=10 => world.turn(),
                11..=15 => world.ask(Instant::now()),
                _ => world.tell(),
            }
        }
        world.turn();
        for _ in 0..60 {
            world.deliver();
        }
        for name in &world.absent {
            assert!(!world.things.0.contains_key(&**name), "seed {seed}, {name}");
        }
        absences += world.absent.len();
        assert_eq!(world.held, world.truth(), "seed {seed}");
        world.check_answers(seed);
    }
    assert!(absences > 1000, "{absences}");
}

//! An Envoy that is told of clusters and of routes to them, while both change and its answers come when they come: it never holds a route
//! to a cluster that it does not have, or that is not warm, and in the end it holds what there is and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use voile_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest};
use voile_proto::type_url::{CLUSTER, ROUTES};
use voile_xds::server::{Event, Resolution, Resource, Snapshot, SotwStream, Stream};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The only routes there are.
const ROUTE: &str = "r";
const STAR: &str = "*";

/// What there is: clusters with their versions, and those that the routes lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct World {
    clusters: BTreeMap<&'static str, u8>,
    led_to: BTreeSet<&'static str>,
}

impl World {
    fn drawn(random: &mut fastrand::Rng) -> Self {
        let mut names = NAMES.to_vec();
        random.shuffle(&mut names);
        let there = 1 + random.usize(..names.len());
        let led_to = 1 + random.usize(..there);
        Self {
            clusters: names[..there]
                .iter()
                .map(|name| (*name, random.u8(1..3)))
                .collect(),
            led_to: names[..led_to].iter().copied().collect(),
        }
    }

    fn cluster(&self, name: &str) -> Option<Arc<Resource>> {
        let (name, version) = self.clusters.get_key_value(name)?;
        // Delta's resources have names; in state of the world the body must say it.
        Some(resource(name, &version.to_string(), name))
    }

    fn routes(&self) -> Arc<Resource> {
        let led_to: Vec<&str> = self.led_to.iter().copied().collect();
        let led_to = led_to.join(" ");
        resource(ROUTE, &led_to, &led_to)
    }
}

fn resource(name: &str, version: &str, body: &str) -> Arc<Resource> {
    Arc::new(Resource {
        name: name.into(),
        aliases: Vec::new(),
        version: version.into(),
        body: body.as_bytes().into(),
    })
}

impl Snapshot<()> for World {
    fn version(&self) -> Arc<str> {
        "one".into()
    }

    fn resolve(&self, (): &(), type_url: &str, name: &str) -> Resolution {
        let found = match type_url {
            CLUSTER => self.cluster(name),
            _ => (name == ROUTE).then(|| self.routes()),
        };
        found.map_or(Resolution::Unknown, |one| Resolution::Found(vec![one]))
    }

    fn everything(&self, (): &(), _: &str) -> Resolution {
        let all = self.clusters.keys();
        Resolution::Found(all.filter_map(|name| self.cluster(name)).collect())
    }
}

/// The server's end.
enum Told {
    Delta(Stream<()>),
    Whole(SotwStream<()>),
}

/// One response: its type and nonce, what it brings, and what it takes away.
struct Said {
    type_url: String,
    nonce: String,
    bodies: Vec<String>,
    removed: Vec<String>,
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

impl Told {
    fn ask(&mut self, type_url: &str, nonce: &str, now: Instant) -> Event {
        let name = if type_url == CLUSTER { STAR } else { ROUTE };
        let (type_url, response_nonce) = (type_url.to_owned(), nonce.to_owned());
        let heard = match self {
            Self::Delta(stream) => {
                let first = response_nonce.is_empty().then(|| name.to_owned());
                let request = DeltaDiscoveryRequest {
                    type_url,
                    response_nonce,
                    resource_names_subscribe: first.into_iter().collect(),
                    ..DeltaDiscoveryRequest::default()
                };
                stream.receive(request, now)
            }
            Self::Whole(stream) => {
                let request = DiscoveryRequest {
                    type_url,
                    response_nonce,
                    resource_names: vec![name.to_owned()],
                    ..DiscoveryRequest::default()
                };
                stream.receive(request, now)
            }
        };
        heard.expect("a plain question")
    }

    fn changed(&mut self) {
        match self {
            Self::Delta(stream) => stream.changed(),
            Self::Whole(stream) => stream.changed(),
        }
    }

    fn says(&mut self, world: &World, now: Instant) -> Option<Said> {
        match self {
            Self::Delta(stream) => stream.next(world, now).map(|said| Said {
                type_url: said.type_url,
                nonce: said.nonce,
                bodies: said
                    .resources
                    .into_iter()
                    .map(|one| text(one.resource.expect("a body").value))
                    .collect(),
                removed: said.removed_resources,
            }),
            Self::Whole(stream) => stream.next(world, now).map(|said| Said {
                type_url: said.type_url,
                nonce: said.nonce,
                bodies: said
                    .resources
                    .into_iter()
                    .map(|one| text(one.value))
                    .collect(),
                removed: Vec::new(),
            }),
        }
    }
}

/// Both ends.
struct Play {
    now: Instant,
    world: World,
    told: Told,
    clusters: BTreeSet<String>,
    /// Those that may be led to: Envoy says that it has clusters when they are warm.
    warm: BTreeSet<String>,
    led_to: BTreeSet<String>,
    unanswered: Vec<(String, String)>,
}

impl Play {
    fn new(told: Told, random: &mut fastrand::Rng) -> Self {
        let mut play = Self {
            now: Instant::now(),
            world: World::drawn(random),
            told,
            clusters: BTreeSet::new(),
            warm: BTreeSet::new(),
            led_to: BTreeSet::new(),
            unanswered: Vec::new(),
        };
        // As Envoy does: routes when there are clusters.
        play.told.ask(CLUSTER, "", play.now);
        play.settle();
        play.told.ask(ROUTES, "", play.now);
        play.settle();
        play
    }

    /// The server says one thing, and Envoy takes it. Says whether there was any.
    fn say(&mut self) -> bool {
        let Some(said) = self.told.says(&self.world, self.now) else {
            return false;
        };
        if said.type_url == CLUSTER {
            if matches!(self.told, Told::Whole(_)) {
                self.clusters.clear();
            }
            self.clusters.extend(said.bodies);
            for name in &said.removed {
                self.clusters.remove(name);
            }
            let there = &self.clusters;
            self.warm.retain(|name| there.contains(name));
        } else {
            let [routes] = said.bodies.as_slice() else {
                panic!("{:?} {:?}", said.bodies, said.removed);
            };
            self.led_to = routes.split(' ').map(str::to_owned).collect();
        }
        self.unanswered.push((said.type_url, said.nonce));
        true
    }

    fn answer(&mut self, which: usize) {
        let (type_url, nonce) = self.unanswered.swap_remove(which);
        if type_url == CLUSTER {
            self.warm.clone_from(&self.clusters);
        }
        let event = self.told.ask(&type_url, &nonce, self.now);
        assert!(matches!(event, Event::Acknowledged { .. }), "{event:?}");
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            while self.say() {}
            if self.unanswered.is_empty() {
                return;
            }
            self.answer(0);
        }
        panic!("they never stop talking");
    }

    fn check(&self) -> Result<(), String> {
        let cold: Vec<&String> = self.led_to.difference(&self.warm).collect();
        match cold.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "routes lead to {cold:?}, of {:?} that are warm",
                self.warm
            )),
        }
    }
}

#[test]
fn no_route_ever_leads_to_a_cluster_that_is_not_there() {
    let mut random = fastrand::Rng::with_seed(6);
    let (mut edits, mut kept) = (0, 0);
    for number in 0..4_000 {
        let told = match number % 2 {
            0 => Told::Delta(Stream::new(())),
            _ => Told::Whole(SotwStream::new(())),
        };
        let mut play = Play::new(told, &mut random);
        let mut path = Vec::new();
        for _ in 0..random.usize(..40) {
            match random.u8(..4) {
                0 => {
                    play.world = World::drawn(&mut random);
                    play.told.changed();
                    path.push(format!("{:?}", play.world));
                    edits += 1;
                }
                1 if !play.unanswered.is_empty() => {
                    let which = random.usize(..play.unanswered.len());
                    path.push(format!("answer to {:?}", play.unanswered[which]));
                    play.answer(which);
                }
                _ => path.push(format!("said: {}", play.say())),
            }
            let there = play.clusters.iter().filter(|name| {
                let name = name.as_str();
                !play.world.clusters.contains_key(name)
            });
            kept += there.count();
            if let Err(wrong) = play.check() {
                panic!("{wrong} after {path:#?}");
            }
        }
        play.settle();
        let owned = |name: &&str| (*name).to_owned();
        let clusters: BTreeSet<String> = play.world.clusters.keys().map(owned).collect();
        let led_to: BTreeSet<String> = play.world.led_to.iter().map(owned).collect();
        assert_eq!(
            (&play.clusters, &play.led_to),
            (&clusters, &led_to),
            "{path:#?}"
        );
    }
    assert!(edits > 10_000 && kept > 10_000, "{edits} {kept}");
}

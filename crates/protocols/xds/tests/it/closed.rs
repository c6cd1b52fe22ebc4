//! An Envoy that is told of clusters and of routes to them, while both change, it refuses routes, its answers come when they come, and
//! its stream breaks: it never holds a route to a cluster that it does not have, or that is not warm, and in the end it holds what there
//! is and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use voile_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest, Status};
use voile_proto::type_url::{CLUSTER, ROUTES};
use voile_xds::server::{
    DiscoveryStream, RequestEvent, Resolution, Resource, Snapshot, SotwStream,
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// The only routes there are.
const ROUTES_THERE: [&str; 2] = ["r", "s"];
const STAR: &str = "*";

/// The world of a play: clusters with their versions, and the clusters that routes lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct World {
    clusters: BTreeMap<&'static str, u8>,
    led_to: [BTreeSet<&'static str>; 2],
    /// Of routes that say the same as before.
    edition: u8,
}

impl World {
    fn drawn(random: &mut fastrand::Rng) -> Self {
        let mut names = NAMES.to_vec();
        random.shuffle(&mut names);
        let there = 1 + random.usize(..names.len());
        let mut led_to = || {
            let first = random.usize(..there);
            let last = 1 + random.usize(first..there);
            names[first..last].iter().copied().collect()
        };
        let led_to = [led_to(), led_to()];
        Self {
            clusters: names[..there]
                .iter()
                .map(|name| (*name, random.u8(1..3)))
                .collect(),
            led_to,
            edition: 0,
        }
    }

    fn cluster(&self, name: &str) -> Option<Arc<Resource>> {
        let (name, version) = self.clusters.get_key_value(name)?;
        // Delta's resources have names; in state of the world the body must say it.
        Some(resource(name, &version.to_string(), name))
    }

    fn routes(&self, name: &str) -> Option<Arc<Resource>> {
        let which = ROUTES_THERE.iter().position(|route| *route == name)?;
        let led_to: Vec<&str> = self.led_to[which].iter().copied().collect();
        let body = format!("{name} {}", led_to.join(" "));
        Some(resource(name, &format!("{body} {}", self.edition), &body))
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
            _ => self.routes(name),
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
    Delta(DiscoveryStream<()>),
    Whole(SotwStream<()>),
}

/// One response: its type and nonce, what it brings (versions, where they are said, and bodies), and what it takes away.
struct Said {
    type_url: String,
    nonce: String,
    brought: Vec<(String, String)>,
    removed: Vec<String>,
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// Names in a stream's first request of a type.
fn named(type_url: &str) -> Vec<String> {
    let all: &[&str] = if type_url == CLUSTER {
        &[STAR]
    } else {
        &ROUTES_THERE
    };
    all.iter().map(ToString::to_string).collect()
}

impl Told {
    /// Asks for all of a type; who comes back says what of it there is.
    fn ask(&mut self, type_url: &str, held: &BTreeMap<String, String>, now: Instant) {
        let (names, type_url) = (named(type_url), type_url.to_owned());
        let heard = match self {
            Self::Delta(stream) => {
                let request = DeltaDiscoveryRequest {
                    type_url,
                    resource_names_subscribe: names,
                    initial_resource_versions: held.clone().into_iter().collect(),
                    ..DeltaDiscoveryRequest::default()
                };
                stream.receive(request, now)
            }
            Self::Whole(stream) => {
                let request = DiscoveryRequest {
                    type_url,
                    resource_names: names,
                    ..DiscoveryRequest::default()
                };
                stream.receive(request, now)
            }
        };
        assert_eq!(heard.expect("a plain question"), RequestEvent::Subscribed);
    }

    /// Takes or refuses what was said.
    fn answer(&mut self, (type_url, nonce): (String, String), takes: bool, now: Instant) {
        let error_detail = (!takes).then(Status::default);
        let heard = match self {
            Self::Delta(stream) => {
                let request = DeltaDiscoveryRequest {
                    type_url,
                    response_nonce: nonce,
                    error_detail,
                    ..DeltaDiscoveryRequest::default()
                };
                stream.receive(request, now)
            }
            Self::Whole(stream) => {
                let request = DiscoveryRequest {
                    resource_names: named(&type_url),
                    type_url,
                    response_nonce: nonce,
                    error_detail,
                    ..DiscoveryRequest::default()
                };
                stream.receive(request, now)
            }
        };
        let heard = heard.expect("a plain answer");
        let is_so = match takes {
            true => matches!(heard, RequestEvent::Acknowledged { .. }),
            false => matches!(heard, RequestEvent::Refused { .. }),
        };
        assert!(is_so, "{heard:?}");
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
                brought: said
                    .resources
                    .into_iter()
                    .map(|one| (one.version, text(one.resource.expect("a body").value)))
                    .collect(),
                removed: said.removed_resources,
            }),
            Self::Whole(stream) => stream.next(world, now).map(|said| Said {
                type_url: said.type_url,
                nonce: said.nonce,
                brought: said
                    .resources
                    .into_iter()
                    .map(|one| (String::new(), text(one.value)))
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
    /// With their versions.
    clusters: BTreeMap<String, String>,
    /// Those that may be led to: Envoy says that it has clusters when they are warm.
    warm: BTreeSet<String>,
    /// Routes in force, with their versions: whole bodies, their names first.
    routes: BTreeMap<String, (String, String)>,
    /// Of which something was refused, and nothing newer taken.
    refused: BTreeSet<String>,
    /// Types that the stream has not yet been asked for.
    unasked: Vec<&'static str>,
    /// Responses, and whether they are taken.
    unanswered: Vec<(String, String, bool)>,
}

impl Play {
    fn new(told: Told, random: &mut fastrand::Rng) -> Self {
        let mut play = Self {
            now: Instant::now(),
            world: World::drawn(random),
            told,
            clusters: BTreeMap::new(),
            warm: BTreeSet::new(),
            routes: BTreeMap::new(),
            refused: BTreeSet::new(),
            unasked: Vec::new(),
            unanswered: Vec::new(),
        };
        // As Envoy does: routes when there are clusters.
        for type_url in [CLUSTER, ROUTES] {
            play.unasked.push(type_url);
            play.settle();
        }
        play
    }

    /// The stream breaks, and another begins: Envoy asks for all types before it answers anything.
    fn come_back(&mut self) {
        self.told = Told::Delta(DiscoveryStream::new(()));
        self.unanswered.clear();
        self.unasked = vec![CLUSTER, ROUTES];
    }

    /// The next question arrives. Says whether there was any.
    fn ask(&mut self) -> bool {
        if self.unasked.is_empty() {
            return false;
        }
        let type_url = self.unasked.remove(0);
        let held = match type_url {
            CLUSTER => self.clusters.clone(),
            _ => {
                let versions = self.routes.iter();
                let versions = versions.map(|(name, (version, _))| (name.clone(), version.clone()));
                versions.collect()
            }
        };
        self.told.ask(type_url, &held, self.now);
        true
    }

    /// The server says one thing, and Envoy takes it, or refuses what it is told of routes. Says whether there was any.
    fn say(&mut self, refuses: bool) -> bool {
        let Some(said) = self.told.says(&self.world, self.now) else {
            return false;
        };
        let takes = said.type_url == CLUSTER || !refuses;
        if said.type_url == CLUSTER {
            if matches!(self.told, Told::Whole(_)) {
                self.clusters.clear();
            }
            let brought = said.brought.into_iter();
            self.clusters
                .extend(brought.map(|(version, name)| (name, version)));
            for name in &said.removed {
                self.clusters.remove(name);
            }
            let there = &self.clusters;
            self.warm.retain(|name| there.contains_key(name));
        } else {
            assert_eq!(said.removed, [""; 0]);
            for (version, body) in said.brought {
                let name = body.split(' ').next().unwrap_or_default().to_owned();
                match takes {
                    true => {
                        self.refused.remove(&name);
                        self.routes.insert(name, (version, body));
                    }
                    false => drop(self.refused.insert(name)),
                }
            }
        }
        self.unanswered.push((said.type_url, said.nonce, takes));
        true
    }

    fn answer(&mut self, which: usize) {
        // Earlier requests arrive first.
        while self.ask() {}
        let (type_url, nonce, takes) = self.unanswered.swap_remove(which);
        if type_url == CLUSTER {
            self.warm = self.clusters.keys().cloned().collect();
        }
        self.told.answer((type_url, nonce), takes, self.now);
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            while self.ask() {}
            while self.say(false) {}
            if self.unanswered.is_empty() {
                return;
            }
            self.answer(0);
        }
        panic!("they never stop talking");
    }

    fn check(&self) -> Result<(), String> {
        let led_to = self.routes.values();
        let led_to = led_to.flat_map(|(_, body)| body.split(' ').skip(1));
        let cold: Vec<&str> = led_to.filter(|name| !self.warm.contains(*name)).collect();
        match cold.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "routes lead to {cold:?}, of {:?} that are warm",
                self.warm
            )),
        }
    }

    /// Checks that it holds exactly the existing resources.
    fn check_end(&self) -> Result<(), String> {
        let clusters = self.clusters.keys().map(String::as_str);
        let routes = self.routes.values().map(|(_, body)| body.clone());
        let there = ROUTES_THERE
            .iter()
            .filter_map(|name| self.world.routes(name));
        let there: Vec<String> = there.map(|one| text(one.body.to_vec())).collect();
        match clusters.eq(self.world.clusters.keys().copied()) && routes.eq(there) {
            true => Ok(()),
            false => Err(format!(
                "it holds {:?} and {:?} in the end, where there is {:?}",
                self.clusters, self.routes, self.world
            )),
        }
    }
}

/// Counters over all plays.
#[derive(Debug, Default)]
struct Seen {
    edits: usize,
    /// Clusters that are gone, and still there at Envoy.
    kept: usize,
    refusals: usize,
    breaks: usize,
}

/// One step. Says what it was.
fn step(play: &mut Play, random: &mut fastrand::Rng, seen: &mut Seen) -> String {
    match random.u8(..16) {
        0..4 => {
            play.world = World::drawn(random);
            play.told.changed();
            seen.edits += 1;
            format!("{:?}", play.world)
        }
        4..8 if !play.unanswered.is_empty() => {
            let which = random.usize(..play.unanswered.len());
            let path = format!("answer to {:?}", play.unanswered[which]);
            play.answer(which);
            path
        }
        // In state of the world nobody says what is held.
        8 if matches!(play.told, Told::Delta(_)) => {
            play.come_back();
            seen.breaks += 1;
            "the stream breaks".to_owned()
        }
        9..11 => format!("asked: {}", play.ask()),
        11..13 => {
            let path = format!("said, refused if of routes: {}", play.say(true));
            seen.refusals += play.refused.len();
            path
        }
        _ => format!("said: {}", play.say(false)),
    }
}

#[test]
fn no_route_ever_leads_to_a_cluster_that_is_not_there() {
    let mut random = fastrand::Rng::with_seed(6);
    let mut seen = Seen::default();
    for number in 0..4_000 {
        let told = match number % 2 {
            0 => Told::Delta(DiscoveryStream::new(())),
            _ => Told::Whole(SotwStream::new(())),
        };
        let mut play = Play::new(told, &mut random);
        let mut path = Vec::new();
        for _ in 0..random.usize(..40) {
            path.push(step(&mut play, &mut random, &mut seen));
            let there = play.clusters.keys();
            let gone = there.filter(|name| !play.world.clusters.contains_key(name.as_str()));
            seen.kept += gone.count();
            if let Err(wrong) = play.check() {
                panic!("{wrong} after {path:#?}");
            }
        }
        play.settle();
        let mut end = play.check();
        if !play.refused.is_empty() {
            // A refused resource is sent again when it changes.
            play.world.edition += 1;
            play.told.changed();
            play.settle();
        }
        end = end.and(play.check_end());
        if let Err(wrong) = end {
            panic!("{wrong} after {path:#?}");
        }
    }
    let Seen {
        edits,
        kept,
        refusals,
        breaks,
    } = seen;
    assert!(
        edits > 10_000 && kept > 10_000 && refusals > 1_500 && breaks > 1_500,
        "{edits} {kept} {refusals} {breaks}"
    );
}

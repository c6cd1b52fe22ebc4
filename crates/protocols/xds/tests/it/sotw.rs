//! State of the world, tried out: every order of a few steps, and many long random ones. A client subscribes, answers, refuses
//! and reconnects while the resources change. At every end the client must hold exactly the existing resources.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use voile_proto::discovery::{DiscoveryRequest, DiscoveryResponse, Status};
use voile_proto::type_url::{ENDPOINTS, LISTENER};
use voile_xds::server::{
    RequestEvent, Resolution, Resource, Snapshot, SotwStream, StreamEndReason,
};

const NAMES: [&str; 2] = ["a", "b"];

/// Existing resources: versions by name; 0 is none.
#[derive(Debug, Clone, Default)]
struct World(BTreeMap<&'static str, u8>);

impl World {
    fn resource(&self, name: &str) -> Option<Arc<Resource>> {
        let (name, version) = self
            .0
            .get_key_value(name)
            .filter(|(_, version)| **version > 0)?;
        let body = [&[*version], name.as_bytes()].concat();
        Some(Arc::new(Resource {
            name: (*name).into(),
            aliases: Vec::new(),
            version: version.to_string().into(),
            body: body.into(),
        }))
    }
}

impl Snapshot<()> for World {
    fn version(&self) -> Arc<str> {
        "one".into()
    }

    fn resolve(&self, (): &(), _: &str, name: &str) -> Resolution {
        match self.resource(name) {
            Some(found) => Resolution::Found(vec![found]),
            None => Resolution::Unknown,
        }
    }

    fn everything(&self, (): &(), _: &str) -> Resolution {
        Resolution::Found(
            self.0
                .keys()
                .filter_map(|name| self.resource(name))
                .collect(),
        )
    }
}

/// A client of one type, the stream between it and us, and what there is.
#[derive(Clone)]
struct Play {
    type_url: &'static str,
    now: Instant,
    world: World,
    stream: SotwStream<()>,
    requests: VecDeque<DiscoveryRequest>,
    responses: VecDeque<DiscoveryResponse>,
    wants: BTreeSet<&'static str>,
    holds: BTreeMap<String, u8>,
    nonce: String,
    refused: bool,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The client wants another set, by bits of `NAMES`.
    Want(u8),
    /// A name gets a new version, or is gone.
    Change(usize),
    Remove(usize),
    Deliver,
    Push,
    Answer,
    Refuse,
    Reconnect,
}

const STEPS: [Step; 10] = [
    Step::Want(1),
    Step::Want(2),
    Step::Want(3),
    Step::Change(0),
    Step::Remove(0),
    Step::Deliver,
    Step::Push,
    Step::Answer,
    Step::Refuse,
    Step::Reconnect,
];

impl Play {
    fn new(type_url: &'static str) -> Self {
        Self {
            type_url,
            now: Instant::now(),
            world: World(BTreeMap::from([("a", 1), ("b", 1)])),
            stream: SotwStream::new(()),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            wants: BTreeSet::new(),
            holds: BTreeMap::new(),
            nonce: String::new(),
            refused: false,
        }
    }

    fn ask(&mut self, error: Option<&str>) {
        self.requests.push_back(DiscoveryRequest {
            type_url: self.type_url.to_owned(),
            resource_names: self.wants.iter().map(ToString::to_string).collect(),
            response_nonce: self.nonce.clone(),
            error_detail: error.map(|message| Status {
                message: message.to_owned(),
                ..Status::default()
            }),
            ..DiscoveryRequest::default()
        });
    }

    fn change(&mut self, name: usize, version: u8) {
        self.world.0.insert(NAMES[name], version);
        self.stream.changed();
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Want(set) => {
                let bits = NAMES.iter().enumerate();
                self.wants = bits
                    .filter(|(bit, _)| set & (1 << bit) != 0)
                    .map(|(_, name)| *name)
                    .collect();
                let wants = &self.wants;
                self.holds.retain(|name, _| wants.contains(name.as_str()));
                self.ask(None);
            }
            Step::Change(name) => {
                let version = self.world.0.get(NAMES[name]).copied().unwrap_or(0);
                self.change(name, version % 200 + 1);
            }
            Step::Remove(name) => self.change(name, 0),
            Step::Deliver => {
                if let Some(request) = self.requests.pop_front() {
                    let taken = self.stream.receive(request, self.now);
                    taken.expect("no client of ours breaks the protocol");
                }
            }
            Step::Push => {
                if let Some(response) = self.stream.next(&self.world, self.now) {
                    assert!(self.responses.is_empty(), "two responses in flight");
                    self.responses.push_back(response);
                    let more = self.stream.next(&self.world, self.now);
                    assert_eq!(more, None, "two responses in flight");
                }
            }
            Step::Answer => {
                if let Some(response) = self.responses.pop_front() {
                    self.apply(&response);
                    self.nonce = response.nonce;
                    self.refused = false;
                    self.ask(None);
                }
            }
            Step::Refuse => {
                if let Some(response) = self.responses.pop_front() {
                    self.nonce = response.nonce;
                    self.refused = true;
                    self.ask(Some("no"));
                }
            }
            Step::Reconnect => {
                self.stream = SotwStream::new(());
                self.requests.clear();
                self.responses.clear();
                self.nonce.clear();
                self.refused = false;
                if !self.wants.is_empty() {
                    self.ask(None);
                }
            }
        }
    }

    fn apply(&mut self, response: &DiscoveryResponse) {
        let mut came = BTreeSet::new();
        for resource in &response.resources {
            assert_eq!(resource.type_url, self.type_url);
            let (version, name) = resource.value.split_first().expect("a body");
            let name = String::from_utf8(name.to_vec()).expect("a name");
            came.insert(name.clone());
            if self.wants.contains(name.as_str()) {
                self.holds.insert(name, *version);
            }
        }
        if self.type_url == LISTENER {
            self.holds.retain(|name, _| came.contains(name));
        }
    }

    /// Everything under way arrives and is taken.
    fn settle(&mut self) {
        for _ in 0..20 {
            while !self.requests.is_empty() {
                self.take(Step::Deliver);
            }
            self.take(Step::Push);
            if self.responses.is_empty() {
                return;
            }
            self.take(Step::Answer);
        }
        panic!("it never ends");
    }

    /// It ends where it should, however often something was refused on the way.
    fn check(mut self, path: &dyn std::fmt::Debug) {
        let refused_before = self.refused;
        self.settle();
        if !refused_before && self.type_url == LISTENER && !self.refused {
            self.compare(path);
        }
        // After any refusal, a new version is sent.
        for (index, name) in NAMES.into_iter().enumerate() {
            let version = self.world.0.get(name).copied().unwrap_or(0);
            self.change(index, version + 50);
        }
        self.settle();
        self.compare(path);
    }

    fn compare(&self, path: &dyn std::fmt::Debug) {
        let there = self
            .world
            .0
            .iter()
            .filter(|(name, version)| self.wants.contains(*name) && **version > 0);
        let there: BTreeMap<String, u8> = there
            .map(|(name, version)| ((*name).to_owned(), *version))
            .collect();
        assert_eq!(self.holds, there, "{} after {path:?}", self.type_url);
    }
}

/// Depth of the exhaustive search: ten steps in every order, four deep after a subscription, are 11,000 plays of each type.
const DEPTH: usize = 4;

fn explore(play: &Play, path: &mut Vec<Step>) {
    play.clone().check(path);
    if path.len() == DEPTH {
        return;
    }
    for step in STEPS {
        let mut next = play.clone();
        next.take(step);
        path.push(step);
        explore(&next, path);
        path.pop();
    }
}

#[test]
fn every_order_of_a_few_steps_ends_with_what_there_is() {
    for type_url in [LISTENER, ENDPOINTS] {
        let mut play = Play::new(type_url);
        play.take(Step::Want(1));
        explore(&play, &mut Vec::new());
    }
}

#[test]
fn long_random_plays_end_with_what_there_is() {
    let mut random = fastrand::Rng::with_seed(21);
    for _ in 0..2_000 {
        let type_url = *random.choice([LISTENER, ENDPOINTS].iter()).expect("some");
        let mut play = Play::new(type_url);
        let mut path = Vec::new();
        for _ in 0..random.usize(..80) {
            let step = *random.choice(STEPS.iter()).expect("some");
            play.take(step);
            path.push(step);
        }
        play.check(&path);
    }
}

#[test]
fn nothing_is_said_twice_and_nothing_for_nothing() {
    let mut play = Play::new(ENDPOINTS);
    play.take(Step::Want(3));
    play.take(Step::Deliver);
    play.take(Step::Push);
    assert_eq!(play.responses[0].resources.len(), 2);
    play.take(Step::Answer);
    play.take(Step::Deliver);
    play.stream.changed();
    play.take(Step::Push);
    assert!(play.responses.is_empty(), "nothing has changed");
    play.take(Step::Change(0));
    play.take(Step::Push);
    assert_eq!(play.responses[0].resources.len(), 1, "only what changed");
    play.take(Step::Refuse);
    play.take(Step::Deliver);
    play.stream.changed();
    play.take(Step::Push);
    assert!(
        play.responses.is_empty(),
        "what was refused is not said again"
    );
    let mut whole = Play::new(LISTENER);
    whole.take(Step::Want(3));
    whole.settle();
    whole.take(Step::Change(0));
    whole.take(Step::Push);
    assert_eq!(whole.responses[0].resources.len(), 2, "all there is");
}

#[test]
fn a_first_request_without_names_asks_for_everything_and_a_later_one_for_nothing() {
    let mut play = Play::new(LISTENER);
    play.ask(None);
    play.take(Step::Deliver);
    play.take(Step::Push);
    assert_eq!(play.responses[0].resources.len(), 2);
    let mut named = Play::new(LISTENER);
    named.take(Step::Want(1));
    named.settle();
    named.take(Step::Want(0));
    named.settle();
    named.take(Step::Change(1));
    named.take(Step::Deliver);
    named.take(Step::Push);
    assert!(named.responses.is_empty());
}

#[test]
fn strange_requests_end_the_stream_or_change_nothing() {
    let now = Instant::now();
    let request = |names: Vec<String>, type_url: &str, nonce: &str| DiscoveryRequest {
        resource_names: names,
        type_url: type_url.to_owned(),
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    };
    let mut stream = SotwStream::new(());
    let violation = stream.receive(request(Vec::new(), "", ""), now);
    assert!(
        matches!(violation, Err(StreamEndReason::Violation(_))),
        "{violation:?}"
    );
    let long = stream.receive(request(vec!["x".repeat(5000)], LISTENER, ""), now);
    assert!(matches!(long, Err(StreamEndReason::TooMuch(_))), "{long:?}");
    let many = (0..100_001).map(|number| number.to_string()).collect();
    let many = stream.receive(request(many, LISTENER, ""), now);
    assert!(matches!(many, Err(StreamEndReason::TooMuch(_))), "{many:?}");
    let mut stream = SotwStream::new(());
    for number in 0..16 {
        let taken = stream.receive(request(Vec::new(), &format!("type{number}"), ""), now);
        assert_eq!(taken, Ok(RequestEvent::Subscribed));
    }
    let types = stream.receive(request(Vec::new(), "one more", ""), now);
    assert!(
        matches!(types, Err(StreamEndReason::TooMuch(_))),
        "{types:?}"
    );
    let stale = stream.receive(request(Vec::new(), "type0", "never said"), now);
    assert_eq!(stale, Ok(RequestEvent::Stale));
}

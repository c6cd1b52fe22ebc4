//! Delta, explored: both ends, and all that can befall them on the way, in every order to a bounded depth. Names are wanted, let go
//! and wanted again, everything is asked for and no more, resources change, spoil and go, messages wait, streams break and responses
//! come twice. From every state the way back must lead to what there is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use voile_xds::client::{PendingChanges, Rejection, Subscriptions};
use voile_xds::server::{DiscoveryStream, Resolution, Resource, Snapshot};

use crate::explorer::{System, explore};

const TYPE: &str = "type.googleapis.com/test";
const STAR: &str = "*";
/// A service, which brings its workload along, and the workload, which has another name, too.
const SERVICE: &str = "s";
const WORKLOAD: &str = "w";
const ALIAS: &str = "/ip";
/// A question that the service answers.
const SEARCH: &str = "*/s";
/// Requests under way, at most: more are as good as these.
const MAX_REQUESTS: usize = 3;
/// Messages until both must have said all. The longest conversation seen has 11.
const MAX_MESSAGES: usize = 24;

/// Content of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Body {
    One,
    Two,
    /// The client cannot use it.
    Spoilt,
}

impl Body {
    fn version(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Two => "2",
            Self::Spoilt => "spoilt",
        }
    }
}

/// Existing resources.
#[derive(Debug, Clone, Default)]
struct World(BTreeMap<&'static str, Body>);

impl World {
    fn resource(&self, name: &str) -> Option<Arc<Resource>> {
        let (name, body) = self.0.get_key_value(name)?;
        let aliases = match *name {
            WORKLOAD => vec![ALIAS.into()],
            _ => Vec::new(),
        };
        Some(Arc::new(Resource {
            name: (*name).into(),
            aliases,
            version: body.version().into(),
            body: body.version().as_bytes().into(),
        }))
    }

    fn found(&self, name: &str) -> Vec<Arc<Resource>> {
        let all = |names: &[&str]| {
            names
                .iter()
                .filter_map(|name| self.resource(name))
                .collect()
        };
        match name {
            // A workload comes along with a service that is there.
            SERVICE | SEARCH if self.0.contains_key(SERVICE) => all(&[SERVICE, WORKLOAD]),
            WORKLOAD | ALIAS => all(&[WORKLOAD]),
            STAR => all(&[SERVICE, WORKLOAD]),
            _ => Vec::new(),
        }
    }
}

impl Snapshot<()> for World {
    fn version(&self) -> Arc<str> {
        "one".into()
    }

    fn resolve(&self, (): &(), _: &str, name: &str) -> Resolution {
        match self.found(name) {
            found if found.is_empty() => Resolution::Unknown,
            found => Resolution::Found(found),
        }
    }

    fn everything(&self, (): &(), _: &str) -> Resolution {
        Resolution::Found(self.found(STAR))
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Want(&'static str),
    LetGo(&'static str),
    /// Both before the client's turn: it is let go, and wanted again.
    Again(&'static str),
    Set(&'static str, Body),
    Remove(&'static str),
    /// The first request under way arrives.
    ToServer,
    /// The server says what it has to say.
    Speak,
    /// The first response under way arrives.
    ToClient,
    /// It arrives, and will once more.
    ToClientTwice,
    /// The stream ends, with all that is under way, and another begins.
    Break,
}

/// A proxy, a control plane, and the stream between them.
#[derive(Clone)]
struct Play {
    /// Names that may be asked for.
    names: &'static [&'static str],
    /// True if the proxy forgets a service as soon as it unsubscribes, as ours does.
    forgets: bool,
    now: Instant,
    world: World,
    client: Subscriptions,
    server: DiscoveryStream<()>,
    requests: VecDeque<DeltaDiscoveryRequest>,
    responses: VecDeque<DeltaDiscoveryResponse>,
    wanted: BTreeSet<&'static str>,
    /// Names that the server was told of on this stream, and not told otherwise.
    told: BTreeSet<String>,
    /// Resources that the proxy works with.
    held: BTreeMap<Arc<str>, Arc<str>>,
    /// Number of responses that may still arrive twice.
    doubles: u8,
}

impl Play {
    fn new(names: &'static [&'static str], forgets: bool) -> Self {
        let mut play = Self {
            names,
            forgets,
            now: Instant::now(),
            world: World(BTreeMap::from([
                (SERVICE, Body::One),
                (WORKLOAD, Body::One),
            ])),
            client: Subscriptions::new(Node::default()),
            server: DiscoveryStream::new(()),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            wanted: BTreeSet::new(),
            told: BTreeSet::new(),
            held: BTreeMap::new(),
            doubles: 1,
        };
        play.reopen();
        play
    }

    fn reopen(&mut self) {
        self.client.closed();
        self.server = DiscoveryStream::new(());
        self.responses.clear();
        self.told.clear();
        self.requests = self.client.open().into();
    }

    fn wish(&mut self, changes: PendingChanges) {
        self.requests.extend(changes.apply(&mut self.client));
    }

    fn forget(&mut self, name: &str) {
        let still = self.wanted.contains(SERVICE) || self.wanted.contains(SEARCH);
        if self.forgets && [SERVICE, SEARCH].contains(&name) && !still {
            self.held.remove(SERVICE);
        }
    }

    /// As it is published: whoever depends on one of these names looks at it again.
    fn changed(&mut self, name: &str) {
        let known: Vec<(Arc<str>, BTreeSet<Arc<str>>)> = self
            .server
            .depends_on()
            .map(|(of, names)| (of.clone(), names.clone()))
            .collect();
        // A change of a workload also concerns the service that brings the workload along.
        let concerned = |known: &Arc<str>| match name {
            SERVICE => [SERVICE, SEARCH].contains(&&**known),
            _ => [SERVICE, SEARCH, WORKLOAD, ALIAS].contains(&&**known),
        };
        for (of, names) in known {
            match names.contains(STAR) {
                true => self.server.touched(&of, None),
                false => {
                    let names = names.into_iter().filter(concerned).collect();
                    self.server.touched(&of, Some(names));
                }
            }
        }
    }

    fn tell_server(&mut self, request: DeltaDiscoveryRequest) -> Result<(), String> {
        if request
            .initial_resource_versions
            .values()
            .any(|of| of == Body::Spoilt.version())
        {
            return Err("what was refused is said to be held".to_owned());
        }
        self.told
            .extend(request.resource_names_subscribe.iter().cloned());
        for name in &request.resource_names_unsubscribe {
            self.told.remove(name);
        }
        let received = self.server.receive(request, self.now);
        received
            .map(drop)
            .map_err(|ended| format!("the stream ended: {ended}"))
    }

    fn speak(&mut self) -> Result<bool, String> {
        let Some(response) = self.server.next(&self.world, self.now) else {
            return Ok(false);
        };
        let asked = self.told.iter().flat_map(|name| self.world.found(name));
        let asked: BTreeSet<String> = asked.map(|resource| resource.name.to_string()).collect();
        for resource in &response.resources {
            if !asked.contains(&resource.name) {
                return Err(format!("{} was not asked for", resource.name));
            }
        }
        self.responses.push_back(response);
        match self.server.next(&self.world, self.now) {
            None => Ok(true),
            Some(_) => Err("two responses of one type are under way".to_owned()),
        }
    }

    fn tell_client(&mut self, response: DeltaDiscoveryResponse) -> Result<(), String> {
        let update = self.client.receive(response);
        let mut rejections = Vec::new();
        for name in &update.removed {
            self.held.remove(name);
        }
        for resource in &update.added {
            let version = resource.version.split('+').next().unwrap_or_default();
            match version == Body::Spoilt.version() {
                true => rejections.push(Rejection {
                    name: resource.name.clone(),
                    reason: "spoilt".to_owned(),
                }),
                false => {
                    self.held.insert(resource.name.clone(), version.into());
                }
            }
        }
        let refused = !rejections.is_empty();
        let answer = self.client.finish(update, rejections);
        if refused != answer.error_detail.is_some() {
            return Err("an answer that is neither yes nor no".to_owned());
        }
        self.requests.push_back(answer);
        match self.client.held(TYPE) <= self.world.0.len().max(2) {
            true => Ok(()),
            false => Err("the client remembers more than there ever was".to_owned()),
        }
    }

    /// Everything under way arrives, and everything that follows from it.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MAX_MESSAGES {
            if let Some(request) = self.requests.pop_front() {
                self.tell_server(request)?;
            } else if let Some(response) = self.responses.pop_front() {
                self.tell_client(response)?;
            } else if !self.speak()? {
                return Ok(());
            }
        }
        Err("they never stop talking".to_owned())
    }

    /// Resources that the proxy should work with.
    fn truth(&self) -> BTreeMap<Arc<str>, Arc<str>> {
        let all = self.wanted.iter().flat_map(|name| self.world.found(name));
        all.map(|resource| (resource.name.clone(), resource.version.clone()))
            .collect()
    }

    fn compare(&self) -> Result<(), String> {
        let truth = self.truth();
        let unasked = self.held.keys().find(|name| !truth.contains_key(*name));
        if let Some(name) = unasked {
            return Err(format!("{name} is held, and nobody wants it or it is gone"));
        }
        for (name, version) in &truth {
            let held = self.held.get(name);
            let good = match **version == *Body::Spoilt.version() {
                true => held.is_none_or(|held| **held != *Body::Spoilt.version()),
                false => held == Some(version),
            };
            if !good {
                return Err(format!("{name} is {version}, and {held:?} is held"));
            }
        }
        if self.client.held(TYPE) < self.held.len() {
            return Err("the proxy holds what its client will not say it holds".to_owned());
        }
        match self.client.unanswered() {
            None => Ok(()),
            Some(name) => Err(format!("no word on {}", name.name)),
        }
    }
}

impl System for Play {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Break, Step::Speak];
        if self.requests.len() < MAX_REQUESTS {
            for name in self.names {
                match self.wanted.contains(name) {
                    true => steps.extend([Step::LetGo(name), Step::Again(name)]),
                    false => steps.push(Step::Want(name)),
                }
            }
        }
        for name in [SERVICE, WORKLOAD] {
            let now = self.world.0.get(name);
            let others = [Body::One, Body::Two, Body::Spoilt].into_iter();
            steps.extend(
                others
                    .filter(|body| now != Some(body))
                    .map(|body| Step::Set(name, body)),
            );
            steps.extend(now.map(|_| Step::Remove(name)));
        }
        if !self.requests.is_empty() {
            steps.push(Step::ToServer);
        }
        if !self.responses.is_empty() {
            steps.push(Step::ToClient);
            steps.extend((self.doubles > 0).then_some(Step::ToClientTwice));
        }
        steps
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        let of: Arc<str> = TYPE.into();
        let mut changes = PendingChanges::default();
        match step {
            Step::Want(name) => {
                self.wanted.insert(name);
                changes.want(&of, name.into());
                self.wish(changes);
            }
            Step::LetGo(name) => {
                self.wanted.remove(name);
                self.forget(name);
                changes.let_go(&of, name.into());
                self.wish(changes);
            }
            Step::Again(name) => {
                self.wanted.remove(name);
                self.forget(name);
                self.wanted.insert(name);
                changes.let_go(&of, name.into());
                changes.want(&of, name.into());
                self.wish(changes);
            }
            Step::Set(name, body) => {
                self.world.0.insert(name, body);
                self.changed(name);
            }
            Step::Remove(name) => {
                self.world.0.remove(name);
                self.changed(name);
            }
            Step::ToServer => match self.requests.pop_front() {
                Some(request) => return self.tell_server(request),
                None => return Ok(()),
            },
            Step::Speak => return self.speak().map(drop),
            Step::ToClient | Step::ToClientTwice => {
                let Some(response) = self.responses.pop_front() else {
                    return Ok(());
                };
                if matches!(step, Step::ToClientTwice) {
                    self.doubles -= 1;
                    self.responses.push_front(response.clone());
                }
                return self.tell_client(response);
            }
            Step::Break => self.reopen(),
        }
        Ok(())
    }

    fn key(&self) -> String {
        // Numbers that only ever grow are told by how far back they are.
        let text = format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {}",
            self.client,
            self.server,
            self.requests,
            self.responses,
            self.world,
            self.wanted,
            self.held,
            self.doubles
        );
        without_counts(&text)
    }

    fn check(mut self) -> Result<(), String> {
        self.settle()?;
        self.compare()?;
        // A second look at unchanged resources sends nothing.
        self.server.changed();
        if self.speak()? {
            return Err("something is said, and nothing is new".to_owned());
        }
        // While no stream is there, what was spoilt is mended, and says again what it said first.
        self.world.0.values_mut().for_each(|body| {
            if *body == Body::Spoilt {
                *body = Body::One;
            }
        });
        self.reopen();
        self.settle()?;
        let mended = self.compare();
        mended.map_err(|wrong| format!("on the next stream: {wrong}"))
    }
}

/// The text with each nonce as the number of responses since, and without turns, of which only the order counts.
fn without_counts(text: &str) -> String {
    let number_after = |mark: &str| {
        let (_, rest) = text.split_once(mark)?;
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        rest[..end].parse::<u64>().ok()
    };
    let said = number_after("responses: ").unwrap_or(0);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("nonce: \"") {
        out.push_str(before);
        let (nonce, after) = after.split_once('"').unwrap_or((after, ""));
        let back = nonce
            .parse::<u64>()
            .map_or(0, |nonce| 1 + said.saturating_sub(nonce));
        out += &format!("nonce {back}");
        rest = after;
    }
    out.push_str(rest);
    let mut text = out;
    for mark in ["responses: ", "turn: ", "unanswered: {"] {
        let mut kept = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once(mark) {
            kept.push_str(before);
            kept.push_str(mark);
            let end = match mark.ends_with('{') {
                true => after.find('}'),
                false => after.find(|c: char| !c.is_ascii_digit()),
            };
            let (counted, after) = after.split_at(end.unwrap_or(0));
            kept.extend(counted.chars().filter(|c| !c.is_ascii_digit()));
            rest = after;
        }
        kept.push_str(rest);
        text = kept;
    }
    text
}

/// Deep enough for each of the mistakes that were tried; `VOILE_EXPLORE` goes as deep as there is patience.
fn depth(usual: usize) -> usize {
    let asked = std::env::var("VOILE_EXPLORE").ok();
    asked.and_then(|depth| depth.parse().ok()).unwrap_or(usual)
}

fn explored(what: &str, play: Play, usual: usize) {
    let depth = depth(usual);
    let seen = explore(play, depth);
    println!("{what}: {seen:?} to a depth of {depth}");
    assert!(seen.states > 100, "{seen:?}");
}

#[test]
fn by_name_every_order_of_events_leads_to_what_there_is() {
    explored("names", Play::new(&[SERVICE, ALIAS, SEARCH], true), 6);
}

#[test]
fn with_everything_asked_for_and_no_more_every_order_leads_to_what_there_is() {
    explored("wildcard", Play::new(&[STAR, SERVICE, WORKLOAD], false), 6);
}

#[test]
fn from_a_conversation_under_way_every_order_leads_to_what_there_is() {
    let mut play = Play::new(&[SERVICE, ALIAS], true);
    for name in [SERVICE, ALIAS] {
        play.take(Step::Want(name)).expect("a wish");
    }
    play.settle().expect("they agree");
    explored("under way", play, 5);
}

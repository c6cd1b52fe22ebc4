//! Subscriptions of the client: wanted names, held versions, and the next requests. No sockets, no clock.
//!
//! ```text
//! subscribe/unsubscribe ─▶ request          open() ─▶ first request of each type (names wanted, versions held)
//! response ─▶ receive() ─▶ Update ─▶ (handler) ─▶ finish(rejections) ─▶ ACK or NACK
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status};
use voile_proto::type_url;

/// gRPC code of a NACK (`INVALID_ARGUMENT`).
const INVALID_ARGUMENT: i32 = 3;
/// Characters of a NACK's text: enough to name a few dozen resources, too little to matter in a log.
const MAX_NACK_CHARS: usize = 4096;

/// A version that nothing has: whoever says it holds this is told what there is, and when it goes.
const NONE: &str = "";

/// The name that stands for everything.
const WILDCARD: &str = "*";

/// One resource that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceUpdate {
    /// Its name.
    pub name: Arc<str>,
    /// Its other names, by which it may have been asked for.
    pub aliases: Vec<Arc<str>>,
    /// Its version.
    pub version: Arc<str>,
    /// The encoded message.
    pub body: Vec<u8>,
}

/// Changes that one response brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// Type of all its resources.
    pub type_url: Arc<str>,
    /// The version of all there is that it was made of; empty where the server does not say.
    pub version: Arc<str>,
    /// New or changed resources.
    pub added: Vec<ResourceUpdate>,
    /// Names of resources that are gone, and names asked for that do not exist.
    pub removed: Vec<Arc<str>>,
    /// The names among `removed` that are asked for: no resource has them. Any other removed name was let go, or the server
    /// removed it before it was asked for again. It only means that the held resource is gone.
    pub absent: Vec<Arc<str>>,
    /// Of `removed`, the names of which nothing was held: nothing goes by them, so that there is nothing is all that is said.
    pub never_held: Vec<Arc<str>>,
    /// Removed, and perhaps said before they were asked for: to be asked for once more.
    doubtful: Vec<Arc<str>>,
    nonce: String,
    unusable: Vec<Rejection>,
}

/// A resource that the proxy cannot use. The resource held under this name before stays in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Name of the resource.
    pub name: Arc<str>,
    /// Why.
    pub reason: String,
}

#[derive(Debug, Clone, Default)]
struct SubscribedType {
    wanted: BTreeSet<Arc<str>>,
    /// Version of each resource in force.
    held: BTreeMap<Arc<str>, Arc<str>>,
    /// Names of which nothing came since they were asked for.
    owed: BTreeSet<Arc<str>>,
    /// Names asked for on the open stream of which nothing was said, with the turn at which they were asked for.
    unanswered: BTreeMap<Arc<str>, u64>,
    /// Names of what is held that the server of the open stream was not told of, since they were asked for: it takes away
    /// nothing that it does not know we hold.
    undeclared: BTreeSet<Arc<str>>,
    /// Number of responses at the moment when a name was last let go on the open stream. The next two may take its resource
    /// away.
    let_go: Option<u64>,
    /// Names asked for since the last response although something was held of them, or they may just have been let go: the
    /// next response may have been made before, and that it takes one away does not answer the question. The one after it was
    /// made when the server had our answer to that, and so this question.
    doubted: BTreeSet<Arc<str>>,
    /// Responses on the open stream.
    responses: u64,
    /// True if the first request of this type went out on the open stream.
    announced: bool,
}

/// A name that was asked for and of which nothing was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnansweredName<'a> {
    /// Turn at which the name was asked for.
    pub turn: u64,
    /// Its type.
    pub type_url: &'a str,
    /// The name.
    pub name: &'a str,
}

/// The client's side of one stream, and what outlives it.
#[derive(Debug, Clone)]
pub struct Subscriptions {
    node: Node,
    kinds: BTreeMap<Arc<str>, SubscribedType>,
    open: bool,
    /// Times that something was asked for.
    turn: u64,
}

impl Subscriptions {
    /// Nothing wanted, nothing held, no stream open.
    pub fn new(node: Node) -> Self {
        Self {
            node,
            kinds: BTreeMap::new(),
            open: false,
            turn: 0,
        }
    }

    /// A stream is open: the requests to send on it first.
    pub fn open(&mut self) -> Vec<DeltaDiscoveryRequest> {
        self.open = true;
        self.turn += 1;
        let mut requests = Vec::new();
        for (type_url, kind) in &mut self.kinds {
            // Of the others nothing need be said: what we hold of them may be true.
            let owed = kind.owed.iter().cloned();
            kind.unanswered = owed.map(|name| (name, self.turn)).collect();
            let held = kind
                .owed
                .iter()
                .filter(|name| kind.held.contains_key(*name));
            kind.undeclared = held.cloned().collect();
            // A resource that is held but no longer wanted is announced too, so that the server removes it.
            kind.announced = !kind.wanted.is_empty() || !kind.held.is_empty();
            if kind.announced {
                requests.extend(first_requests(&self.node, type_url, kind));
            }
        }
        requests
    }

    /// The stream ended; what is held stays in force.
    pub fn closed(&mut self) {
        self.open = false;
        for kind in self.kinds.values_mut() {
            kind.announced = false;
            kind.responses = 0;
            kind.unanswered.clear();
            kind.let_go = None;
            kind.undeclared.clear();
            kind.doubted.clear();
        }
    }

    /// Wants more names (`*` for everything) and stops wanting others; the request to send, if there is a stream and news. A
    /// name in both was let go and is wanted again: it is asked for once more, and a server must answer that, whatever it
    /// believes that we hold (delta xDS has this rule for exactly this case).
    pub fn change(
        &mut self,
        type_url: &str,
        subscribe: impl IntoIterator<Item = Arc<str>>,
        unsubscribe: impl IntoIterator<Item = Arc<str>>,
    ) -> Option<DeltaDiscoveryRequest> {
        let kind = self.kinds.entry(type_url.into()).or_default();
        let mut gone: Vec<Arc<str>> = Vec::new();
        for name in unsubscribe {
            if kind.wanted.remove(&name) {
                // Resources of the name count as held until the server removes them: another name may stand for them.
                kind.owed.remove(&name);
                kind.unanswered.remove(&name);
                gone.push(name);
            }
        }
        if self.open && !gone.is_empty() {
            kind.let_go = Some(kind.responses);
        }
        let is_leaving = kind.let_go.is_some_and(|then| kind.responses < then + 2);
        let mut new: Vec<Arc<str>> = Vec::new();
        for name in subscribe {
            if kind.wanted.insert(name.clone()) {
                if &*name != WILDCARD {
                    kind.owed.insert(name.clone());
                }
                if self.open && (is_leaving || kind.held.contains_key(&name)) {
                    kind.doubted.insert(name.clone());
                }
                new.push(name);
            }
        }
        gone.retain(|name| !kind.wanted.contains(name));
        if !self.open || (new.is_empty() && gone.is_empty()) {
            return None;
        }
        if !new.is_empty() {
            self.turn += 1;
            let named = new.iter().filter(|name| &***name != WILDCARD);
            kind.unanswered
                .extend(named.map(|name| (name.clone(), self.turn)));
        }
        if !kind.announced {
            kind.announced = !kind.wanted.is_empty();
            return kind
                .announced
                .then(|| first_request(&self.node, type_url, kind, &kind.wanted));
        }
        if new.is_empty() && type_url == type_url::ADDRESS {
            new.extend(kind.company());
        }
        Some(DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: strings(&new),
            resource_names_unsubscribe: strings(&gone),
            ..DeltaDiscoveryRequest::default()
        })
    }

    /// Takes a response apart. Resources without a body or a name, of another type, or there twice are marked unusable.
    pub fn receive(&mut self, response: DeltaDiscoveryResponse) -> Update {
        let type_url: Arc<str> = response.type_url.into();
        let mut unusable = Vec::new();
        let mut added: Vec<ResourceUpdate> = Vec::with_capacity(response.resources.len());
        let mut seen = BTreeSet::new();
        for resource in response.resources {
            let name: Arc<str> = resource.name.into();
            let mut refuse = |reason: &str| {
                unusable.push(Rejection {
                    name: name.clone(),
                    reason: reason.to_owned(),
                });
            };
            if !self.kinds.contains_key(&type_url) {
                refuse("this proxy does not subscribe to the type");
            } else if name.is_empty() {
                refuse("a resource without a name");
            } else if !seen.insert(name.clone()) {
                refuse("appears twice in one response");
            } else {
                match resource.resource {
                    Some(any) if any.type_url == *type_url => added.push(ResourceUpdate {
                        name,
                        aliases: resource.aliases.into_iter().map(Into::into).collect(),
                        version: resource.version.into(),
                        body: any.value,
                    }),
                    Some(_) => refuse("its body is of another type than the response"),
                    None => refuse("a resource without a body"),
                }
            }
        }
        let mut removed: Vec<Arc<str>> = response
            .removed_resources
            .into_iter()
            .map(Into::into)
            .collect();
        let mut never_held = Vec::new();
        let (doubtful, absent) = match self.kinds.get_mut(&type_url) {
            None => Default::default(),
            Some(kind) => {
                kind.responses += 1;
                let unknown = removed.iter().filter(|name| !kind.held.contains_key(*name));
                never_held.extend(unknown.cloned());
                for resource in &added {
                    kind.undeclared.remove(&resource.name);
                }
                let orphans = kind
                    .undeclared
                    .extract_if(.., |name| !kind.wanted.contains(name));
                removed.extend(orphans);
                let doubted = std::mem::take(&mut kind.doubted);
                let asked = removed.iter().filter(|name| kind.wanted.contains(*name));
                asked.cloned().partition(|name| doubted.contains(name))
            }
        };
        Update {
            type_url,
            version: response.system_version_info.into(),
            added,
            removed,
            absent,
            never_held,
            doubtful,
            nonce: response.nonce,
            unusable,
        }
    }

    /// The update was applied but for `rejections`: remembers what is held now, and gives the ACK or NACK to send.
    pub fn finish(
        &mut self,
        update: Update,
        mut rejections: Vec<Rejection>,
    ) -> DeltaDiscoveryRequest {
        rejections.extend(update.unusable);
        if let Some(kind) = self.kinds.get_mut(&update.type_url) {
            let rejected: BTreeSet<&str> = rejections.iter().map(|r| &*r.name).collect();
            for name in &update.removed {
                kind.held.remove(name);
            }
            for name in &update.absent {
                kind.unanswered.remove(name);
            }
            for resource in &update.added {
                let mut names = resource.aliases.iter().chain([&resource.name]);
                let refused = rejected.contains(&*resource.name);
                // The caller of a name asked for again has forgotten the older resource: the held one has no version from now
                // on.
                if refused && names.any(|name| kind.owed.contains(name)) {
                    let held = kind.held.get_mut(&resource.name);
                    held.into_iter().for_each(|version| *version = NONE.into());
                }
            }
            // That there is nothing may have been said before the name was asked for again, so it settles nothing.
            for resource in &update.added {
                for name in resource.aliases.iter().chain([&resource.name]) {
                    kind.owed.remove(name);
                    kind.unanswered.remove(name);
                }
            }
            // Rejected versions are not held; the older one that stays in force is.
            for resource in update.added {
                if !rejected.contains(&*resource.name) {
                    kind.held.insert(resource.name, resource.version);
                }
            }
        }
        DeltaDiscoveryRequest {
            type_url: update.type_url.to_string(),
            response_nonce: update.nonce,
            resource_names_subscribe: strings(&update.doubtful),
            error_detail: (!rejections.is_empty()).then(|| nack(&rejections)),
            ..DeltaDiscoveryRequest::default()
        }
    }

    /// Number of held resources of a type.
    pub fn held(&self, type_url: &str) -> usize {
        self.kinds.get(type_url).map_or(0, |kind| kind.held.len())
    }

    /// Number of turns at which names were asked for.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// The name that has waited longest for an answer on the open stream.
    pub fn unanswered(&self) -> Option<UnansweredName<'_>> {
        let all = self.kinds.iter().flat_map(|(type_url, kind)| {
            kind.unanswered.iter().map(|(name, turn)| UnansweredName {
                turn: *turn,
                type_url,
                name,
            })
        });
        all.min()
    }

    /// Number of wanted names of all types.
    pub fn wanted(&self) -> usize {
        self.kinds.values().map(|kind| kind.wanted.len()).sum()
    }
}

impl SubscribedType {
    /// A name to go along with names that are let go. istiod takes a request that only lets go of Addresses for a question
    /// about all of them, and answers that all are gone; one that is held and asked for besides costs one answer.
    fn company(&self) -> Option<Arc<str>> {
        let held = |name: &&Arc<str>| self.held.contains_key(*name) && !self.owed.contains(*name);
        self.wanted.iter().rev().find(held).cloned()
    }
}

/// First requests for a type on a new stream. A server does not send held resources again, but the caller of a name asked for
/// since the last answer may hold nothing of it. Those names go into a request of their own, which a server must answer. They
/// are not declared as held either: istiod takes held names as already asked for, and does not answer a request for them.
fn first_requests(
    node: &Node,
    type_url: &str,
    kind: &SubscribedType,
) -> Vec<DeltaDiscoveryRequest> {
    if kind.held.is_empty() || kind.owed.is_empty() {
        return vec![first_request(node, type_url, kind, &kind.wanted)];
    }
    let answered = kind.wanted.difference(&kind.owed).cloned().collect();
    let again = DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names_subscribe: kind.owed.iter().map(ToString::to_string).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    vec![first_request(node, type_url, kind, &answered), again]
}

fn first_request(
    node: &Node,
    type_url: &str,
    kind: &SubscribedType,
    names: &BTreeSet<Arc<str>>,
) -> DeltaDiscoveryRequest {
    let mut request = DeltaDiscoveryRequest {
        node: Some(node.clone()),
        type_url: type_url.to_owned(),
        resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
        initial_resource_versions: kind
            .held
            .iter()
            .filter(|(name, _)| !kind.owed.contains(*name))
            .map(|(name, version)| (name.to_string(), version.to_string()))
            .collect(),
        ..DeltaDiscoveryRequest::default()
    };
    if names.is_empty() {
        // A first request without names would mean everything (the protocol's old wildcard).
        request.resource_names_subscribe.push(WILDCARD.to_owned());
        request.resource_names_unsubscribe.push(WILDCARD.to_owned());
    }
    request
}

fn strings(names: &[Arc<str>]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn nack(rejections: &[Rejection]) -> Status {
    let text: Vec<String> = rejections
        .iter()
        .map(|rejection| format!("{}: {}", rejection.name, rejection.reason))
        .collect();
    Status {
        code: INVALID_ARGUMENT,
        message: text.join("; ").chars().take(MAX_NACK_CHARS).collect(),
        details: Vec::new(),
    }
}

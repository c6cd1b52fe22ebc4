//! One caller's state-of-the-world stream, as gRPC and older Envoys speak it: each request names everything that is wanted of a
//! type, each response of listeners and clusters holds all of them. No sockets; time is an argument.
//!
//! ```text
//! request ─▶ receive() ─┐
//! snapshot ─▶ changed() ┴─▶ next(): per type at most one response in flight
//! ```
//! The protocol has no word for "there is no such thing" but, for listeners and clusters, to leave it out.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use voile_proto::discovery::{DiscoveryRequest, DiscoveryResponse};
use voile_proto::type_url;

use super::budget::{NAME_BYTES, SENT_BYTES};
use super::by_type::ByType;
use super::denied_names::RefusedNames;
use super::frame::{DueResponse, Nonce};
use super::rejected_routes::{KeepRule, RefusalLog};
use super::stream::{
    ACK_DEADLINE, InFlight, LEADING, MAX_NAME_BYTES, MAX_NAMES, MAX_RESPONSE_BYTES, MAX_TYPES,
    NAMING, RequestEvent, SentResource, WARMING, unnamed, unspeakable,
};
use crate::server::end_reason::StreamEndReason;
use crate::server::snapshot::{Resolution, Resource, Snapshot};

/// Types of which a response holds all that there is: what it lacks is gone.
const WHOLE: [&str; 2] = [type_url::LISTENER, type_url::CLUSTER];
/// A name that stands for everything of its type.
const STAR: &str = "*";

/// Names that a stream depends on, by type, as `Interest` knows them.
pub(super) type Known = BTreeMap<Arc<str>, BTreeSet<Arc<str>>>;

/// A name that stands for nothing to this caller, and why it is refused if it is.
pub type Absent = BTreeMap<Arc<str>, Option<String>>;

#[derive(Debug, Clone, Default)]
struct SotwType {
    names: BTreeSet<Arc<str>>,
    /// Bytes of these names.
    name_bytes: usize,
    wildcard: bool,
    /// It asked for something that was not looked at.
    asked: bool,
    /// Names looked at because it asked.
    looked: usize,
    /// Names refused that no log tells of.
    refused: Option<RefusedNames>,
    /// Names have been given: none at all is then nothing, and no longer everything.
    named: bool,
    /// Resources that the caller was sent last and still asks for.
    sent: BTreeMap<Arc<str>, Arc<Resource>>,
    /// Names that stood for nothing when it was last looked.
    absent: Absent,
    /// It is not what it was when somebody was told of it.
    untold: bool,
    in_flight: Option<InFlight>,
    depends_on: Known,
    /// All must be looked at again.
    dirty: bool,
    /// Names are new: an answer is due even if it says nothing new, where a response says it all.
    fresh: bool,
    /// The oldest change of the sources that has not been looked at.
    changed: Option<Instant>,
}

/// The server's side of one stream.
#[derive(Debug, Clone)]
pub struct SotwStream<C> {
    caller: C,
    kinds: ByType<SotwType>,
    responses: u64,
    /// The last request asked for something.
    asks: bool,
    doubts: RefusalLog,
    /// Types by which it has ever been woken.
    known: BTreeSet<Arc<str>>,
}

impl<C: 'static> SotwStream<C> {
    /// A stream on which nothing was said yet.
    pub fn new(caller: C) -> Self {
        Self {
            caller,
            kinds: ByType::default(),
            responses: 0,
            asks: false,
            doubts: RefusalLog::default(),
            known: BTreeSet::new(),
        }
    }

    /// Who calls.
    pub fn caller(&self) -> &C {
        &self.caller
    }

    /// The caller, to add facts about itself.
    pub fn caller_mut(&mut self) -> &mut C {
        &mut self.caller
    }

    /// There is something new, of whatever type.
    pub fn changed(&mut self) {
        for kind in self.kinds.values_mut() {
            kind.dirty = true;
        }
    }

    /// All that the caller was sent and still asks for.
    pub fn held(&self) -> Vec<SentResource> {
        let mut all = Vec::new();
        for (of, kind) in self.kinds.iter() {
            all.extend(kind.sent.values().map(|one| SentResource {
                type_url: of.clone(),
                name: one.name.clone(),
                version: one.version.clone(),
            }));
        }
        all
    }

    /// See `Conversation`.
    pub(super) fn kept_bytes(&self) -> usize {
        let kept = |kind: &SotwType| {
            let asked = kind.name_bytes + kind.names.len() * NAME_BYTES;
            asked + kind.sent.len() * SENT_BYTES
        };
        self.kinds.values().map(kept).sum()
    }

    /// Returns true if something must be looked at.
    pub(super) fn is_due(&self) -> bool {
        self.kinds.values().any(|kind| kind.dirty)
    }

    pub(super) fn asks(&self) -> bool {
        self.asks
    }

    pub(super) fn take_looked(&mut self) -> usize {
        let kinds = self.kinds.iter_mut();
        kinds
            .map(|(_, kind)| std::mem::take(&mut kind.looked))
            .sum()
    }

    pub(super) fn take_refused(&mut self) -> Option<RefusedNames> {
        let refused = self.kinds.iter_mut().map(|(_, kind)| kind.refused.take());
        refused.reduce(RefusedNames::join).flatten()
    }

    /// When the caller's silence becomes too long.
    pub fn deadline(&self) -> Option<Instant> {
        let waiting = self
            .kinds
            .values()
            .filter_map(|kind| kind.in_flight.as_ref());
        waiting.map(|one| one.sent_at + ACK_DEADLINE).min()
    }

    /// The sources changed then.
    pub fn changed_at(&mut self, at: Instant) {
        for kind in self.kinds.values_mut().filter(|kind| kind.dirty) {
            kind.changed = Some(kind.changed.map_or(at, |old| old.min(at)));
        }
    }

    /// Names whose change can give this stream a new response. Types that once mattered have an empty set.
    pub(super) fn depends_on(&mut self) -> Known {
        let mut all: Known = self
            .known
            .iter()
            .map(|of| (of.clone(), BTreeSet::new()))
            .collect();
        for kind in self.kinds.values() {
            for (of, names) in &kind.depends_on {
                all.entry(of.clone())
                    .or_default()
                    .extend(names.iter().cloned());
            }
        }
        self.known = all.keys().cloned().collect();
        all
    }

    /// Types of which what stands for nothing is not what it was, and what it is now.
    pub fn refusals(&mut self) -> Vec<(Arc<str>, Absent)> {
        let mut found = Vec::new();
        for (of, kind) in self.kinds.iter_mut() {
            if std::mem::take(&mut kind.untold) {
                found.push((of.clone(), kind.absent.clone()));
            }
        }
        found
    }

    /// Takes a request: an answer to a response, another list of what is wanted, or both.
    ///
    /// # Errors
    /// The stream is to end.
    pub fn receive(
        &mut self,
        request: DiscoveryRequest,
        now: Instant,
    ) -> Result<RequestEvent, StreamEndReason> {
        if request.type_url.is_empty() {
            return Err(StreamEndReason::Violation(
                "the request has no type_url".to_owned(),
            ));
        }
        let first = self.kinds.get(&request.type_url).is_none();
        if first && self.kinds.len() >= MAX_TYPES {
            return Err(StreamEndReason::TooMuch(format!(
                "more than {MAX_TYPES} types"
            )));
        }
        if first && request.type_url.len() > MAX_NAME_BYTES {
            return Err(unspeakable(&request.type_url));
        }
        let kind = self.kinds.of(&request.type_url);
        // Requests come in order, and each says all: the list counts even where the answer that comes with it is stale.
        kind.subscribe(first, &request)?;
        self.asks = kind.dirty || request.response_nonce.is_empty();
        let in_flight = kind
            .in_flight
            .take_if(|one| one.nonce.is(&request.response_nonce));
        self.doubt(&request, in_flight.is_some());
        let Some(in_flight) = in_flight else {
            return Ok(match request.response_nonce.is_empty() {
                true => RequestEvent::Subscribed,
                false => RequestEvent::Stale,
            });
        };
        Ok(match request.error_detail {
            None => RequestEvent::Acknowledged {
                version: in_flight.version,
                took: now.saturating_duration_since(in_flight.sent_at),
                changed: in_flight.changed,
                // An answer is about all of its type.
                rejected: None,
            },
            Some(status) => RequestEvent::Refused {
                rejected: unnamed(&status.message),
                reason: status.message,
            },
        })
    }

    /// Notes that listeners or routes were accepted or refused, if this request is an answer, or are no longer asked for.
    fn doubt(&mut self, request: &DiscoveryRequest, answers: bool) {
        let of = request.type_url.as_str();
        let (Some(kind), Some(clusters)) = (self.kinds.get(of), self.kinds.get(type_url::CLUSTER))
        else {
            return;
        };
        let taken = answers && request.error_detail.is_none();
        let mut over = answers && (self.doubts).answered(of, taken, clusters.sent.keys());
        // A resource that a whole response lacks is gone, and a resource that is not asked for was forgotten.
        let is_over = |name: &Arc<str>| match WHOLE.contains(&of) {
            true => taken,
            false => !kind.wildcard && !kind.names.contains(name),
        };
        over |= self.doubts.end(of, is_over);
        if over {
            // Clusters kept only for them may go.
            self.kinds.of(type_url::CLUSTER).dirty = true;
        }
    }

    /// The next response to send, if any is due and its predecessor was answered. Clusters come before what names them, and go after.
    pub fn next(&mut self, snapshot: &dyn Snapshot<C>, now: Instant) -> Option<DiscoveryResponse> {
        self.due(snapshot, now).map(DiscoveryResponse::from)
    }

    /// The same, to be written.
    pub(super) fn due(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        now: Instant,
    ) -> Option<DueResponse<Arc<Resource>>> {
        let waits = self.resumes().is_some_and(|at| now < at);
        let names_travel = self.names_travel();
        let mut kept = false;
        for (type_url, kind) in self.kinds.iter_mut() {
            let is_free = kind.in_flight.is_none() && kind.dirty;
            if !is_free || (waits && NAMING.contains(&&**type_url)) {
                continue;
            }
            let keep = names_travel && **type_url == *type_url::CLUSTER;
            let keep = KeepRule::of(keep, type_url, Some(&self.doubts));
            let Some(resources) = kind.due(snapshot, &self.caller, (type_url, keep)) else {
                kept |= kind.dirty;
                if !kind.dirty {
                    kind.changed = None;
                }
                continue;
            };
            self.responses += 1;
            let nonce = Nonce(self.responses);
            let version = snapshot.version();
            kind.in_flight = Some(InFlight {
                nonce,
                version: version.clone(),
                sent_at: now,
                changed: kind.changed.take(),
                retries: Vec::new(),
            });
            if LEADING.contains(&&**type_url) {
                let told = resources.iter().map(|one| one.name.clone()).collect();
                self.doubts.tell(type_url, told);
            }
            return Some(DueResponse {
                version,
                type_url: type_url.clone(),
                nonce,
                resources,
                removed: Vec::new(),
            });
        }
        // The types that name clusters had nothing to send.
        let again = kept && !self.names_travel();
        again.then(|| self.due(snapshot, now)).flatten()
    }

    /// Returns true if a type that names clusters has a response in flight, or may have one to send.
    fn names_travel(&self) -> bool {
        let mut naming = NAMING.iter().filter_map(|of| self.kinds.get(of));
        naming.any(|kind| kind.dirty || kind.in_flight.is_some())
    }

    /// When what waits for clusters is said although they are not acknowledged.
    pub(super) fn resumes(&self) -> Option<Instant> {
        let mut naming = NAMING.iter().filter_map(|of| self.kinds.get(of));
        let waiting = naming.any(|kind| kind.dirty && kind.in_flight.is_none());
        let clusters = self.kinds.get(type_url::CLUSTER).filter(|_| waiting)?;
        Some(clusters.in_flight.as_ref()?.sent_at + WARMING)
    }
}

impl SotwType {
    fn subscribe(
        &mut self,
        first: bool,
        request: &DiscoveryRequest,
    ) -> Result<(), StreamEndReason> {
        let asked = &request.resource_names;
        if asked.len() > MAX_NAMES {
            return Err(StreamEndReason::TooMuch(format!(
                "subscribes to more than {MAX_NAMES} names"
            )));
        }
        if let Some(name) = asked.iter().find(|name| name.len() > MAX_NAME_BYTES) {
            return Err(StreamEndReason::TooMuch(format!(
                "a resource name has {} bytes, more than allowed",
                name.len()
            )));
        }
        // The protocol's old form of a wildcard: nothing was ever named.
        self.named |= !asked.is_empty();
        let wildcard = !self.named || asked.iter().any(|name| name == STAR);
        let names: BTreeSet<Arc<str>> = asked
            .iter()
            .filter(|name| *name != STAR)
            .map(|name| name.as_str().into())
            .collect();
        let more = (wildcard && !self.wildcard) || !names.is_subset(&self.names);
        self.fresh |= first || more;
        let changes = wildcard != self.wildcard || names != self.names;
        self.asked |= first || more || changes;
        self.dirty |= first || more || changes;
        self.name_bytes = names.iter().map(|name| name.len()).sum();
        (self.names, self.wildcard) = (names, wildcard);
        if !self.wildcard {
            // A name that is asked for again later was forgotten in between.
            let names = &self.names;
            self.sent.retain(|name, _| names.contains(name));
        }
        Ok(())
    }

    /// Resources to send now; `None` if there are none. Removed resources in `keep` count as present.
    fn due<C: 'static>(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        (type_url, keep): (&str, KeepRule<'_>),
    ) -> Option<Vec<Arc<Resource>>> {
        let mut wanted = self.look(snapshot, caller, type_url);
        self.dirty = false;
        let fresh = std::mem::take(&mut self.fresh);
        // The rest of a large answer follows in further responses, which the caller asked for as well.
        self.asked &= !WHOLE.contains(&type_url) && self.sent.len() < wanted.len();
        let kept = self.sent.iter().filter(|(name, _)| keep.includes(name));
        for (name, one) in kept {
            if let Entry::Vacant(gone) = wanted.entry(name.clone()) {
                gone.insert(one.clone());
                self.dirty |= keep == KeepRule::Everything;
            }
        }
        let is_new = |resource: &Arc<Resource>| {
            let sent = self.sent.get(&resource.name);
            sent.is_none_or(|sent| sent.version != resource.version)
        };
        if WHOLE.contains(&type_url) {
            let same = self.sent.len() == wanted.len() && !wanted.values().any(is_new);
            if same && !fresh {
                return None;
            }
            self.sent.clone_from(&wanted);
            return Some(wanted.into_values().collect());
        }
        let greet = fresh && self.wildcard;
        let (mut said, mut bytes) = (Vec::new(), 0);
        for resource in wanted.values().filter(|resource| is_new(resource)) {
            if bytes > 0 && bytes + resource.body.len() > MAX_RESPONSE_BYTES {
                self.dirty = true;
                break;
            }
            bytes += resource.body.len().max(1);
            said.push(resource.clone());
        }
        // There is no word for what is gone; should it come back, it is new.
        self.sent.retain(|name, _| wanted.contains_key(name));
        for resource in &said {
            self.sent.insert(resource.name.clone(), resource.clone());
        }
        (greet || !said.is_empty()).then_some(said)
    }

    /// Everything the caller should hold, by name. Notes what is absent and what that rests on.
    fn look<C: 'static>(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        type_url: &str,
    ) -> BTreeMap<Arc<str>, Arc<Resource>> {
        if self.asked {
            self.looked += self.names.len() + self.sent.len();
        }
        let mut wanted = BTreeMap::new();
        let mut depends_on = Known::new();
        let mut depend = |of: &str, name: Arc<str>| {
            depends_on.entry(of.into()).or_default().insert(name);
        };
        let mut absent = Absent::new();
        if self.wildcard {
            depend(type_url, STAR.into());
            for (of, name) in snapshot.rests_on(caller, type_url, STAR) {
                depend(of, name);
            }
            match snapshot.everything(caller, type_url) {
                Resolution::Found(found) => {
                    wanted.extend(found.into_iter().map(|one| (one.name.clone(), one)));
                }
                Resolution::Unknown | Resolution::Lacking(_) => {}
                Resolution::Refused(reason) => {
                    absent.insert(STAR.into(), Some(reason));
                }
            }
        }
        for name in &self.names {
            depend(type_url, name.clone());
            for (of, name) in snapshot.rests_on(caller, type_url, name) {
                depend(of, name);
            }
            match snapshot.resolve(caller, type_url, name) {
                Resolution::Found(found) => {
                    wanted.extend(found.into_iter().map(|one| (one.name.clone(), one)));
                }
                Resolution::Unknown | Resolution::Lacking(_) => {
                    absent.insert(name.clone(), None);
                }
                Resolution::Refused(reason) => {
                    absent.insert(name.clone(), Some(reason));
                }
            }
        }
        for (name, reason) in &absent {
            if let Some(reason) = reason
                && self.absent.get(name) != Some(&Some(reason.clone()))
            {
                RefusedNames::add(&mut self.refused, type_url, name, reason);
            }
        }
        self.untold |= absent != self.absent;
        (self.depends_on, self.absent) = (depends_on, absent);
        wanted
    }
}

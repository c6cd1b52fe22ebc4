//! One caller's stream: what it asked for, what it was sent, and what it must be told now. No sockets; time is an argument.
//!
//! ```text
//! request ─▶ receive() ─┐
//! snapshot ─▶ changed() ┴─▶ next(): per type at most one response in flight, holding only differences
//! ```

mod limits;
mod order;
mod partial;
mod rejected;
mod resolved_names;
mod stream_budget;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use voile_proto::type_url;

use super::by_type::ByType;
use super::denied_names::RefusedNames;
use super::frame::{DueResponse, Nonce, TailoredResource};
use super::names::Names;
use super::rejected_routes::{KeepRule, RefusalLog};
use super::type_bits::PermitCount;
use crate::server::end_reason::StreamEndReason;
use crate::server::snapshot::{Resolution, Resource, Snapshot};
use limits::MAX_VERSION_BYTES;
pub(super) use limits::{
    ACK_DEADLINE, MAX_NAME_BYTES, MAX_NAMES, MAX_RESPONSE_BYTES, MAX_TYPES, WARMING,
};
pub(super) use order::{LEADING, NAMING};
use order::{LED_TO, NAMED, ROUTES};
use rejected::Rejected;
pub use rejected::Rejections;
pub(super) use rejected::unnamed;
use resolved_names::hold;

/// Error for a type with a longer name, which events and logs would have to remember.
pub(super) fn unspeakable(type_url: &str) -> StreamEndReason {
    StreamEndReason::TooMuch(format!("the type_url has {} bytes", type_url.len()))
}

/// Meaning of a request, for status pages and counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestEvent {
    /// A first request, or more or fewer names.
    Subscribed,
    /// The response in flight was applied.
    Acknowledged {
        /// Version of the snapshot it came from.
        version: Arc<str>,
        /// From sending to ACK.
        took: Duration,
        /// When the sources changed, if a change was what it told.
        changed: Option<Instant>,
        /// Resources of the type that the caller still refuses.
        rejected: Rejections,
    },
    /// The response in flight was refused, at least in part.
    Refused {
        /// Error text of the caller.
        reason: String,
        /// Resources of the type that the caller refuses now.
        rejected: Rejections,
    },
    /// An answer to something that is not in flight; nothing changes.
    Stale,
}

#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) nonce: Nonce,
    pub(super) version: Arc<str>,
    pub(super) sent_at: Instant,
    pub(super) changed: Option<Instant>,
    /// Resources that were refused before, of which it says something new.
    pub(super) retries: Vec<Arc<str>>,
}

#[derive(Debug, Clone, Default)]
struct StreamType {
    names: BTreeSet<Arc<str>>,
    /// Bytes of these names.
    name_bytes: usize,
    wildcard: bool,
    /// Bytes of names and versions that it said it holds, until it was told what of that is gone.
    claimed_bytes: usize,
    /// It asked for something that was not looked at.
    asked: bool,
    /// Names looked at because it asked.
    looked: usize,
    /// Names refused that no log tells of.
    refused: Option<RefusedNames>,
    /// Versions the caller has been sent, or said it holds. Names begin alike and lie anywhere: a tree would read several at each look.
    sent: HashMap<Arc<str>, Arc<str>>,
    /// Names it was told do not exist.
    told_absent: BTreeSet<Arc<str>>,
    /// Names asked for since the last response: answered even if what they stand for was sent before.
    fresh: BTreeSet<Arc<str>>,
    in_flight: Option<InFlight>,
    /// Resources that the caller refused in the version it was sent last.
    rejected: Rejected,
    /// Names asked for, and the first that each was found to stand for.
    depends_on: BTreeSet<Arc<str>>,
    /// Nobody was told that these are not what they were.
    depends_anew: bool,
    /// Resources that each name asked for brought, when all were looked at.
    answers: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// A name asked for stands for something that is called otherwise first.
    renamed: bool,
    /// A name asked for stands for something that is called otherwise: what is said of that depends on who else asks for it.
    searches: bool,
    /// Of `depends_on`, what must be looked at again.
    touched: Names,
    /// All must be looked at again.
    dirty: bool,
    /// The oldest change of the sources that has not been looked at.
    changed: Option<Instant>,
    /// The first response is due, even an empty one: callers wait for it to know that they are complete.
    greet: bool,
}

/// A resource that a caller holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentResource {
    /// Its type.
    pub type_url: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its version, as the caller was told it.
    pub version: Arc<str>,
}

/// Resources new or changed, and names gone.
type Differences = (Vec<WantedResource>, Vec<Arc<str>>);

/// Result of a stream's names.
#[derive(Default)]
struct RequestChanges {
    /// Everything the caller should hold, by name.
    wanted: BTreeMap<Arc<str>, WantedResource>,
    /// Names asked for that stand for nothing.
    absent: BTreeSet<Arc<str>>,
    /// Of these, those that a fresh name stands for: said even if they were said before.
    owed_absent: BTreeSet<Arc<str>>,
    depends_on: BTreeSet<Arc<str>>,
    answers: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    searches: bool,
    refused: Option<RefusedNames>,
}

/// A resource the caller should hold.
#[derive(Debug, Clone)]
struct WantedResource {
    resource: Arc<Resource>,
    /// A fresh name stands for it: it is sent even if it was sent before.
    owed: bool,
    /// Names asked for that stand for it and are neither its name nor its aliases (a search such as `*/hostname`): told as
    /// aliases, or the caller could not know what answers its question.
    asked: Vec<Arc<str>>,
}

impl WantedResource {
    /// The version as this caller sees it: what else the resource answers is part of what it was told.
    fn version(&self) -> Arc<str> {
        if self.asked.is_empty() {
            return self.resource.version.clone();
        }
        let mut hasher = std::hash::DefaultHasher::new();
        self.asked.hash(&mut hasher);
        format!("{}+{:x}", self.resource.version, hasher.finish()).into()
    }

    fn told(self) -> TailoredResource {
        TailoredResource {
            version: self.version(),
            resource: self.resource,
            asked: self.asked,
        }
    }
}

/// The server's side of one stream.
#[derive(Debug, Clone)]
pub struct DiscoveryStream<C> {
    caller: C,
    kinds: ByType<StreamType>,
    responses: u64,
    /// The last request asked for something.
    asks: bool,
    /// Types of which something must be looked at.
    due: PermitCount,
    /// Types with a response in flight.
    travelling: PermitCount,
    /// Types by what they have to do with others.
    named: PermitCount,
    naming: PermitCount,
    leading: PermitCount,
    routes: PermitCount,
    led_to: PermitCount,
    /// Of these two, those of which something is asked for by what Addresses say: a host, or an address.
    by_address: PermitCount,
    /// Made for who is told of what leads to clusters.
    doubts: Option<Box<RefusalLog>>,
    /// Some type's `depends_anew` is set.
    depends_anew: bool,
    /// When the first of those responses in flight was sent that were so when there were none: not after any of them.
    sent_since: Option<Instant>,
}

impl<C: 'static> DiscoveryStream<C> {
    /// A stream on which nothing was said yet.
    pub fn new(caller: C) -> Self {
        Self {
            caller,
            kinds: ByType::default(),
            responses: 0,
            asks: false,
            due: PermitCount::default(),
            travelling: PermitCount::default(),
            named: PermitCount::default(),
            naming: PermitCount::default(),
            leading: PermitCount::default(),
            routes: PermitCount::default(),
            led_to: PermitCount::default(),
            by_address: PermitCount::default(),
            doubts: None,
            depends_anew: false,
            sent_since: None,
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

    /// There is a new snapshot.
    pub fn changed(&mut self) {
        for (place, kind) in self.kinds.values_mut().enumerate() {
            kind.dirty = true;
            self.due.set(place, true);
        }
    }

    /// Resources under these names of `depends_on` (none: under any) may have changed.
    pub fn touched(&mut self, type_url: &str, names: Option<Names>) {
        if !self.by_address.is_empty() && type_url == type_url::ADDRESS {
            for place in self.by_address.iter() {
                self.kinds.at_mut(place).1.dirty = true;
                self.due.set(place, true);
            }
        }
        let Ok(place) = self.kinds.place(type_url) else {
            return;
        };
        let (_, kind) = self.kinds.at_mut(place);
        match names {
            Some(names) if kind.touched.is_empty() => kind.touched = names,
            Some(names) => kind.touched.extend(names.iter().cloned()),
            None => kind.dirty = true,
        }
        self.due.set(place, kind.is_due());
    }

    /// Records that the sources of the touched names changed at this time.
    pub fn changed_at(&mut self, at: Instant) {
        for place in self.due.iter() {
            let (_, kind) = self.kinds.at_mut(place);
            kind.changed = Some(kind.changed.map_or(at, |old| old.min(at)));
        }
    }

    /// All that the caller was sent or said it holds: type, name, version.
    pub fn held(&self) -> Vec<SentResource> {
        let held = |(of, kind): (&Arc<str>, &StreamType)| {
            let of = of.clone();
            let one = move |(name, version): (&Arc<str>, &Arc<str>)| SentResource {
                type_url: of.clone(),
                name: name.clone(),
                version: version.clone(),
            };
            let mut held: Vec<SentResource> = kind.sent.iter().map(one).collect();
            held.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            held
        };
        self.kinds.iter().flat_map(held).collect()
    }

    /// By type, what must change for this stream to have something to be told: names asked for, and what they were found to
    /// stand for.
    pub fn depends_on(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeSet<Arc<str>>)> {
        self.kinds.iter().map(|(of, kind)| (of, &kind.depends_on))
    }

    /// The same of those types of which it is not what it was when this was last asked.
    pub(super) fn depends_anew_on(
        &mut self,
    ) -> impl Iterator<Item = (&Arc<str>, &BTreeSet<Arc<str>>)> {
        let changed = |kind: &mut StreamType| std::mem::take(&mut kind.depends_anew);
        let any = std::mem::take(&mut self.depends_anew);
        let kinds = any.then_some(&mut self.kinds).into_iter();
        kinds
            .flat_map(ByType::iter_mut)
            .filter_map(move |(of, kind)| changed(kind).then_some((of, &kind.depends_on)))
    }

    /// When the caller's silence becomes too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.kinds
            .values()
            .filter_map(|kind| Some(kind.in_flight.as_ref()?.sent_at + ACK_DEADLINE))
            .min()
    }

    /// A moment that is not after `deadline`, found without looking at each type.
    pub(super) fn soonest(&self) -> Option<Instant> {
        Some(self.sent_since? + ACK_DEADLINE)
    }

    /// `deadline`, which is the soonest from now on.
    pub(super) fn look_up_deadline(&mut self) -> Option<Instant> {
        let sent = self
            .kinds
            .values()
            .filter_map(|kind| kind.in_flight.as_ref());
        self.sent_since = sent.map(|response| response.sent_at).min();
        self.soonest()
    }

    /// Takes a request: an answer to a response, a change of what is asked for, or both.
    pub fn receive(
        &mut self,
        request: DeltaDiscoveryRequest,
        now: Instant,
    ) -> Result<RequestEvent, StreamEndReason> {
        if request.type_url.is_empty() {
            return Err(StreamEndReason::Violation(
                "the request has no type_url".to_owned(),
            ));
        }
        let changes = [
            &request.resource_names_subscribe,
            &request.resource_names_unsubscribe,
        ];
        self.asks = request.response_nonce.is_empty() || changes.iter().any(|all| !all.is_empty());
        let place = match self.kinds.place(&request.type_url) {
            Ok(place) => {
                let (_, kind) = self.kinds.at_mut(place);
                kind.subscribe(false, &request)?;
                place
            }
            Err(_) if self.kinds.len() >= MAX_TYPES => {
                return Err(StreamEndReason::TooMuch(format!(
                    "more than {MAX_TYPES} types"
                )));
            }
            Err(_) if request.type_url.len() > MAX_NAME_BYTES => {
                return Err(unspeakable(&request.type_url));
            }
            Err(place) => {
                self.make_room(place, &request.type_url);
                let kind = self.kinds.of(&request.type_url);
                kind.first(&request)?;
                kind.subscribe(true, &request)?;
                place
            }
        };
        let (_, kind) = self.kinds.at_mut(place);
        let event = match request.response_nonce.is_empty() {
            true => RequestEvent::Subscribed,
            false => kind.answer(request, now),
        };
        self.doubt(place, &event);
        self.note(place);
        self.sent_since = self.sent_since.filter(|_| !self.travelling.is_empty());
        Ok(event)
    }

    /// A type is asked for that was not, and has its place.
    fn make_room(&mut self, place: usize, type_url: &str) {
        let all = [
            (&mut self.due, false),
            (&mut self.travelling, false),
            (&mut self.named, NAMED.contains(&type_url)),
            (&mut self.naming, NAMING.contains(&type_url)),
            (&mut self.leading, LEADING.contains(&type_url)),
            (&mut self.routes, type_url == ROUTES),
            (&mut self.led_to, type_url == LED_TO),
            (&mut self.by_address, false),
        ];
        for (places, is) in all {
            places.make_room(place);
            places.set(place, is);
        }
    }

    /// Updates the stream's sets for the type at this index.
    fn note(&mut self, place: usize) {
        let (_, kind) = self.kinds.at_mut(place);
        self.due.set(place, kind.is_due());
        self.travelling.set(place, kind.in_flight.is_some());
        self.depends_anew |= kind.depends_anew;
        let leads = self.routes.or(self.led_to).has(place);
        self.by_address.set(place, leads && kind.searches);
    }

    /// The next response to send, if any is due and its predecessor was answered.
    pub fn next(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        now: Instant,
    ) -> Option<DeltaDiscoveryResponse> {
        self.due(snapshot, now).map(DeltaDiscoveryResponse::from)
    }

    /// The same, to be written.
    pub(super) fn due(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        now: Instant,
    ) -> Option<DueResponse<TailoredResource>> {
        let due = self.find(snapshot, now);
        if due.is_some() {
            self.sent_since.get_or_insert(now);
        }
        due
    }

    /// The next response about the type at this place.
    fn respond(
        &mut self,
        place: usize,
        snapshot: &dyn Snapshot<C>,
        keep: bool,
        now: Instant,
    ) -> Option<DueResponse<TailoredResource>> {
        let (of, kind) = self.kinds.at_mut(place);
        let doubts = self.doubts.as_deref();
        let about = (of, KeepRule::of(keep, of, doubts));
        let response = kind.respond(snapshot, &self.caller, about, &mut self.responses, now);
        if let Some(due) = response.as_ref().filter(|_| self.leading.has(place)) {
            let told = due.resources.iter().map(|one| &one.resource.name);
            let told = told.chain(&due.removed).cloned().collect();
            self.doubts.get_or_insert_default().tell(of, told);
        }
        self.note(place);
        response
    }
}

impl StreamType {
    /// The next response about it; `keep` what is gone.
    fn respond<C: 'static>(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        (type_url, keep): (&Arc<str>, KeepRule<'_>),
        responses: &mut u64,
        now: Instant,
    ) -> Option<DueResponse<TailoredResource>> {
        let due = self.due(snapshot, caller, type_url, keep);
        // The responses still to come tell of that change no later than this one.
        let more = self.is_due();
        let changed = self.changed.take_if(|_| !more);
        Some(self.say(
            due?,
            type_url,
            (snapshot.version(), changed),
            (responses, now),
        ))
    }

    /// These differences are a response, which is on its way.
    fn say(
        &mut self,
        (resources, removed): Differences,
        type_url: &Arc<str>,
        (version, changed): (Arc<str>, Option<Instant>),
        (responses, now): (&mut u64, Instant),
    ) -> DueResponse<TailoredResource> {
        *responses += 1;
        let nonce = Nonce(*responses);
        let told = resources.iter().map(|one| &one.resource.name);
        let retries = self.rejected.among(told.chain(&removed));
        self.in_flight = Some(InFlight {
            nonce,
            version: version.clone(),
            sent_at: now,
            changed,
            retries,
        });
        DueResponse {
            version,
            type_url: type_url.clone(),
            nonce,
            resources: resources.into_iter().map(WantedResource::told).collect(),
            removed,
        }
    }

    /// Something must be looked at.
    fn is_due(&self) -> bool {
        self.dirty || !self.touched.is_empty()
    }

    fn first(&mut self, request: &DeltaDiscoveryRequest) -> Result<(), StreamEndReason> {
        if request.initial_resource_versions.len() > MAX_NAMES {
            return Err(StreamEndReason::TooMuch(format!(
                "holds more than {MAX_NAMES} resources"
            )));
        }
        let held = request.initial_resource_versions.iter();
        let too_long = |(name, version): &(&String, &String)| {
            name.len() > MAX_NAME_BYTES || version.len() > MAX_VERSION_BYTES
        };
        if held.clone().any(|one| too_long(&one)) {
            return Err(StreamEndReason::TooMuch(format!(
                "holds a name of more than {MAX_NAME_BYTES} or a version of more than {MAX_VERSION_BYTES} bytes"
            )));
        }
        let bytes = held
            .clone()
            .map(|(name, version)| name.len() + version.len());
        self.claimed_bytes = bytes.sum();
        self.sent = held
            .map(|(name, version)| (name.as_str().into(), version.as_str().into()))
            .collect();
        // The protocol's old form of a wildcard: a first request that names nothing.
        self.wildcard = request.resource_names_subscribe.is_empty();
        self.greet = true;
        self.dirty = true;
        Ok(())
    }

    fn subscribe(
        &mut self,
        first: bool,
        request: &DeltaDiscoveryRequest,
    ) -> Result<(), StreamEndReason> {
        let was_dirty = std::mem::take(&mut self.dirty);
        for name in &request.resource_names_subscribe {
            if name.len() > MAX_NAME_BYTES {
                return Err(StreamEndReason::TooMuch(format!(
                    "a resource name has {} bytes, more than allowed",
                    name.len()
                )));
            }
            self.dirty = true;
            if name == "*" {
                self.wildcard = true;
                continue;
            }
            let name: Arc<str> = name.as_str().into();
            self.told_absent.remove(&name);
            if !first {
                self.fresh.insert(name.clone());
            }
            let bytes = name.len();
            self.name_bytes += if self.names.insert(name) { bytes } else { 0 };
        }
        for name in &request.resource_names_unsubscribe {
            if name == "*" {
                self.dirty |= self.wildcard;
                self.wildcard = false;
                continue;
            }
            let was = self.names.contains(name.as_str());
            // A name without resources brought none that would go with it.
            let is_absent = !self.searches && self.told_absent.contains(name.as_str());
            self.dirty |= was && !is_absent || self.sent.contains_key(name.as_str());
            self.name_bytes -= if was { name.len() } else { 0 };
            // Sent resources are reported as removed, and so is the name itself: it may be under way to the caller.
            self.names.remove(name.as_str());
            self.fresh.remove(name.as_str());
            self.told_absent.remove(name.as_str());
        }
        self.asked |= self.dirty || first;
        self.dirty |= was_dirty || first;
        match self.names.len() > MAX_NAMES {
            true => Err(StreamEndReason::TooMuch(format!(
                "subscribes to more than {MAX_NAMES} names"
            ))),
            false => Ok(()),
        }
    }

    fn answer(&mut self, request: DeltaDiscoveryRequest, now: Instant) -> RequestEvent {
        let Some(in_flight) = self
            .in_flight
            .take_if(|f| f.nonce.is(&request.response_nonce))
        else {
            return RequestEvent::Stale;
        };
        self.rejected.accept(&in_flight.retries);
        match request.error_detail {
            None => RequestEvent::Acknowledged {
                version: in_flight.version,
                took: now.saturating_duration_since(in_flight.sent_at),
                changed: in_flight.changed,
                rejected: self.rejected.all(),
            },
            Some(status) => {
                self.rejected.refuse(&status.message, &self.sent);
                RequestEvent::Refused {
                    reason: status.message,
                    rejected: self.rejected.all(),
                }
            }
        }
    }

    /// Differences to send now; `None` if there are none.
    fn differences<C: 'static>(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        type_url: &str,
        keep: KeepRule<'_>,
    ) -> Option<Differences> {
        let RequestChanges {
            wanted,
            absent,
            owed_absent,
            depends_on,
            answers,
            searches,
            refused,
        } = self.wanted(snapshot, caller, type_url);
        if self.asked {
            self.looked += self.names.len() + self.sent.len();
        }
        self.refused = RefusedNames::join(self.refused.take(), refused);
        self.depends_anew |= depends_on != self.depends_on;
        self.renamed = answers.iter().any(|(name, all)| all.first() != Some(name));
        for name in answers.keys() {
            // The names asked for are read at every push, next to each other only if they are everybody's.
            if self.names.take(name).is_some() {
                self.names.insert(name.clone());
            }
        }
        (self.depends_on, self.answers, self.searches) = (depends_on, answers, searches);
        self.touched = Names::None;
        let at_once = self.wildcard && snapshot.is_told_at_once(caller, type_url);
        let most = (!at_once).then_some(MAX_RESPONSE_BYTES);
        let (resources, more) = self.untold(&wanted, most);
        let mut removed: BTreeSet<Arc<str>> = self
            .sent
            .keys()
            .filter(|name| !wanted.contains_key(*name))
            .cloned()
            .collect();
        removed.extend(
            absent
                .iter()
                .filter(|name| !self.told_absent.contains(*name) || owed_absent.contains(*name))
                .cloned(),
        );
        let kept = keep == KeepRule::Everything && !removed.is_empty();
        removed.retain(|name| !keep.includes(name));
        if !kept {
            self.told_absent = absent;
            // From now on the names it holds are the mesh's own.
            self.claimed_bytes = 0;
        }
        for name in &removed {
            self.sent.remove(name);
        }
        for one in &resources {
            self.sent.insert(one.resource.name.clone(), one.version());
        }
        match more {
            // Names whose resources did not fit still wait; names whose resources fit no longer do.
            true => self.no_longer_owe(&resources),
            false => self.fresh.clear(),
        }
        self.dirty = more || kept;
        self.asked &= more;
        let greet = std::mem::take(&mut self.greet);
        (greet || !resources.is_empty() || !removed.is_empty())
            .then(|| (resources, removed.into_iter().collect()))
    }

    /// These are told: no name that stands for them waits for an answer.
    fn no_longer_owe(&mut self, told: &[WantedResource]) {
        for one in told {
            let names = one.resource.aliases.iter().chain(&one.asked);
            for name in names.chain([&one.resource.name]) {
                self.fresh.remove(name);
            }
        }
    }

    /// Of what it should hold, what it was not told, as far as that fits into so many bytes; and whether there is more of it.
    fn untold(
        &self,
        wanted: &BTreeMap<Arc<str>, WantedResource>,
        most: Option<usize>,
    ) -> (Vec<WantedResource>, bool) {
        let mut bytes = 0;
        let mut untold = Vec::new();
        for (name, one) in wanted {
            if !one.owed && self.sent.get(name) == Some(&one.version()) {
                continue;
            }
            let size = one.resource.body.len();
            if bytes > 0 && most.is_some_and(|most| bytes + size > most) {
                return (untold, true);
            }
            bytes += size.max(1);
            untold.push(one.clone());
        }
        (untold, false)
    }

    /// All resources that the caller should hold now.
    fn wanted<C: 'static>(
        &self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        type_url: &str,
    ) -> RequestChanges {
        let mut all = RequestChanges {
            searches: self.wildcard,
            ..RequestChanges::default()
        };
        if self.wildcard {
            all.depends_on.insert("*".into());
            match snapshot.everything(caller, type_url) {
                Resolution::Found(found) => {
                    for resource in found {
                        hold(&mut all.wanted, resource);
                    }
                }
                Resolution::Unknown | Resolution::Lacking(_) => {}
                Resolution::Refused(reason) => {
                    RefusedNames::add(&mut all.refused, type_url, "*", &reason);
                }
            }
        }
        if let Some(besides) = snapshot.besides(caller, type_url) {
            // No name is this one: who knows it hears when all of a type must be looked at.
            all.depends_on.insert("".into());
            all.searches = true;
            for resource in besides {
                all.depends_on.insert(resource.name.clone());
                hold(&mut all.wanted, resource);
            }
        }
        for name in &self.names {
            let fresh = self.fresh.contains(name);
            match snapshot.resolve(caller, type_url, name) {
                Resolution::Found(found) => all.find(name, found, fresh),
                Resolution::Unknown => all.lack(name.clone()),
                Resolution::Lacking(lacking) => {
                    all.searches = true;
                    all.lack(name.clone());
                    for one in lacking {
                        all.owed_absent.extend(fresh.then(|| one.clone()));
                        all.lack(one);
                    }
                }
                Resolution::Refused(reason) => {
                    if !self.told_absent.contains(name) {
                        RefusedNames::add(&mut all.refused, type_url, name, &reason);
                    }
                    all.lack(name.clone());
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;

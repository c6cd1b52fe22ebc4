//! In which order a stream says what it has to say of one moment: what is named before what names it, and what goes after.

use std::time::Instant;

use voile_proto::type_url;

use super::{DiscoveryStream, DueResponse, RequestEvent, Snapshot, TailoredResource, WARMING};
use crate::server::type_bits::PermitCount;

/// Types that are named, and types that name them. A new resource is acknowledged before a resource that names it is sent. A
/// removed one stays until all that named it is acknowledged without it. A node proxy skips policies it does not know, so between
/// the two it would obey neither; an Envoy answers 503 if a route leads to a cluster that it does not have.
pub(super) const NAMED: [&str; 2] = [type_url::AUTHORIZATION, type_url::CLUSTER];
pub(in super::super) const NAMING: [&str; 3] =
    [type_url::ADDRESS, type_url::LISTENER, type_url::ROUTES];
/// Types that lead to clusters: a caller that refuses some of their resources still uses the older ones.
pub(in super::super) const LEADING: [&str; 2] = [type_url::LISTENER, type_url::ROUTES];

/// Routes, and the policies that routes lead to. Routes are acknowledged before the rest of the same moment (addresses, and these
/// policies) is sent, so that no route leads to a removed resource. A caller that gets routes to a new service asks for the
/// service itself.
pub(super) const ROUTES: &str = type_url::SERVICE_ROUTES;
pub(super) const LED_TO: &str = type_url::SERVICE_POLICY;

impl<C: 'static> DiscoveryStream<C> {
    pub(super) fn find(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        now: Instant,
    ) -> Option<DueResponse<TailoredResource>> {
        for place in self.due.and(self.routes).without(self.travelling).iter() {
            let response = self.respond(place, snapshot, false, now);
            if response.is_some() {
                return response;
            }
        }
        let travel = |places: PermitCount| !places.and(self.travelling).is_empty();
        let names_travel = !self.naming.and(self.travelling.or(self.due)).is_empty();
        let mut waits = PermitCount::default();
        if travel(self.routes) {
            waits = waits.or(self.naming).or(self.led_to);
        }
        if travel(self.named) && self.resumes().is_none_or(|at| now < at) {
            waits = waits.or(self.naming);
        }
        let due = self.due.without(self.travelling);
        let mut kept = false;
        for place in due.without(waits).iter() {
            // A new stream asks for what is named before it asks for what names it, all before it answers anything: until its first
            // answer it is not known what it still works with.
            let keep = self.named.has(place) && (names_travel || self.kinds.at_mut(place).1.greet);
            let response = self.respond(place, snapshot, keep, now);
            if response.is_some() {
                return response;
            }
            kept |= keep && self.due.has(place);
        }
        // The naming types had nothing to send.
        if kept && self.naming.and(self.travelling.or(self.due)).is_empty() {
            return self.find(snapshot, now);
        }
        let mut asking = due.and(waits).and(self.led_to).iter();
        asking.find_map(|place| self.introduce(place, snapshot, now))
    }

    /// Sends answers of a type that the caller has just asked for and never got, although routes are in flight. No route in force
    /// depends on them, and a request waits for both.
    fn introduce(
        &mut self,
        place: usize,
        snapshot: &dyn Snapshot<C>,
        now: Instant,
    ) -> Option<DueResponse<TailoredResource>> {
        let (of, kind) = self.kinds.at_mut(place);
        let new = kind.introduced(snapshot, &self.caller, of)?;
        let about = (snapshot.version(), None);
        let response = kind.say(new, of, about, (&mut self.responses, now));
        self.note(place);
        Some(response)
    }

    /// When what waits for clusters is said although they are not acknowledged.
    pub(in super::super) fn resumes(&self) -> Option<Instant> {
        let waiting = self.naming.and(self.due).without(self.travelling);
        if waiting.is_empty() || self.named.and(self.travelling).is_empty() {
            return None;
        }
        let clusters = self.kinds.get(type_url::CLUSTER)?;
        Some(clusters.in_flight.as_ref()?.sent_at + WARMING)
    }

    /// Notes that a type that leads to clusters was acknowledged or refused.
    pub(super) fn doubt(&mut self, place: usize, event: &RequestEvent) {
        let taken = match event {
            RequestEvent::Acknowledged { .. } => true,
            RequestEvent::Refused { .. } => false,
            RequestEvent::Subscribed | RequestEvent::Stale => return,
        };
        let Some(doubts) = self.doubts.as_mut().filter(|_| self.leading.has(place)) else {
            return;
        };
        let of = self.kinds.at_mut(place).0.clone();
        let Ok(clusters) = self.kinds.place(type_url::CLUSTER) else {
            return;
        };
        let (_, kind) = self.kinds.at_mut(clusters);
        if doubts.answered(&of, taken, kind.sent.keys()) {
            // Clusters kept only for them may go.
            kind.dirty = true;
            self.due.set(clusters, true);
        }
    }
}

//! Captured destinations of workers. The control thread asks the control plane about each address, tells all
//! workers the answer, and follows changes while connections use the destination. An unused destination is let go
//! after a while.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use voile_proto::type_url;
use voile_xds::client::SubscribeError;
use voile_xds::wire::search_name;

use crate::control::discovery::followed_subscriptions::FollowedSubscriptions;
use crate::control::discovery::state::Control;
use crate::plan::{CapturedDestination, OutboundPlan};
use crate::registry::address_name;
use crate::registry::names::NameSubscriptions;
use crate::registry::path_questions::ALONG;
use crate::worker::{InUse, ToWorker};

/// Destinations followed at once: above what any application calls but a crawler, and a few megabytes.
const MAX_DESTINATIONS: usize = 8192;

/// Let go at once when there is no room, so that finding those that were not used for longest is not paid for by each.
const MADE_ROOM: usize = MAX_DESTINATIONS / 8;

/// Destinations that wait for room; more than workers park at once are not waited for.
const MAX_TURNED_AWAY: usize = 1024;

/// Number of released destinations from which on the heap is trimmed: a few hundred kilobytes go back to the kernel.
const WORTH_GIVING_BACK: usize = 256;

/// Plan that workers have for a destination.
#[derive(Debug)]
struct DestinationState {
    plan: Arc<OutboundPlan>,
    /// The control plane has not answered.
    guessed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::control) struct Destinations {
    held: BTreeMap<CapturedDestination, Option<DestinationState>>,
    followed: FollowedSubscriptions<CapturedDestination>,
    /// Asked for when there was no room.
    turned_away: BTreeSet<CapturedDestination>,
    /// Workers are being asked what they use.
    looking: bool,
    /// Notified when the workers have answered: the time of the next look is known then.
    looked: Rc<Notify>,
    /// Let go so far, for the metrics page.
    let_go: u64,
}

impl Destinations {
    pub(in crate::control) fn targets(&self) -> impl Iterator<Item = &CapturedDestination> {
        self.held.keys()
    }

    pub(in crate::control) fn len(&self) -> usize {
        self.held.len()
    }

    pub(in crate::control) fn let_go(&self) -> u64 {
        self.let_go
    }

    /// Returns true if the address itself is asked for.
    pub(in crate::control) fn has_address(&self, address: IpAddr) -> bool {
        let first = CapturedDestination {
            to: SocketAddr::new(address, 0),
            host: None,
        };
        let all = self.held.range(first..).map(|(target, _)| target);
        all.take_while(|target| target.to.ip() == address)
            .any(|target| target.host.is_none())
    }

    /// Returns true if a destination is asked for by this name.
    fn has_name(&self, host: &str) -> bool {
        let mut all = self.held.keys();
        all.any(|target| target.host.as_deref() == Some(host))
    }

    fn is_full(&self) -> bool {
        self.held.len() >= MAX_DESTINATIONS
    }

    pub(in crate::control) fn dump(&self) -> Value {
        let one = |(to, held): (&CapturedDestination, &Option<DestinationState>)| {
            let plan = held.as_ref().map(|held| &held.plan);
            let services = plan.map(|plan| {
                let name = |service: &crate::plan::ServicePlan| match service.service.host.as_str()
                {
                    "" => service.service.name.clone(),
                    host => format!("{}/{host}:{}", service.service.namespace, service.port),
                };
                plan.services.iter().map(name).collect::<Vec<_>>()
            });
            json!({
                "address": to.to_string(),
                "protocol": plan.map(|plan| format!("{:?}", plan.protocol)),
                "leads_to": services,
            })
        };
        self.held.iter().map(one).collect()
    }
}

impl Control {
    /// A worker has a connection to somewhere it does not know.
    pub(in crate::control) fn ask_destination(&mut self, to: CapturedDestination) {
        if let Some(known) = self.destinations.held.get(&to) {
            // Asked by another worker before.
            if let Some(known) = known {
                let plan = Arc::clone(&known.plan);
                self.tell_destination(&to, Some(plan));
            }
            return;
        }
        if self.destinations.is_full() {
            if self.destinations.turned_away.is_empty() {
                tracing::warn!(
                    "more than {MAX_DESTINATIONS} destinations in use; the least recently used are dropped"
                );
            }
            if self.destinations.turned_away.len() < MAX_TURNED_AWAY {
                self.destinations.turned_away.insert(to);
            }
            return;
        }
        let name = resource_name(&to);
        let is_new = self.begins(&to, &name);
        self.destinations.held.insert(to.clone(), None);
        self.destinations.followed.begin(to.clone(), Instant::now());
        if self.ask_control(&to, name, is_new).is_err() {
            tracing::warn!(%to, "too many subscriptions; the destination stays unknown");
        }
        // Its service may be known already, and its policy not yet asked for.
        self.publish();
        if !self.client.state().borrow().connected {
            self.decide_destination(to);
        }
    }

    /// Subscribes to the owner of the address, unless that is done already, and to the resources that calls to it
    /// need.
    fn ask_control(
        &self,
        to: &CapturedDestination,
        name: Arc<str>,
        is_new: bool,
    ) -> Result<(), SubscribeError> {
        if is_new {
            self.client
                .subscribe(type_url::ADDRESS, [Arc::clone(&name)])?;
        }
        if self.shared().registry.begin_along(to, &name) {
            for kind in ALONG {
                self.client.subscribe(kind, [Arc::clone(&name)])?;
            }
        }
        Ok(())
    }

    /// Ends subscriptions by address or host whose answers are known by their own names.
    pub(in crate::control) fn end_along(&self) {
        let targets = self.destinations.targets();
        let targets = targets.map(|target| (target, resource_name(target)));
        let over = self.shared().registry.told_along(targets);
        for (kind, name) in over {
            self.client.unsubscribe(kind, [name]);
        }
    }

    /// The control plane does not answer: decides by the known configuration.
    pub(in crate::control) fn decide_destination(&mut self, to: CapturedDestination) {
        match self.destinations.held.get(&to) {
            None => return self.ask_destination(to),
            Some(Some(_)) => return,
            Some(None) => {}
        }
        let plan = self.shared().registry.destination_unasked(&to);
        if let Some(plan) = plan {
            tracing::debug!(%to, "destination decided without the control plane");
            self.answer(to, plan, true);
        }
    }

    /// Returns true if this is the first subscription about it; otherwise earlier answers stay.
    fn begins(&self, to: &CapturedDestination, name: &Arc<str>) -> bool {
        let registry = &mut self.shared().registry;
        if to.host.is_some() {
            return registry.hold_name(name, NameSubscriptions::Destinations);
        }
        let is_new = !self.is_address_asked(to.to.ip());
        if is_new {
            // An old answer may no longer hold.
            registry.forget_name(name);
        }
        is_new
    }

    /// Returns true if no other destination needs the subscription; its answers are then forgotten.
    fn ends(&self, to: &CapturedDestination, name: &Arc<str>) -> bool {
        let registry = &mut self.shared().registry;
        if let Some(host) = &to.host {
            let last = !self.destinations.has_name(host);
            return last && registry.release_name(name, NameSubscriptions::Destinations);
        }
        let last = !self.is_address_asked(to.to.ip());
        if last {
            registry.forget_name(name);
        }
        last
    }

    fn is_address_asked(&self, address: IpAddr) -> bool {
        self.destinations.has_address(address) || self.strangers.has(address)
    }

    fn answer(&mut self, to: CapturedDestination, plan: OutboundPlan, guessed: bool) {
        let plan = Arc::new(plan);
        self.tell_destination(&to, Some(Arc::clone(&plan)));
        self.destinations
            .held
            .insert(to, Some(DestinationState { plan, guessed }));
    }

    /// Tells the workers what is new about the destinations they asked for.
    pub(in crate::control) fn answer_destinations(&mut self) {
        let mut news = Vec::new();
        {
            let shared = self.shared();
            let registry = &shared.registry;
            for (to, told) in &self.destinations.held {
                let guessed = told.as_ref().is_some_and(|held| held.guessed);
                // A plan that was decided without an answer follows policy changes until the answer comes.
                let guess = || registry.destination_unasked(to).filter(|_| guessed);
                let (plan, guessed) = match registry.destination(to) {
                    Some(plan) => (Some(plan), false),
                    None => (guess(), true),
                };
                if let Some(plan) = plan
                    && told
                        .as_ref()
                        .is_none_or(|held| *held.plan != plan || held.guessed != guessed)
                {
                    news.push((to.clone(), plan, guessed));
                }
            }
        }
        for (to, plan, guessed) in news {
            self.answer(to, plan, guessed);
        }
    }

    fn tell_destination(&self, to: &CapturedDestination, plan: Option<Arc<OutboundPlan>>) {
        self.dispatcher.broadcast(|| ToWorker::Destination {
            to: to.clone(),
            plan: plan.clone(),
        });
    }

    /// When to ask the workers what they use; never while nothing is followed.
    pub(in crate::control) fn next_look(&self) -> Option<Instant> {
        if self.destinations.looking {
            return None;
        }
        if !self.destinations.turned_away.is_empty() {
            return Some(Instant::now());
        }
        let idle = self.service_idle.get();
        let destinations = self.destinations.followed.next_look(idle);
        let strangers = self.strangers.followed.next_look(idle);
        destinations.into_iter().chain(strangers).min()
    }

    /// Notified when a look has ended.
    pub(in crate::control) fn looked(&self) -> Rc<Notify> {
        Rc::clone(&self.destinations.looked)
    }

    /// Asks the workers for the destinations in use.
    pub(in crate::control) fn ask_for_used(&mut self) -> Vec<oneshot::Receiver<InUse>> {
        self.destinations.looking = true;
        self.dispatcher.ask(ToWorker::Used)
    }

    /// Lets go of destinations that no worker uses; returns their number. A worker that begins to use one just now asks
    /// again.
    fn release_unused(
        &mut self,
        used: &BTreeSet<CapturedDestination>,
        strangers: &BTreeSet<IpAddr>,
    ) -> usize {
        let (now, idle) = (Instant::now(), self.service_idle.get());
        self.destinations.looking = false;
        let followed = &mut self.destinations.followed;
        let mut gone = match self.destinations.turned_away.is_empty() {
            true => Vec::new(),
            false => followed.make_room(MADE_ROOM, used),
        };
        gone.extend(followed.settle(used, now, idle));
        self.destinations.let_go += gone.len() as u64;
        for to in &gone {
            self.destinations.held.remove(to);
        }
        let mut unwanted: Vec<Arc<str>> = Vec::new();
        for to in &gone {
            self.tell_destination(to, None);
            let name = resource_name(to);
            if self.ends(to, &name) {
                unwanted.push(name);
            }
        }
        self.client.unsubscribe(type_url::ADDRESS, unwanted);
        let count = gone.len() + self.release_strangers(strangers, now, idle);
        if !gone.is_empty() {
            self.publish();
        }
        for to in std::mem::take(&mut self.destinations.turned_away) {
            self.ask_destination(to);
        }
        count
    }
}

fn resource_name(target: &CapturedDestination) -> Arc<str> {
    match &target.host {
        None => address_name(target.to.ip()).into(),
        Some(host) => search_name(host),
    }
}

/// Gathers what the workers use and lets go of the rest.
pub(in crate::control) async fn look(
    control: Rc<RefCell<Control>>,
    asked: Vec<oneshot::Receiver<InUse>>,
) {
    let (mut used, mut strangers) = (BTreeSet::new(), BTreeSet::new());
    for answer in asked {
        // A worker that is gone uses nothing.
        let in_use = answer.await.unwrap_or_default();
        used.extend(in_use.destinations);
        strangers.extend(in_use.strangers);
    }
    let count = control.borrow_mut().release_unused(&used, &strangers);
    control.borrow().looked().notify_one();
    if count >= WORTH_GIVING_BACK {
        control.borrow().memory.give_back_soon();
    }
}

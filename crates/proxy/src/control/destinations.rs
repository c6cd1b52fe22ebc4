//! Captured destinations that workers asked for: each is asked of the control plane by its address, answered to all
//! workers, followed while anybody calls it, and let go when nobody has for a while.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot;
use voile_proto::type_url;

use super::state::Control;
use crate::plan::{OutboundPlan, Target};
use crate::registry::address_name;
use crate::registry::names::{Asker, search_name};
use crate::worker::ToWorker;

/// Destinations followed at once: above what any application calls but a crawler, and a few megabytes.
const MAX_DESTINATIONS: usize = 8192;

/// A destination that nobody called for one to two of these is let go. Looked at only while there is any.
const IDLE: Duration = Duration::from_mins(5);

/// What was told of a destination.
#[derive(Debug)]
struct Held {
    plan: Arc<OutboundPlan>,
    /// The control plane has not answered.
    guessed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    held: BTreeMap<Target, Option<Held>>,
    /// When to look for idle ones.
    look: Option<Instant>,
    is_full: bool,
}

impl Destinations {
    pub(super) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.held.keys()
    }

    /// Whether the address itself is asked for.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        let first = Target {
            to: SocketAddr::new(address, 0),
            host: None,
        };
        let all = self.held.range(first..).map(|(target, _)| target);
        all.take_while(|target| target.to.ip() == address)
            .any(|target| target.host.is_none())
    }

    /// Whether somebody is asked for by this name.
    fn has_name(&self, host: &str) -> bool {
        let mut all = self.held.keys();
        all.any(|target| target.host.as_deref() == Some(host))
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        self.look
    }

    pub(super) fn dump(&self) -> Value {
        let one = |(to, held): (&Target, &Option<Held>)| {
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
    pub(super) fn ask_destination(&mut self, to: Target) {
        if let Some(known) = self.destinations.held.get(&to) {
            // Asked by another worker before.
            if let Some(known) = known {
                let plan = Arc::clone(&known.plan);
                self.tell_destination(&to, Some(plan));
            }
            return;
        }
        if self.destinations.held.len() >= MAX_DESTINATIONS {
            if !std::mem::replace(&mut self.destinations.is_full, true) {
                tracing::warn!(
                    "more than {MAX_DESTINATIONS} destinations are called at once; new ones wait"
                );
                self.destinations.look = Some(Instant::now());
            }
            return;
        }
        let name = resource_name(&to);
        let is_new = self.begins(&to, &name);
        self.destinations.held.insert(to.clone(), None);
        if self.destinations.look.is_none() {
            self.destinations.look = Some(Instant::now() + IDLE);
        }
        if is_new && self.client.subscribe(type_url::ADDRESS, [name]).is_err() {
            tracing::warn!(%to, "too many names are asked for; the destination is not known");
        }
        // Its service may be known already, and its policy not yet asked for.
        self.publish();
        if !self.client.state().borrow().connected {
            self.decide_destination(to);
        }
    }

    /// The control plane says nothing: what is known must do.
    pub(super) fn decide_destination(&mut self, to: Target) {
        match self.destinations.held.get(&to) {
            None => return self.ask_destination_again(to),
            Some(Some(_)) => return,
            Some(None) => {}
        }
        let plan = self.shared().registry.destination_unasked(&to);
        if let Some(plan) = plan {
            tracing::debug!(%to, "destination decided without the control plane");
            self.answer(to, plan, true);
        }
    }

    /// Whether nobody asks the control plane about it yet; who does not keeps what was said.
    fn begins(&self, to: &Target, name: &Arc<str>) -> bool {
        let registry = &mut self.shared().registry;
        if to.host.is_some() {
            return registry.hold_name(name, Asker::Destinations);
        }
        let is_new = !self.is_address_asked(to.to.ip());
        if is_new {
            // What was said long ago may hold no more.
            registry.forget_name(name);
        }
        is_new
    }

    /// Whether nobody asks about it any more, now that it is not held; then what was said is forgotten.
    fn ends(&self, to: &Target, name: &Arc<str>) -> bool {
        let registry = &mut self.shared().registry;
        if let Some(host) = &to.host {
            let last = !self.destinations.has_name(host);
            return last && registry.release_name(name, Asker::Destinations);
        }
        let last = !self.is_address_asked(to.to.ip());
        if last {
            registry.forget_name(name);
        }
        last
    }

    fn is_address_asked(&self, address: IpAddr) -> bool {
        self.destinations.has_address(address) || self.is_stranger(address)
    }

    fn answer(&mut self, to: Target, plan: OutboundPlan, guessed: bool) {
        let plan = Arc::new(plan);
        self.tell_destination(&to, Some(Arc::clone(&plan)));
        self.destinations
            .held
            .insert(to, Some(Held { plan, guessed }));
    }

    fn ask_destination_again(&mut self, to: Target) {
        if self.destinations.held.len() < MAX_DESTINATIONS {
            self.ask_destination(to);
        }
    }

    /// Tells the workers what is new about the destinations they asked for.
    pub(super) fn answer_destinations(&mut self) {
        let mut news = Vec::new();
        {
            let shared = self.shared();
            let registry = &shared.registry;
            for (to, told) in &self.destinations.held {
                let guessed = told.as_ref().is_some_and(|held| held.guessed);
                // What was decided without an answer follows the policy all the same until there is one.
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

    fn tell_destination(&self, to: &Target, plan: Option<Arc<OutboundPlan>>) {
        self.dispatcher.broadcast(|| ToWorker::Destination {
            to: to.clone(),
            plan: plan.clone(),
        });
    }

    /// Asks the workers which destinations they use.
    pub(super) fn ask_for_used(&mut self) -> Vec<oneshot::Receiver<Vec<Target>>> {
        let held = !self.destinations.held.is_empty();
        self.destinations.look = held.then(|| Instant::now() + IDLE);
        self.dispatcher.ask(ToWorker::Used)
    }

    /// Lets go of what no worker uses. A worker that begins to use one just now asks again.
    pub(super) fn release_destinations(&mut self, used: &BTreeSet<Target>) {
        let all = std::mem::take(&mut self.destinations.held);
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|(to, _)| used.contains(to));
        self.destinations.held = kept;
        self.destinations.is_full = false;
        for to in gone.keys() {
            self.tell_destination(to, None);
            let name = resource_name(to);
            if self.ends(to, &name) {
                self.client.unsubscribe(type_url::ADDRESS, [name]);
            }
        }
        if self.destinations.held.is_empty() {
            self.destinations.look = None;
        }
        if !gone.is_empty() {
            self.publish();
        }
    }
}

fn resource_name(target: &Target) -> Arc<str> {
    match &target.host {
        None => address_name(target.to.ip()).into(),
        Some(host) => search_name(host),
    }
}

/// Gathers what the workers use and lets go of the rest.
pub(super) async fn look(
    control: Rc<RefCell<Control>>,
    asked: Vec<oneshot::Receiver<Vec<Target>>>,
) {
    let mut used = BTreeSet::new();
    for answer in asked {
        // A worker that is gone uses nothing.
        used.extend(answer.await.unwrap_or_default());
    }
    control.borrow_mut().release_destinations(&used);
}

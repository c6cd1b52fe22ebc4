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
use crate::plan::OutboundPlan;
use crate::registry::address_name;
use crate::worker::ToWorker;

/// Destinations followed at once: above what any application calls but a crawler, and a few megabytes.
const MAX_DESTINATIONS: usize = 8192;

/// A destination that nobody called for one to two of these is let go. Looked at only while there is any.
const IDLE: Duration = Duration::from_mins(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    held: BTreeMap<SocketAddr, Option<Arc<OutboundPlan>>>,
    /// When to look for idle ones.
    look: Option<Instant>,
    is_full: bool,
}

impl Destinations {
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.held.keys().copied()
    }

    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        let first = SocketAddr::new(address, 0);
        let next = self.held.range(first..).next();
        next.is_some_and(|(to, _)| to.ip() == address)
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        self.look
    }

    pub(super) fn dump(&self) -> Value {
        let one = |(to, plan): (&SocketAddr, &Option<Arc<OutboundPlan>>)| {
            let services = plan.as_ref().map(|plan| {
                let name = |service: &crate::plan::ServicePlan| match service.service.host.as_str()
                {
                    "" => service.service.name.clone(),
                    host => format!("{}/{host}:{}", service.service.namespace, service.port),
                };
                plan.services.iter().map(name).collect::<Vec<_>>()
            });
            json!({
                "address": to.to_string(),
                "protocol": plan.as_ref().map(|plan| format!("{:?}", plan.protocol)),
                "leads_to": services,
            })
        };
        self.held.iter().map(one).collect()
    }
}

impl Control {
    /// A worker has a connection to somewhere it does not know.
    pub(super) fn ask_destination(&mut self, to: SocketAddr) {
        if let Some(known) = self.destinations.held.get(&to) {
            // Asked by another worker before.
            if let Some(plan) = known.clone() {
                self.tell_destination(to, Some(plan));
            }
            return;
        }
        if self.destinations.held.len() >= MAX_DESTINATIONS {
            if !std::mem::replace(&mut self.destinations.is_full, true) {
                tracing::warn!(
                    "more than {MAX_DESTINATIONS} destinations are called at once; new ones wait"
                );
            }
            self.destinations.look = Some(Instant::now());
            return;
        }
        let is_new = !self.destinations.has_address(to.ip()) && !self.is_stranger(to.ip());
        self.destinations.held.insert(to, None);
        if self.destinations.look.is_none() {
            self.destinations.look = Some(Instant::now() + IDLE);
        }
        if is_new {
            // What was said long ago may hold no more.
            self.shared().registry.forget_address(to.ip());
            let asked = self
                .client
                .subscribe(type_url::ADDRESS, [address_name(to.ip())]);
            if asked.is_err() {
                tracing::warn!(%to, "too many names are asked for; the destination is not known");
            }
        }
        // Its service may be known already, and its policy not yet asked for.
        self.publish();
        if !self.client.state().borrow().connected {
            self.decide_destination(to);
        }
    }

    /// The control plane says nothing: what is known must do.
    pub(super) fn decide_destination(&mut self, to: SocketAddr) {
        match self.destinations.held.get(&to) {
            None => return self.ask_destination_again(to),
            Some(Some(_)) => return,
            Some(None) => {}
        }
        let plan = self.shared().registry.destination_unasked(to);
        if let Some(plan) = plan {
            tracing::debug!(%to, "destination decided without the control plane");
            let plan = Arc::new(plan);
            self.destinations.held.insert(to, Some(Arc::clone(&plan)));
            self.tell_destination(to, Some(plan));
        }
    }

    fn ask_destination_again(&mut self, to: SocketAddr) {
        if self.destinations.held.len() < MAX_DESTINATIONS {
            self.ask_destination(to);
        }
    }

    /// Tells the workers what is new about the destinations they asked for.
    pub(super) fn answer_destinations(&mut self) {
        let mut news = Vec::new();
        {
            let shared = self.shared();
            for (to, told) in &self.destinations.held {
                if let Some(plan) = shared.registry.destination(*to)
                    && told.as_deref() != Some(&plan)
                {
                    news.push((*to, Arc::new(plan)));
                }
            }
        }
        for (to, plan) in news {
            self.destinations.held.insert(to, Some(Arc::clone(&plan)));
            self.tell_destination(to, Some(plan));
        }
    }

    fn tell_destination(&self, to: SocketAddr, plan: Option<Arc<OutboundPlan>>) {
        self.dispatcher.broadcast(|| ToWorker::Destination {
            to,
            plan: plan.clone(),
        });
    }

    /// Asks the workers which destinations they use.
    pub(super) fn ask_for_used(&mut self) -> Vec<oneshot::Receiver<Vec<SocketAddr>>> {
        let held = !self.destinations.held.is_empty();
        self.destinations.look = held.then(|| Instant::now() + IDLE);
        self.dispatcher.ask(ToWorker::Used)
    }

    /// Lets go of what no worker uses. A worker that begins to use one just now asks again.
    pub(super) fn release_destinations(&mut self, used: &BTreeSet<SocketAddr>) {
        let all = std::mem::take(&mut self.destinations.held);
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|(to, _)| used.contains(to));
        self.destinations.held = kept;
        self.destinations.is_full = false;
        for to in gone.keys() {
            self.tell_destination(*to, None);
            let address = to.ip();
            if !self.destinations.has_address(address) && !self.is_stranger(address) {
                self.client
                    .unsubscribe(type_url::ADDRESS, [address_name(address)]);
                self.shared().registry.forget_address(address);
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

/// Gathers what the workers use and lets go of the rest.
pub(super) async fn look(
    control: Rc<RefCell<Control>>,
    asked: Vec<oneshot::Receiver<Vec<SocketAddr>>>,
) {
    let mut used = BTreeSet::new();
    for answer in asked {
        // A worker that is gone uses nothing.
        used.extend(answer.await.unwrap_or_default());
    }
    control.borrow_mut().release_destinations(&used);
}

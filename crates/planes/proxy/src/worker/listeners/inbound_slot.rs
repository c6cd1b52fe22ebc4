//! An inbound listener in force: its plan, its engine, and settings of its own where it has any.

use std::cell::{Cell, Ref, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use voile_xds::wire::MutualTls;

use crate::authorization::Authorization;
use crate::plan::{DoorPlan, InboundPlan};
use crate::telemetry_settings::Recording;
use crate::worker::Worker;
use crate::worker::handlers::inbound_http::InboundRole;
use crate::worker::listeners::engine::ListenerEngine;
use crate::worker::listeners::termination::Stop;
use crate::worker::policy::tokens::Tokens;
use crate::worker::records::downstream::Downstream;

/// An inbound listener in force.
pub(crate) struct InboundSlot {
    pub(crate) plan: RefCell<Rc<InboundPlan>>,
    pub(crate) http: ListenerEngine<InboundRole>,
    /// Changes with the application's address, so that its pool does.
    pub(crate) endpoint_key: Cell<u32>,
    /// Given when connections that arrived in plaintext are no longer welcome.
    pub(crate) no_plaintext: RefCell<Stop>,
    /// Set for a listener with settings of its own.
    own: Option<Box<OwnSettings>>,
}

/// Settings of one listener alone.
#[derive(Default)]
struct OwnSettings {
    policies: RefCell<Option<Authorization>>,
    tokens: Tokens,
    /// The service that it is the destination of, if it is one's.
    host: RefCell<Option<Arc<str>>>,
    /// Index among the recordings of destinations that have their own.
    telemetry: Cell<Option<usize>>,
}

impl InboundSlot {
    /// Istio's name of the way to the application.
    pub(crate) fn cluster(&self) -> String {
        format!("inbound|{}||", self.plan.borrow().endpoint.port())
    }

    /// A client of which only the address is known.
    pub(crate) fn stranger(&self, remote: SocketAddr) -> Downstream<'static> {
        Downstream {
            local: self.plan.borrow().bind,
            remote,
            principal: "",
            suite: None,
        }
    }

    pub(crate) fn new(worker: &Worker, plan: &InboundPlan) -> Self {
        Self {
            plan: RefCell::new(Rc::new(plan.clone())),
            http: ListenerEngine::new(worker, &worker.settings()),
            endpoint_key: Cell::new(worker.fresh_key()),
            no_plaintext: RefCell::default(),
            own: None,
        }
    }

    /// One that obeys a destination's policies alone.
    pub(crate) fn of_door(worker: &Worker, plan: &InboundPlan, door: &DoorPlan) -> Self {
        let slot = Self {
            own: Some(Box::default()),
            ..Self::new(worker, plan)
        };
        slot.obey(door);
        slot
    }

    /// Obeys others of its own; says whether they are.
    pub(crate) fn obey(&self, door: &DoorPlan) -> bool {
        let Some(own) = &self.own else {
            return false;
        };
        let changed = *own.policies.borrow() != door.authorization;
        if changed {
            own.policies.borrow_mut().clone_from(&door.authorization);
        }
        let host = door.host.as_ref().map(|(host, _)| Arc::clone(host));
        *own.host.borrow_mut() = host;
        own.telemetry.set(door.telemetry);
        own.tokens.obey(door.tokens.as_ref()) || changed
    }

    /// Returns true for a destination of a waypoint.
    pub(crate) fn is_apart(&self) -> bool {
        self.own.is_some()
    }

    /// Recording rules for its traffic.
    pub(crate) fn recording<'a>(&'a self, worker: &'a Worker) -> Ref<'a, Rc<Recording>> {
        let own = self.own.as_ref().and_then(|own| own.telemetry.get());
        let Some(index) = own else {
            return worker.recording.borrow();
        };
        let apart = Ref::filter_map(worker.recordings_apart.borrow(), |all| all.get(index));
        apart.unwrap_or_else(|_| worker.recording.borrow())
    }

    /// Policies of this listener.
    pub(crate) fn policies<'a>(&'a self, worker: &'a Worker) -> Ref<'a, Option<Authorization>> {
        let own = self.own.as_ref().map(|own| &own.policies);
        own.unwrap_or(&worker.authorization).borrow()
    }

    /// Rules about tokens of this listener.
    pub(crate) fn tokens<'a>(&'a self, worker: &'a Worker) -> &'a Tokens {
        let own = self.own.as_ref().map(|own| &own.tokens);
        own.unwrap_or(&worker.tokens)
    }

    /// The service of a waypoint's destination; none elsewhere.
    pub(crate) fn host(&self) -> Option<Arc<str>> {
        self.own.as_ref()?.host.borrow().clone()
    }

    /// Gives back the memory of this listener's verified tokens.
    pub(crate) fn forget_tokens(&self) {
        if let Some(own) = &self.own {
            own.tokens.forget();
        }
    }

    /// Obeys its plan; says whether it takes other connections than before.
    pub(crate) fn follow(&self, worker: &Worker, plan: &InboundPlan, renewed: bool) -> bool {
        if renewed {
            self.http.renew(worker, &worker.settings());
        }
        let before = std::mem::replace(&mut *self.plan.borrow_mut(), Rc::new(plan.clone()));
        if before.endpoint != plan.endpoint {
            self.endpoint_key.set(worker.fresh_key());
        }
        let refuses_plaintext = |mode| mode == MutualTls::Strict;
        if refuses_plaintext(plan.mutual_tls) && !refuses_plaintext(before.mutual_tls) {
            self.no_plaintext.take().give();
        }
        plan.mutual_tls != before.mutual_tls || plan.protocol != before.protocol
    }
}

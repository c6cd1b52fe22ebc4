//! An outbound listener in force: its plan, its engine, and the services that it leads to.

use std::cell::RefCell;
use std::rc::Rc;

use voile_traffic::AuthorityTable;
use voile_xds::wire::WireProtocol;

use crate::plan::{OutboundPlan, PassthroughMode};
use crate::worker::Worker;
use crate::worker::handlers::outbound_http::OutboundRole;
use crate::worker::listeners::engine::ListenerEngine;
use crate::worker::upstream::service_state::ServiceState;

/// An outbound listener in force.
pub(crate) struct OutboundSlot {
    pub(crate) plan: RefCell<Rc<OutboundPlan>>,
    pub(crate) table: RefCell<Rc<Table>>,
    pub(crate) http: ListenerEngine<OutboundRole>,
}

/// Destinations of an outbound listener.
pub(crate) struct Table {
    pub(crate) services: Vec<Rc<ServiceState>>,
    pub(crate) by_authority: AuthorityTable<usize>,
    pub(crate) otherwise: PassthroughMode,
    by_name: bool,
}

impl OutboundSlot {
    pub(crate) fn new(worker: &Worker, plan: &OutboundPlan) -> Self {
        Self {
            plan: RefCell::new(Rc::new(plan.clone())),
            table: RefCell::new(Rc::new(Table::follow(
                worker,
                &Table::empty(plan.otherwise),
                plan,
            ))),
            http: ListenerEngine::new(worker, &worker.settings()),
        }
    }

    pub(crate) fn renew(&self, worker: &Worker, renewed: bool) {
        if renewed {
            self.http.renew(worker, &worker.settings());
        }
    }

    pub(crate) fn follow(&self, worker: &Worker, plan: &OutboundPlan, renewed: bool) {
        self.renew(worker, renewed);
        if **self.plan.borrow() != *plan {
            let table = Table::follow(worker, &self.table.borrow(), plan);
            *self.table.borrow_mut() = Rc::new(table);
            *self.plan.borrow_mut() = Rc::new(plan.clone());
        }
    }

    pub(crate) fn protocol(&self) -> WireProtocol {
        self.plan.borrow().protocol
    }

    /// Returns true if routing needs the server name of a TLS client.
    pub(crate) fn asks_for_names(&self) -> bool {
        let services = &self.table.borrow().services;
        let mut routes = services.iter().filter_map(|one| one.routes.as_ref());
        services.len() > 1 || routes.any(|routes| routes.asks_for_names())
    }
}

impl Table {
    /// Leads nowhere.
    fn empty(otherwise: PassthroughMode) -> Self {
        Self {
            services: Vec::new(),
            by_authority: AuthorityTable::default(),
            otherwise,
            by_name: false,
        }
    }

    /// Selects the service of an opaque connection: a lone service takes everything; of several, the server name decides. Without
    /// a name it is the first, or `otherwise` on a listener by name.
    pub(crate) fn opaque(&self, server_name: Option<&str>) -> Option<&Rc<ServiceState>> {
        if let Some(only) = self.lone() {
            return Some(only);
        }
        let Some(name) = server_name else {
            return if self.by_name {
                self.otherwise()
            } else {
                self.services.first()
            };
        };
        match self.by_authority.get(name.as_bytes()) {
            Some(index) => self.services.get(*index),
            None => self.otherwise(),
        }
    }

    /// The only service, where that needs no naming.
    pub(crate) fn lone(&self) -> Option<&Rc<ServiceState>> {
        match self.services.as_slice() {
            [only] if !self.by_name => Some(only),
            _ => None,
        }
    }

    /// Service of a request that names none of several services.
    pub(crate) fn otherwise(&self) -> Option<&Rc<ServiceState>> {
        match self.otherwise {
            PassthroughMode::Service(index) => self.services.get(index),
            PassthroughMode::NoRoute | PassthroughMode::BlackHole => None,
        }
    }

    fn follow(worker: &Worker, old: &Self, plan: &OutboundPlan) -> Self {
        let mut table = Self {
            by_name: plan.by_name,
            ..Self::empty(plan.otherwise)
        };
        for service in &plan.services {
            let before = old.services.iter().find(|before| {
                before.plan.service.host == service.service.host && before.plan.port == service.port
            });
            let state = match before {
                Some(before) if before.plan == *service => Rc::clone(before),
                _ => ServiceState::instead(worker, before, service),
            };
            for authority in &service.authorities {
                table.by_authority.insert(authority, table.services.len());
            }
            table.services.push(state);
        }
        table
    }
}

//! One port of a service as a worker calls it: its endpoints, their balancing and health, and the routes of its requests. Listeners
//! and routes hold it; a plan that does not change it leaves it alone.

mod follow;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use voile_traffic::RetryPolicy;

use crate::plan::ServicePlan;
use crate::worker::in_flight::Account;
use crate::worker::routing::routes::RoutesState;
use crate::worker::upstream::balance::Balance;
use crate::worker::upstream::dynamic_dns::OnDemand;
use crate::worker::upstream::endpoint::Endpoint;
use crate::worker::upstream::health_checks::Checker;

/// One service port.
pub(crate) struct ServiceState {
    pub(crate) plan: ServicePlan,
    pub(crate) cluster: String,
    /// For requests of HTTP/1.0 that name none.
    pub(crate) authority: Rc<str>,
    pub(crate) endpoints: Vec<Rc<Endpoint>>,
    balance: Balance,
    /// The hosts of a pattern, where its endpoints are those.
    on_demand: Option<Rc<OnDemand>>,
    /// Names that lead to endpoints, each once.
    names: Vec<Arc<str>>,
    /// When the control thread was last told that they are used.
    names_used: Cell<Option<Instant>>,
    /// Work in flight to it, of all workers.
    pub(crate) account: Rc<Account>,
    pub(crate) retry: Rc<RetryPolicy>,
    /// Routes of its requests.
    pub(crate) routes: Option<Box<RoutesState>>,
    /// Health checker of its endpoints.
    checker: Option<Rc<Checker>>,
}

impl ServiceState {
    /// Returns true for a port of this service, or a subset of it: the same endpoints, with the same name in telemetry.
    pub(crate) fn is_service(&self, plan: &ServicePlan) -> bool {
        self.plan.service == plan.service && self.plan.port == plan.port
    }

    /// Returns true for this subset of it.
    pub(crate) fn is_part(&self, plan: &ServicePlan) -> bool {
        self.is_service(plan) && self.plan.subset == plan.subset
    }

    /// Returns true if the host that a client names selects the endpoint.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.on_demand.is_some()
    }
}

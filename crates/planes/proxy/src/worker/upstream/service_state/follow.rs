//! A service's state by its plan, and the use of it by requests.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_traffic::{Ejection, EjectionReason, UpstreamOutcome};

use super::ServiceState;
use crate::clock;
use crate::health::Watch;
use crate::plan::{ServicePlan, SharedPart};
use crate::worker::routing::routes::RoutesState;
use crate::worker::upstream::balance::{Balance, EndpointPreference, ServiceEndpoints};
use crate::worker::upstream::dynamic_dns::OnDemand;
use crate::worker::upstream::endpoint::{EarlierEndpoints, Endpoint, InFlight};
use crate::worker::upstream::health_checks::Checker;
use crate::worker::{FromWorker, Worker, count};

fn names(plan: &ServicePlan) -> Vec<Arc<str>> {
    let names = plan.endpoints.iter().filter_map(|to| to.name.as_ref());
    let names = names.filter(|name| !name.on_demand);
    let each: BTreeSet<Arc<str>> = names.map(|name| Arc::clone(&name.host)).collect();
    each.into_iter().collect()
}

/// Interval in which a worker reports that a name is used: the precision of expiry.
const NAMES_USED_EVERY: Duration = Duration::from_secs(1);

impl ServiceState {
    /// Reports that the service's names are used, so that expired ones are resolved again.
    fn use_names(&self, worker: &Worker) {
        let now = Instant::now();
        let recent = |said| now.saturating_duration_since(said) < NAMES_USED_EVERY;
        if self.names_used.get().is_some_and(recent) {
            return;
        }
        self.names_used.set(Some(now));
        for name in &self.names {
            worker.tell(FromWorker::Used(Arc::clone(name)));
        }
    }

    /// A service that is no listener's: the same one if nothing changed.
    pub(crate) fn follow(worker: &Worker, old: Option<&Rc<Self>>, plan: &ServicePlan) -> Rc<Self> {
        match old.filter(|old| old.plan == *plan) {
            Some(same) => Rc::clone(same),
            None => Self::instead(worker, old, plan),
        }
    }

    /// New state of a service, in place of `before`.
    pub(in crate::worker) fn instead(
        worker: &Worker,
        before: Option<&Rc<Self>>,
        plan: &ServicePlan,
    ) -> Rc<Self> {
        let parts = before.and_then(|before| before.routes.as_deref());
        let parts = parts.into_iter().flat_map(RoutesState::targets);
        let alike = before.into_iter().chain(parts);
        let alike = alike.filter(|state| state.is_service(plan));
        let old = EarlierEndpoints::new(alike.flat_map(|state| &state.endpoints));
        Rc::new(Self::new(
            worker,
            &old,
            before.map(|before| &**before),
            plan,
        ))
    }

    /// `old`: endpoints whose connections and load are taken over; `before`: earlier state, for its routes.
    pub(in crate::worker) fn new(
        worker: &Worker,
        old: &EarlierEndpoints<'_>,
        before: Option<&Self>,
        plan: &ServicePlan,
    ) -> Self {
        let routes = plan.routes.as_deref();
        let endpoints = plan.endpoints.iter();
        let endpoints = endpoints.map(|endpoint| Endpoint::follow(worker, old, endpoint));
        let endpoints: Vec<_> = endpoints.collect();
        let among = ServiceEndpoints {
            endpoints: &endpoints,
            watch: watch(plan),
        };
        let cluster = match plan.service.host.as_str() {
            "" => plan.service.name.clone(),
            host => {
                let subset = plan.subset.as_deref().unwrap_or_default();
                format!("outbound|{}|{subset}|{host}", plan.port)
            }
        };
        let asked = before.and_then(|before| before.checker.as_ref());
        let known = before.and_then(|before| before.on_demand.as_ref());
        let on_demand = OnDemand::follow(known, plan);
        // A pattern's hosts are unlimited, so they have no health checks.
        let asked_of = match on_demand {
            None => &endpoints[..],
            Some(_) => &[],
        };
        Self {
            checker: Checker::join(worker, asked, plan, &cluster, asked_of),
            on_demand,
            balance: Balance::new(worker, &plan.traffic.balance, among),
            endpoints,
            routes: routes.map(|routes| RoutesState::follow(worker, before, routes).into()),
            account: worker.seat.destination(&plan.service.host, plan.port),
            retry: Rc::new(plan.retry.clone()),
            authority: plan.service.host.as_str().into(),
            cluster,
            names: names(plan),
            names_used: Cell::new(None),
            plan: plan.clone(),
        }
    }

    /// Selects another endpoint for a retry, or the same if there is no other; returns true for another.
    pub(crate) fn choose_other(
        &self,
        worker: &Worker,
        wish: EndpointPreference<'_>,
    ) -> Option<(InFlight, bool)> {
        let other = self.choose(worker, wish).map(|other| (other, true));
        let any = EndpointPreference { tried: &[], ..wish };
        other.or_else(|| self.choose(worker, any).map(|again| (again, false)))
    }

    /// Selects the endpoint of the next request.
    pub(crate) fn choose(&self, worker: &Worker, wish: EndpointPreference<'_>) -> Option<InFlight> {
        if let Some(on_demand) = &self.on_demand {
            return on_demand.choose(worker, wish);
        }
        if !self.names.is_empty() {
            self.use_names(worker);
        }
        self.balance.choose(worker, self.among(), wish)
    }

    fn among(&self) -> ServiceEndpoints<'_> {
        ServiceEndpoints {
            endpoints: &self.endpoints,
            watch: watch(&self.plan),
        }
    }

    /// Reports the end of a request at an endpoint.
    pub(crate) fn report(&self, worker: &Worker, to: &InFlight, outcome: UpstreamOutcome) {
        let Some(watch) = watch(&self.plan) else {
            return;
        };
        // A pattern's host has no substitute, so none is ejected.
        if self.on_demand.is_some() {
            return;
        }
        for Ejection { place, reason } in watch.report(to.place, outcome, clock::now()) {
            count(&worker.counters.outliers_ejected);
            let endpoint = watch.endpoints[place];
            let after = match reason {
                EjectionReason::InARow => format!("{outcome:?}"),
                EjectionReason::SuccessRate => "a low success rate".to_owned(),
            };
            tracing::warn!(cluster = self.cluster, %endpoint, %after, "outlier ejected");
        }
        self.balance.refresh(self.among());
    }
}

fn watch(plan: &ServicePlan) -> Option<&Watch> {
    plan.traffic
        .watch
        .as_ref()
        .map(|SharedPart(watch)| &**watch)
}

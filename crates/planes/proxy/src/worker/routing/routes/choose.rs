//! Routes by a plan, and the route of one request or connection.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::{
    AtEdge, ChosenRoute, RequestAttributes, RouteActs, RoutesState, RuleState, TcpRoute, Terms,
};
use crate::actions::Actions;
use crate::http::HttpHead;
use crate::plan::RoutesPlan;
use crate::registry::routes::RouteLeg;
use crate::worker::Worker;
use crate::worker::upstream::endpoint::EarlierEndpoints;
use crate::worker::upstream::service_state::ServiceState;

impl RoutesState {
    /// Follows a plan; keeps unchanged parts.
    pub(crate) fn follow(
        worker: &Worker,
        before: Option<&ServiceState>,
        plan: &RoutesPlan,
    ) -> Self {
        let old = before.and_then(|before| before.routes.as_deref());
        let same = old.filter(|old| Arc::ptr_eq(&old.compiled, &plan.compiled));
        let (own, rules) = match same {
            Some(same) => (same.own.clone(), Rc::clone(&same.rules)),
            None => {
                let rules = plan.compiled.rules.iter().map(|rule| RuleState {
                    name: (!rule.name.is_empty()).then(|| (*rule.name).into()),
                    retry: rule.retry.clone().map(Rc::new),
                    timeout: rule.timeout,
                    // Expressions remember their way, each worker's its own.
                    actions: rule.actions.as_deref().cloned().map(Rc::new),
                });
                let table = plan.compiled.table.as_ref();
                let own = table.filter(|_| plan.compiled.remembers).cloned();
                (own.map(Rc::new), rules.collect())
            }
        };
        let states = || {
            let targets = old.into_iter().flat_map(|old| &old.targets);
            let targets = targets.filter_map(|one| one.as_ref().ok());
            targets.map(|state| &**state).chain(before)
        };
        let target = |target: &Result<crate::plan::ServicePlan, Arc<str>>| {
            let wanted = target.as_ref().map_err(Arc::clone)?;
            let mut known = old.into_iter().flat_map(|old| &old.targets).flatten();
            let known = known.find(|state| state.is_part(wanted));
            let same = known.filter(|state| state.plan == *wanted);
            Ok(same.map_or_else(
                || {
                    // Subsets share the endpoints of the whole service: their connections, and the load in
                    // flight.
                    let alike = states().filter(|state| state.is_service(wanted));
                    let endpoints = EarlierEndpoints::new(alike.flat_map(|state| &state.endpoints));
                    Rc::new(ServiceState::new(worker, &endpoints, None, wanted))
                },
                Rc::clone,
            ))
        };
        Self {
            compiled: Arc::clone(&plan.compiled),
            own,
            rules,
            targets: plan.targets.iter().map(target).collect(),
        }
    }

    /// Selects the route of a request. `edge` has the facts that replace the request's own at a gateway.
    pub(crate) fn choose(
        &self,
        worker: &Worker,
        head: &HttpHead<'_>,
        edge: Option<&AtEdge<'_>>,
    ) -> ChosenRoute {
        let table = self.own.as_deref();
        let Some(table) = table.or(self.compiled.table.as_ref()) else {
            return ChosenRoute::Straight;
        };
        let Some(chosen) = table.choose_match(&RequestAttributes::new(head, edge)) else {
            return ChosenRoute::Nowhere;
        };
        let share = self.compiled.rules[chosen.route].share(|| worker.random());
        let rule = &self.rules[chosen.route];
        let acts = rule.actions.as_ref().map(|actions| {
            Box::new(RouteActs {
                actions: Rc::clone(actions),
                share: share.map_or(0, |(share, _)| share),
                matched: chosen.matched,
                mirrors: self.mirrors(worker, actions),
            })
        });
        let terms = Terms {
            name: rule.name.clone(),
            retry: rule.retry.clone(),
            timeout: rule.timeout,
            acts,
        };
        match share.map(|(_, target)| &self.targets[target]) {
            None => ChosenRoute::Here(terms),
            Some(Err(missing)) => {
                let status = self.compiled.rules[chosen.route].missing_status;
                ChosenRoute::Missing(Arc::clone(missing), status)
            }
            Some(Ok(service)) => ChosenRoute::To(Rc::clone(service), terms),
        }
    }

    /// Selects the route of a connection to `called`. `asked` is the name that a TLS client asks for, empty
    /// for none.
    pub(crate) fn lead(&self, worker: &Worker, asked: Option<&str>, called: IpAddr) -> TcpRoute {
        let connections = &self.compiled.connections;
        match connections.lead(asked, called, || worker.random()) {
            RouteLeg::Straight => TcpRoute::Straight,
            RouteLeg::Nowhere => TcpRoute::Nowhere,
            RouteLeg::To(target) => match &self.targets[target] {
                Ok(service) => TcpRoute::To(Rc::clone(service)),
                Err(missing) => TcpRoute::Missing(Arc::clone(missing)),
            },
        }
    }

    /// Selects the destinations of one request's copies; a missing destination gets none.
    fn mirrors(&self, worker: &Worker, actions: &Actions) -> Vec<Rc<ServiceState>> {
        let taken = actions.mirrors.iter();
        let taken = taken.filter(|(share, _)| share.takes(worker.random()));
        let there = taken.filter_map(|(_, target)| self.targets.get(*target)?.as_ref().ok());
        there.cloned().collect()
    }
}

//! Routes of a service, as one worker knows them: its own clone of the route table, and the destination services. Changes of
//! endpoints do not touch either.

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use voile_policy::claims::{Claim, Claims};
use voile_traffic::RetryPolicy;
use voile_traffic::route::{RouteInput, RouteTable, is_authority};

use crate::actions::Actions;
use crate::http::HttpHead;
use crate::plan::RoutesPlan;
use crate::registry::routes::{CompiledRoutes, RouteLeg};
use crate::worker::Worker;
use crate::worker::endpoint::EarlierEndpoints;
use crate::worker::service_state::ServiceState;

/// See the module.
pub(crate) struct RoutesState {
    compiled: Arc<CompiledRoutes>,
    /// This worker's own, where a table remembers anything; all workers ask the same otherwise.
    own: Option<Rc<RouteTable>>,
    rules: Rc<[RuleState]>,
    targets: Vec<Result<Rc<ServiceState>, Arc<str>>>,
}

/// Parts of a route that this worker hands out; other threads share none of them.
struct RuleState {
    /// If it has one.
    name: Option<Rc<str>>,
    retry: Option<Rc<RetryPolicy>>,
    timeout: Option<Duration>,
    actions: Option<Rc<Actions>>,
}

/// Destination of one request.
pub(crate) enum ChosenRoute {
    /// No route is for it.
    Nowhere,
    /// A route whose destination does not exist: the missing destination and the status of the response.
    Missing(Arc<str>, u16),
    /// To this service, or part of one.
    To(Rc<ServiceState>, Terms),
    /// By a route with a direct response.
    Here(Terms),
    /// No routes for requests: to the service itself.
    Straight,
}

/// Destination of one connection that is not HTTP.
pub(crate) enum TcpRoute {
    /// No routes for connections: to the service itself.
    Straight,
    /// No route is for it.
    Nowhere,
    /// A route whose destination does not exist.
    Missing(Arc<str>),
    /// To this service, or part of one.
    To(Rc<ServiceState>),
}

/// A request at a gateway, as routes compare it.
pub(crate) struct AtEdge<'t> {
    /// Path and query, where they are not as they came.
    pub(crate) path: Option<Box<str>>,
    /// Scheme of the connection, whatever the client states.
    pub(crate) scheme: &'static str,
    /// Claims of the request's valid token.
    pub(crate) claims: Option<&'t Claims>,
}

/// Further terms of a route.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// Its name, if it has one.
    pub(crate) name: Option<Rc<str>>,
    /// Instead of the destination's.
    pub(crate) retry: Option<Rc<RetryPolicy>>,
    /// Timeout of an answer.
    pub(crate) timeout: Option<Duration>,
    /// Further actions on the request; boxed, since most routes have none.
    pub(crate) acts: Option<Box<RouteActs>>,
}

/// Further actions on one request.
#[derive(Clone)]
pub(crate) struct RouteActs {
    pub(crate) actions: Rc<Actions>,
    /// Which of the route's destinations takes it.
    pub(crate) share: usize,
    /// Length of the path that the matched prefix covers.
    pub(crate) matched: Option<usize>,
    /// Destinations of mirrored copies.
    pub(crate) mirrors: Vec<Rc<ServiceState>>,
}

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

    /// Everything that routes lead to and that is there.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Rc<ServiceState>> {
        self.targets.iter().flatten()
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

    /// Returns true if routing needs the ClientHello of a TLS client.
    pub(crate) fn asks_for_names(&self) -> bool {
        self.compiled.connections.asks_for_names()
    }

    /// Selects the destinations of one request's copies; a missing destination gets none.
    fn mirrors(&self, worker: &Worker, actions: &Actions) -> Vec<Rc<ServiceState>> {
        let taken = actions.mirrors.iter();
        let taken = taken.filter(|(share, _)| share.takes(worker.random()));
        let there = taken.filter_map(|(_, target)| self.targets.get(*target)?.as_ref().ok());
        there.cloned().collect()
    }
}

/// A head as decisions about traffic ask it.
pub(crate) struct RequestAttributes<'a> {
    head: &'a HttpHead<'a>,
    path: &'a str,
    scheme: &'a str,
    claims: Option<&'a Claims>,
}

impl<'a> RequestAttributes<'a> {
    /// `edge` has the facts that replace the request's own at a gateway.
    pub(crate) fn new(head: &'a HttpHead<'a>, edge: Option<&'a AtEdge<'a>>) -> Self {
        let path = edge.and_then(|edge| edge.path.as_deref());
        Self {
            head,
            path: path.unwrap_or_else(|| head.path_and_query()),
            scheme: edge.map_or_else(|| head.scheme(), |edge| edge.scheme),
            claims: edge.and_then(|edge| edge.claims),
        }
    }
}

impl<'a> RequestAttributes<'a> {
    /// With another path and query than came.
    pub(crate) fn of_path(head: &'a HttpHead<'a>, path: &'a str) -> Self {
        Self {
            path,
            ..Self::new(head, None)
        }
    }
}

impl RouteInput for RequestAttributes<'_> {
    fn method(&self) -> &[u8] {
        self.head.method().as_bytes()
    }

    fn scheme(&self) -> &[u8] {
        self.scheme.as_bytes()
    }

    fn authority(&self) -> &[u8] {
        self.head.authority().unwrap_or_default().as_bytes()
    }

    fn path(&self) -> &[u8] {
        let path = self.path.split('?').next().unwrap_or_default();
        path.split('#').next().unwrap_or_default().as_bytes()
    }

    fn query(&self) -> &[u8] {
        let query = self.path.split_once('?').map_or("", |(_, query)| query);
        query.split('#').next().unwrap_or_default().as_bytes()
    }

    fn claim(&self, path: &[String], is: &dyn Fn(Option<&[u8]>) -> bool) -> bool {
        let (Some(claims), [first, inner @ ..]) = (self.claims, path) else {
            return false;
        };
        let start = claims.get(first);
        let mut inner = inner.iter();
        let found = inner.try_fold(start, |value, name| Some(value?.get(name)));
        let text = |value: Claim<'_>| is(value.as_str().map(str::as_bytes));
        match found.flatten() {
            None => false,
            Some(Claim::List(list)) => is(None) || list.iter().any(text),
            Some(value) => text(value),
        }
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if is_authority(name) {
            return self.head.authority().map(|text| text.as_bytes().into());
        }
        let values = self.head.headers();
        let values =
            values.filter_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value));
        joined(name, values)
    }
}

/// The lines of one field as one value.
pub(in crate::worker) fn joined<'v>(
    name: &str,
    mut values: impl Iterator<Item = &'v [u8]>,
) -> Option<Cow<'v, [u8]>> {
    let first = values.next()?;
    let Some(second) = values.next() else {
        return Some(Cow::Borrowed(first));
    };
    // Crumbs of a cookie are one line (RFC 9113 section 8.2.3).
    let between: &[u8] = if name == "cookie" { b"; " } else { b"," };
    let mut joined = first.to_vec();
    for value in std::iter::once(second).chain(values) {
        joined.extend_from_slice(between);
        joined.extend_from_slice(value);
    }
    Some(Cow::Owned(joined))
}

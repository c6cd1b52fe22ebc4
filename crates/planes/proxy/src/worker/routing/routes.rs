//! Routes of a service, as one worker knows them: its own clone of the route table, and the destination services. Changes of
//! endpoints do not touch either.

mod choose;

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use voile_policy::claims::{Claim, Claims};
use voile_traffic::RetryPolicy;
use voile_traffic::route::{RouteInput, RouteTable, is_authority};

use crate::actions::Actions;
use crate::http::HttpHead;
use crate::registry::routes::CompiledRoutes;
use crate::worker::upstream::service_state::ServiceState;

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
    /// Everything that routes lead to and that is there.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Rc<ServiceState>> {
        self.targets.iter().flatten()
    }

    /// Returns true if routing needs the ClientHello of a TLS client.
    pub(crate) fn asks_for_names(&self) -> bool {
        self.compiled.connections.asks_for_names()
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

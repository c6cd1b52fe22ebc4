//! The requests of an outbound connection: service, route, endpoint, and the way there.

mod retries;

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use voile_http2::source_number;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_policy::claims::Claims;
use voile_telemetry::access_log::PolicyMarks;
use voile_telemetry::{SeriesId, ServiceLabels};
use voile_traffic::balance::RequestKey;
use voile_traffic::{Attempt, BreakerPermit, Resource, UpstreamOutcome};
use voile_xds::wire::WireProtocol;

use super::{Names, OutboundRole};
use crate::actions::LocalResponse;
use crate::http::{
    self, BodyPrefix, ConnectFailure, Exchange, ExchangeRecord, HeadAmendment, HeadObserver,
    HttpHead, HttpRole, Pending, RequestRoute, ResponseFlag, Revocation, RoleRefusal, UpstreamHttp,
    UpstreamResponse,
};
use crate::plan::{CapturedDestination, PassthroughMode, SharedPart, TrafficPlan};
use crate::worker::handlers::inbound_http::upstream;
use crate::worker::handlers::outbound::black_hole;
use crate::worker::in_flight::RetryInFlight;
use crate::worker::listeners::captured_listeners::CapturedListeners;
use crate::worker::listeners::gateway_slot::AtGateway;
use crate::worker::listeners::outbound_slot::{OutboundSlot, Table};
use crate::worker::policy::authorization::count_revoked;
use crate::worker::policy::request_changes::PlanChanges;
use crate::worker::records::access_logs::{self, HttpContext};
use crate::worker::records::downstream::Downstream;
use crate::worker::records::reporter::ReporterLabels;
use crate::worker::records::request_notes::RequestNotes;
use crate::worker::records::request_series;
use crate::worker::routing::mirror::Mirrors;
use crate::worker::routing::requested_host::host_of;
use crate::worker::routing::route_effects::{RouteEffects, refused};
use crate::worker::routing::routes::{AtEdge, ChosenRoute, RequestAttributes, RouteActs, Terms};
use crate::worker::upstream::balance::EndpointPreference;
use crate::worker::upstream::endpoint::{ConnectionManner, Endpoint, InFlight, outbound_labels};
use crate::worker::upstream::service_state::ServiceState;
use crate::worker::upstream::upstream_connection::{UpstreamLine, seat};
use crate::worker::upstream::upstream_outcome;
use crate::worker::{AdmittedRequest, Overload, Worker, count};

/// Names that one connection remembers; a client of more has the oldest asked for again, which the worker remembers.
const MAX_MEANINGS: usize = 64;

/// Destination of a request.
pub(crate) struct OutboundTicket {
    /// None if the request named no service.
    service: Option<Rc<ServiceState>>,
    /// None if the service has no endpoint.
    endpoint: Option<InFlight>,
    notes: Option<Rc<RequestNotes>>,
    _admitted: Option<AdmittedRequest>,
    /// The route's, where it has one.
    route_name: Option<Rc<str>>,
    /// It was made to wait on purpose.
    delayed: bool,
    /// Boxed: few have any of it, and every connection would pay for its size.
    kept: Option<Box<RetryState>>,
}

/// Rare state of a request: for a DestinationRule, or for retries.
#[derive(Default)]
struct RetryState {
    retrying: Option<RetryInFlight>,
    /// Keys of the endpoints that failed before.
    tried: Vec<u32>,
    /// Attempts that were reported already.
    reported: u32,
    /// Requests of one key keep together.
    key: Option<u64>,
    /// Its places among what may be under way.
    _request: Option<BreakerPermit>,
    retry: Option<BreakerPermit>,
}

/// A request that waits on purpose, and where it goes then.
pub(crate) struct DelayedRequest {
    wait: Duration,
    way: RoutedCluster,
}

/// Result of routing a request.
struct RoutedCluster {
    service: Rc<ServiceState>,
    /// Authority of the called service, for a request without one.
    authority: Option<Rc<str>>,
    /// The port that was called.
    port: u16,
    terms: Terms,
    notes: Option<Rc<RequestNotes>>,
    delayed: bool,
}

impl RoutedCluster {
    /// For what is answered here.
    fn ticket(self) -> OutboundTicket {
        OutboundTicket {
            route_name: self.terms.name,
            delayed: self.delayed,
            ..OutboundTicket::new(Some(self.service), self.notes)
        }
    }
}

impl OutboundTicket {
    fn new(service: Option<Rc<ServiceState>>, notes: Option<Rc<RequestNotes>>) -> Self {
        Self {
            service,
            endpoint: None,
            notes,
            _admitted: None,
            route_name: None,
            delayed: false,
            kept: None,
        }
    }

    /// Returns true if the endpoint's certificate is revoked.
    pub(in crate::worker) fn is_cut(&self) -> bool {
        self.endpoint
            .as_ref()
            .is_some_and(|to| to.endpoint.is_cut())
    }
}

impl OutboundRole {
    pub(crate) fn new(
        worker: Rc<Worker>,
        slot: Rc<OutboundSlot>,
        names: Option<Rc<CapturedListeners>>,
        remote: SocketAddr,
    ) -> Self {
        Self {
            worker,
            slot,
            names: names.map(|captured| {
                let meanings = RefCell::default();
                Box::new(Names { captured, meanings })
            }),
            remote,
            edge: None,
        }
    }

    /// The same for requests at a gateway.
    pub(in crate::worker) fn of_gateway(self, at: AtGateway) -> Self {
        Self {
            edge: Some(Box::new(at)),
            ..self
        }
    }

    /// Vantage of its requests in telemetry.
    fn vantage(&self) -> ReporterLabels<'_> {
        let edge = self.edge.as_deref();
        edge.map_or(TelemetrySide::Client.into(), AtGateway::vantage)
    }

    /// The caller's side of the connection.
    fn downstream(&self) -> Downstream<'_> {
        let local = self.slot.plan.borrow().bind;
        match self.edge.as_deref() {
            Some(at) => at.downstream(local, self.remote),
            None => Downstream {
                local,
                remote: self.remote,
                principal: "",
                suite: None,
            },
        }
    }

    /// The connections that our client's requests to an endpoint may travel on.
    fn pool_key(&self, endpoint: &Endpoint, traffic: &TrafficPlan) -> u32 {
        let called = || self.slot.plan.borrow().bind;
        let worker = &self.worker;
        let fresh = || worker.fresh_key();
        worker
            .introduced
            .of_client((endpoint, traffic), self.remote, called, fresh)
    }

    /// Metric series of a request to a service; `to` is the endpoint that took it, if any.
    pub(in crate::worker) fn series(
        &self,
        service: &ServiceLabels,
        to: Option<&Rc<Endpoint>>,
        protocol: &'static str,
    ) -> SeriesId {
        let worker = &*self.worker;
        let through = self.edge.as_ref().and_then(|edge| edge.through.as_ref());
        match (through, to) {
            (Some(through), to) => through.series(worker, service, to, protocol),
            (None, Some(to)) => to.http_series(worker, service, protocol),
            (None, None) => {
                let labels = outbound_labels(worker, service, None, protocol);
                worker.shard.borrow_mut().series(&labels)
            }
        }
    }

    /// Facts about a request from outside. The gateway has refused ambiguous paths before.
    fn at_edge<'t>(&self, head: &HttpHead<'_>, claims: Option<&'t Claims>) -> Option<AtEdge<'t>> {
        let edge = self.edge.as_deref()?.edge;
        Some(AtEdge {
            path: edge.path(head).ok().flatten(),
            scheme: edge.scheme,
            claims,
        })
    }

    /// Slot of the service that the request names, on an address without a service. A name's meaning is never guessed.
    fn meant(&self, head: &HttpHead<'_>) -> Result<Option<Rc<OutboundSlot>>, Overload> {
        let Some(names) = &self.names else {
            return Ok(None);
        };
        let Some(authority) = head.authority() else {
            return Ok(None);
        };
        let meanings = names.meanings.borrow();
        let known = meanings.iter().find(|(name, _)| **name == *authority);
        // Unknown after all: so many other names were asked for meanwhile that it is forgotten again.
        known.map_or(Err(Overload::Waiting), |(_, slot)| slot.clone())
    }
}

/// A lone service takes everything; several share a listener by authority.
pub(in crate::worker) fn choose<'a>(
    table: &'a Table,
    head: &HttpHead<'_>,
) -> Option<&'a Rc<ServiceState>> {
    if let Some(only) = table.lone() {
        return Some(only);
    }
    let named = head.authority().and_then(|authority| {
        let index = table.by_authority.get(authority.as_bytes())?;
        table.services.get(*index)
    });
    named.or_else(|| table.otherwise())
}

impl OutboundRole {
    /// Consistent-hash key of a request, and the amendment of its answer that sets the client's cookie for it.
    fn key(
        &self,
        traffic: &TrafficPlan,
        head: &HttpHead<'_>,
    ) -> (Option<u64>, Option<PlanChanges>) {
        let Some(source) = &traffic.key else {
            return (None, None);
        };
        match source.key(
            &RequestAttributes::new(head, None),
            self.remote.ip(),
            || self.worker.random(),
        ) {
            RequestKey::None => (None, None),
            RequestKey::Of(key) => (Some(key), None),
            RequestKey::New(key, line) => {
                let mut changes = PlanChanges::default();
                changes.amend(HeadAmendment {
                    name: "set-cookie".into(),
                    value: line.into_bytes().into(),
                    manner: http::FieldPlacement::Append,
                });
                (Some(key), Some(changes))
            }
        }
    }

    /// Reports the end of a request at an endpoint. `heard` tells if an answer came before.
    fn ended(&self, service: &ServiceState, to: &InFlight, outcome: UpstreamOutcome, heard: bool) {
        if !heard && upstream_outcome::is_shy(outcome) {
            to.fails();
        }
        service.report(&self.worker, to, outcome);
    }

    fn over_budget<T>(&self) -> Option<T> {
        count(&self.worker.counters.retries_over_budget);
        None
    }

    /// Routes a request by the service's routes and returns their terms; without routes, to the service itself.
    fn lead(
        &self,
        service: &Rc<ServiceState>,
        head: &HttpHead<'_>,
        edge: Option<&AtEdge<'_>>,
    ) -> Result<(Rc<ServiceState>, Terms), Astray> {
        let Some(routes) = &service.routes else {
            return Ok((Rc::clone(service), Terms::default()));
        };
        match routes.choose(&self.worker, head, edge) {
            ChosenRoute::To(service, terms) => Ok((service, terms)),
            ChosenRoute::Here(terms) => Ok((Rc::clone(service), terms)),
            ChosenRoute::Straight => Ok((Rc::clone(service), Terms::default())),
            ChosenRoute::Nowhere => Err((404, ResponseFlag::NoRoute, UNROUTED.into())),
            ChosenRoute::Missing(what, status) => {
                let reason = format!("the destination of the route does not exist: {what}");
                Err((status, ResponseFlag::NoCluster, reason.into()))
            }
        }
    }
}

/// A request that is made to wait, whichever way it goes then.
fn delayed(wait: Duration, mut way: RoutedCluster) -> RoleRefusal<OutboundRole> {
    way.delayed = true;
    let ticket = OutboundTicket {
        delayed: true,
        ..OutboundTicket::new(Some(Rc::clone(&way.service)), way.notes.clone())
    };
    let mut refusal = RoleRefusal::new(503, ResponseFlag::DelayInjected, "fault_delay");
    refusal.ticket = Some(ticket);
    refusal.pending = Some(Box::new(Pending {
        question: DelayedRequest { wait, way },
        body: None,
    }));
    refusal
}

impl OutboundRole {
    /// Does what the route says besides, and picks who takes the request.
    fn proceed(
        &self,
        head: &HttpHead<'_>,
        way: RoutedCluster,
    ) -> Result<RequestRoute<Self>, Box<RoleRefusal<Self>>> {
        let effects = match &way.terms.acts {
            None => None,
            Some(acts) => match self.act(acts, head, &way) {
                Ok(effects) => Some(effects),
                Err(answered) => {
                    let mut refusal = refused(*answered);
                    refusal.ticket = Some(way.ticket());
                    return Err(Box::new(refusal));
                }
            },
        };
        let admitted = match self.worker.admit(Some(&way.service.account)) {
            Ok(admitted) => admitted,
            Err(mut refusal) => {
                refusal.ticket = Some(way.ticket());
                return Err(Box::new(refusal));
            }
        };
        let under_way = match &way.service.plan.traffic.breaker {
            None => None,
            Some(SharedPart(gate)) => match gate.take(Resource::Requests) {
                None => return Err(Box::new(overflow(way))),
                held => held,
            },
        };
        let (key, cookie) = self.key(&way.service.plan.traffic, head);
        let named = match way.service.is_on_demand() {
            true => head.authority().and_then(host_of),
            false => None,
        };
        let wish = EndpointPreference {
            key,
            host: named.as_deref(),
            ..EndpointPreference::default()
        };
        let Some(endpoint) = way.service.choose(&self.worker, wish) else {
            let mut refusal =
                RoleRefusal::new(503, ResponseFlag::NoHealthyUpstream, "no healthy upstream");
            refusal.ticket = Some(way.ticket());
            return Err(Box::new(refusal));
        };
        let mut route = self.to(head, way, endpoint, admitted);
        if key.is_some() || under_way.is_some() {
            route.ticket.kept = Some(Box::new(RetryState {
                key,
                _request: under_way,
                ..RetryState::default()
            }));
        }
        if let Some(effects) = effects {
            if effects.path.is_some() || effects.authority.is_some() {
                let besides = route.besides();
                (besides.path, besides.authority) = (effects.path, effects.authority);
            }
            route.observer = effects.observer.or(route.observer.take());
        }
        if let Some(cookie) = cookie {
            route.observer = cookie.before(route.observer.take());
        }
        Ok(route)
    }

    /// Routes a request with these claims of its token.
    #[expect(clippy::result_large_err, reason = "the trait answers so")]
    pub(in crate::worker) fn routed(
        &self,
        head: &HttpHead<'_>,
        claims: Option<&Claims>,
    ) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let notes = RequestNotes::begin(&self.worker, self.vantage(), head);
        let meant = match self.meant(head) {
            Ok(meant) => meant,
            Err(why) => {
                let mut refusal = RoleRefusal::new(503, why.flag(), why.reason());
                refusal.ticket = notes.map(|notes| OutboundTicket::new(None, Some(notes)));
                return Err(refusal);
            }
        };
        let table = meant.as_ref().unwrap_or(&self.slot).table.borrow();
        let Some(service) = choose(&table, head) else {
            let (status, reason) = match table.otherwise {
                PassthroughMode::BlackHole => (502, BLACK_HOLE),
                _ if self.edge.is_some() => (404, NOT_SERVED),
                PassthroughMode::NoRoute | PassthroughMode::Service(_) => (404, NO_ROUTE),
            };
            let mut refusal = RoleRefusal::new(status, ResponseFlag::NoRoute, reason);
            refusal.ticket = notes.map(|notes| OutboundTicket::new(None, Some(notes)));
            return Err(refusal);
        };
        let authority = (!head.has_authority()).then(|| Rc::clone(&service.authority));
        let called = service;
        let edge = self.at_edge(head, claims);
        let (service, terms) = match self.lead(called, head, edge.as_ref()) {
            Ok(led) => led,
            Err((status, flag, reason)) => {
                let mut refusal = RoleRefusal::new(status, flag, reason);
                refusal.ticket = Some(OutboundTicket::new(Some(Rc::clone(called)), notes));
                return Err(refusal);
            }
        };
        let way = RoutedCluster {
            service,
            authority,
            port: called.plan.port,
            terms,
            notes,
            delayed: false,
        };
        match &way.terms.acts {
            None => self.proceed(head, way).map_err(|refusal| *refusal),
            Some(acts) => match acts.actions.delay(|| self.worker.random()) {
                None => self.proceed(head, way).map_err(|refusal| *refusal),
                Some(wait) => Err(delayed(wait, way)),
            },
        }
    }

    fn act(
        &self,
        acts: &RouteActs,
        head: &HttpHead<'_>,
        way: &RoutedCluster,
    ) -> Result<RouteEffects, Box<LocalResponse>> {
        let mirrors = |to| Mirrors {
            worker: Rc::clone(&self.worker),
            engine: self.slot.http.engine(),
            to,
        };
        let edge = self.at_edge(head, None);
        let (edge, notes) = (edge.as_ref(), way.notes.as_ref());
        acts.on(&self.worker, head, edge, way.port, notes, mirrors)
    }

    /// The way to an endpoint.
    fn to(
        &self,
        head: &HttpHead<'_>,
        way: RoutedCluster,
        endpoint: InFlight,
        admitted: AdmittedRequest,
    ) -> RequestRoute<Self> {
        let RoutedCluster {
            service,
            authority,
            terms,
            notes,
            delayed,
            ..
        } = way;
        let protocol = service.plan.protocol;
        let key = self.pool_key(&endpoint.endpoint, &service.plan.traffic);
        let to_sidecar = endpoint.endpoint.plan.is_sidecar();
        let connect_timeout = ConnectionManner::of(&self.worker, &service.plan.traffic).timeout;
        let terms_of_pool = service.plan.traffic.upstream;
        let (upgrades, as_client) = (service.plan.http2_upgrade, service.plan.client_protocol);
        let observer = notes.clone().map(|notes| notes as Rc<dyn HeadObserver>);
        let retry = terms.retry.unwrap_or_else(|| Rc::clone(&service.retry));
        let ticket = OutboundTicket {
            endpoint: Some(endpoint),
            _admitted: Some(admitted),
            route_name: terms.name,
            delayed,
            ..OutboundTicket::new(Some(service), notes)
        };
        let mut route = RequestRoute::new(key, ticket);
        route.observer = observer;
        route.retry = Some(retry);
        if let Some(limit) = terms.timeout {
            route.besides().timeout = Some(head.allows(limit));
        }
        route.terms = terms_of_pool;
        route.connect_timeout = connect_timeout;
        route.upstream = match as_client {
            true => upstream(WireProtocol::Auto, head),
            false if self.edge.is_some() => behind_gateway(protocol, head),
            false => upstream(protocol, head),
        };
        // A request that upgrades to another protocol stays HTTP/1.1: not every server knows the HTTP/2 way.
        if upgrades && to_sidecar && !head.wants_upgrade() {
            route.upstream = UpstreamHttp::Http2;
        }
        route.default_authority = authority;
        route.to_sidecar = to_sidecar;
        route
    }
}

/// HTTP version of a gateway to a port. Clients chose their version for the gateway and do not know the server: a port without a
/// declaration of HTTP/2 gets HTTP/1.1, except for gRPC, which needs HTTP/2. Istio's gateways do the same, except for gRPC.
fn behind_gateway(declared: WireProtocol, head: &HttpHead<'_>) -> UpstreamHttp {
    match declared {
        WireProtocol::Http | WireProtocol::Http2 | WireProtocol::Grpc => upstream(declared, head),
        _ if head.is_grpc() => UpstreamHttp::Http2,
        _ => UpstreamHttp::Http1,
    }
}

impl OutboundRole {
    /// A connection to the endpoint that takes a request.
    pub(in crate::worker) async fn dial(
        &self,
        ticket: &OutboundTicket,
        upstream: UpstreamHttp,
    ) -> Result<UpstreamLine, ConnectFailure> {
        let Some(in_flight) = &ticket.endpoint else {
            return Err(ConnectFailure::new("no healthy upstream"));
        };
        let service = ticket.service.as_ref();
        let Some(traffic) = service.map(|service| &service.plan.traffic) else {
            return Err(ConnectFailure::new("no healthy upstream"));
        };
        let endpoint = &in_flight.endpoint;
        let seated = seat(traffic, endpoint, upstream).await?;
        let called = || self.slot.plan.borrow().bind;
        let manner = ConnectionManner::of(&self.worker, traffic).on_behalf(self.remote, called);
        let inside = upstream.into();
        let connecting = Box::pin(endpoint.connect(&self.worker, inside, manner));
        let connected = connecting.await;
        let line = connected.map(|stream| UpstreamLine::new(stream, seated, &endpoint.lines));
        line.map_err(|unreachable| {
            let service = service.map(|service| service.cluster.as_str());
            let error = unreachable.detail;
            tracing::debug!(service, error, "cannot connect to the upstream");
            let failure = match unreachable.nobody {
                true => ConnectFailure::nobody(unreachable.public),
                false => ConnectFailure::new(unreachable.public),
            };
            ConnectFailure {
                details: unreachable.details,
                ..failure
            }
        })
    }
}

/// Refuses a request for which there is no room.
fn overflow(way: RoutedCluster) -> RoleRefusal<OutboundRole> {
    let reason = "upstream overflow: the request limit of this destination is reached";
    let mut refusal = RoleRefusal::new(503, ResponseFlag::UpstreamOverflow, reason);
    refusal.ticket = Some(way.ticket());
    refusal
}

/// The status, flag and reason of a request that no route takes, or one that leads nowhere.
type Astray = (u16, ResponseFlag, Cow<'static, str>);

const UNROUTED: &str = "no route of this host's VirtualService matches the request";

const NO_ROUTE: &str = "no service of this listener has this authority (an explicit listener has no original destination to fall back to)";

const NOT_SERVED: &str = "no Gateway with routes serves this host";

const BLACK_HOLE: &str =
    "the destination is not in the mesh, and outboundTrafficPolicy is REGISTRY_ONLY";

impl HttpRole for OutboundRole {
    type Upstream = UpstreamLine;
    type Key = u32;
    type Ticket = OutboundTicket;
    type Question = DelayedRequest;

    fn unknown(&self, head: &HttpHead<'_>) -> Option<Rc<str>> {
        let meanings = self.names.as_ref()?.meanings.borrow();
        let authority = head.authority()?;
        let known = meanings
            .iter()
            .any(|(name, meant)| **name == *authority && meant.is_ok());
        (!known).then(|| authority.into())
    }

    async fn learn(&self, name: Rc<str>) {
        let Some(names) = &self.names else {
            return;
        };
        let meant = match host_of(&name) {
            None => Ok(None),
            Some(host) => {
                let target = CapturedDestination {
                    to: self.slot.plan.borrow().bind,
                    host: Some(host.into()),
                };
                let slot = names.captured.destination(&self.worker, target).await;
                slot.map(Some)
            }
        };
        let mut meanings = names.meanings.borrow_mut();
        meanings.retain(|(known, _)| *known != name);
        if meanings.len() >= MAX_MEANINGS {
            meanings.pop_front();
        }
        meanings.push_back((name, meant));
    }

    fn route(&self, head: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        self.routed(head, None)
    }

    async fn ask(&self, question: &mut DelayedRequest, _: Option<BodyPrefix>) {
        tokio::time::sleep(question.wait).await;
    }

    fn answered(
        &self,
        head: &HttpHead<'_>,
        question: DelayedRequest,
    ) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        self.proceed(head, question.way).map_err(|refusal| *refusal)
    }

    /// Elsewhere if the policy wishes it and the destination's budget allows it; the endpoint that failed comes last.
    fn again(&self, route: &mut RequestRoute<Self>, last: Attempt, made: u32) -> Option<Duration> {
        let retry = Rc::clone(route.retry.as_ref()?);
        let turn = self.turn(&mut route.ticket, &retry, (last, made))?;
        (route.key, route.to_sidecar) = (turn.key, turn.to_sidecar);
        Some(turn.wait)
    }

    async fn connect(&self, route: &RequestRoute<Self>) -> Result<UpstreamLine, ConnectFailure> {
        self.dial(&route.ticket, route.upstream).await
    }

    fn answers(&self, ticket: &OutboundTicket, answer: UpstreamResponse) {
        if let Some(to) = &ticket.endpoint {
            to.answers(answer);
        }
    }

    const REVOCATION: Revocation = Revocation::SERVER;

    /// Returns true if the workload's certificate was revoked.
    fn is_revoked<'h>(&self, ticket: &OutboundTicket, _: impl FnOnce() -> HttpHead<'h>) -> bool {
        let revoked = ticket.is_cut();
        if revoked {
            count_revoked(&self.worker);
        }
        revoked
    }

    fn source(&self) -> u64 {
        source_number(self.remote.ip(), "")
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let worker = &*self.worker;
        let protocol = request_series::protocol(exchange.record);
        let ticket = exchange.ticket;
        let delayed = ticket.is_some_and(|ticket| ticket.delayed);
        let on_purpose = ExchangeRecord {
            flag: ResponseFlag::DelayInjected,
            ..*exchange.record
        };
        let record = match exchange.record.flag {
            // The only fault is the injected delay.
            ResponseFlag::None if delayed => &on_purpose,
            _ => exchange.record,
        };
        let service = ticket.and_then(|ticket| ticket.service.as_ref());
        let endpoint = ticket.and_then(|ticket| ticket.endpoint.as_ref());
        let series = match service {
            Some(service) => {
                let to = endpoint.map(|to| &to.endpoint);
                self.series(&service.plan.service, to, protocol)
            }
            None => self.series(&black_hole(), None, protocol),
        };
        let from = self.vantage();
        request_series::count(worker, from, series, (exchange.head.as_ref(), record));
        if let (Some(service), Some(to)) = (service, endpoint) {
            // A retry that was planned and never made reports nothing.
            let kept = ticket.and_then(|ticket| ticket.kept.as_deref());
            let reported = kept.map_or(0, |kept| kept.reported);
            let outcome = upstream_outcome::of_exchange(record);
            if let Some(outcome) = outcome.filter(|_| record.attempts > reported) {
                let heard = outcome == UpstreamOutcome::Answered(record.status);
                self.ended(service, to, outcome, heard);
            }
            if let Some(SharedPart(gate)) = &service.plan.traffic.breaker {
                gate.freed();
            }
        }
        let notes = ticket.and_then(|ticket| ticket.notes.as_deref());
        if access_logs::wants(worker, from, notes) {
            let (host, port) = service.map_or(("unknown", 0), |service| {
                (service.plan.service.host.as_str(), service.plan.port)
            });
            let context = HttpContext {
                route: ticket.and_then(|ticket| ticket.route_name.as_deref()),
                details: None,
                marks: PolicyMarks::default(),
                upstream: endpoint.map(|to| to.endpoint.plan.address),
                cluster: service.map_or("", |service| service.cluster.as_str()),
                operation: &format_args!("{host}:{port}"),
                peer: endpoint.map(|to| &to.endpoint.plan.peer),
                downstream: self.downstream(),
            };
            let exchange = Exchange { record, ..exchange };
            access_logs::http(worker, from, &exchange, notes, &context);
        }
    }
}

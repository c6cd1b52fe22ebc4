//! The requests of a gateway's connection: policies, token, rate limits, and the route.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use voile_policy::tokens::Verified;
use voile_traffic::Attempt;
use voile_xds::wire::MutualTls;

use super::GatewayRole;
use crate::http::{
    BodyPrefix, BodyWanted, ConnectFailure, DENIED, Exchange, ExternalReply, HeadAmendment,
    HttpHead, HttpRole, Pending, RequestRoute, ResponseFlag, RoleRefusal, UpstreamResponse,
};
use crate::worker::handlers::forwarded_client_cert;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::handlers::outbound::black_hole;
use crate::worker::handlers::outbound_http::{
    DelayedRequest, OutboundRole, OutboundTicket, choose,
};
use crate::worker::handlers::untrusted_headers::{self, ArrivalPath};
use crate::worker::listeners::gateway_slot::{
    AtGateway, Edge, GatewaySlot, MatchedServer, TunnelCalls,
};
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::policy::admission::Admission;
use crate::worker::policy::authorization::{
    self, ForwardPermit, GrantedRequest, JudgedRequest, PendingCheck, count_revoked,
};
use crate::worker::policy::denial::Denied;
use crate::worker::policy::rate_limits::{self, GlobalLimitCheck, LimitOutcome, TooMany};
use crate::worker::policy::request_changes::PlanChanges;
use crate::worker::records::access_logs::{self, HttpContext};
use crate::worker::records::reporter::ReporterLabels;
use crate::worker::records::request_notes::RequestNotes;
use crate::worker::records::request_series;
use crate::worker::upstream::upstream_connection::UpstreamLine;
use crate::worker::{AdmittedRequest, Worker};

/// Decision on a request, with its leave.
pub(crate) enum GatewayTicket {
    /// It goes on, by this leave.
    Sent(OutboundTicket, ForwardPermit),
    /// It may, and there is nowhere to go.
    Astray(Option<Box<OutboundTicket>>),
    /// It may not.
    Denied(Box<Denied>, Option<Rc<RequestNotes>>),
}

/// A request that waits.
pub(crate) enum WaitingRequest {
    /// For an external service's word: it counts as admitted already.
    Leave(Box<PendingCheck>, AdmittedRequest),
    /// For the rate limit service; the request has leave.
    Count(Box<GlobalLimitCheck>, GrantedRequest, AdmittedRequest),
    /// As its route says; it has leave.
    Delayed(DelayedRequest, GrantedRequest),
}

/// Scheme of plaintext requests.
const PLAIN: &str = "http";
/// The same in TLS.
const ENCRYPTED: &str = "https";

/// Status for a client that connected by another name than the host it asks for (RFC 9110, 15.5.20).
const MISDIRECTED: u16 = 421;

/// Log detail of a request whose client did not wait for the external service.
const UNDECIDED: &str = "ext_authz_undecided";
/// Why a request is refused that names no host.
const NO_HOST: &str = "the request has no host";
/// The same for an ambiguous path, which a later reader may understand differently.
const UNREADABLE_PATH: &str = "path_normalization_failed";

impl GatewayRole {
    pub(crate) fn new(
        worker: Rc<Worker>,
        slot: Rc<GatewaySlot>,
        server: MatchedServer,
        caller: InboundCaller,
    ) -> Self {
        let MatchedServer { way, door, .. } = server;
        let server = way;
        let client: SocketAddr = caller.client();
        let out = OutboundRole::new(Rc::clone(&worker), Rc::clone(&server), None, client);
        let edge = Edge {
            normalization: slot.plan.borrow().normalization.into(),
            scheme: match caller.suite {
                None => PLAIN,
                Some(_) => ENCRYPTED,
            },
            suite: caller.suite,
        };
        let through = door.as_ref().map(|door| {
            let caller = caller.clone();
            TunnelCalls::new(caller, Rc::clone(door))
        });
        Self {
            out: out.of_gateway(AtGateway {
                edge,
                slot: Rc::clone(&slot),
                through,
            }),
            admission: Admission::new(caller.arrival.clone()),
            worker,
            slot,
            server,
            door,
            caller,
            edge,
            over_udp: false,
        }
    }

    /// The same for an HTTP/3 connection.
    pub(in crate::worker) fn over_udp(self) -> Self {
        Self {
            over_udp: true,
            ..self
        }
    }

    /// Listener state by which policies are evaluated.
    fn inbound(&self) -> &InboundSlot {
        let own = self.door.as_ref().map(|door| &door.place);
        own.unwrap_or(&self.slot.inbound)
    }

    /// Vantage of its requests in telemetry.
    fn vantage(&self) -> ReporterLabels<'_> {
        ReporterLabels::at(self.inbound())
    }

    /// Judges the request by the policies and its token.
    fn judged(&self, head: &HttpHead<'_>) -> Result<JudgedRequest, Denied> {
        let belief = self.worker.belief.borrow().clone();
        let refused = |why: String| Denied::new(403, "refused_by_policy", why);
        let belief =
            belief.ok_or_else(|| refused("the trust domain is not known yet".to_owned()))?;
        let permit = self.admission.permit(MutualTls::Permissive, &belief);
        let permit = permit.map_err(|denial| refused(denial.to_string()))?;
        if self.edge.path(head).is_err() {
            return Err(Denied::new(400, UNREADABLE_PATH, UNREADABLE_PATH));
        }
        let inbound = self.inbound();
        authorization::request(&self.worker, inbound, &self.caller, head, permit)
    }

    /// To the endpoint of its route, with leave.
    fn way(
        &self,
        head: &HttpHead<'_>,
        mut granted: GrantedRequest,
    ) -> Result<RequestRoute<Self>, Box<RoleRefusal<Self>>> {
        let host = self.door.as_ref().and_then(|door| door.host.as_deref());
        match rate_limits::limited(&self.worker, head, &mut granted, (&self.caller, host)) {
            LimitOutcome::Free => self.onward(head, granted),
            LimitOutcome::Refused(why) => Err(Box::new(self.too_many(head, *why))),
            LimitOutcome::Ask(counting) => {
                let admitted = self.worker.admit(None)?;
                let question = WaitingRequest::Count(counting, granted, admitted);
                Err(Box::new(self.undecided(head, question, None)))
            }
        }
    }

    /// A request that comes too often.
    fn too_many(&self, head: &HttpHead<'_>, TooMany(why): TooMany) -> RoleRefusal<Self> {
        let flag = rate_limits::flag(&why);
        let notes = RequestNotes::begin(&self.worker, self.vantage(), head);
        RoleRefusal {
            flag,
            ..denied(why, notes)
        }
    }

    /// A request that waits for an external service.
    fn undecided(
        &self,
        head: &HttpHead<'_>,
        question: WaitingRequest,
        body: Option<BodyWanted>,
    ) -> RoleRefusal<Self> {
        let notes = RequestNotes::begin(&self.worker, self.vantage(), head);
        let mut refusal = denied(Denied::new(403, UNDECIDED, DENIED), notes);
        refusal.pending = Some(Box::new(Pending { body, question }));
        refusal
    }

    /// The same once it does not come too often.
    fn onward(
        &self,
        head: &HttpHead<'_>,
        granted: GrantedRequest,
    ) -> Result<RequestRoute<Self>, Box<RoleRefusal<Self>>> {
        // A client that called the service's address needs no authority.
        if !head.has_authority() && self.door.is_none() {
            let refusal = RoleRefusal::new(400, ResponseFlag::NoRoute, NO_HOST);
            return Err(Box::new(astray(refusal)));
        }
        if let Some(told) = self.to_https(head) {
            let mut refusal = RoleRefusal::new(301, ResponseFlag::None, "https");
            refusal.told = Some(Box::new(told));
            return Err(Box::new(refusal));
        }
        let claims = granted.token.as_ref().map(Verified::claims);
        match self.out.routed(head, claims) {
            Ok(route) => Ok(self.sent(head, route, granted)),
            Err(mut refusal) => Err(Box::new(match refusal.pending.take() {
                None if self.is_misdirected(head, &refusal) => {
                    let status = MISDIRECTED;
                    astray(RoleRefusal { status, ..refusal })
                }
                None => astray(refusal),
                // It is made to wait on purpose, by its route.
                Some(delay) => RoleRefusal {
                    pending: Some(Box::new(Pending {
                        question: WaitingRequest::Delayed(delay.question, granted),
                        body: None,
                    })),
                    ..astray(refusal)
                },
            })),
        }
    }

    /// Returns true if no route takes the request and its host belongs to another server, which TLS clients reach by that host's
    /// name. Clients send it on a connection that they opened for other hosts of the same certificate.
    fn is_misdirected(&self, head: &HttpHead<'_>, refusal: &RoleRefusal<OutboundRole>) -> bool {
        matches!(refusal.flag, ResponseFlag::NoRoute)
            && self.edge.scheme == ENCRYPTED
            && self.door.is_none()
            && head
                .authority()
                .is_some_and(|host| self.slot.is_of_another(host, &self.server))
    }

    /// Sends the request to the endpoint of its route.
    fn sent(
        &self,
        head: &HttpHead<'_>,
        route: RequestRoute<OutboundRole>,
        granted: GrantedRequest,
    ) -> RequestRoute<Self> {
        let GrantedRequest {
            leave,
            path,
            changes,
            token: _,
        } = granted;
        let path = path.or_else(|| self.edge.path(head).ok().flatten());
        let mut besides = route.besides;
        if path.is_some() {
            let besides = besides.get_or_insert_default();
            besides.path = besides.path.take().or(path);
        }
        RequestRoute {
            key: route.key,
            connect_timeout: route.connect_timeout,
            upstream: route.upstream,
            default_authority: route.default_authority,
            besides,
            observer: self.told(head).then(changes).before(route.observer),
            to_sidecar: route.to_sidecar,
            retry: route.retry,
            terms: route.terms,
            ticket: GatewayTicket::Sent(route.ticket, leave),
        }
    }

    /// Fields about the client that the mesh receives.
    fn told(&self, head: &HttpHead<'_>) -> PlanChanges {
        if self.door.is_some() {
            // Inside the mesh, proxies wrote the received fields; the engine removes the identity fields.
            return PlanChanges::default();
        }
        let arrived = ArrivalPath {
            peer: self.caller.client().ip(),
            trusted: self.slot.plan.borrow().trusted_proxies,
            scheme: self.edge.scheme,
        };
        let mut changes = untrusted_headers::changes(head, arrived);
        if let Some(forwarded) = self.caller.forwarded() {
            forwarded.write(&self.worker, head, &mut changes);
        }
        if let Some(offered) = self.offers_http3() {
            changes.amend((*offered).clone());
        }
        changes
    }

    /// Amendment that announces HTTP/3 to a client over TCP.
    fn offers_http3(&self) -> Option<Arc<HeadAmendment>> {
        let plan = self.slot.plan.borrow();
        let http3 = plan.http3.as_ref().filter(|_| !self.over_udp)?;
        Some(Arc::clone(&http3.offered))
    }

    /// Redirect to HTTPS, if the host is served over TLS only.
    fn to_https(&self, head: &HttpHead<'_>) -> Option<ExternalReply> {
        let plan = self.slot.plan.borrow();
        let redirects = &plan.servers.first()?.redirects;
        if redirects.is_empty() || self.edge.scheme != PLAIN {
            return None;
        }
        let table = self.server.table.borrow();
        let host = choose(&table, head)?;
        redirects.get(host.plan.service.host.as_str())?;
        // Not to the plaintext port, which does not speak TLS.
        let authority = head.authority()?;
        let end = authority.rfind(':').filter(|colon| {
            let port = &authority[colon + 1..];
            port.bytes().all(|byte| byte.is_ascii_digit())
        });
        let name = end.map_or(authority, |end| &authority[..end]);
        let path = head.path_and_query();
        Some(ExternalReply {
            lines: format!("location: https://{name}{path}\r\n").into_bytes(),
            ..ExternalReply::without_body()
        })
    }
}

/// A refusal of the way out as ours.
fn astray(refusal: RoleRefusal<OutboundRole>) -> RoleRefusal<GatewayRole> {
    RoleRefusal {
        status: refusal.status,
        reason: refusal.reason,
        flag: refusal.flag,
        ticket: Some(GatewayTicket::Astray(refusal.ticket.map(Box::new))),
        pending: None,
        told: refusal.told,
        details: refusal.details,
    }
}

fn denied(mut denied: Denied, notes: Option<Rc<RequestNotes>>) -> RoleRefusal<GatewayRole> {
    let flag = match denied.status {
        400 => ResponseFlag::DownstreamProtocolError,
        _ => ResponseFlag::Unauthorized,
    };
    let mut refusal = RoleRefusal::new(denied.status, flag, denied.reason.clone());
    refusal.told = denied.take_told();
    refusal.ticket = Some(GatewayTicket::Denied(denied.into(), notes));
    refusal
}

impl HttpRole for GatewayRole {
    type Upstream = UpstreamLine;
    type Key = u32;
    type Ticket = GatewayTicket;
    type Question = WaitingRequest;

    fn route(&self, head: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let notes = || RequestNotes::begin(&self.worker, self.vantage(), head);
        match self.judged(head).map_err(|why| denied(why, notes()))? {
            JudgedRequest::Let(granted) => self.way(head, granted).map_err(|refusal| *refusal),
            JudgedRequest::Ask(asking) => {
                let admitted = self.worker.admit(None)?;
                let body = asking.body();
                Err(self.undecided(head, WaitingRequest::Leave(asking, admitted), body))
            }
        }
    }

    async fn ask(&self, question: &mut WaitingRequest, body: Option<BodyPrefix>) {
        match question {
            WaitingRequest::Leave(asking, _) => asking.ask(&self.worker, body).await,
            WaitingRequest::Count(counting, ..) => counting.ask(&self.worker).await,
            WaitingRequest::Delayed(delayed, _) => self.out.ask(delayed, body).await,
        }
    }

    fn answered(
        &self,
        head: &HttpHead<'_>,
        question: WaitingRequest,
    ) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let (asking, admitted) = match question {
            WaitingRequest::Leave(asking, admitted) => (asking, admitted),
            WaitingRequest::Count(counting, mut granted, admitted) => {
                // Its way out counts it from here on.
                drop(admitted);
                return match counting.settled(&mut granted) {
                    Ok(()) => self.onward(head, granted).map_err(|refusal| *refusal),
                    Err(why) => Err(self.too_many(head, *why)),
                };
            }
            WaitingRequest::Delayed(delayed, granted) => {
                let route = self.out.answered(head, delayed).map_err(astray)?;
                return Ok(self.sent(head, route, granted));
            }
        };
        let inbound = self.inbound();
        let granted = asking.granted(&self.worker, inbound, &self.caller, head);
        // Its way out counts it from here on.
        drop(admitted);
        match granted {
            Ok(granted) => self.way(head, granted).map_err(|refusal| *refusal),
            Err(why) => Err(denied(
                why,
                RequestNotes::begin(&self.worker, self.vantage(), head),
            )),
        }
    }

    async fn connect(&self, route: &RequestRoute<Self>) -> Result<UpstreamLine, ConnectFailure> {
        match &route.ticket {
            GatewayTicket::Sent(ticket, _) => self.out.dial(ticket, route.upstream).await,
            GatewayTicket::Astray(_) | GatewayTicket::Denied(..) => {
                Err(ConnectFailure::nobody("no route"))
            }
        }
    }

    fn answers(&self, ticket: &GatewayTicket, answer: UpstreamResponse) {
        if let GatewayTicket::Sent(ticket, _) = ticket {
            self.out.answers(ticket, answer);
        }
    }

    fn again(&self, route: &mut RequestRoute<Self>, last: Attempt, made: u32) -> Option<Duration> {
        let GatewayTicket::Sent(ticket, _) = &mut route.ticket else {
            return None;
        };
        let retry = route.retry.as_deref()?;
        let turn = self.out.turn(ticket, retry, (last, made))?;
        (route.key, route.to_sidecar) = (turn.key, turn.to_sidecar);
        Some(turn.wait)
    }

    fn is_revoked<'h>(&self, ticket: &GatewayTicket, head: impl FnOnce() -> HttpHead<'h>) -> bool {
        let GatewayTicket::Sent(ticket, leave) = ticket else {
            return false;
        };
        let inbound = self.inbound();
        let holds = !ticket.is_cut()
            && (leave.stands(&self.worker)
                || leave.holds(&self.worker, inbound, &self.caller, &head()));
        if !holds {
            count_revoked(&self.worker);
        }
        !holds
    }

    fn is_unwelcome(&self) -> bool {
        self.door.is_none() && forwarded_client_cert::is_stale(&self.worker, &self.caller)
    }

    /// A client with a certificate of the mesh is a proxy: a waypoint's caller, or a proxy from another
    /// network.
    fn serves_proxy(&self) -> bool {
        self.door.is_some()
    }

    fn source(&self) -> u64 {
        self.caller.source()
    }

    fn adds_to_own(&self) -> Option<Arc<HeadAmendment>> {
        self.offers_http3()
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let ticket = match exchange.ticket {
            Some(GatewayTicket::Denied(denied, notes)) => {
                return self.record_denied(denied, notes.as_deref(), &exchange);
            }
            Some(GatewayTicket::Sent(ticket, _)) => Some(ticket),
            Some(GatewayTicket::Astray(ticket)) => ticket.as_deref(),
            None => None,
        };
        self.out.record(Exchange {
            ticket,
            head: exchange.head,
            record: exchange.record,
        });
    }
}

impl GatewayRole {
    fn record_denied(
        &self,
        denied: &Denied,
        notes: Option<&RequestNotes>,
        exchange: &Exchange<'_, Self>,
    ) {
        let worker = &*self.worker;
        let protocol = request_series::protocol(exchange.record);
        // A waypoint's destination is known before anything is judged.
        let table = self.server.table.borrow();
        let called = table.lone().filter(|_| self.door.is_some());
        let series = match called {
            Some(called) => self.out.series(&called.plan.service, None, protocol),
            None => self.out.series(&black_hole(), None, protocol),
        };
        let from = self.vantage();
        let counted = (exchange.head.as_ref(), exchange.record);
        request_series::count(worker, from, series, counted);
        if access_logs::wants(worker, from, notes) {
            let bind = self.inbound().plan.borrow().bind;
            let meant = called.map(|called| (called.plan.service.host.as_str(), called.plan.port));
            let meant = meant.filter(|(host, _)| !host.is_empty());
            let (host, port) = meant.unwrap_or(("unknown", bind.port()));
            let context = HttpContext {
                route: None,
                upstream: None,
                cluster: "",
                operation: &format_args!("{host}:{port}"),
                peer: None,
                downstream: self.caller.downstream(bind),
                details: Some(&denied.details),
                marks: denied.marks(),
            };
            access_logs::http(worker, from, exchange, notes, &context);
        }
    }
}

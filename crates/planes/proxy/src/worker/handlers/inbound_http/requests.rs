//! The requests of an inbound connection: policy, rate limits, and the way to the application.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use voile_model::mesh::telemetry::TelemetrySide;
use voile_policy::{DenialReason, Permit};
use voile_telemetry::access_log::PolicyMarks;
use voile_telemetry::{GRPC, HTTP, SeriesId};
use voile_traffic::Attempt;
use voile_transport::{self as transport, TransportStream};
use voile_xds::wire::{MutualTls, WireProtocol};

use super::{ApplicationKey, InboundRole};
use crate::http::{
    BodyPrefix, BodyWanted, ConnectFailure, DENIED, Exchange, HttpHead, HttpRole, HttpVersion,
    Pending, RequestRoute, ResponseFlag, RoleRefusal, UpstreamHttp,
};
use crate::worker::handlers::forwarded_client_cert;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::peers::PeerEntry;
use crate::worker::policy::admission::{Admission, ConnectionArrival};
use crate::worker::policy::authorization::{
    self, ForwardPermit, GrantedRequest, JudgedRequest, PendingCheck,
};
use crate::worker::policy::denial::Denied;
use crate::worker::policy::rate_limits::{self, GlobalLimitCheck, LimitOutcome, TooMany};
use crate::worker::records::access_logs::{self, HttpContext};
use crate::worker::records::inbound_series::inbound_series;
use crate::worker::records::request_notes::RequestNotes;
use crate::worker::records::request_series;
use crate::worker::{AdmittedRequest, Worker};

/// State of a request that goes on, and its notes.
pub(crate) struct InboundTicket {
    _admitted: Option<AdmittedRequest>,
    word: RequestDecision,
    notes: Option<Rc<RequestNotes>>,
}

/// Decision on a request. An enum, since each connection keeps room for it.
enum RequestDecision {
    Leave(ForwardPermit),
    /// Why it was refused, where the engine has no word for it.
    Denied(Box<Denied>),
    /// There was no room for it.
    Crowded,
}

impl InboundTicket {
    /// Ticket of a request that is refused.
    fn unadmitted(notes: Option<Rc<RequestNotes>>) -> Self {
        Self {
            word: RequestDecision::Crowded,
            _admitted: None,
            notes,
        }
    }
}

/// A request that waits for an external service: it counts as admitted already.
pub(crate) struct PendingRequest {
    about: PendingWork,
    admitted: AdmittedRequest,
    notes: Option<Rc<RequestNotes>>,
}

/// Answers for which the request waits.
enum PendingWork {
    /// An external service's word.
    Leave(Box<PendingCheck>),
    /// It has leave; the rate limit service must be asked.
    Count(Box<GlobalLimitCheck>, GrantedRequest),
}

/// Most attempts to hand a request to an application that closes connections before it takes anything: Istio's for inbound.
const MAX_INBOUND_ATTEMPTS: u32 = 3;

/// Log detail of a request whose client did not wait for the external service.
const UNDECIDED: &str = "ext_authz_undecided";

impl InboundRole {
    pub(crate) fn new(worker: Rc<Worker>, slot: Rc<InboundSlot>, caller: InboundCaller) -> Self {
        let series = inbound_series(&worker, &slot, &caller, HTTP);
        let authority = slot.plan.borrow().service.host.as_str().into();
        Self {
            worker,
            slot,
            admission: Admission::new(caller.arrival.clone()),
            caller,
            series: Cell::new(series),
            grpc: Cell::new(None),
            authority,
        }
    }

    /// Judges the request by peer authentication and then by the policies.
    fn judged(&self, mode: MutualTls, head: &HttpHead<'_>) -> Result<JudgedRequest, Denied> {
        let permit = self.admitted(mode)?;
        authorization::request(&self.worker, &self.slot, &self.caller, head, permit)
    }

    fn admitted(&self, mode: MutualTls) -> Result<Rc<Permit>, Denied> {
        let refused = |reason: String| Denied::new(403, "refused_by_policy", reason);
        let belief = self.worker.belief.borrow();
        let Some(belief) = belief.as_ref() else {
            return Err(refused("the trust domain is not known yet".to_owned()));
        };
        let permit = self.admission.permit(mode, belief);
        permit.map_err(|denial| refused(denial.to_string()))
    }

    /// Applies the rate limits to a request that has leave.
    fn counted(
        &self,
        head: &HttpHead<'_>,
        mut granted: GrantedRequest,
        (admitted, notes): (AdmittedRequest, Option<Rc<RequestNotes>>),
    ) -> Result<RequestRoute<Self>, Box<RoleRefusal<Self>>> {
        match rate_limits::limited(&self.worker, head, &mut granted, (&self.caller, None)) {
            LimitOutcome::Free => Ok(self.way(head, granted, (admitted, notes))),
            LimitOutcome::Refused(why) => Err(Box::new(too_many(*why, notes))),
            LimitOutcome::Ask(counting) => {
                let about = PendingWork::Count(counting, granted);
                Err(Box::new(undecided(about, None, (admitted, notes))))
            }
        }
    }

    /// To the one application, with leave.
    fn way(
        &self,
        head: &HttpHead<'_>,
        granted: GrantedRequest,
        (admitted, notes): (AdmittedRequest, Option<Rc<RequestNotes>>),
    ) -> RequestRoute<Self> {
        let GrantedRequest {
            leave,
            path,
            mut changes,
            token: _,
        } = granted;
        if let Some(forwarded) = self.caller.forwarded() {
            forwarded.write(&self.worker, head, &mut changes);
        }
        let observer = changes.observed(notes.clone());
        let protocol = self.slot.plan.borrow().protocol;
        let ticket = InboundTicket {
            word: RequestDecision::Leave(leave),
            _admitted: Some(admitted),
            notes,
        };
        let key = ApplicationKey {
            endpoint: self.slot.endpoint_key.get(),
            source: self.worker.kept_source(self.caller.remote),
        };
        let mut route = RequestRoute::new(key, ticket);
        route.observer = observer;
        if path.is_some() {
            route.besides().path = path;
        }
        route.connect_timeout = self.worker.settings.borrow().connect_timeout;
        route.upstream = upstream(protocol, head);
        if !head.has_authority() && !self.authority.is_empty() {
            route.default_authority = Some(Rc::clone(&self.authority));
        }
        route
    }

    /// Metric series of this caller's requests; looked up again if the series expired.
    fn series(&self, grpc: bool) -> SeriesId {
        let known = match grpc {
            true => self.grpc.get(),
            false => Some(self.series.get()),
        };
        if let Some(id) = known.filter(|id| self.worker.shard.borrow().is_current(*id)) {
            return id;
        }
        let protocol = if grpc { GRPC } else { HTTP };
        let id = inbound_series(&self.worker, &self.slot, &self.caller, protocol);
        match grpc {
            true => self.grpc.set(Some(id)),
            false => self.series.set(id),
        }
        id
    }
}

/// Selects the HTTP version for the server: the port's declared protocol, else the caller's version.
pub(crate) fn upstream(declared: WireProtocol, head: &HttpHead<'_>) -> UpstreamHttp {
    match (declared, head.version()) {
        (WireProtocol::Http, _) => UpstreamHttp::Http1,
        (WireProtocol::Http2 | WireProtocol::Grpc, _)
        | (_, HttpVersion::Http2 | HttpVersion::Http3) => UpstreamHttp::Http2,
        (_, HttpVersion::Http10 | HttpVersion::Http11) => UpstreamHttp::Http1,
    }
}

fn refusal(mut denied: Denied, notes: Option<Rc<RequestNotes>>) -> RoleRefusal<InboundRole> {
    let mut refusal = RoleRefusal::new(
        denied.status,
        match denied.status {
            400 => ResponseFlag::DownstreamProtocolError,
            _ => ResponseFlag::Unauthorized,
        },
        denied.reason.clone(),
    );
    refusal.told = denied.take_told();
    refusal.ticket = Some(InboundTicket {
        word: RequestDecision::Denied(denied.into()),
        _admitted: None,
        notes,
    });
    refusal
}

/// A request that waits.
fn undecided(
    about: PendingWork,
    body: Option<BodyWanted>,
    (admitted, notes): (AdmittedRequest, Option<Rc<RequestNotes>>),
) -> RoleRefusal<InboundRole> {
    let mut refusal = refusal(Denied::new(403, UNDECIDED, DENIED), notes.clone());
    let question = PendingRequest {
        about,
        admitted,
        notes,
    };
    refusal.pending = Some(Box::new(Pending { body, question }));
    refusal
}

/// A request that comes too often.
fn too_many(TooMany(denied): TooMany, notes: Option<Rc<RequestNotes>>) -> RoleRefusal<InboundRole> {
    let flag = rate_limits::flag(&denied);
    RoleRefusal {
        flag,
        ..refusal(denied, notes)
    }
}

impl HttpRole for InboundRole {
    type Upstream = TransportStream;
    type Key = ApplicationKey;
    type Ticket = InboundTicket;
    type Question = PendingRequest;

    fn route(&self, head: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let mode = self.slot.plan.borrow().mutual_tls;
        let notes = RequestNotes::begin(&self.worker, TelemetrySide::Server, head);
        let mut judged = match self.judged(mode, head) {
            Ok(judged) => judged,
            Err(denied) => return Err(refusal(denied, notes)),
        };
        let limited = match &mut judged {
            JudgedRequest::Let(granted) => {
                rate_limits::limited(&self.worker, head, granted, (&self.caller, None))
            }
            JudgedRequest::Ask(_) => LimitOutcome::Free,
        };
        if let LimitOutcome::Refused(why) = limited {
            return Err(too_many(*why, notes));
        }
        let admitted = self.worker.admit(None);
        let admitted = admitted.map_err(|mut refusal: RoleRefusal<Self>| {
            refusal.ticket = Some(InboundTicket::unadmitted(notes.clone()));
            refusal
        })?;
        let beside = (admitted, notes);
        match (judged, limited) {
            (JudgedRequest::Let(granted), LimitOutcome::Ask(counting)) => Err(undecided(
                PendingWork::Count(counting, granted),
                None,
                beside,
            )),
            (JudgedRequest::Let(granted), _) => Ok(self.way(head, granted, beside)),
            (JudgedRequest::Ask(asking), _) => {
                let body = asking.body();
                Err(undecided(PendingWork::Leave(asking), body, beside))
            }
        }
    }

    async fn ask(&self, question: &mut PendingRequest, body: Option<BodyPrefix>) {
        match &mut question.about {
            PendingWork::Leave(asking) => asking.ask(&self.worker, body).await,
            PendingWork::Count(counting, _) => counting.ask(&self.worker).await,
        }
    }

    fn answered(
        &self,
        head: &HttpHead<'_>,
        question: PendingRequest,
    ) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let PendingRequest {
            about,
            admitted,
            notes,
        } = question;
        match about {
            PendingWork::Leave(asking) => {
                let granted = asking.granted(&self.worker, &self.slot, &self.caller, head);
                let granted = granted.map_err(|denied| refusal(denied, notes.clone()))?;
                let counted = self.counted(head, granted, (admitted, notes));
                counted.map_err(|refusal| *refusal)
            }
            PendingWork::Count(counting, mut granted) => match counting.settled(&mut granted) {
                Ok(()) => Ok(self.way(head, granted, (admitted, notes))),
                Err(why) => Err(too_many(*why, notes)),
            },
        }
    }

    async fn connect(&self, route: &RequestRoute<Self>) -> Result<TransportStream, ConnectFailure> {
        let (endpoint, limit) = (self.slot.plan.borrow().endpoint, route.connect_timeout);
        let origin = self.worker.homeward(self.caller.remote, endpoint);
        match transport::connect(endpoint, origin, limit).await {
            Ok(tcp) => Ok(TransportStream::Tcp(tcp.into())),
            Err(error) => {
                tracing::debug!(%error, "cannot connect to the application");
                Err(ConnectFailure::new(
                    "the application does not accept connections",
                ))
            }
        }
    }

    /// The same application again, if it provably took nothing of the request.
    fn again(&self, _: &mut RequestRoute<Self>, last: Attempt, made: u32) -> Option<Duration> {
        let closed = matches!(last, Attempt::NotSent | Attempt::NotReceived);
        (closed && made < MAX_INBOUND_ATTEMPTS).then_some(Duration::ZERO)
    }

    fn is_revoked<'h>(&self, ticket: &InboundTicket, head: impl FnOnce() -> HttpHead<'h>) -> bool {
        let RequestDecision::Leave(leave) = &ticket.word else {
            return false;
        };
        if leave.stands(&self.worker) {
            return false;
        }
        let mode = self.slot.plan.borrow().mutual_tls;
        let holds = self.admitted(mode).is_ok()
            && leave.holds(&self.worker, &self.slot, &self.caller, &head());
        if !holds {
            authorization::count_revoked(&self.worker);
        }
        !holds
    }

    fn is_unwelcome(&self) -> bool {
        if forwarded_client_cert::is_stale(&self.worker, &self.caller) {
            return true;
        }
        let belief = self.worker.belief.borrow();
        let Some(belief) = belief.as_ref() else {
            return false;
        };
        let mode = self.slot.plan.borrow().mutual_tls;
        let permit = self.admission.permit(mode, belief);
        permit.is_err_and(|denial| denial.reason() == DenialReason::Revoked)
    }

    fn source(&self) -> u64 {
        self.caller.source()
    }

    fn serves_sidecar(&self) -> bool {
        self.caller.arrival.peer().is_some()
    }

    fn may_serve_application(&self) -> bool {
        matches!(self.caller.arrival, ConnectionArrival::Tunnel(_))
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let series = self.series(exchange.record.grpc.is_some());
        let counted = (exchange.head.as_ref(), exchange.record);
        request_series::count(&self.worker, TelemetrySide::Server, series, counted);
        let notes = exchange.ticket.and_then(|ticket| ticket.notes.as_deref());
        if access_logs::wants(&self.worker, TelemetrySide::Server, notes) {
            let plan = self.slot.plan.borrow();
            let host = match plan.service.host.as_str() {
                "" => "inbound",
                host => host,
            };
            let address = self.caller.remote.ip();
            let peer = self.worker.peers.caller(address, &self.caller.principal);
            let context = HttpContext {
                route: None,
                upstream: Some(plan.endpoint),
                cluster: &self.slot.cluster(),
                operation: &format_args!("{host}:{}", plan.bind.port()),
                peer: match &peer {
                    PeerEntry::Workload(peer) => Some(peer),
                    PeerEntry::Stranger | PeerEntry::Asked => None,
                },
                downstream: self.caller.downstream(plan.bind),
                details: match exchange.ticket.map(|ticket| &ticket.word) {
                    Some(RequestDecision::Denied(denied)) => Some(&denied.details),
                    _ => None,
                },
                marks: match exchange.ticket.map(|ticket| &ticket.word) {
                    Some(RequestDecision::Leave(leave)) => leave.marks(),
                    Some(RequestDecision::Denied(denied)) => denied.marks(),
                    Some(RequestDecision::Crowded) | None => PolicyMarks::default(),
                },
            };
            access_logs::http(
                &self.worker,
                TelemetrySide::Server,
                &exchange,
                notes,
                &context,
            );
        }
    }
}

//! Inbound's part of HTTP: every request asks the policy anew, goes to the one application behind the listener, and is
//! counted with the caller's identity.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use voile_model::mesh::telemetry::Side;
use voile_policy::{DenialReason, Permit};
use voile_telemetry::access_log::Marks;
use voile_telemetry::{GRPC, HTTP, SeriesId};
use voile_traffic::Attempt;
use voile_transport::{self as transport, Stream};

use voile_xds::wire::{MutualTls, Protocol};

use super::admission::{Admission, Arrival};
use super::authorization::{self, Asking, Denied, Granted, Judged, Leave};
use super::counted;
use super::forwarded;
use super::inbound::{Caller, inbound_series};
use super::logged::{self, HttpContext};
use super::notes::Notes;
use super::peers::Known;
use super::rate_limits::{self, Counting, Limited, TooMany};
use super::slots::InboundSlot;
use super::{Admitted, Worker};
use crate::http::{
    BodyWanted, ConnectFailure, DENIED, Exchange, Head, HttpRole, HttpVersion, Pending, Refusal,
    ResponseFlag, Route, Shown, UpstreamHttp,
};

/// One inbound connection.
pub(crate) struct InboundRole {
    worker: Rc<Worker>,
    slot: Rc<InboundSlot>,
    caller: Caller,
    admission: Admission,
    series: Cell<SeriesId>,
    /// The same for gRPC calls, from the first one on.
    grpc: Cell<Option<SeriesId>>,
    /// For requests of HTTP/1.0 that name none.
    authority: Rc<str>,
}

/// Pool key of connections to the application: its address and, where that is kept, the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ApplicationKey {
    endpoint: u32,
    source: Option<IpAddr>,
}

impl Hash for ApplicationKey {
    /// As cheap as the number alone where there is nothing else.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.endpoint.hash(state);
        if let Some(source) = self.source {
            source.hash(state);
        }
    }
}

/// State of a request that goes on, and its notes.
pub(crate) struct InboundTicket {
    _admitted: Option<Admitted>,
    word: Word,
    notes: Option<Rc<Notes>>,
}

/// Decision on a request. An enum, since each connection keeps room for it.
enum Word {
    Leave(Leave),
    /// Why it was refused, where the engine has no word for it.
    Denied(Box<Denied>),
    /// There was no room for it.
    Crowded,
}

impl InboundTicket {
    /// Ticket of a request that is refused.
    fn unadmitted(notes: Option<Rc<Notes>>) -> Self {
        Self {
            word: Word::Crowded,
            _admitted: None,
            notes,
        }
    }
}

/// A request that waits for an external service: it counts as admitted already.
pub(crate) struct Question {
    about: Waits,
    admitted: Admitted,
    notes: Option<Rc<Notes>>,
}

/// Answers for which the request waits.
enum Waits {
    /// An external service's word.
    Leave(Box<Asking>),
    /// It has leave; the rate limit service must be asked.
    Count(Box<Counting>, Granted),
}

/// Log detail of a request whose client did not wait for the external service.
const UNDECIDED: &str = "ext_authz_undecided";

impl InboundRole {
    pub(crate) fn new(worker: Rc<Worker>, slot: Rc<InboundSlot>, caller: Caller) -> Self {
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
    fn judged(&self, mode: MutualTls, head: &Head<'_>) -> Result<Judged, Denied> {
        let permit = self.admitted(mode)?;
        authorization::request(&self.worker, &self.slot, &self.caller, head, permit)
    }

    fn admitted(&self, mode: MutualTls) -> Result<Rc<Permit>, Denied> {
        let refused = |reason: String| Denied::new(403, "refused_by_policy", reason);
        let belief = self.worker.belief.borrow();
        let Some(belief) = belief.as_ref() else {
            return Err(refused("no trust domain yet".to_owned()));
        };
        let permit = self.admission.permit(mode, belief);
        permit.map_err(|denial| refused(denial.to_string()))
    }

    /// Applies the rate limits to a request that has leave.
    fn counted(
        &self,
        head: &Head<'_>,
        mut granted: Granted,
        (admitted, notes): (Admitted, Option<Rc<Notes>>),
    ) -> Result<Route<Self>, Box<Refusal<Self>>> {
        match rate_limits::limited(&self.worker, head, &mut granted, (&self.caller, None)) {
            Limited::Free => Ok(self.way(head, granted, (admitted, notes))),
            Limited::Refused(why) => Err(Box::new(too_many(*why, notes))),
            Limited::Ask(counting) => {
                let about = Waits::Count(counting, granted);
                Err(Box::new(undecided(about, None, (admitted, notes))))
            }
        }
    }

    /// To the one application, with leave.
    fn way(
        &self,
        head: &Head<'_>,
        granted: Granted,
        (admitted, notes): (Admitted, Option<Rc<Notes>>),
    ) -> Route<Self> {
        let Granted {
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
            word: Word::Leave(leave),
            _admitted: Some(admitted),
            notes,
        };
        let key = ApplicationKey {
            endpoint: self.slot.endpoint_key.get(),
            source: self.worker.kept_source(self.caller.remote),
        };
        let mut route = Route::new(key, ticket);
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
pub(crate) fn upstream(declared: Protocol, head: &Head<'_>) -> UpstreamHttp {
    match (declared, head.version()) {
        (Protocol::Http, _) => UpstreamHttp::Http1,
        (Protocol::Http2 | Protocol::Grpc, _) | (_, HttpVersion::Http2 | HttpVersion::Http3) => {
            UpstreamHttp::Http2
        }
        (_, HttpVersion::Http10 | HttpVersion::Http11) => UpstreamHttp::Http1,
    }
}

fn refusal(mut denied: Denied, notes: Option<Rc<Notes>>) -> Refusal<InboundRole> {
    let mut refusal = Refusal::new(
        denied.status,
        match denied.status {
            400 => ResponseFlag::DownstreamProtocolError,
            _ => ResponseFlag::Unauthorized,
        },
        denied.reason.clone(),
    );
    refusal.told = denied.take_told();
    refusal.ticket = Some(InboundTicket {
        word: Word::Denied(denied.into()),
        _admitted: None,
        notes,
    });
    refusal
}

/// A request that waits.
fn undecided(
    about: Waits,
    body: Option<BodyWanted>,
    (admitted, notes): (Admitted, Option<Rc<Notes>>),
) -> Refusal<InboundRole> {
    let mut refusal = refusal(Denied::new(403, UNDECIDED, DENIED), notes.clone());
    let question = Question {
        about,
        admitted,
        notes,
    };
    refusal.pending = Some(Box::new(Pending { body, question }));
    refusal
}

/// A request that comes too often.
fn too_many(TooMany(denied): TooMany, notes: Option<Rc<Notes>>) -> Refusal<InboundRole> {
    let flag = rate_limits::flag(&denied);
    Refusal {
        flag,
        ..refusal(denied, notes)
    }
}

/// Most attempts to hand a request to an application that closes connections before it takes anything: Istio's for inbound.
const MAX_INBOUND_ATTEMPTS: u32 = 3;

impl HttpRole for InboundRole {
    type Upstream = Stream;
    type Key = ApplicationKey;
    type Ticket = InboundTicket;
    type Question = Question;

    fn route(&self, head: &Head<'_>) -> Result<Route<Self>, Refusal<Self>> {
        let mode = self.slot.plan.borrow().mutual_tls;
        let notes = Notes::begin(&self.worker, Side::Server, head);
        let mut judged = match self.judged(mode, head) {
            Ok(judged) => judged,
            Err(denied) => return Err(refusal(denied, notes)),
        };
        let limited = match &mut judged {
            Judged::Let(granted) => {
                rate_limits::limited(&self.worker, head, granted, (&self.caller, None))
            }
            Judged::Ask(_) => Limited::Free,
        };
        if let Limited::Refused(why) = limited {
            return Err(too_many(*why, notes));
        }
        let admitted = self.worker.admit(None);
        let admitted = admitted.map_err(|mut refusal: Refusal<Self>| {
            refusal.ticket = Some(InboundTicket::unadmitted(notes.clone()));
            refusal
        })?;
        let beside = (admitted, notes);
        match (judged, limited) {
            (Judged::Let(granted), Limited::Ask(counting)) => {
                Err(undecided(Waits::Count(counting, granted), None, beside))
            }
            (Judged::Let(granted), _) => Ok(self.way(head, granted, beside)),
            (Judged::Ask(asking), _) => {
                let body = asking.body();
                Err(undecided(Waits::Leave(asking), body, beside))
            }
        }
    }

    async fn ask(&self, question: &mut Question, body: Option<Shown>) {
        match &mut question.about {
            Waits::Leave(asking) => asking.ask(&self.worker, body).await,
            Waits::Count(counting, _) => counting.ask(&self.worker).await,
        }
    }

    fn answered(&self, head: &Head<'_>, question: Question) -> Result<Route<Self>, Refusal<Self>> {
        let Question {
            about,
            admitted,
            notes,
        } = question;
        match about {
            Waits::Leave(asking) => {
                let granted = asking.granted(&self.worker, &self.slot, &self.caller, head);
                let granted = granted.map_err(|denied| refusal(denied, notes.clone()))?;
                let counted = self.counted(head, granted, (admitted, notes));
                counted.map_err(|refusal| *refusal)
            }
            Waits::Count(counting, mut granted) => match counting.settled(&mut granted) {
                Ok(()) => Ok(self.way(head, granted, (admitted, notes))),
                Err(why) => Err(too_many(*why, notes)),
            },
        }
    }

    async fn connect(&self, route: &Route<Self>) -> Result<Stream, ConnectFailure> {
        let (endpoint, limit) = (self.slot.plan.borrow().endpoint, route.connect_timeout);
        let origin = self.worker.homeward(self.caller.remote);
        match transport::connect(endpoint, origin, limit).await {
            Ok(tcp) => Ok(Stream::Tcp(tcp.into())),
            Err(error) => {
                tracing::debug!(%error, "application not reached");
                Err(ConnectFailure::new(
                    "the application does not accept connections",
                ))
            }
        }
    }

    /// The same application again, if it provably took nothing of the request.
    fn again(&self, _: &mut Route<Self>, last: Attempt, made: u32) -> Option<Duration> {
        let closed = matches!(last, Attempt::NotSent | Attempt::NotReceived);
        (closed && made < MAX_INBOUND_ATTEMPTS).then_some(Duration::ZERO)
    }

    fn is_revoked<'h>(&self, ticket: &InboundTicket, head: impl FnOnce() -> Head<'h>) -> bool {
        let Word::Leave(leave) = &ticket.word else {
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
        if forwarded::is_stale(&self.worker, &self.caller) {
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
        matches!(self.caller.arrival, Arrival::Tunnel(_))
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let series = self.series(exchange.grpc.is_some());
        counted::count(&self.worker, Side::Server, series, &exchange);
        let notes = exchange.ticket.and_then(|ticket| ticket.notes.as_deref());
        if logged::wants(&self.worker, Side::Server, notes) {
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
                    Known::Workload(peer) => Some(peer),
                    Known::Stranger | Known::Asked => None,
                },
                downstream: self.caller.downstream(plan.bind),
                details: match exchange.ticket.map(|ticket| &ticket.word) {
                    Some(Word::Denied(denied)) => Some(&denied.details),
                    _ => None,
                },
                marks: match exchange.ticket.map(|ticket| &ticket.word) {
                    Some(Word::Leave(leave)) => leave.marks(),
                    Some(Word::Denied(denied)) => denied.marks(),
                    Some(Word::Crowded) | None => Marks::default(),
                },
            };
            logged::http(&self.worker, Side::Server, &exchange, notes, &context);
        }
    }
}

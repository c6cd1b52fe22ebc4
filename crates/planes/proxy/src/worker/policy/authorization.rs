//! Authorization of inbound connections and requests by the policies in force. Attributes are borrowed from the
//! connection. An allowed one holds a [`ForwardPermit`], which forwarding code demands; a policy change can take it back.

mod request;

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use voile_policy::Permit;
use voile_policy::authorization::{AuthorizationOutcome, HttpFacts, RequestFacts, Verdict};
use voile_telemetry::access_log::PolicyMarks;
use voile_xds::wire::WireProtocol;

use crate::authorization::Authorization;
use crate::http::{DENIED, HttpHead};
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::policy::authorizer::{
    AllowedChanges, Authorizer, AuthorizerRequest, AuthorizerResponse, CheckSubject,
};
use crate::worker::policy::connection_permit;
use crate::worker::policy::denial::Denied;
use crate::worker::policy::policy_audit::{AccessRecord, count_marks};
use crate::worker::policy::rate_limits::scope::is_counted;
use crate::worker::policy::request_changes::PlanChanges;
use crate::worker::policy::request_view::{AmendedRequest, RequestStage, RequestView};
use crate::worker::{Worker, count};
pub(crate) use request::{GrantedRequest, JudgedRequest, PendingCheck, request};

/// Leave to forward, as of one moment.
#[derive(Debug)]
pub(crate) struct ForwardPermit {
    /// Permit of peer authentication, if requests share it.
    _permit: Option<Rc<Permit>>,
    /// When it was last judged.
    judgement: Cell<u32>,
    /// Seconds since 1970 when it was given to a request; tokens are judged again as of then.
    began: u32,
    /// Behind a thin pointer: every connection keeps room for it, and few have any.
    aside: OnceCell<Box<RareState>>,
}

/// Rare state, which few requests and connections have.
#[derive(Debug, Default)]
pub(crate) struct RareState {
    /// Which external service said yes; 0 is none. Its word holds as long as that one is asked.
    by: Cell<u32>,
    /// Changes that the external service made to the request.
    amended: AmendedRequest,
    /// Audit and dry-run results of policies, for logs.
    said: Option<Box<AccessRecord>>,
}

impl ForwardPermit {
    fn new(worker: &Worker, permit: Option<Rc<Permit>>) -> Self {
        Self {
            _permit: permit,
            judgement: Cell::new(worker.judgement.get()),
            began: 0,
            aside: OnceCell::new(),
        }
    }

    /// Audit and dry-run results, which decide nothing.
    pub(crate) fn marks(&self) -> PolicyMarks<'_> {
        let said = self.aside.get().and_then(|aside| aside.said.as_deref());
        said.map(AccessRecord::marks).unwrap_or_default()
    }

    /// Which external service said yes; 0 is none.
    fn by(&self) -> u32 {
        self.aside.get().map_or(0, |aside| aside.by.get())
    }

    /// Notes what there is to note.
    fn with(self, by: u32, amended: AmendedRequest, said: Option<Box<AccessRecord>>) -> Self {
        if by == 0 && said.is_none() {
            return self;
        }
        let aside = RareState {
            by: Cell::new(by),
            amended,
            said,
        };
        Self {
            aside: OnceCell::from(Box::new(aside)),
            ..self
        }
    }

    /// Returns true if no policy changed since the leave was given.
    pub(crate) fn stands(&self, worker: &Worker) -> bool {
        self.judgement.get() == worker.judgement.get()
    }

    /// It was judged again, and holds.
    fn renew(&self, worker: &Worker) {
        self.judgement.set(worker.judgement.get());
    }

    /// Ready when an opaque connection has lost it. It lives as long as the connection, so it keeps nothing but its place.
    pub(crate) async fn lost(&self, worker: &Worker, slot: &InboundSlot, caller: &InboundCaller) {
        loop {
            let next = worker.judged.borrow().heard();
            if !self.stands(worker) {
                // Boxed: it is rare, and every connection would pay for its size.
                let still = Box::pin(self.still(worker, slot, caller)).await;
                if !still {
                    count_revoked(worker);
                    return;
                }
            }
            next.await;
        }
    }

    async fn still(&self, worker: &Worker, slot: &InboundSlot, caller: &InboundCaller) -> bool {
        let judgement = worker.judgement.get();
        if connection_permit::permit(worker, slot, &caller.arrival, caller.remote).is_err() {
            return false;
        }
        let holds = match judge_connection(worker, slot, caller) {
            Err(_) => false,
            Ok(ConnectionVerdict::Said(_)) => true,
            Ok(ConnectionVerdict::Asks(asking)) if asking.authorizer.id() == self.by() => {
                match asking.outcome.verdict {
                    Verdict::Ask(ask) => ask.granted().is_ok(),
                    Verdict::Allowed(_) | Verdict::Denied(_) => false,
                }
            }
            // Another external service decides now.
            Ok(ConnectionVerdict::Asks(asking)) => match asking.settled(worker, slot, caller).await
            {
                Ok((by, _)) => {
                    self.aside.get_or_init(Box::default).by.set(by);
                    true
                }
                Err(_) => false,
            },
        };
        self.judgement.set(judgement);
        holds
    }

    /// Returns true if a request in flight may continue.
    pub(crate) fn holds(
        &self,
        worker: &Worker,
        slot: &InboundSlot,
        caller: &InboundCaller,
        head: &HttpHead<'_>,
    ) -> bool {
        let aside = self.aside.get().filter(|aside| aside.by.get() != 0);
        let came = match aside {
            None => RequestStage::Fresh,
            Some(aside) => RequestStage::Answered(aside.by.get(), &aside.amended),
        };
        let seen = RequestView::new(head, came);
        // A request in flight cannot wait: without an earlier approval of the present service it ends.
        let judged = request::said(worker, slot, caller, &seen, self.began.into());
        let holds = judged.is_ok_and(|said| said.asks.is_none());
        if holds {
            self.renew(worker);
        }
        holds
    }
}

/// Judges an opaque connection that was admitted, and asks the external service if needed. The permit ends here, since
/// connections are many and long.
pub(crate) async fn connection(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &InboundCaller,
    _: Permit,
) -> Result<ForwardPermit, Denied> {
    loop {
        let leave = ForwardPermit::new(worker, None);
        let (by, said) = match judge_connection(worker, slot, caller)? {
            ConnectionVerdict::Said(said) => (0, said),
            // Boxed: it is rare, and every connection would pay for its size.
            ConnectionVerdict::Asks(asking) => {
                Box::pin(asking.settled(worker, slot, caller)).await?
            }
        };
        // If the policies changed while the question was open, all is judged again.
        if leave.stands(worker) {
            return Ok(leave.with(by, AmendedRequest::default(), said));
        }
    }
}

/// Leave for an opaque connection whose protocol may still change; counts nothing and asks no external service.
pub(crate) fn rehearse(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &InboundCaller,
    _: Permit,
) -> Option<ForwardPermit> {
    if !carries_bytes(worker, slot) {
        return None;
    }
    let policies = slot.policies(worker);
    let allowed = policies.as_ref().is_none_or(|policies| {
        let bind = slot.plan.borrow().bind;
        let facts = facts(caller, bind, caller.client().ip(), None);
        matches!(policies.decide(&facts, None).verdict, Verdict::Allowed(_))
    });
    allowed.then(|| ForwardPermit::new(worker, None))
}

/// Verdict of the policies on a connection.
enum ConnectionVerdict {
    /// The connection may go on; audit and dry-run results for logs.
    Said(Option<Box<AccessRecord>>),
    /// An external service must be asked first.
    Asks(AskingOfConnection),
}

/// A connection that an external service must be asked about.
struct AskingOfConnection {
    /// Outcome of the policies as of `judgement`; its verdict is to ask the external service.
    outcome: AuthorizationOutcome,
    judgement: u32,
    authorizer: Rc<Authorizer>,
    question: AuthorizerRequest,
}

impl AskingOfConnection {
    /// Asks, and returns the number of the approving external service.
    async fn settled(
        mut self,
        worker: &Worker,
        slot: &InboundSlot,
        caller: &InboundCaller,
    ) -> Result<(u32, Option<Box<AccessRecord>>), Denied> {
        self.question.show(None);
        let answer = self.authorizer.ask(worker, self.question).await;
        let believed = believed(worker, &self.authorizer, answer);
        let policies = slot.policies(worker);
        let current = self.judgement == worker.judgement.get();
        let said = match (believed, policies.as_ref().filter(|_| current)) {
            (Ok(_), Some(policies)) => judged(worker, policies, caller, self.outcome)?,
            // Everything changed meanwhile, so that it is judged again.
            (Ok(_), None) => None,
            (Err(denied), policies) => {
                let said =
                    policies.and_then(|policies| note(worker, policies, caller, &self.outcome));
                return Err(Denied { said, ..denied });
            }
        };
        Ok((self.authorizer.id(), said))
    }
}

/// Envoy has no word for it: a port whose requests are looked at carries nothing but requests.
const NOT_HTTP: &str = "protocol_is_not_http";

/// Returns true if the port's declared protocol lets bytes that are not HTTP pass. On a port without declaration, bytes must
/// not bypass rules that hold for requests only: rules about tokens, and rate limits.
pub(in crate::worker) fn carries_bytes(worker: &Worker, slot: &InboundSlot) -> bool {
    match slot.plan.borrow().protocol {
        WireProtocol::Tcp | WireProtocol::Tls => true,
        WireProtocol::Http | WireProtocol::Http2 | WireProtocol::Grpc => false,
        WireProtocol::Auto => !slot.tokens(worker).is_ruled() && !is_counted(worker, slot),
    }
}

fn judge_connection(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &InboundCaller,
) -> Result<ConnectionVerdict, Denied> {
    if !carries_bytes(worker, slot) {
        count(&worker.counters.authorization.denied);
        return Err(Denied::new(403, NOT_HTTP, DENIED));
    }
    let policies = slot.policies(worker);
    let Some(policies) = policies.as_ref() else {
        return Ok(ConnectionVerdict::Said(None));
    };
    let destination = slot.plan.borrow().bind;
    let facts = facts(caller, destination, caller.client().ip(), None);
    let outcome = policies.decide(&facts, None);
    if !matches!(outcome.verdict, Verdict::Ask(_)) {
        return judged(worker, policies, caller, outcome).map(ConnectionVerdict::Said);
    }
    let about = CheckSubject {
        caller,
        destination,
        request: None,
        changes: &PlanChanges::default(),
    };
    let (authorizer, question) = whom(worker, policies, &outcome, &about)?;
    Ok(ConnectionVerdict::Asks(AskingOfConnection {
        outcome,
        judgement: worker.judgement.get(),
        authorizer,
        question,
    }))
}

/// Turns the external service's answer into a decision. A denial is final. After an approval the DENY and ALLOW policies
/// decide. A missing answer counts as the provider's settings say.
fn believed(
    worker: &Worker,
    authorizer: &Authorizer,
    answer: AuthorizerResponse,
) -> Result<AllowedChanges, Denied> {
    let counters = &worker.counters.authorization;
    let denied = |denied: Denied| {
        count(&counters.denied);
        Err(denied)
    };
    match answer {
        AuthorizerResponse::Allowed(allowed) => {
            count(&counters.asked_allowed);
            Ok(*allowed)
        }
        AuthorizerResponse::Denied { status, told } => {
            count(&counters.asked_denied);
            denied(Denied {
                told: Some(told),
                ..Denied::new(status, ASKED_DENIED, DENIED)
            })
        }
        AuthorizerResponse::Failed(_) if authorizer.fails_open() => {
            count(&counters.asked_failed_open);
            Ok(AllowedChanges::default())
        }
        AuthorizerResponse::Failed(_) | AuthorizerResponse::Unusable(_) => {
            count(&counters.asked_failed);
            let status = authorizer.status_on_error();
            denied(Denied::new(status, ASKED_ERROR, DENIED))
        }
    }
}

/// Envoy's details of a denial by an external service, and of a question that failed.
const ASKED_DENIED: &str = "ext_authz_denied";
const ASKED_ERROR: &str = "ext_authz_error";

/// Selects the external service of a CUSTOM rule and builds its question. The request is denied if there is no
/// service, or if the service does not understand the question.
fn whom(
    worker: &Worker,
    policies: &Authorization,
    outcome: &AuthorizationOutcome,
    about: &CheckSubject<'_>,
) -> Result<(Rc<Authorizer>, AuthorizerRequest), Denied> {
    let authorizer = worker.authorizer.borrow().clone();
    let asked = authorizer.and_then(|authorizer| {
        let question = authorizer.question(worker, about)?;
        Some((authorizer, question))
    });
    asked.ok_or_else(|| {
        count(&worker.counters.authorization.denied);
        let details = match &outcome.verdict {
            Verdict::Ask(ask) => policies.details(&ask.clone().refused()),
            Verdict::Allowed(_) | Verdict::Denied(_) => String::new(),
        };
        Denied {
            said: note(worker, policies, about.caller, outcome),
            ..Denied::new(403, details, DENIED)
        }
    })
}

/// Leave was taken back from a request.
pub(crate) fn count_revoked(worker: &Worker) {
    let counters = &worker.counters.authorization;
    count(&counters.revoked);
    let took = worker.changed_at.get().elapsed().as_micros();
    let took = u64::try_from(took).unwrap_or(u64::MAX);
    counters
        .longest_cut
        .set(counters.longest_cut.get().max(took));
}

fn facts<'a>(
    caller: &'a InboundCaller,
    destination: SocketAddr,
    remote_ip: IpAddr,
    http: Option<HttpFacts<'a>>,
) -> RequestFacts<'a> {
    RequestFacts {
        // Only the verified certificate states the source's identity; headers that claim one are not read.
        source: caller.arrival.peer().map(|peer| &peer.identity),
        source_ip: caller.remote.ip(),
        remote_ip,
        destination,
        sni: caller.server_name(),
        http,
    }
}

/// Counts the decision and returns audit and dry-run results for logs. An external service that had to be
/// asked has approved.
fn judged(
    worker: &Worker,
    policies: &Authorization,
    caller: &InboundCaller,
    outcome: AuthorizationOutcome,
) -> Result<Option<Box<AccessRecord>>, Denied> {
    let counters = &worker.counters.authorization;
    let said = note(worker, policies, caller, &outcome);
    let verdict = match outcome.verdict {
        Verdict::Allowed(permit) => Ok(permit),
        Verdict::Denied(denial) => Err(denial),
        Verdict::Ask(ask) => ask.granted(),
    };
    match verdict {
        Ok(_) => {
            count(&counters.allowed);
            Ok(said)
        }
        Err(denial) => {
            count(&counters.denied);
            Err(Denied {
                said,
                ..Denied::new(403, policies.details(&denial), DENIED)
            })
        }
    }
}

/// Counts what decides nothing; gives what logs tell of it.
fn note(
    worker: &Worker,
    policies: &Authorization,
    caller: &InboundCaller,
    outcome: &AuthorizationOutcome,
) -> Option<Box<AccessRecord>> {
    count_marks(worker, policies, caller, outcome);
    let told = worker.logs.get();
    told.then(|| AccessRecord::of(policies, outcome).map(Box::new))
        .flatten()
}

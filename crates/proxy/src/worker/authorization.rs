//! Whether a connection or a request may go on to the application, by the policies that hold now: what they ask about is
//! borrowed from where it lies. A yes is a [`Leave`], and forwarding asks for one; leave can be lost.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use voile_model::mesh::telemetry::Side;
use voile_policy::Permit;
use voile_policy::authorization::{Ask, Facts, Headers, Http, Outcome, Verdict};

use super::admission::Arrival;
use super::authorizer::{About, Allowed, Answer, Authorizer, Question};
use super::changes::Changes;
use super::inbound::{self, Caller};
use super::said::{self, count_marks};
use super::slots::InboundSlot;
use super::tokens::{self, Presented};
use super::{Worker, count, logged};
use crate::authorization::Authorization;
use crate::http::{BodyWanted, DENIED, Head, REVOKED, Shown, Told};

/// Leave to forward, as of one moment.
#[derive(Debug)]
pub(crate) struct Leave {
    /// What peer authentication said, where requests share it.
    _permit: Option<Rc<Permit>>,
    /// When it was last judged.
    judgement: Cell<u32>,
    /// Which external service said yes; 0 is none. Its word holds as long as that one is asked.
    word: Cell<u32>,
    /// Seconds since 1970 when it was given to a request; tokens are judged again as of then.
    began: u64,
}

/// Why there is none.
#[derive(Debug, Clone)]
pub(crate) struct Denied {
    /// What a client of HTTP is answered.
    pub(crate) status: u16,
    /// Envoy's details: the deciding policy and rule.
    pub(crate) details: String,
    /// For people.
    pub(crate) reason: String,
    /// The words of an external service, for clients of HTTP.
    pub(crate) told: Option<Box<Told>>,
}

impl Denied {
    pub(super) fn new(status: u16, details: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            status,
            details: details.into(),
            reason: reason.into(),
            told: None,
        }
    }
}

/// Decisions of one worker.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    allowed: Cell<u64>,
    denied: Cell<u64>,
    revoked: Cell<u64>,
    /// Microseconds from the arrival of a change to the end of what it cut, at most.
    longest_cut: Cell<u64>,
    pub(super) audited: Cell<u64>,
    pub(super) would_allow: Cell<u64>,
    pub(super) would_deny: Cell<u64>,
    pub(super) would_ask: Cell<u64>,
    asked_allowed: Cell<u64>,
    asked_denied: Cell<u64>,
    asked_failed: Cell<u64>,
    asked_failed_open: Cell<u64>,
}

/// A copy of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) revoked: u64,
    pub(crate) longest_cut: Duration,
    pub(crate) audited: u64,
    pub(crate) would_allow: u64,
    pub(crate) would_deny: u64,
    pub(crate) would_ask: u64,
    pub(crate) asked: Asked,
}

/// What external services said.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Not asked or not answered, and therefore denied.
    pub(crate) failed: u64,
    /// The same, and let pass.
    pub(crate) failed_open: u64,
}

impl Counters {
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            allowed: self.allowed.get(),
            denied: self.denied.get(),
            revoked: self.revoked.get(),
            longest_cut: Duration::from_micros(self.longest_cut.get()),
            audited: self.audited.get(),
            would_allow: self.would_allow.get(),
            would_deny: self.would_deny.get(),
            would_ask: self.would_ask.get(),
            asked: Asked {
                allowed: self.asked_allowed.get(),
                denied: self.asked_denied.get(),
                failed: self.asked_failed.get(),
                failed_open: self.asked_failed_open.get(),
            },
        }
    }
}

impl Leave {
    fn new(worker: &Worker, permit: Option<Rc<Permit>>) -> Self {
        Self {
            _permit: permit,
            judgement: Cell::new(worker.judgement.get()),
            word: Cell::new(0),
            began: 0,
        }
    }

    /// For a request that began then.
    fn of_request(worker: &Worker, permit: Rc<Permit>, began: u64) -> Self {
        Self {
            began,
            ..Self::new(worker, Some(permit))
        }
    }

    /// Whether nothing changed since it was given.
    pub(crate) fn stands(&self, worker: &Worker) -> bool {
        self.judgement.get() == worker.judgement.get()
    }

    /// It was judged again, and holds.
    fn renew(&self, worker: &Worker) {
        self.judgement.set(worker.judgement.get());
    }

    /// Ready when an opaque connection has lost it. It lives as long as the connection, so it keeps nothing but its place.
    pub(crate) async fn lost(&self, worker: &Worker, slot: &InboundSlot, caller: &Caller) {
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

    async fn still(&self, worker: &Worker, slot: &InboundSlot, caller: &Caller) -> bool {
        let judgement = worker.judgement.get();
        if inbound::permit(worker, slot, &caller.arrival, caller.remote).is_err() {
            return false;
        }
        let holds = match judge_connection(worker, slot, caller) {
            Err(_) => false,
            Ok(None) => true,
            Ok(Some(asking)) if asking.authorizer.id() == self.word.get() => {
                asking.ask.granted().is_ok()
            }
            // Somebody else decides now.
            Ok(Some(asking)) => match asking.settled(worker).await {
                Ok(word) => {
                    self.word.set(word);
                    true
                }
                Err(_) => false,
            },
        };
        self.judgement.set(judgement);
        holds
    }

    /// Whether a request under way may go on.
    pub(crate) fn holds(
        &self,
        worker: &Worker,
        slot: &InboundSlot,
        caller: &Caller,
        head: &Head<'_>,
    ) -> bool {
        let holds = match said(worker, slot, caller, head, self.began) {
            Err(_) => false,
            Ok(Said { ask: None, .. }) => true,
            // A request is in the middle of something and cannot wait: who was not asked has not said yes.
            Ok(Said { ask: Some(ask), .. }) => {
                let asked = worker.authorizer.borrow().as_ref().map(|asked| asked.id());
                asked == Some(self.word.get()) && ask.granted().is_ok()
            }
        };
        if holds {
            self.renew(worker);
        }
        holds
    }
}

/// Judges an opaque connection that was admitted, and asks whoever must be: the permit is used up here, for connections are
/// many and long.
pub(crate) async fn connection(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    _: Permit,
) -> Result<Leave, Denied> {
    loop {
        let leave = Leave::new(worker, None);
        if let Some(asking) = judge_connection(worker, slot, caller)? {
            // Boxed: it is rare, and every connection would pay for its size.
            leave.word.set(Box::pin(asking.settled(worker)).await?);
        }
        // Otherwise everything changed while somebody was asked.
        if leave.stands(worker) {
            return Ok(leave);
        }
    }
}

/// Leave for an opaque connection that may turn out to be something else; nothing is counted, and nobody asked.
pub(crate) fn rehearse(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    _: Permit,
) -> Option<Leave> {
    let policies = worker.authorization.borrow();
    let allowed = policies.as_ref().is_none_or(|policies| {
        let bind = slot.plan.borrow().bind;
        let facts = facts(caller, bind, caller.client().ip(), None);
        matches!(policies.decide(&facts).verdict, Verdict::Allowed(_))
    });
    allowed.then(|| Leave::new(worker, None))
}

/// A connection that an external service must be asked about.
struct AskingOfConnection {
    ask: Ask,
    authorizer: Rc<Authorizer>,
    question: Question,
}

impl AskingOfConnection {
    /// Asks, and gives the number of whoever said yes.
    async fn settled(mut self, worker: &Worker) -> Result<u32, Denied> {
        self.question.show(None);
        let answer = self.authorizer.ask(worker, self.question).await;
        settle(worker, &self.authorizer, self.ask, answer)?;
        Ok(self.authorizer.id())
    }
}

fn judge_connection(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
) -> Result<Option<AskingOfConnection>, Denied> {
    let policies = worker.authorization.borrow();
    let Some(policies) = policies.as_ref() else {
        return Ok(None);
    };
    let destination = slot.plan.borrow().bind;
    let facts = facts(caller, destination, caller.client().ip(), None);
    let Some(ask) = judged(worker, policies, caller, policies.decide(&facts))? else {
        return Ok(None);
    };
    let about = About {
        caller,
        destination,
        request: None,
        changes: &Changes::default(),
    };
    let (authorizer, question) = whom(worker, policies, &ask, &about)?;
    Ok(Some(AskingOfConnection {
        ask,
        authorizer,
        question,
    }))
}

/// What policies say of a request.
pub(crate) enum Judged {
    /// It may go on, like this.
    Let(Granted),
    /// Somebody must be asked first.
    Ask(Box<Asking>),
}

/// A request that an external service must be asked about.
pub(crate) struct Asking {
    permit: Rc<Permit>,
    path: Option<Box<str>>,
    /// What its token changed.
    changes: Changes,
    began: u64,
    ask: Ask,
    judgement: u32,
    authorizer: Rc<Authorizer>,
    /// Until it is asked.
    question: Option<Question>,
    /// Once it was.
    answer: Option<Answer>,
}

/// A request that may go on.
pub(crate) struct Granted {
    pub(crate) leave: Leave,
    pub(crate) path: Option<Box<str>>,
    pub(crate) changes: Changes,
}

impl Asking {
    /// How much of the body the question shows.
    pub(crate) fn body(&self) -> Option<BodyWanted> {
        self.authorizer.body()
    }

    /// Asks.
    pub(crate) async fn ask(&mut self, worker: &Worker, body: Option<Shown>) {
        if let Some(mut question) = self.question.take() {
            question.show(body);
            self.answer = Some(self.authorizer.ask(worker, question).await);
        }
    }

    /// What the answer comes to, by the policies that hold now.
    pub(crate) fn granted(
        self,
        worker: &Worker,
        slot: &InboundSlot,
        caller: &Caller,
        head: &Head<'_>,
    ) -> Result<Granted, Denied> {
        let (mut ask, mut path, mut changes) = (self.ask, self.path, self.changes);
        let leave = |permit| Leave::of_request(worker, permit, self.began);
        if self.judgement != worker.judgement.get() {
            let said = said(worker, slot, caller, head, self.began)?;
            (path, changes) = (said.path, said.changes);
            let Some(now) = said.ask else {
                return Ok(Granted {
                    leave: leave(self.permit),
                    path,
                    changes,
                });
            };
            let asked = worker.authorizer.borrow().as_ref().map(|asked| asked.id());
            if asked != Some(self.authorizer.id()) {
                count(&worker.counters.authorization.denied);
                return Err(Denied::new(403, REVOKED, DENIED));
            }
            ask = now;
        }
        let unasked = || Answer::Unusable("nobody was asked".into());
        let answer = self.answer.unwrap_or_else(unasked);
        let allowed = settle(worker, &self.authorizer, ask, answer)?;
        let (later, path) = allowed.applied(head, path);
        let changes = changes.then(later);
        let leave = leave(self.permit);
        leave.word.set(self.authorizer.id());
        Ok(Granted {
            leave,
            path,
            changes,
        })
    }
}

/// What an answer comes to: a no is final, a yes leaves it to the DENY and ALLOW policies, and no answer is what the provider
/// wants it to be.
fn settle(
    worker: &Worker,
    authorizer: &Authorizer,
    ask: Ask,
    answer: Answer,
) -> Result<Allowed, Denied> {
    let counters = &worker.counters.authorization;
    let denied = |denied: Denied| {
        count(&counters.denied);
        Err(denied)
    };
    let allowed = match answer {
        Answer::Allowed(allowed) => {
            count(&counters.asked_allowed);
            *allowed
        }
        Answer::Denied { status, told } => {
            count(&counters.asked_denied);
            return denied(Denied {
                told: Some(told),
                ..Denied::new(status, ASKED_DENIED, DENIED)
            });
        }
        Answer::Failed(_) if authorizer.fails_open() => {
            count(&counters.asked_failed_open);
            Allowed::default()
        }
        Answer::Failed(_) | Answer::Unusable(_) => {
            count(&counters.asked_failed);
            let status = authorizer.status_on_error();
            return denied(Denied::new(status, ASKED_ERROR, DENIED));
        }
    };
    match ask.granted() {
        Ok(_) => {
            count(&counters.allowed);
            Ok(allowed)
        }
        Err(denial) => {
            let policies = worker.authorization.borrow();
            let details = policies.as_ref().map(|policies| policies.details(&denial));
            denied(Denied::new(403, details.unwrap_or_default(), DENIED))
        }
    }
}

/// Envoy's details of what an external service denied, and of what it could not be asked about.
const ASKED_DENIED: &str = "ext_authz_denied";
const ASKED_ERROR: &str = "ext_authz_error";

/// Whom a CUSTOM rule asks, and what. Where there is nobody, or nobody who understands the question, it is denied.
fn whom(
    worker: &Worker,
    policies: &Authorization,
    ask: &Ask,
    about: &About<'_>,
) -> Result<(Rc<Authorizer>, Question), Denied> {
    let authorizer = worker.authorizer.borrow().clone();
    let asked = authorizer.and_then(|authorizer| {
        let question = authorizer.question(worker, about)?;
        Some((authorizer, question))
    });
    asked.ok_or_else(|| {
        count(&worker.counters.authorization.denied);
        let details = policies.details(&ask.clone().refused());
        Denied::new(403, details, DENIED)
    })
}

/// Judges a request on an admitted connection, its token first. Nothing is done where there are neither rules about tokens
/// nor policies.
pub(crate) fn request(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    head: &Head<'_>,
    permit: Rc<Permit>,
) -> Result<Judged, Denied> {
    let began = tokens::now(worker);
    let Said { path, changes, ask } = said(worker, slot, caller, head, began)?;
    let policies = worker.authorization.borrow();
    let (Some(ask), Some(policies)) = (ask, policies.as_ref()) else {
        return Ok(Judged::Let(Granted {
            leave: Leave::of_request(worker, permit, began),
            path,
            changes,
        }));
    };
    let about = About {
        caller,
        destination: slot.plan.borrow().bind,
        request: Some((
            head,
            path.as_deref().unwrap_or_else(|| head.path_and_query()),
        )),
        changes: &changes,
    };
    let (authorizer, question) = whom(worker, policies, &ask, &about)?;
    Ok(Judged::Ask(Box::new(Asking {
        permit,
        path,
        changes,
        began,
        ask,
        judgement: worker.judgement.get(),
        authorizer,
        question: Some(question),
        answer: None,
    })))
}

/// What a token and the policies say of a request.
struct Said {
    /// The path that it goes on with, if that is not the one that came.
    path: Option<Box<str>>,
    changes: Changes,
    /// Whom to ask first.
    ask: Option<Ask>,
}

/// Judges a request that began then.
fn said(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    head: &Head<'_>,
    began: u64,
) -> Result<Said, Denied> {
    let presented = tokens::examine(worker, head, began)?;
    let policies = worker.authorization.borrow();
    let (path, ask) = match policies.as_ref() {
        None => (None, None),
        Some(policies) => {
            let seen = (head, presented.as_ref());
            by_policies(worker, slot, caller, seen, policies)?
        }
    };
    let (path, changes) = match presented {
        None => (path, Changes::default()),
        Some(presented) => presented.applied(head, path),
    };
    Ok(Said { path, changes, ask })
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

/// The path that a request goes on with, if that is not the one that came, and whom to ask first.
fn by_policies(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    (head, presented): (&Head<'_>, Option<&Presented>),
    policies: &Authorization,
) -> Result<(Option<Box<str>>, Option<Ask>), Denied> {
    let bind = slot.plan.borrow().bind;
    let path = policies.normalized(head.path_and_query());
    let Some(path) = path else {
        let why = "path_normalization_failed";
        return Err(Denied::new(400, why, why));
    };
    let remote = policies.remote_ip(head, caller.client().ip());
    let http = Http {
        authority: head.authority().map(str::as_bytes),
        method: head.method_meant().as_bytes(),
        path: path.as_bytes(),
        headers: &Lines {
            head,
            changes: presented.map(Presented::changes),
        },
        claims: presented.and_then(Presented::claims),
    };
    let facts = facts(caller, bind, remote, Some(http));
    let ask = judged(worker, policies, caller, policies.decide(&facts))?;
    let path = match path {
        Cow::Borrowed(_) => None,
        Cow::Owned(path) => Some(path.into()),
    };
    Ok((path, ask))
}

fn facts<'a>(
    caller: &'a Caller,
    destination: SocketAddr,
    remote_ip: IpAddr,
    http: Option<Http<'a>>,
) -> Facts<'a> {
    Facts {
        // Nothing but the certificate that was verified says who somebody is; headers that claim it are not asked.
        source: match &caller.arrival {
            Arrival::MutualTls(peer) => Some(&peer.identity),
            Arrival::Plaintext => None,
        },
        source_ip: caller.remote.ip(),
        remote_ip,
        destination,
        sni: caller.server_name(),
        http,
    }
}

/// The field lines of a head as they go on: what a token's rule takes away or writes is judged like that.
struct Lines<'a> {
    head: &'a Head<'a>,
    changes: Option<&'a Changes>,
}

impl Headers for Lines<'_> {
    fn each<'a>(&'a self, show: &mut dyn FnMut(&'a [u8], &'a [u8])) {
        match self.changes {
            None => {
                for (name, value) in self.head.headers() {
                    show(name.as_bytes(), value);
                }
            }
            Some(changes) => {
                for (name, value) in changes.seen(self.head) {
                    show(name.as_bytes(), value);
                }
            }
        }
    }
}

/// Counts what was decided, and notes for the access log what decided nothing; gives whom to ask before anything is.
fn judged(
    worker: &Worker,
    policies: &Authorization,
    caller: &Caller,
    outcome: Outcome,
) -> Result<Option<Ask>, Denied> {
    let counters = &worker.counters.authorization;
    count_marks(worker, policies, caller, &outcome);
    let told = logged::is_on(worker, Side::Server);
    let said = told.then(|| said::Said::of(policies, &outcome)).flatten();
    worker.said.set(said.map(Box::new));
    let denial = match outcome.verdict {
        Verdict::Allowed(_) => {
            count(&counters.allowed);
            return Ok(None);
        }
        Verdict::Denied(denial) => denial,
        Verdict::Ask(ask) => return Ok(Some(ask)),
    };
    count(&counters.denied);
    Err(Denied::new(403, policies.details(&denial), DENIED))
}

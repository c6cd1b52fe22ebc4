//! Whether a connection or a request may go on to the application, by the policies that hold now: what they ask about is
//! borrowed from where it lies. A yes is a [`Leave`], and forwarding asks for one; leave can be lost.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use voile_policy::Permit;
use voile_policy::authorization::{Facts, Headers, Http, Outcome, RuleRef, Verdict};

use super::admission::Arrival;
use super::inbound::{self, Caller};
use super::slots::InboundSlot;
use super::{Worker, count};
use crate::authorization::Authorization;
use crate::http::{DENIED, Head};

/// Leave to forward, as of one moment.
#[derive(Debug)]
pub(crate) struct Leave {
    /// What peer authentication said, where requests share it.
    _permit: Option<Rc<Permit>>,
    /// When it was last judged.
    judgement: Cell<u32>,
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
}

/// Decisions of one worker.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    allowed: Cell<u64>,
    denied: Cell<u64>,
    revoked: Cell<u64>,
    would_allow: Cell<u64>,
    would_deny: Cell<u64>,
}

/// A copy of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) revoked: u64,
    pub(crate) would_allow: u64,
    pub(crate) would_deny: u64,
}

impl Counters {
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            allowed: self.allowed.get(),
            denied: self.denied.get(),
            revoked: self.revoked.get(),
            would_allow: self.would_allow.get(),
            would_deny: self.would_deny.get(),
        }
    }
}

impl Leave {
    fn new(worker: &Worker, permit: Option<Rc<Permit>>) -> Self {
        Self {
            _permit: permit,
            judgement: Cell::new(worker.judgement.get()),
        }
    }

    /// Whether nothing changed since it was given.
    pub(crate) fn stands(&self, worker: &Worker) -> bool {
        self.judgement.get() == worker.judgement.get()
    }

    /// It was judged again, and holds.
    pub(crate) fn renew(&self, worker: &Worker) {
        self.judgement.set(worker.judgement.get());
    }

    /// Ready when an opaque connection has lost it. It lives as long as the connection, so it keeps nothing but its place.
    pub(crate) async fn lost(&self, worker: &Worker, slot: &InboundSlot, caller: &Caller) {
        loop {
            let next = worker.judged.borrow().heard();
            if !self.still(worker, slot, caller) {
                return;
            }
            next.await;
        }
    }

    fn still(&self, worker: &Worker, slot: &InboundSlot, caller: &Caller) -> bool {
        if self.stands(worker) {
            return true;
        }
        let admitted = inbound::permit(worker, slot, &caller.arrival, caller.remote).is_ok();
        let holds = admitted && judge_connection(worker, slot, caller).is_ok();
        match holds {
            true => self.renew(worker),
            false => count_revoked(worker),
        }
        holds
    }
}

/// Judges an opaque connection that was admitted: the permit is used up here, for connections are many and long.
pub(crate) fn connection(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    _: Permit,
) -> Result<Leave, Denied> {
    judge_connection(worker, slot, caller)?;
    Ok(Leave::new(worker, None))
}

/// Leave for an opaque connection that may turn out to be something else; nothing is counted.
pub(crate) fn rehearse(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    _: Permit,
) -> Option<Leave> {
    let policies = worker.authorization.borrow();
    let allowed = policies.as_ref().is_none_or(|policies| {
        let bind = slot.plan.borrow().bind;
        let facts = facts(caller, bind, caller.remote.ip(), None);
        matches!(policies.decide(&facts).verdict, Verdict::Allowed(_))
    });
    allowed.then(|| Leave::new(worker, None))
}

fn judge_connection(worker: &Worker, slot: &InboundSlot, caller: &Caller) -> Result<(), Denied> {
    let policies = worker.authorization.borrow();
    let Some(policies) = policies.as_ref() else {
        return Ok(());
    };
    let bind = slot.plan.borrow().bind;
    let facts = facts(caller, bind, caller.remote.ip(), None);
    judged(worker, policies, caller, policies.decide(&facts))
}

/// Judges a request on an admitted connection; gives the path it goes on with, where that is not the one that came.
/// Nothing is done where there are no policies.
pub(crate) fn request(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    head: &Head<'_>,
    permit: Rc<Permit>,
) -> Result<(Leave, Option<Box<str>>), Denied> {
    let path = judge_request(worker, slot, caller, head)?;
    Ok((Leave::new(worker, Some(permit)), path))
}

/// Leave was taken back from a request.
pub(crate) fn count_revoked(worker: &Worker) {
    count(&worker.counters.authorization.revoked);
}

/// The same again for one under way.
pub(crate) fn judge_request(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    head: &Head<'_>,
) -> Result<Option<Box<str>>, Denied> {
    let policies = worker.authorization.borrow();
    match policies.as_ref() {
        None => Ok(None),
        Some(policies) => by_policies(worker, slot, caller, head, policies),
    }
}

fn by_policies(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &Caller,
    head: &Head<'_>,
    policies: &Authorization,
) -> Result<Option<Box<str>>, Denied> {
    let bind = slot.plan.borrow().bind;
    let path = policies.normalized(head.path_and_query());
    let Some(path) = path else {
        return Err(Denied {
            status: 400,
            details: "path_normalization_failed".to_owned(),
            reason: "path_normalization_failed".to_owned(),
        });
    };
    let remote = policies.remote_ip(head, caller.remote.ip());
    let http = Http {
        authority: head.authority().map(str::as_bytes),
        method: head.method_meant().as_bytes(),
        path: path.as_bytes(),
        headers: &Lines(head),
        // Claims are those of a verified token, and nobody verifies tokens yet.
        claims: None,
    };
    let facts = facts(caller, bind, remote, Some(http));
    judged(worker, policies, caller, policies.decide(&facts))?;
    Ok(match path {
        Cow::Borrowed(_) => None,
        Cow::Owned(path) => Some(path.into()),
    })
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
            Arrival::MutualTls(identity) => Some(identity),
            Arrival::Plaintext => None,
        },
        source_ip: caller.remote.ip(),
        remote_ip,
        destination,
        sni: caller.server_name.as_ref().map(|name| &*name.0),
        http,
    }
}

/// The field lines of a head.
struct Lines<'a>(&'a Head<'a>);

impl Headers for Lines<'_> {
    fn each<'a>(&'a self, show: &mut dyn FnMut(&'a [u8], &'a [u8])) {
        for (name, value) in self.0.headers() {
            show(name.as_bytes(), value);
        }
    }
}

/// Counts what was decided, and says what dry-run policies would have done.
fn judged(
    worker: &Worker,
    policies: &Authorization,
    caller: &Caller,
    outcome: Outcome,
) -> Result<(), Denied> {
    let counters = &worker.counters.authorization;
    let rehearsed = [outcome.dry_run.allow, outcome.dry_run.deny];
    for dry in rehearsed.into_iter().flatten() {
        count(match dry.allowed {
            true => &counters.would_allow,
            false => &counters.would_deny,
        });
        if !dry.allowed {
            rehearsal(policies, caller, dry.rule);
        }
    }
    let denial = match outcome.verdict {
        Verdict::Allowed(_) => {
            count(&counters.allowed);
            return Ok(());
        }
        Verdict::Denied(denial) => denial,
        // Nobody is asked yet, so nobody says yes.
        Verdict::Ask(ask) => ask.refused(),
    };
    count(&counters.denied);
    Err(Denied {
        status: 403,
        details: policies.details(&denial),
        reason: DENIED.to_owned(),
    })
}

/// A dry-run policy would have denied it.
fn rehearsal(policies: &Authorization, caller: &Caller, rule: Option<RuleRef>) {
    let rule = rule.and_then(|rule| policies.named(rule));
    let rule = rule.map_or_else(|| "none".to_owned(), |rule| rule.to_string());
    tracing::debug!(remote = %caller.remote, principal = %caller.principal, matched = %rule, "dry run: would be denied");
}

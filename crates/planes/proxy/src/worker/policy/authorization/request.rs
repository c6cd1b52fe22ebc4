//! Authorization of requests, in Istio's order. The external service sees the request as it came. Then the token, and the
//! DENY and ALLOW policies, judge the request as it goes on.
//!
//! ```text
//! came ─► CUSTOM, with and without its token ─► question ─► yes, amended ┐
//!              └ nobody to ask ────────────────────────────────────────► token ─► DENY, ALLOW ─► leave
//! ```

use std::borrow::Cow;
use std::rc::Rc;

use voile_policy::Permit;
use voile_policy::authorization::{AuthorizationOutcome, HttpFacts, Verdict};
use voile_policy::tokens::Verified;

use super::{AmendedRequest, Denied, ForwardPermit, believed, facts, judged, note, whom};
use crate::authorization::Authorization;
use crate::http::{BodyPrefix, BodyWanted, DENIED, HttpHead, REVOKED};
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::policy::authorizer::{
    Authorizer, AuthorizerRequest, AuthorizerResponse, CheckSubject,
};
use crate::worker::policy::policy_audit;
use crate::worker::policy::request_changes::PlanChanges;
use crate::worker::policy::request_view::{Lines, RequestStage, RequestView};
use crate::worker::policy::tokens::{self, PresentedTokens};
use crate::worker::{Worker, count};

/// Verdict of the policies on a request.
pub(crate) enum JudgedRequest {
    /// It may go on, like this.
    Let(GrantedRequest),
    /// An external service must be asked first.
    Ask(Box<PendingCheck>),
}

/// A request that may go on.
pub(crate) struct GrantedRequest {
    pub(crate) leave: ForwardPermit,
    pub(crate) path: Option<Box<str>>,
    pub(crate) changes: PlanChanges,
    /// The good token that came with it.
    pub(crate) token: Option<Verified>,
}

/// A request that an external service must be asked about.
pub(crate) struct PendingCheck {
    permit: Rc<Permit>,
    began: u64,
    /// External service to ask, as of `judgement`.
    asks: FirstCheck,
    judgement: u32,
    authorizer: Rc<Authorizer>,
    /// Until it is asked.
    question: Option<AuthorizerRequest>,
    /// Once it was.
    answer: Option<AuthorizerResponse>,
}

impl PendingCheck {
    /// Limit of the body that the question includes.
    pub(crate) fn body(&self) -> Option<BodyWanted> {
        self.authorizer.body()
    }

    /// Puts the question.
    pub(crate) async fn ask(&mut self, worker: &Worker, body: Option<BodyPrefix>) {
        if let Some(mut question) = self.question.take() {
            question.show(body);
            self.answer = Some(self.authorizer.ask(worker, question).await);
        }
    }

    /// Turns the answer into a decision, by the policies in force now.
    pub(crate) fn granted(
        self,
        worker: &Worker,
        slot: &InboundSlot,
        caller: &InboundCaller,
        head: &HttpHead<'_>,
    ) -> Result<GrantedRequest, Denied> {
        let mut asks = self.asks;
        if self.judgement != worker.judgement.get() {
            let seen = RequestView::new(head, RequestStage::Fresh);
            let said = said(worker, slot, caller, &seen, self.began)?;
            match said.asks {
                Some(now) => asks = now,
                None => return Ok(said.granted(worker, self.permit, self.began)),
            }
        }
        let unasked = || AuthorizerResponse::Unusable("the external service was not called".into());
        let answer = self.answer.unwrap_or_else(unasked);
        let allowed = believed(worker, &self.authorizer, answer).map_err(|denied| {
            let policies = slot.policies(worker);
            let policies = policies.as_ref();
            let said = policies.and_then(|policies| note(worker, policies, caller, &asks.outcome));
            Denied { said, ..denied }
        })?;
        let (changes, path) = allowed.applied(head, asks.path);
        let amended = AmendedRequest { changes, path };
        let by = self.authorizer.id();
        let seen = RequestView::new(head, RequestStage::Answered(by, &amended));
        let said = said(worker, slot, caller, &seen, self.began);
        let mut said = said.map_err(|denied| amended.told(denied, head))?;
        said.path = said.path.or_else(|| amended.path.clone());
        let beside = said.beside.take();
        let mut granted = said.granted(worker, self.permit, self.began);
        granted.leave = granted.leave.with(by, amended, beside);
        Ok(granted)
    }
}

/// Judges a request on an admitted connection. Does nothing without rules about tokens and policies.
pub(crate) fn request(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &InboundCaller,
    head: &HttpHead<'_>,
    permit: Rc<Permit>,
) -> Result<JudgedRequest, Denied> {
    let began = tokens::now(slot.tokens(worker));
    let seen = RequestView::new(head, RequestStage::Fresh);
    let mut said = said(worker, slot, caller, &seen, began)?;
    let policies = slot.policies(worker);
    let (Some(asks), Some(policies)) = (said.asks.take(), policies.as_ref()) else {
        return Ok(JudgedRequest::Let(said.granted(worker, permit, began)));
    };
    let about = CheckSubject {
        caller,
        destination: slot.plan.borrow().bind,
        request: Some((head, asks.path.as_deref().unwrap_or_else(|| seen.path()))),
        changes: &tokens::unforged(slot.tokens(worker)),
    };
    let (authorizer, question) = whom(worker, policies, &asks.outcome, &about)?;
    Ok(JudgedRequest::Ask(Box::new(PendingCheck {
        permit,
        began,
        asks,
        judgement: worker.judgement.get(),
        authorizer,
        question: Some(question),
        answer: None,
    })))
}

/// External service that a request asks first.
pub(super) struct FirstCheck {
    /// Outcome of the policies; its verdict is to ask the external service.
    outcome: AuthorizationOutcome,
    /// The path that is asked about, if that is not the one that came.
    path: Option<Box<str>>,
}

/// Verdict of a token and the policies on a request.
#[derive(Default)]
pub(super) struct RequestVerdict {
    /// The path that it goes on with, if that is not the one that it stands with.
    path: Option<Box<str>>,
    /// All that is changed of the head that came.
    changes: PlanChanges,
    /// The good token.
    token: Option<Verified>,
    /// Audit and dry-run results, for logs.
    beside: Option<Box<policy_audit::AccessRecord>>,
    /// Question to put first: the fields above do not count before its answer.
    pub(super) asks: Option<FirstCheck>,
}

impl RequestVerdict {
    fn granted(self, worker: &Worker, permit: Rc<Permit>, began: u64) -> GrantedRequest {
        let leave = ForwardPermit {
            began: u32::try_from(began).unwrap_or(u32::MAX),
            ..ForwardPermit::new(worker, Some(permit))
        };
        GrantedRequest {
            leave: leave.with(0, AmendedRequest::default(), self.beside),
            path: self.path,
            changes: self.changes,
            token: self.token,
        }
    }
}

/// Judges a request that began then, as it stands.
pub(super) fn said(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &InboundCaller,
    seen: &RequestView<'_>,
    began: u64,
) -> Result<RequestVerdict, Denied> {
    let examined = tokens::examine(worker, slot.tokens(worker), seen, began);
    let policies = slot.policies(worker);
    let Some(policies) = policies.as_ref() else {
        tokens::tally(worker, &examined);
        return Ok(passed(seen, None, examined?, None));
    };
    // A bad token does not prevent the question: the external service sees it, and may replace it.
    let may_ask = policies.provider().is_some() && matches!(seen.came, RequestStage::Fresh);
    if !may_ask {
        tokens::tally(worker, &examined);
    }
    let examined = match examined {
        Err(denied) if !may_ask => return Err(denied),
        examined => examined,
    };
    let presented = examined.as_ref().ok().and_then(Option::as_ref);
    let (path, outcome) = look(slot, caller, seen, presented, policies)?;
    match (&outcome.verdict, seen.came) {
        (Verdict::Ask(_), RequestStage::Fresh) => {
            let asks = Some(FirstCheck { outcome, path });
            return Ok(RequestVerdict {
                asks,
                ..RequestVerdict::default()
            });
        }
        (Verdict::Ask(_), RequestStage::Answered(by, _)) if !asks_now(worker, by) => {
            count(&worker.counters.authorization.denied);
            return Err(Denied::new(403, REVOKED, DENIED));
        }
        _ => {}
    }
    if may_ask {
        tokens::tally(worker, &examined);
    }
    let presented = examined?;
    let beside = judged(worker, policies, caller, outcome)?;
    Ok(passed(seen, path, presented, beside))
}

/// Returns true if the worker still uses the external service of this number.
fn asks_now(worker: &Worker, by: u32) -> bool {
    let authorizer = worker.authorizer.borrow();
    authorizer.as_ref().is_some_and(|asked| asked.id() == by)
}

/// A request that goes on, with this path where policies read another than came.
fn passed(
    seen: &RequestView<'_>,
    path: Option<Box<str>>,
    presented: Option<PresentedTokens>,
    beside: Option<Box<policy_audit::AccessRecord>>,
) -> RequestVerdict {
    let (token, (path, changes)) = match presented {
        None => (None, (path, PlanChanges::default())),
        Some(mut presented) => (presented.take(), presented.applied(seen.path(), path)),
    };
    let changes = match seen.amended() {
        None => changes,
        Some(amended) => amended.changes.clone().then(changes),
    };
    RequestVerdict {
        path,
        changes,
        token,
        beside,
        asks: None,
    }
}

/// Judges a request by the policies. Also returns the path that the policies read, if it differs from the
/// path of the request.
fn look(
    slot: &InboundSlot,
    caller: &InboundCaller,
    seen: &RequestView<'_>,
    presented: Option<&PresentedTokens>,
    policies: &Authorization,
) -> Result<(Option<Box<str>>, AuthorizationOutcome), Denied> {
    let bind = slot.plan.borrow().bind;
    let Some(path) = policies.normalized(seen.path()) else {
        let why = "path_normalization_failed";
        return Err(Denied::new(400, why, why));
    };
    let remote = policies.remote_ip(seen.head, caller.client().ip());
    let merged = presented.zip(seen.amended()).map(|(presented, amended)| {
        let theirs = amended.changes.clone();
        theirs.then(presented.changes().clone())
    });
    let goes_on = Lines {
        head: seen.head,
        changes: match (&merged, presented, seen.amended()) {
            (Some(merged), _, _) => Some(merged),
            (None, Some(presented), _) => Some(presented.changes()),
            (None, None, Some(amended)) => Some(&amended.changes),
            (None, None, None) => None,
        },
    };
    let came = Lines {
        head: seen.head,
        changes: None,
    };
    let http = |headers, claims| {
        let http = HttpFacts {
            authority: seen.head.authority().map(str::as_bytes),
            method: seen.head.method_meant().as_bytes(),
            path: path.as_bytes(),
            headers,
            claims,
        };
        facts(caller, bind, remote, Some(http))
    };
    let now = http(&goes_on, presented.and_then(PresentedTokens::claims));
    // The received form matters only if an external service may be asked, and only if it differs.
    let before = goes_on.changes.map(|_| http(&came, None));
    let outcome = policies.decide(&now, before.as_ref());
    let path = match path {
        Cow::Borrowed(_) => None,
        Cow::Owned(path) => Some(path.into()),
    };
    Ok((path, outcome))
}

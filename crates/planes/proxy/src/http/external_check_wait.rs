//! A request that waits for an external service's answer. The proxy holds as much of its body as the question needs,
//! and drops the question of a client that leaves.
//!
//! ```text
//! head ─► role.route ─► pending ─► hold (body, 413 │ 408 │ gone) ─► role.ask ─► role.answered ─► as if decided at once
//! ```

use std::future::{Future, poll_fn};
use std::task::Poll;

use super::downstream_request::{DownstreamClient as _, HeldRequest};
use super::ending::ExchangeEnd;
use super::exchange_clock::{ExchangeLimits, ExchangeProgress};
use super::external_check::{BodyPrefix, BodyWanted};
use super::limits::HttpTimeouts;
use super::role::{HttpRole, RequestRoute, RoleRefusal};

/// Decision about a request after the role asked.
pub(crate) enum CheckedRequest<R: HttpRole> {
    Routed(RequestRoute<R>),
    Refused(RoleRefusal<R>),
    /// It ended before. The client has received nothing.
    Ended(ExchangeEnd, Option<R::Ticket>),
}

/// Has the role ask about a request that it does not let pass at once, and decide.
pub(crate) async fn check<D: HeldRequest, R: HttpRole>(
    timeouts: &HttpTimeouts,
    role: &R,
    mut refusal: RoleRefusal<R>,
    request: &mut D,
) -> CheckedRequest<R> {
    // After one service approves, the role may have another question.
    while let Some(mut pending) = refusal.pending.take() {
        let wanted = pending.body.filter(|_| request.has_body());
        let asked = ask(timeouts, role, &mut pending.question, wanted, request).await;
        if let Err(end) = asked {
            return CheckedRequest::Ended(end, refusal.ticket);
        }
        match role.answered(&request.head(), pending.question) {
            Ok(route) => return CheckedRequest::Routed(route),
            Err(decided) => refusal = decided,
        }
    }
    CheckedRequest::Refused(refusal)
}

async fn ask<D: HeldRequest, R: HttpRole>(
    timeouts: &HttpTimeouts,
    role: &R,
    question: &mut R::Question,
    wanted: Option<BodyWanted>,
    request: &mut D,
) -> Result<(), ExchangeEnd> {
    let shown = match wanted {
        Some(wanted) => Some(hold(timeouts, wanted, request).await?),
        None => None,
    };
    let mut asking = std::pin::pin!(role.ask(question, shown));
    poll_fn(|cx| match asking.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Ok(())),
        Poll::Pending => request.client().poll_gone(cx).map(Err),
    })
    .await
}

/// Holds the body as far as it is wanted.
async fn hold<D: HeldRequest>(
    timeouts: &HttpTimeouts,
    wanted: BodyWanted,
    request: &mut D,
) -> Result<BodyPrefix, ExchangeEnd> {
    let limits = ExchangeLimits::new(timeouts, None, None);
    poll_fn(|cx| {
        if let Poll::Ready(held) = request.poll_hold(cx, wanted.max) {
            return Poll::Ready(held);
        }
        let sending = ExchangeProgress::sending(request.received());
        let (clock, timer) = request.client().clock();
        match clock.overdue(cx, timer, limits, sending, || false) {
            Some(end) => Poll::Ready(Err(end)),
            None => Poll::Pending,
        }
    })
    .await?;
    let shown = request.held(wanted.max);
    match shown.whole || wanted.partial {
        true => Ok(shown),
        false => Err(ExchangeEnd::TooLarge),
    }
}

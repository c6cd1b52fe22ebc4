//! A stream that waits for an external service's answer. The proxy holds as much of its body as the question needs, and
//! drops the question of a client that gives the stream up.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll, ready};

use voile_http2::{Fields, RecvStream};

use super::stream_copy::Cause;
use crate::http::ending::ExchangeEnd;
use crate::http::exchange_clock::{ExchangeLimits, ExchangeProgress};
use crate::http::external_check::{BodyPrefix, BodyWanted, Pending, TakenBody};
use crate::http::timer::Timer;
use crate::http::{ExchangeRecord, HttpHead, HttpRole, HttpTimeouts, RequestRoute, RoleRefusal};
use crate::http2::stream_call::ClientCall;

/// Has the role ask about a request that it does not let pass at once, and decide. Interruptions are answered here.
pub(super) async fn consult<R: HttpRole>(
    timeouts: HttpTimeouts,
    role: &R,
    mut refusal: RoleRefusal<R>,
    (parts, body): (&Fields, &mut RecvStream),
    (call, tally): (&mut ClientCall, &mut ExchangeRecord),
) -> Result<RequestRoute<R>, RoleRefusal<R>> {
    // After one service approves, the role may have another question.
    while let Some(pending) = refusal.pending.take() {
        match once(timeouts, role, *pending, (parts, body), (call, tally)).await {
            None => break,
            Some(Ok(route)) => return Ok(route),
            Some(Err(decided)) => refusal = decided,
        }
    }
    Err(refusal)
}

/// Has the role ask once; nothing where it was answered here.
async fn once<R: HttpRole>(
    timeouts: HttpTimeouts,
    role: &R,
    Pending {
        mut question,
        body: wanted,
    }: Pending<R::Question>,
    (parts, body): (&Fields, &mut RecvStream),
    (call, tally): (&mut ClientCall, &mut ExchangeRecord),
) -> Option<Result<RequestRoute<R>, RoleRefusal<R>>> {
    // The held part of the body is not read again.
    let mut held = call.held.take().map(|held| *held).unwrap_or_default();
    let asked = ask(
        timeouts,
        role,
        &mut question,
        wanted,
        (&mut held, body),
        call,
    )
    .await;
    tally.request_body_bytes = held.bytes as u64;
    match asked {
        Ok(()) => {
            call.held = (!held.chunks.is_empty()).then(|| Box::new(held));
            Some(role.answered(&HttpHead::Http2(parts), question))
        }
        Err(end) => {
            call.give_up(role, end, tally);
            None
        }
    }
}

async fn ask<R: HttpRole>(
    timeouts: HttpTimeouts,
    role: &R,
    question: &mut R::Question,
    wanted: Option<BodyWanted>,
    (held, body): (&mut TakenBody, &mut RecvStream),
    call: &mut ClientCall,
) -> Result<(), ExchangeEnd> {
    let shown = match wanted.filter(|_| !call.is_tunnel && !body.is_end_stream()) {
        None => None,
        Some(wanted) => Some(hold(timeouts, wanted, held, body, call).await?),
    };
    let mut asking = std::pin::pin!(role.ask(question, shown));
    poll_fn(|cx| match asking.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Ok(())),
        Poll::Pending => call.poll_gone(cx).map(Err),
    })
    .await
}

/// Reads the body up to the wanted size. The sender gets its window back at once, since that size bounds the held
/// bytes.
async fn hold(
    timeouts: HttpTimeouts,
    wanted: BodyWanted,
    held: &mut TakenBody,
    body: &mut RecvStream,
    call: &mut ClientCall,
) -> Result<BodyPrefix, ExchangeEnd> {
    let mut timer = Timer::default();
    let limits = ExchangeLimits::new(&timeouts, None, None);
    poll_fn(|cx| {
        if let Poll::Ready(taken) = held.poll(cx, body, wanted.max) {
            return Poll::Ready(taken.map_err(ExchangeEnd::Client));
        }
        if let Poll::Ready(end) = call.poll_gone(cx) {
            return Poll::Ready(Err(end));
        }
        let sending = ExchangeProgress::sending(held.bytes as u64);
        match call.clock.overdue(cx, &mut timer, limits, sending) {
            Some(end) => Poll::Ready(Err(end)),
            None => Poll::Pending,
        }
    })
    .await?;
    let whole = held.whole && held.bytes <= wanted.max;
    if !(whole || wanted.partial) {
        return Err(ExchangeEnd::TooLarge);
    }
    let mut bytes = held.chunks.concat();
    bytes.truncate(wanted.max);
    Ok(BodyPrefix { bytes, whole })
}

impl TakenBody {
    /// Ready when there is more than so many bytes, or all.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut RecvStream,
        max: usize,
    ) -> Poll<Result<(), Cause>> {
        while self.bytes <= max {
            match ready!(body.poll_data(cx)) {
                Some(chunk) => {
                    let chunk = chunk?;
                    body.release_capacity(chunk.len());
                    self.bytes += chunk.len();
                    if !chunk.is_empty() {
                        self.chunks.push(chunk);
                    }
                }
                None => {
                    self.whole = true;
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

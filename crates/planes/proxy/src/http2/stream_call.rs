//! The client's side of a stream.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use voile_http2::{Fields, SendResponse};

use crate::http::ending::ExchangeEnd;
use crate::http::exchange_clock::ExchangeClock;
use crate::http::external_check::TakenBody;
use crate::http::reply::{LocalReply, ReplyTraits};
use crate::http::timer::Timer;
use crate::http::{ExchangeRecord, HttpHead, HttpRole};

/// The client's side of a stream.
pub(crate) struct ClientCall {
    pub(crate) respond: SendResponse,
    pub(crate) clock: ExchangeClock,
    pub(crate) is_grpc: bool,
    pub(crate) is_head: bool,
    /// True for CONNECT, whatever protocol the tunnel carries.
    pub(crate) is_tunnel: bool,
    pub(super) idempotent: bool,
    /// Part of the body that was read for a question: it goes first.
    pub(crate) held: Option<Box<TakenBody>>,
}

impl ClientCall {
    pub(super) fn new(respond: SendResponse, started: Instant, parts: &Fields) -> Self {
        let head = HttpHead::Http2(parts);
        Self {
            respond,
            clock: ExchangeClock::new(started),
            is_grpc: head.is_grpc(),
            is_head: parts.method() == "HEAD",
            is_tunnel: parts.method() == "CONNECT",
            idempotent: head.is_idempotent(),
            held: None,
        }
    }

    /// Replies ourselves.
    pub(crate) fn answer<R: HttpRole>(
        &mut self,
        role: &R,
        reply: LocalReply<'_>,
        tally: &mut ExchangeRecord,
    ) {
        let words = reply.words(ReplyTraits {
            grpc: self.is_grpc,
            head_only: self.is_head,
            tunnel: self.is_tunnel,
        });
        let added = role.adds_to_own();
        let added = added.as_deref().map_or(&[][..], std::slice::from_ref);
        let sent = words.send(&mut self.respond, added);
        reply.record(&words, sent, tally);
    }

    /// Ends a request of which the client has received nothing.
    pub(crate) fn give_up<R: HttpRole>(
        &mut self,
        role: &R,
        end: ExchangeEnd,
        tally: &mut ExchangeRecord,
    ) {
        let reply = end.reply(false, R::REVOCATION);
        match end {
            ExchangeEnd::Client(_) => (tally.flag, tally.details) = (reply.flag, reply.details),
            _ => self.answer(role, reply, tally),
        }
    }

    /// Returns true if the time for an answer is over, which begins when all of the request was received. A tunnel has no end
    /// that could be waited for.
    pub(crate) fn is_over(
        &mut self,
        cx: &mut Context<'_>,
        timer: &mut Timer,
        limit: Option<Duration>,
        received: impl FnOnce() -> bool,
    ) -> bool {
        let limit = limit.filter(|_| !self.is_tunnel && received());
        self.clock.is_over(cx, timer, limit)
    }

    /// Cause of the client's end of the stream, once it ended.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        self.respond.poll_failed(cx).map(ExchangeEnd::Client)
    }
}

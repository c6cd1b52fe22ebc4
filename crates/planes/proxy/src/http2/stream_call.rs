//! The client's side of a stream.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use voile_http2::{Fields, SendResponse};

use crate::http::external_check::TakenBody;
use crate::http::timer::Timer;
use crate::http::{ExchangeRecord, ExternalReply, HttpHead, HttpRole, ResponseFlag, RoleRefusal};
use crate::http2::reply;
use crate::http2::stream_copy::Cause;

/// The client's side of a stream.
pub(crate) struct ClientCall {
    pub(crate) respond: SendResponse,
    pub(crate) started: Instant,
    pub(crate) is_grpc: bool,
    pub(crate) is_head: bool,
    /// True for CONNECT, whatever protocol the tunnel carries.
    pub(crate) is_tunnel: bool,
    pub(super) idempotent: bool,
    /// When all of the request was received, where the time for its answer is limited.
    pub(crate) received: Option<Instant>,
    /// Part of the body that was read for a question: it goes first.
    pub(crate) held: Option<Box<TakenBody>>,
}

impl ClientCall {
    pub(super) fn new(respond: SendResponse, started: Instant, parts: &Fields) -> Self {
        let head = HttpHead::Http2(parts);
        Self {
            respond,
            started,
            is_grpc: head.is_grpc(),
            is_head: parts.method() == "HEAD",
            is_tunnel: parts.method() == "CONNECT",
            idempotent: head.is_idempotent(),
            received: None,
            held: None,
        }
    }

    /// Replies ourselves: with these details for the record, and this reason.
    pub(crate) fn answer<R: HttpRole>(
        &mut self,
        role: &R,
        status: u16,
        flag: ResponseFlag,
        (details, reason): (&'static str, &str),
        tally: &mut ExchangeRecord,
    ) {
        self.say(role, status, flag, (details, reason, None), tally);
    }

    fn say<R: HttpRole>(
        &mut self,
        role: &R,
        status: u16,
        flag: ResponseFlag,
        (details, reason, told): (&'static str, &str, Option<&ExternalReply>),
        tally: &mut ExchangeRecord,
    ) {
        // Success would tell the client of a tunnel that there is one (RFC 9110 section 9.3.6, RFC 8441 section 5).
        let status = match status {
            200..300 if self.is_tunnel => 502,
            status => status,
        };
        let added = role.adds_to_own();
        let added = added.as_deref().map_or(&[][..], std::slice::from_ref);
        let sent = reply::send(
            &mut self.respond,
            status,
            reason,
            (told, added),
            self.is_grpc && !self.is_tunnel,
            self.is_head,
        );
        tally.status = sent.status;
        tally.flag = flag;
        tally.details = details;
        tally.response_head_bytes = sent.head;
        tally.response_body_bytes = sent.body;
        if let Some(grpc) = &mut tally.grpc {
            grpc.status = sent.grpc_status;
        }
    }

    /// Sends the role's refusal, unless a reply was sent already.
    pub(super) fn refuse<R: HttpRole>(
        &mut self,
        role: &R,
        refusal: &RoleRefusal<R>,
        tally: &mut ExchangeRecord,
    ) {
        if tally.details.is_empty() {
            let (status, flag) = (refusal.status, refusal.flag);
            let told = refusal.told.as_deref();
            let why = (refusal.details, &*refusal.reason, told);
            self.say(role, status, flag, why, tally);
        }
    }

    /// Replies that HTTP/1.1 cannot carry it; gives the ticket back.
    pub(super) fn answer_incapable<R: HttpRole>(
        &mut self,
        role: &R,
        ticket: R::Ticket,
        tally: &mut ExchangeRecord,
    ) -> R::Ticket {
        let (flag, details) = (ResponseFlag::UpstreamProtocolError, "connect_protocol");
        let reason = "this :protocol cannot be translated to HTTP/1.1";
        self.answer(role, 501, flag, (details, reason), tally);
        ticket
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
        let Some(limit) = limit.filter(|_| !self.is_tunnel && received()) else {
            return false;
        };
        let since = *self.received.get_or_insert_with(Instant::now);
        timer.passed(cx, since + limit)
    }

    /// Cause of the client's end of the stream, once it ended.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Cause> {
        self.respond.poll_failed(cx)
    }
}

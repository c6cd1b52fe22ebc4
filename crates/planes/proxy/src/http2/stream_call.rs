//! The client's side of a stream.

use std::task::{Context, Poll};
use std::time::Instant;

use voile_http2::Fields;

use crate::http::codec::{AnswerSink as _, BodySource as _, StreamCodec};
use crate::http::downstream_request::{DownstreamClient, DownstreamRequest, HeldRequest};
use crate::http::ending::ExchangeEnd;
use crate::http::exchange_clock::ExchangeClock;
use crate::http::external_check::{BodyPrefix, TakenBody};
use crate::http::reply::{LocalReply, ReplyTraits};
use crate::http::stream_upstream::UpstreamSink;
use crate::http::timer::Timer;
use crate::http::{ExchangeRecord, HttpHead, HttpRole, Io};
use crate::http2::conversions::headers::is_idempotent;
use crate::http2::stream_copy::{Pump, Replay};

/// The client's side of a stream.
pub(crate) struct ClientCall<D: StreamCodec> {
    pub(crate) respond: D::Answer,
    pub(crate) clock: ExchangeClock,
    pub(super) timer: Timer,
    pub(crate) is_grpc: bool,
    pub(crate) is_head: bool,
    /// True for CONNECT, whatever protocol the tunnel carries.
    pub(crate) is_tunnel: bool,
    /// The tunnel is one that HTTP/1.1 asks for by an upgrade.
    pub(crate) is_upgrade: bool,
    pub(super) idempotent: bool,
    /// Part of the body that was read for a question: it goes first.
    pub(crate) held: Option<Box<TakenBody>>,
}

impl<D: StreamCodec> ClientCall<D> {
    pub(super) fn new(respond: D::Answer, started: Instant, parts: &Fields) -> Self {
        let head = HttpHead::Http2(parts);
        Self {
            respond,
            clock: ExchangeClock::new(started),
            timer: Timer::default(),
            is_grpc: head.is_grpc(),
            is_head: parts.method() == "HEAD",
            is_tunnel: parts.method() == "CONNECT",
            is_upgrade: parts.protocol().is_some(),
            idempotent: is_idempotent(head.method_meant()),
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
}

impl<D: StreamCodec> DownstreamClient for ClientCall<D> {
    fn clock(&mut self) -> (&mut ExchangeClock, &mut Timer) {
        (&mut self.clock, &mut self.timer)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        self.respond.poll_failed(cx).map(ExchangeEnd::Client)
    }
}

/// Parts of a request in one of its attempts: head, client and the body on its way.
pub(super) type AttemptParts<'r, D, U> = (
    &'r Fields,
    &'r mut ClientCall<D>,
    &'r mut Pump<<D as StreamCodec>::Body, UpstreamSink<U>>,
);

/// A request on a stream.
pub(crate) struct StreamRequest<D: StreamCodec, U: Io> {
    pub(crate) head: Fields,
    pub(crate) call: ClientCall<D>,
    /// Its body, until something of it went on.
    pub(crate) body: Option<D::Body>,
    /// The body on its way.
    pub(super) pump: Option<Pump<D::Body, UpstreamSink<U>>>,
}

impl<D: StreamCodec, U: Io> StreamRequest<D, U> {
    /// Returns true if nothing of a body is there, and none will come.
    pub(crate) fn is_empty(&self) -> bool {
        let ended = self.body.as_ref().is_some_and(D::Body::is_end_stream);
        ended && self.call.held.is_none()
    }

    /// The parts of an attempt whose head went into this sink; none where nothing is there to be sent again.
    pub(super) fn begin(
        &mut self,
        empty: bool,
        sink: UpstreamSink<U>,
        replay: &mut Replay,
    ) -> Option<AttemptParts<'_, D, U>> {
        let Self {
            head,
            call,
            body,
            pump,
        } = self;
        let up = match (body.take(), pump) {
            (Some(body), pump) => {
                let mut new = Pump::new(body, sink, call.is_grpc);
                new.begin(empty, call.held.take());
                pump.insert(new)
            }
            (None, Some(pump)) => {
                pump.restart(sink, replay);
                pump.begin(empty, None);
                pump
            }
            (None, None) => return None,
        };
        Some((head, call, up))
    }
}

impl<D: StreamCodec, U: Io> DownstreamRequest for StreamRequest<D, U> {
    fn client(&mut self) -> &mut impl DownstreamClient {
        &mut self.call
    }

    fn head(&self) -> HttpHead<'_> {
        HttpHead::Http2(&self.head)
    }

    /// So is a handshake that the bytes of its tunnel follow.
    fn is_received(&self) -> bool {
        match &self.body {
            _ if self.call.is_upgrade => true,
            Some(body) => body.is_received(),
            None => self.pump.as_ref().is_some_and(Pump::is_received),
        }
    }
}

/// The held part is not read again.
impl<D: StreamCodec, U: Io> HeldRequest for StreamRequest<D, U> {
    fn has_body(&self) -> bool {
        !self.call.is_tunnel && !self.is_empty()
    }

    /// The sender gets its window back at once, since `max` bounds the held bytes.
    fn poll_hold(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Result<(), ExchangeEnd>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(Ok(()));
        };
        let held = self.call.held.get_or_insert_default();
        while held.bytes <= max && !held.whole {
            match body.poll_data(cx) {
                Poll::Ready(Some(chunk)) => {
                    let chunk = chunk.map_err(ExchangeEnd::Client)?;
                    body.release_capacity(chunk.len());
                    held.bytes += chunk.len();
                    if !chunk.is_empty() {
                        held.chunks.push(chunk);
                    }
                }
                Poll::Ready(None) => held.whole = true,
                Poll::Pending => return self.call.poll_gone(cx).map(Err),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn received(&self) -> u64 {
        self.call.held.as_ref().map_or(0, |held| held.bytes as u64)
    }

    fn held(&self, max: usize) -> BodyPrefix {
        let held = self.call.held.as_deref();
        let mut bytes = held.map_or_else(Vec::new, |held| held.chunks.concat());
        let whole = held.is_none_or(|held| held.whole) && bytes.len() <= max;
        bytes.truncate(max);
        BodyPrefix { bytes, whole }
    }
}

//! The request's way: the edited head and the body bytes at hand leave in one write, then the body as it comes.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use voile_http1::{Body, BodyError, Framing};
use voile_transport::{SocketEvents, yield_turn};

use crate::http::buffers::Buffer;
use crate::http::external_check::Names;
use crate::http::io::Io;
use crate::http::limits::{MAX_REMAINDER, MIN_READ_BYTES};

/// Reads of a body in a row before the answer is looked for. The runtime lets a task do so much between two waits; an
/// upload that takes all of it never sees that it was answered.
const MAX_TURNS: u32 = 16;

/// Why a request could not be sent whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadError {
    /// The upstream takes no more; it may still have answered.
    Upstream,
    /// The client went away.
    Client,
    /// The client's body is not what its head promised.
    Body(BodyError),
}

/// Positions of one request in the downstream buffer, whose beginning keeps the head until the exchange is recorded.
pub(crate) struct Upload {
    body: Body,
    /// Start of the body in the buffer.
    body_at: usize,
    /// Bytes before this were written.
    sent_to: usize,
    /// Bytes before this belong to the body; behind it, when the body is over, the next request begins.
    checked_to: usize,
    head_sent: usize,
    /// Bytes of the body received.
    pub(crate) body_bytes: u64,
    /// True if everything received is still in the buffer, so that the request can be sent again.
    pub(crate) replayable: bool,
    /// True if the upstream took a byte.
    pub(crate) started: bool,
    pub(crate) finished: bool,
    pub(crate) broken: bool,
    /// Waiting for the upstream to take bytes.
    pub(crate) stalled: bool,
    /// The client may leave the body out: it asked first (`Expect`). Then the engine does not wait for the remainder after an
    /// answer.
    may_be_left_out: bool,
}

impl Upload {
    /// A request whose head ends at `body_at`; takes the body bytes at hand.
    pub(crate) fn new(
        framing: Framing,
        body_at: usize,
        input: &Buffer,
        may_be_left_out: bool,
    ) -> Result<Self, BodyError> {
        let mut body = Body::new(framing);
        let at_hand = body.accept(&input.bytes()[body_at..input.end])?;
        Ok(Self {
            body,
            body_at,
            sent_to: body_at,
            checked_to: body_at + at_hand,
            head_sent: 0,
            body_bytes: at_hand as u64,
            replayable: true,
            started: false,
            finished: false,
            broken: false,
            stalled: false,
            may_be_left_out,
        })
    }

    /// Refuses trailers of these names; to be called before anything was sent.
    pub(crate) fn forbid_trailers(
        &mut self,
        names: &Names,
        input: &Buffer,
    ) -> Result<(), BodyError> {
        if names.is_empty() || !matches!(self.body, Body::Chunked(_)) {
            return Ok(());
        }
        // The bytes at hand are parsed once more: the body may end in them.
        let mut body = Body::new(Framing::Chunked);
        body.forbid_trailers(names.iter().map(|name| name.as_bytes()));
        body.accept(&input.bytes()[self.body_at..self.checked_to])?;
        self.body = body;
        Ok(())
    }

    /// Returns true if the whole body was received.
    pub(crate) fn received(&self) -> bool {
        self.body.is_done()
    }

    /// Returns true if the next request can be found behind an answer that comes now. Either the body was received, or
    /// reading the small rest costs less than a new connection. The rest of a chunked body has no known size.
    pub(crate) fn ends_soon(&self) -> bool {
        match self.body {
            Body::Length(left) if !self.may_be_left_out => left <= MAX_REMAINDER,
            _ => self.received(),
        }
    }

    /// Reads the remainder and drops it.
    pub(crate) fn poll_remainder<D: Io>(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        client: &mut D,
    ) -> Poll<Result<(), UploadError>> {
        while !self.body.is_done() {
            self.make_room(input);
            ready!(self.poll_take(cx, input, client))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Start of the next request, once the whole body was received.
    pub(crate) fn end(&self) -> usize {
        self.checked_to
    }

    /// Start of the body in the buffer.
    pub(crate) fn begin(&self) -> usize {
        self.body_at
    }

    /// Part of the body in the buffer, and its start.
    pub(crate) fn held<'b>(&self, input: &'b Buffer) -> (usize, &'b [u8]) {
        (self.body_at, &input.bytes()[self.body_at..self.checked_to])
    }

    /// Reads the body without sending anything of it, until all of it or `limit` bytes of it are in the buffer. To be
    /// called before anything was sent.
    pub(crate) fn poll_hold<D: Io>(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        client: &mut D,
        limit: usize,
    ) -> Poll<Result<(), UploadError>> {
        while !self.body.is_done() && self.checked_to - self.body_at < limit {
            input.grow(MIN_READ_BYTES);
            ready!(self.poll_take(cx, input, client))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once behind what is held.
    fn poll_take<D: Io>(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        client: &mut D,
    ) -> Poll<Result<(), UploadError>> {
        let read = ready!(input.poll_read(cx, client));
        if read.map_err(|_| UploadError::Client)? == 0 {
            return Poll::Ready(Err(UploadError::Client));
        }
        let fresh = &input.bytes()[self.checked_to..input.end];
        let accepted = self.body.accept(fresh).map_err(UploadError::Body)?;
        self.checked_to += accepted;
        self.body_bytes += accepted as u64;
        Poll::Ready(Ok(()))
    }

    /// Starts over on another connection.
    pub(crate) fn rewind(&mut self) {
        debug_assert!(self.replayable);
        self.sent_to = self.body_at;
        self.head_sent = 0;
        self.started = false;
        self.finished = false;
        self.broken = false;
    }

    /// Sends `head` and the body. Ready when everything was written and flushed.
    pub(crate) fn poll<D: Io, U: Io>(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8],
        input: &mut Buffer,
        client: &mut D,
        upstream: &mut U,
    ) -> Poll<Result<(), UploadError>> {
        let mut turns = 0;
        loop {
            while self.head_sent < head.len() || self.sent_to < self.checked_to {
                let body = &input.bytes()[self.sent_to..self.checked_to];
                self.stalled = true;
                let sent = ready!(poll_write_two(cx, upstream, &head[self.head_sent..], body));
                let sent = sent.map_err(|_| UploadError::Upstream)?;
                self.started = true;
                let of_head = sent.min(head.len() - self.head_sent);
                self.head_sent += of_head;
                self.sent_to += sent - of_head;
            }
            self.stalled = false;
            if self.body.is_done() {
                let flushed = ready!(Pin::new(upstream).poll_flush(cx));
                return Poll::Ready(flushed.map_err(|_| UploadError::Upstream));
            }
            if input.room() < MIN_READ_BYTES
                && self.replayable
                && upstream.news() == SocketEvents::End
            {
                // While everything is still held it can go elsewhere.
                return Poll::Ready(Err(UploadError::Upstream));
            }
            self.make_room(input);
            let Poll::Ready(taken) = self.poll_take(cx, input, client) else {
                // No bytes may wait in a TLS session while the proxy waits for the client.
                let flushed = ready!(Pin::new(upstream).poll_flush(cx));
                flushed.map_err(|_| UploadError::Upstream)?;
                return Poll::Pending;
            };
            taken?;
            turns += 1;
            if turns == MAX_TURNS {
                yield_turn(cx);
                return Poll::Pending;
            }
        }
    }

    /// Everything received was sent, or goes nowhere: reads go behind it while there is room, then over it.
    fn make_room(&mut self, input: &mut Buffer) {
        if input.room() >= MIN_READ_BYTES {
            return;
        }
        self.replayable = false;
        input.end = self.body_at;
        self.sent_to = self.body_at;
        self.checked_to = self.body_at;
        input.grow(MIN_READ_BYTES);
    }
}

/// Writes two slices as one. Writing nothing of something is an error.
pub(crate) fn poll_write_two<S: AsyncWrite + Unpin>(
    cx: &mut Context<'_>,
    stream: &mut S,
    first: &[u8],
    second: &[u8],
) -> Poll<std::io::Result<usize>> {
    let stream = Pin::new(stream);
    let written = match (first, second) {
        (one, []) | ([], one) => stream.poll_write(cx, one),
        _ => stream.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)]),
    };
    match ready!(written) {
        Ok(0) => Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
        other => Poll::Ready(other),
    }
}

//! One downstream connection: requests in order, one at a time, until either side has had enough.
//!
//! ```text
//! idle (no buffer) → reading a head → exchange ─┬─ keep → idle, or straight to a pipelined request
//!                         └ refused → reply ────┴─ close (lingering if the client may still send) | abort | tunnel
//! ```

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use voile_http1::{MAX_HEADERS, Progress, Reject, Version};
use voile_transport::{LingeringConnection, SocketEvents};

use super::buffers::{Buffer, Buffers, ExchangeBuffers};
use super::drain_signal::DrainListener;
use super::io::Io;
use super::limits::{BUFFER_BYTES, LAST_WORD, LEAST_PIPELINED, MAX_PARKED_BYTES};
use super::reply::{LocalReply, ReplyFraming, ReplyTraits};
use super::role::{Exchange, ExchangeRecord, HttpRole, ResponseFlag};
use super::timer::Timer;
use super::worker::{ConnectionEnd, HttpWorker};

/// Buffers of a connection that is not idle.
pub(crate) struct ConnectionWork {
    pub(crate) input: Buffer,
    pub(crate) desk: Box<ExchangeBuffers>,
}

/// End of the wait for a request.
enum NextRequest {
    Request,
    Closed,
    /// We close an idle connection of our own accord.
    Retired,
    Rejected(Reject),
    TooSlow,
    /// Memory is short, and the head is not complete.
    NoRoom,
}

/// Action after an exchange.
pub(crate) enum AfterExchange {
    /// Serve the next request, which begins at this position of the buffer.
    Keep {
        end: usize,
    },
    /// Close in good order; linger if the client may still be sending.
    Close {
        linger: bool,
    },
    /// Close at once: the response is incomplete, and its framing shows it.
    Cut,
    /// End with an error: the client must notice that something is missing.
    Abort,
    Tunnelled,
}

pub(crate) struct Http1Connection<'a, S, R: HttpRole> {
    pub(crate) worker: &'a Rc<HttpWorker<R>>,
    pub(crate) role: &'a R,
    pub(crate) stream: S,
    pub(crate) work: Option<ConnectionWork>,
    pub(crate) timer: Timer,
    /// When the last exchange ended, or the connection began.
    pub(crate) rested: Instant,
    header_began: Option<Instant>,
    /// The beginning of a head whose client dawdles.
    parked: Vec<u8>,
    listening: Option<DrainListener>,
    /// The drain's retirements when it last did something.
    retirements: u32,
    /// Its time was over when one more request came: that is the last.
    pub(crate) retiring: bool,
}

/// End of a wait without a buffer.
enum IdleEnd {
    Work,
    Gone,
    Over,
}

impl<S, R: HttpRole> Drop for Http1Connection<'_, S, R> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            work.give_back(&self.worker.buffers);
        }
    }
}

impl ConnectionWork {
    fn take(buffers: &Buffers) -> Self {
        Self {
            input: buffers.take(),
            desk: buffers.take_desk(),
        }
    }

    pub(crate) fn give_back(self, buffers: &Buffers) {
        buffers.give(self.input);
        buffers.give_desk(self.desk);
    }
}

impl<'a, S: Io, R: HttpRole> Http1Connection<'a, S, R> {
    pub(crate) fn new(worker: &'a Rc<HttpWorker<R>>, role: &'a R, stream: S, early: &[u8]) -> Self {
        let work = (!early.is_empty()).then(|| {
            let mut work = ConnectionWork::take(&worker.buffers);
            work.input.extend(early);
            work
        });
        Self {
            worker,
            role,
            stream,
            work,
            timer: Timer::default(),
            rested: Instant::now(),
            header_began: None,
            parked: Vec::new(),
            listening: None,
            retirements: worker.drain.retirements(),
            retiring: false,
        }
    }

    pub(crate) async fn serve(&mut self) -> ConnectionEnd {
        loop {
            match poll_fn(|cx| self.poll_next(cx)).await {
                NextRequest::Request => {}
                NextRequest::Closed => {
                    let _ = poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await;
                    return ConnectionEnd::Clean;
                }
                NextRequest::Retired => {
                    self.retire().await;
                    return ConnectionEnd::Clean;
                }
                NextRequest::Rejected(reject) => {
                    self.refuse(reject.status(), reject.reason()).await;
                    return ConnectionEnd::Refused;
                }
                NextRequest::TooSlow => {
                    self.refuse(408, "request_head_timeout").await;
                    return ConnectionEnd::Refused;
                }
                NextRequest::NoRoom => {
                    self.refuse(503, "overload: the proxy is near its memory limit")
                        .await;
                    return ConnectionEnd::Refused;
                }
            }
            self.prepare().await;
            match self.exchange().await {
                AfterExchange::Keep { .. } => {}
                AfterExchange::Close { linger } => {
                    self.close(linger).await;
                    return ConnectionEnd::Clean;
                }
                AfterExchange::Cut => return ConnectionEnd::Aborted,
                AfterExchange::Abort => {
                    self.stream.abort();
                    return ConnectionEnd::Aborted;
                }
                AfterExchange::Tunnelled => return ConnectionEnd::Tunnel,
            }
        }
    }

    /// Waits for a whole request head. Holds a buffer only from the first byte on.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<NextRequest> {
        if self.listening.is_none() {
            self.listening = Some(self.worker.drain.listen(cx));
        }
        loop {
            let Some(work) = &mut self.work else {
                return Poll::Ready(match std::task::ready!(self.poll_idle(cx)) {
                    IdleEnd::Work => continue,
                    IdleEnd::Gone => NextRequest::Closed,
                    IdleEnd::Over if self.parked.is_empty() => NextRequest::Retired,
                    IdleEnd::Over => NextRequest::TooSlow,
                });
            };
            match work.desk.request.parse(work.input.filled()) {
                Ok(Progress::Complete) => {
                    self.header_began = None;
                    // A head may fill the buffer to its end. Without room nobody would notice that the client leaves.
                    work.input.grow(LEAST_PIPELINED);
                    if work.desk.request.field_count() > MAX_HEADERS && !self.role.serves_proxy() {
                        return Poll::Ready(NextRequest::Rejected(Reject::TooManyHeaders));
                    }
                    return Poll::Ready(NextRequest::Request);
                }
                Ok(Progress::Partial) => {}
                Err(reject) => return Poll::Ready(NextRequest::Rejected(reject)),
            }
            if work.input.room() == 0 {
                if self.worker.buffers.http2.is_short() {
                    return Poll::Ready(NextRequest::NoRoom);
                }
                work.input.compact();
                work.input.grow(BUFFER_BYTES);
                // Large heads are rare, and come from many connections at once if they are hostile: looking costs less.
                let room = work.input.bytes().len();
                self.worker.buffers.http2.grew(4 * room);
            }
            match work.input.poll_read(cx, &mut self.stream) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(NextRequest::Closed),
                Poll::Ready(Ok(_)) => {}
                // Old clients send an empty line after a body; it begins nothing.
                Poll::Pending if matches!(work.input.filled(), b"" | b"\r\n") => {
                    self.header_began = None;
                    self.rest();
                }
                Poll::Pending => {
                    let began = *self.header_began.get_or_insert_with(Instant::now);
                    if work.input.filled().len() <= MAX_PARKED_BYTES {
                        self.parked = work.input.filled().to_vec();
                        self.rest();
                    } else if self.worker.buffers.http2.is_short() {
                        return Poll::Ready(NextRequest::NoRoom);
                    }
                    let late = self.timer.passed(cx, began + self.worker.timeouts.header);
                    return if late {
                        Poll::Ready(NextRequest::TooSlow)
                    } else {
                        Poll::Pending
                    };
                }
            }
        }
    }

    /// Ready with work when there is something to read, ready without when the connection should end.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<IdleEnd> {
        if let Some(listening) = &self.listening {
            listening.refresh(cx);
        }
        match self.stream.poll_readable(cx) {
            Poll::Ready(Ok(())) => {
                self.take_work();
                Poll::Ready(IdleEnd::Work)
            }
            Poll::Ready(Err(_)) => Poll::Ready(IdleEnd::Gone),
            Poll::Pending => {
                let deadline = match self.header_began {
                    Some(began) => began + self.worker.timeouts.header,
                    None => self.rested + self.worker.timeouts.downstream_idle,
                };
                let idle = self.parked.is_empty();
                let drain = &self.worker.drain;
                let closes = drain.closes_idle();
                let patient = closes && idle && self.role.may_serve_application();
                let deadline = match patient {
                    true => deadline.min(self.rested + LAST_WORD),
                    false => deadline,
                };
                let asked = (closes && !patient)
                    || drain.retirements() != self.retirements
                    || self.role.is_unwelcome();
                let over = (idle && asked) || self.timer.passed(cx, deadline);
                if !over {
                    return Poll::Pending;
                }
                if idle && !self.retiring && self.stream.news() != SocketEvents::None {
                    // It is in the kernel already; the runtime will say so in a moment.
                    self.retiring = true;
                    return Poll::Pending;
                }
                Poll::Ready(IdleEnd::Over)
            }
        }
    }

    /// Takes the buffers that a request needs, with the bytes that came already.
    fn take_work(&mut self) {
        let mut work = ConnectionWork::take(&self.worker.buffers);
        if !self.parked.is_empty() {
            work.input.extend(&self.parked);
            self.parked = Vec::new();
        }
        self.work = Some(work);
    }

    /// Gives the buffers back.
    fn rest(&mut self) {
        if let Some(work) = self.work.take() {
            work.give_back(&self.worker.buffers);
        }
    }

    /// Makes ready for the next request, which may have come already.
    pub(crate) fn advance(&mut self, to: usize) {
        self.retirements = self.worker.drain.retirements();
        if let Some(work) = &mut self.work {
            work.input.start = to;
            work.desk.request.reset();
            if work.input.is_empty() {
                self.rest();
            }
        }
    }

    /// Answers a head we do not understand, and closes.
    async fn refuse(&mut self, status: u16, reason: &'static str) {
        let started = Instant::now();
        if self.work.is_none() {
            self.take_work();
        }
        let received = self
            .work
            .as_ref()
            .map_or(0, |work| work.input.filled().len());
        let flag = match status {
            503 => ResponseFlag::OverloadManager,
            _ => ResponseFlag::DownstreamProtocolError,
        };
        let mut record = ExchangeRecord::begin(started, received as u64);
        self.reply_last(LocalReply::new(status, flag, reason), &mut record)
            .await;
        record.finish();
        self.role.record(Exchange {
            head: None,
            ticket: None,
            record: &record,
        });
        // What lingers takes memory.
        self.close(status != 503).await;
    }

    /// Ends an idle connection. A sidecar gets a message first: a request that crosses the message was not read (RFC
    /// 9110 section 15.5.9 has the same use for 408).
    async fn retire(&mut self) {
        if !self.role.serves_sidecar() {
            let _ = poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await;
            return;
        }
        self.take_work();
        let farewell = LocalReply {
            unprocessed: true,
            ..LocalReply::new(408, ResponseFlag::None, "idle_connection_closed")
        };
        let mut unrecorded = ExchangeRecord::begin(Instant::now(), 0);
        self.reply_last(farewell, &mut unrecorded).await;
        self.close(true).await;
    }

    /// A local reply after which the connection ends.
    async fn reply_last(&mut self, reply: LocalReply<'_>, record: &mut ExchangeRecord) {
        let framing = (Version::Http11, false);
        self.reply(reply, ReplyTraits::default(), framing, record)
            .await;
    }

    /// Writes a local reply as far as the client lets us, and records it.
    pub(crate) async fn reply(
        &mut self,
        reply: LocalReply<'_>,
        asked: ReplyTraits,
        (client, persist): (Version, bool),
        record: &mut ExchangeRecord,
    ) {
        let Some(work) = &mut self.work else {
            return;
        };
        let out = &mut work.desk.to_client;
        let head = {
            let words = reply.words(asked);
            reply.record(&words, Some((0, 0)), record);
            let framing = ReplyFraming {
                client,
                persist,
                unprocessed: reply.unprocessed && self.role.serves_sidecar(),
            };
            let added = self.role.adds_to_own();
            let added = added.as_deref().map_or(&[][..], std::slice::from_ref);
            words.write(out, framing, added)
        };
        let began = Instant::now();
        let limit = began + self.worker.timeouts.linger;
        let mut sent = 0;
        let (stream, timer) = (&mut self.stream, &mut self.timer);
        poll_fn(|cx| {
            while sent < out.len() {
                match Pin::new(&mut *stream).poll_write(cx, &out[sent..]) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(written)) => sent += written,
                    Poll::Pending if timer.passed(cx, limit) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            Pin::new(&mut *stream).poll_flush(cx).map(|_| ())
        })
        .await;
        record.response_head_bytes = sent.min(head) as u64;
        record.response_body_bytes = sent.saturating_sub(head) as u64;
    }

    /// Closes our side. `linger` then drops what the client still sends, within the transport's bounds, so that a reset
    /// does not overtake the answer.
    async fn close(&mut self, linger: bool) {
        self.rest();
        if linger {
            // Boxed: it is rare, and every idle connection would pay for its size.
            return Box::pin(self.linger()).await;
        }
        let limit = Instant::now() + self.worker.timeouts.linger;
        let (stream, timer) = (&mut self.stream, &mut self.timer);
        poll_fn(|cx| {
            let shut = Pin::new(&mut *stream).poll_shutdown(cx).is_ready();
            match shut || timer.passed(cx, limit) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    async fn linger(&mut self) {
        let mut lingering = LingeringConnection::begin(Instant::now(), self.worker.timeouts.linger);
        let buffers = &self.worker.buffers;
        let (stream, timer) = (&mut self.stream, &mut self.timer);
        let mut shut = false;
        poll_fn(|cx| {
            if !shut {
                match Pin::new(&mut *stream).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => shut = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            while shut && let Poll::Ready(read) = poll_discard(cx, stream, buffers) {
                match read {
                    Ok(count @ 1..) if !lingering.dropped(count, Instant::now()) => {}
                    _ => return Poll::Ready(()),
                }
            }
            match lingering.is_displaced(cx) || timer.passed(cx, lingering.deadline()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Reads once for nothing. Holds a buffer only while it reads.
fn poll_discard<S: Io>(
    cx: &mut Context<'_>,
    stream: &mut S,
    buffers: &Buffers,
) -> Poll<io::Result<usize>> {
    std::task::ready!(stream.poll_readable(cx))?;
    let mut scratch = buffers.take();
    let read = scratch.poll_read(cx, stream);
    buffers.give(scratch);
    read
}

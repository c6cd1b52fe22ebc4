//! The response's way: interim heads, the final head with the body bytes at hand in one write, then the body as it comes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use voile_http1::{
    Body, Framing, Progress, RequestSummary, ResponseEdit, ResponseHead, ResponseIndex, Version,
};
use voile_http2::Failure;
use voile_traffic::{Attempt, RetryPolicy};

use crate::http::buffers::{Buffer, Buffers};
use crate::http::ending::{CLIENT_GONE, ExchangeEnd};
use crate::http::external_check::amend_lines;
use crate::http::io::Io;
use crate::http::role::{HeadObserver, UpstreamResponse};
use crate::http::upload::poll_write_two;
use crate::http2::grpc;

/// Most interim responses before a final one; a server that sends more is playing with us.
const MAX_INTERIM_RESPONSES: u32 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DownloadPhase {
    Head,
    Body,
    Tunnel,
    Done,
}

/// Conditions of a response beyond its own bytes.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) asked: RequestSummary,
    pub(crate) client: Version,
    /// True if the downstream connection may be kept, as of now.
    pub(crate) persist: bool,
    /// A verified sidecar answers: it may say that it did nothing.
    pub(crate) from_sidecar: bool,
    /// Answers with a status it names are held back.
    pub(crate) retry: Option<&'a RetryPolicy>,
    /// Is shown the final head.
    pub(crate) observer: Option<&'a dyn HeadObserver>,
}

impl Terms<'_> {
    /// Why an answer is held back, if it is.
    fn hold(&self, head: &ResponseHead<'_>) -> Option<Attempt> {
        let status = head.status();
        // A gRPC caller gets an error in an empty answer of success.
        if status < 400 && head.framing() != Framing::Length(0) {
            return None;
        }
        // The sidecar that sent it did nothing with the request.
        if self.from_sidecar && head.is_unprocessed() {
            return Some(Attempt::Refused);
        }
        let code = || {
            let mut fields = head.headers();
            let (_, value) = fields.find(|(name, _)| name.eq_ignore_ascii_case("grpc-status"))?;
            grpc::parse_status(value)
        };
        self.retry?.wished(status, code)
    }
}

/// Positions of one response in the upstream buffer.
pub(crate) struct Download {
    phase: DownloadPhase,
    body: Body,
    /// Chunk framing is removed, so that the end of the connection is the end of the body for the client.
    pub(crate) unwrap: bool,
    buffer: Option<Buffer>,
    /// Bytes `write_from..write_to` of the buffer are to be written.
    write_from: usize,
    write_to: usize,
    head_sent: usize,
    interim: u32,
    unflushed: bool,
    /// The client has not taken everything offered.
    pub(crate) stalled: bool,
    /// The final status, 0 before it is known.
    pub(crate) status: u16,
    /// True if the client received a part of the final or an interim head.
    pub(crate) head_started: bool,
    /// True if the end of the connection ends the body.
    pub(crate) until_close: bool,
    pub(crate) persist: bool,
    pub(crate) upstream_keeps: bool,
    /// Idle time after which the server says it closes its connection.
    pub(crate) upstream_patience: Option<Duration>,
    /// True once nothing is held back any more.
    accepted: bool,
    /// The final head came, and the role was not told yet.
    news: Option<UpstreamResponse>,
    pub(crate) head_bytes: u64,
    pub(crate) body_bytes: u64,
}

impl Download {
    pub(crate) fn new(index: &mut ResponseIndex, out: &mut Vec<u8>) -> Self {
        index.reset();
        out.clear();
        Self {
            phase: DownloadPhase::Head,
            body: Body::default(),
            unwrap: false,
            buffer: None,
            write_from: 0,
            write_to: 0,
            head_sent: 0,
            interim: 0,
            unflushed: false,
            stalled: false,
            status: 0,
            head_started: false,
            until_close: false,
            persist: false,
            upstream_keeps: false,
            upstream_patience: None,
            accepted: false,
            news: None,
            head_bytes: 0,
            body_bytes: 0,
        }
    }

    /// Accepts all further bytes, the held-back head included.
    pub(crate) fn accept(&mut self) {
        self.accepted = true;
    }

    /// The final head, once.
    pub(crate) fn take_news(&mut self) -> Option<UpstreamResponse> {
        self.news.take()
    }

    /// Returns true if the answer was 101, or 2xx to CONNECT.
    pub(crate) fn is_tunnel(&self) -> bool {
        self.phase == DownloadPhase::Tunnel
    }

    /// Returns true if the upstream said nothing at all.
    pub(crate) fn is_silent(&self) -> bool {
        self.phase == DownloadPhase::Head
            && self.interim == 0
            && self.buffer.as_ref().is_none_or(Buffer::is_empty)
    }

    /// Takes the buffer; its filled part came after the message.
    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        self.buffer.take()
    }

    /// Relays until the response is over and flushed, or a tunnel begins.
    pub(crate) fn poll<D: Io, U: Io>(
        &mut self,
        cx: &mut Context<'_>,
        (index, out): (&mut ResponseIndex, &mut Vec<u8>),
        terms: Terms<'_>,
        buffers: &Buffers,
        (client, upstream): (&mut D, &mut U),
    ) -> Poll<Result<(), ExchangeEnd>> {
        loop {
            ready!(self.poll_write(cx, out, client))?;
            let phase = self.phase;
            match phase {
                DownloadPhase::Head if self.take_head(index, out, terms)? => continue,
                DownloadPhase::Body if self.take_body()? => continue,
                DownloadPhase::Body if self.body.is_done() => self.phase = DownloadPhase::Done,
                _ => {}
            }
            if matches!(self.phase, DownloadPhase::Done | DownloadPhase::Tunnel) {
                let flushed = ready!(Pin::new(client).poll_flush(cx));
                return Poll::Ready(flushed.map_err(|_| CLIENT_GONE));
            }
            match self.poll_read(cx, upstream, buffers) {
                Poll::Ready(Ok(0)) if self.until_close => self.body = Body::default(),
                Poll::Ready(Ok(0) | Err(_)) => {
                    let failure = upstream.failed().unwrap_or(Failure::Connection);
                    return Poll::Ready(Err(ExchangeEnd::Upstream(failure)));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => {
                    if self.unflushed {
                        let flushed = ready!(Pin::new(client).poll_flush(cx));
                        flushed.map_err(|_| CLIENT_GONE)?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn poll_write<D: Io>(
        &mut self,
        cx: &mut Context<'_>,
        out: &[u8],
        client: &mut D,
    ) -> Poll<Result<(), ExchangeEnd>> {
        while self.head_sent < out.len() || self.write_from < self.write_to {
            let body = match &self.buffer {
                Some(buffer) => &buffer.bytes()[self.write_from..self.write_to],
                None => &[],
            };
            self.stalled = true;
            let sent = ready!(poll_write_two(cx, client, &out[self.head_sent..], body));
            let sent = sent.map_err(|_| CLIENT_GONE)?;
            let of_head = sent.min(out.len() - self.head_sent);
            self.head_sent += of_head;
            self.write_from += sent - of_head;
            self.body_bytes += (sent - of_head) as u64;
            self.head_started = true;
            self.unflushed = true;
        }
        self.stalled = false;
        Poll::Ready(Ok(()))
    }

    /// Parses what is at hand. True if a head was found.
    fn take_head(
        &mut self,
        index: &mut ResponseIndex,
        out: &mut Vec<u8>,
        terms: Terms<'_>,
    ) -> Result<bool, ExchangeEnd> {
        let Some(buffer) = self.buffer.as_mut().filter(|buffer| !buffer.is_empty()) else {
            return Ok(false);
        };
        let parsed = index.parse(buffer.filled(), terms.asked);
        if parsed.map_err(ExchangeEnd::ResponseHead)? == Progress::Partial {
            return Ok(false);
        }
        let head = index.head(buffer.filled());
        if head.is_interim() {
            self.interim += 1;
            if self.interim > MAX_INTERIM_RESPONSES {
                return Err(ExchangeEnd::Interim);
            }
        } else {
            if let Some(why) = terms.hold(&head).filter(|_| !self.accepted) {
                index.reset();
                return Err(ExchangeEnd::Held(why));
            }
            if let Some(observer) = terms.observer {
                observer.response(&mut head.headers());
            }
            self.status = head.status();
            self.news = Some(UpstreamResponse::new(self.status, |name| {
                let mut fields = head.headers();
                let found = fields.find(|(known, _)| known.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value)
            }));
            self.until_close = head.framing() == Framing::UntilClose;
            self.unwrap = head.must_unwrap(terms.client);
            self.persist = terms.persist && !self.until_close && !self.unwrap;
            self.upstream_keeps = head.keep_alive() && !terms.asked.connect;
            self.upstream_patience = head
                .keep_alive_timeout()
                .map(|seconds| Duration::from_secs(seconds.into()));
            self.body = Body::new(head.framing());
            self.phase = if head.opens_tunnel() {
                DownloadPhase::Tunnel
            } else {
                DownloadPhase::Body
            };
        }
        // HTTP/1.0 knows no interim responses.
        if !head.is_interim() || terms.client == Version::Http11 {
            let edit = ResponseEdit {
                client: terms.client,
                persist: self.persist,
            };
            let before = out.len();
            head.write_forwarded(&edit, out);
            if let Some(observer) = terms.observer.filter(|_| !head.is_interim()) {
                amend_lines(out, before, observer.amends());
            }
            self.head_bytes = (out.len() - before) as u64;
        }
        buffer.start += index.head_len();
        self.write_from = buffer.start;
        self.write_to = buffer.start;
        index.reset();
        if self.phase == DownloadPhase::Body {
            self.take_body()?;
        }
        Ok(true)
    }

    /// Checks the body bytes at hand. True if there is something to write.
    fn take_body(&mut self) -> Result<bool, ExchangeEnd> {
        let Some(buffer) = self.buffer.as_mut().filter(|buffer| !buffer.is_empty()) else {
            return Ok(false);
        };
        if self.body.is_done() {
            return Ok(false);
        }
        let (start, end) = (buffer.start, buffer.end);
        let (used, data) = if self.unwrap {
            self.body
                .unwrap_in_place(&mut buffer.bytes_mut()[start..end])
        } else {
            self.body.accept(buffer.filled()).map(|used| (used, used))
        }
        .map_err(ExchangeEnd::ResponseBody)?;
        buffer.start += used;
        (self.write_from, self.write_to) = (start, start + data);
        Ok(used > 0)
    }

    fn poll_read<U: Io>(
        &mut self,
        cx: &mut Context<'_>,
        upstream: &mut U,
        buffers: &Buffers,
    ) -> Poll<std::io::Result<usize>> {
        if self.buffer.as_ref().is_none_or(Buffer::is_empty) {
            (self.write_from, self.write_to) = (0, 0);
        }
        buffers.poll_read(cx, &mut self.buffer, upstream)
    }

    /// Returns the buffer to the pool, if there is one.
    pub(crate) fn give_buffer(&mut self, buffers: &Buffers) {
        if let Some(buffer) = self.buffer.take() {
            buffers.give(buffer);
        }
    }
}

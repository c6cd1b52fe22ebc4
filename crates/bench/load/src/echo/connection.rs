//! One client's connection: bytes read but not yet parsed, bytes to be written, and the current request.

use std::io::{self, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::body::{Body, Framing};
use crate::echo::pipe::Pipe;
use crate::echo::plan::ResponsePlan;
use crate::echo::request::EchoRequestHead;
use crate::echo::websocket;
use crate::http2::Http2Server;

/// Bodies made on demand are written from this pattern; 64 KiB fills a socket buffer by few writes.
static PATTERN: [u8; 64 * 1024] = [b'v'; 64 * 1024];
/// A whole answer up to this size is kept with its plan and written at once.
const MAX_FIXED_BYTES: usize = 64 * 1024;

/// Memory that a connection may keep between requests.
pub(crate) const KEPT_BYTES: usize = 64 * 1024;
/// The longest head that is remembered.
const MAX_KNOWN_BYTES: usize = 4 * 1024;

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// Waiting for a request, or in its head.
    Head,
    /// In a request's body.
    Body,
    /// The answer is due later.
    Waiting,
    /// Other services are being called.
    Calling,
}

/// Facts about a request that the server keeps until the answer is sent.
#[derive(Debug, Default)]
pub(crate) struct PendingResponse {
    pub(crate) head_only: bool,
    pub(crate) http11: bool,
    pub(crate) close: bool,
    /// A status that overrides the plan's.
    pub(crate) status: Option<u16>,
    /// Bytes of the request's body.
    pub(crate) length: u64,
    /// The body to answer with: the request's own, a description, or the outcome of calls.
    pub(crate) echo: Vec<u8>,
    /// The client takes compressed answers.
    pub(crate) gzip: bool,
    pub(crate) json: bool,
    /// The type of the request's body; empty is plain text.
    pub(crate) kind: String,
    pub(crate) trace: String,
    pub(crate) description: String,
}

/// A head without anything unusual, as it was read last: a client under load says the same again and again.
#[derive(Debug, Default)]
pub(crate) struct CachedRequestHead {
    pub(crate) bytes: Vec<u8>,
    pub(crate) framing: Option<Framing>,
    pub(crate) head_only: bool,
    pub(crate) http11: bool,
    pub(crate) gzip: bool,
}

#[derive(Debug)]
pub(crate) struct EchoConnection {
    pub(crate) pipe: Pipe,
    pub(crate) generation: u32,
    /// Its last head, which need not be parsed again.
    pub(crate) known: CachedRequestHead,
    /// The client speaks WebSocket.
    pub(crate) websocket: Option<Box<websocket::Frames>>,
    /// The client speaks HTTP/2.
    pub(crate) http2: Option<Box<Http2Server>>,
    /// Nothing has been understood yet: it may begin with the preface of HTTP/2.
    pub(crate) fresh: bool,
    /// Read, and not yet used.
    pub(crate) input: Vec<u8>,
    /// `input` holds only a part of a head.
    pub(crate) starved: bool,
    pub(crate) readable: bool,
    pub(crate) hangup: bool,
    pub(crate) ended: bool,
    pub(crate) phase: ConnectionPhase,
    pub(crate) body: Body,
    pub(crate) plan: Option<Arc<ResponsePlan>>,
    pub(crate) request: PendingResponse,
    /// Close once all is written.
    pub(crate) closing: bool,
    /// Time when the request was whole; set only if the log of answers needs it.
    pub(crate) arrived: u64,
    out: Vec<u8>,
    written: usize,
    pattern_left: usize,
}

impl EchoConnection {
    pub(crate) fn new(pipe: Pipe, generation: u32) -> Self {
        Self {
            pipe,
            generation,
            known: CachedRequestHead::default(),
            websocket: None,
            http2: None,
            fresh: true,
            input: Vec::new(),
            starved: false,
            readable: false,
            hangup: false,
            ended: false,
            phase: ConnectionPhase::Head,
            body: Body::new(),
            plan: None,
            request: PendingResponse::default(),
            closing: false,
            arrived: 0,
            out: Vec::new(),
            written: 0,
            pattern_left: 0,
        }
    }

    /// Between requests, with no request begun: the server may close the connection without harm.
    pub(crate) fn idle(&self) -> bool {
        self.http2.is_none()
            && self.phase == ConnectionPhase::Head
            && self.input.is_empty()
            && self.flushed()
    }

    fn flushed(&self) -> bool {
        self.written == self.out.len() && self.pattern_left == 0
    }

    /// Writes what is pending; true when nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while !self.flushed() {
            let rest = &self.out[self.written..];
            let bytes = if rest.is_empty() {
                &PATTERN[..self.pattern_left.min(PATTERN.len())]
            } else {
                rest
            };
            let from_pattern = rest.is_empty();
            match self.pipe.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) if from_pattern => self.pattern_left -= count,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        self.pipe.flush()
    }

    /// Remembers a head, if it says nothing that must be read again.
    pub(crate) fn remember(&mut self, head: &EchoRequestHead<'_>, bytes: &[u8]) {
        let usual = !head.expects_continue
            && head.kind.is_none()
            && head.trace.is_empty()
            && head.description.is_empty()
            && bytes.len() <= MAX_KNOWN_BYTES;
        self.known.framing = usual.then_some(head.framing);
        if usual {
            self.known.bytes.clear();
            self.known.bytes.extend_from_slice(bytes);
            self.known.head_only = head.method == "HEAD";
            self.known.http11 = head.http11;
            self.known.gzip = head.gzip;
        }
    }

    /// Replaces the last request and keeps its memory.
    pub(crate) fn begin_request(&mut self, request: PendingResponse) {
        let mut echo = std::mem::replace(&mut self.request, request).echo;
        echo.clear();
        if echo.capacity() <= KEPT_BYTES {
            self.request.echo = echo;
        }
    }

    pub(crate) fn begin_body(&mut self, framing: Framing) {
        match (framing.chunked, framing.length) {
            (true, _) => self.body.begin_chunked(),
            (false, length) => self.body.begin_length(length.unwrap_or(0)),
        }
    }

    /// Agrees to speak WebSocket.
    pub(crate) fn upgrade(&mut self, key: &str) {
        let headers = self.plan.as_ref().map_or("", |plan| plan.headers.as_str());
        self.out
            .extend_from_slice(websocket::welcome(key, headers).as_bytes());
        self.websocket = Some(Box::default());
    }

    /// Processes a WebSocket frame. Returns the frame's length and result.
    pub(crate) fn frame(&mut self, bytes: &[u8]) -> (usize, websocket::FrameMeaning) {
        match &mut self.websocket {
            Some(frames) => frames.feed(bytes, &mut self.out),
            None => (0, websocket::FrameMeaning::Nothing),
        }
    }

    /// Answers a message of WebSocket by the plan of the upgrade.
    fn answer_message(&mut self) {
        let (Some(frames), Some(plan)) = (&mut self.websocket, &self.plan) else {
            return;
        };
        let message = std::mem::take(&mut frames.message);
        match plan.size.pick(fastrand::f64) {
            None => frames.answer(&message, &mut self.out),
            Some(size) => {
                let size = size.min(websocket::MAX_MESSAGE_BYTES);
                frames.answer(&vec![PATTERN[0]; size], &mut self.out);
            }
        }
        frames.message = message;
        if plan.close.pick(fastrand::f64) {
            self.closing = true;
        }
    }

    /// Tells the client that its body is welcome.
    pub(crate) fn invite_body(&mut self) {
        self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// Answers a request that cannot be understood, and closes.
    pub(crate) fn refuse(&mut self, status: u16, reason: &str) {
        let body = format!("{reason}\n");
        let length = body.len();
        let phrase = reason_phrase(status);
        let head = format!(
            "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body.as_bytes());
        self.phase = ConnectionPhase::Head;
        self.closing = true;
    }

    /// Answers the request by its plan. Errors show at the next [`Connection::flush`].
    pub(crate) fn answer(&mut self, draining: bool) {
        self.phase = ConnectionPhase::Head;
        if self.websocket.is_some() {
            return self.answer_message();
        }
        let Some(plan) = &self.plan else { return };
        let request = &self.request;
        let close = request.close || draining || plan.close.pick(fastrand::f64);
        let plain = request.http11 && !request.head_only && !close && request.echo.is_empty();
        if let Some(fixed) = plan
            .fixed
            .as_deref()
            .filter(|_| plain && request.status.is_none())
        {
            // Steady state: straight from the kept answer to the socket.
            let count = if self.out.is_empty() {
                self.pipe.write(fixed).unwrap_or(0)
            } else {
                0
            };
            self.out.extend_from_slice(&fixed[count..]);
            return;
        }
        let status = request
            .status
            .unwrap_or_else(|| plan.status.pick(fastrand::f64));
        let own = plan.debug || request.json;
        let size = plan
            .size
            .pick(fastrand::f64)
            .filter(|_| request.echo.is_empty() || !own);
        let squeezed = (request.gzip && plan.gzip.pick(fastrand::f64)).then(|| match size {
            Some(size) => gzip(std::iter::repeat_n(PATTERN[0], size)),
            None => gzip(request.echo.iter().copied()),
        });
        let length = squeezed
            .as_ref()
            .map_or_else(|| size.unwrap_or(request.echo.len()), Vec::len);
        let more = if squeezed.is_some() {
            "Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
        } else {
            ""
        };
        let bodyless = matches!(status, 204 | 304);
        let connection = match (close, request.http11) {
            (true, _) => "Connection: close\r\n",
            (false, false) => "Connection: keep-alive\r\n",
            (false, true) => "",
        };
        let kind = match size {
            _ if plan.kind.is_some() => plan.kind.as_deref().unwrap_or_default(),
            None if request.json => "application/json",
            None if !own && !request.kind.is_empty() => &request.kind,
            _ => "text/plain",
        };
        write_head(
            &mut self.out,
            status,
            kind,
            (!bodyless).then_some(length),
            &plan.headers,
            &format!("{more}{connection}"),
        );
        if !bodyless && !request.head_only {
            match (squeezed, size) {
                (Some(bytes), _) => self.out.extend_from_slice(&bytes),
                (None, Some(size)) => self.pattern_left = size,
                (None, None) => self.out.extend_from_slice(&request.echo),
            }
        }
        self.closing = close;
    }
}

impl ResponsePlan {
    /// Makes the answer now if it is always the same.
    pub(crate) fn fix(&mut self) {
        use crate::echo::plan::WeightedValue::Always;
        let (Always(status), Always(false)) = (&self.status, &self.close) else {
            return;
        };
        if self.gzip != Always(false) {
            return;
        }
        let Always(size) = self.size else { return };
        let size = size.unwrap_or(0);
        if size > MAX_FIXED_BYTES || self.debug || matches!(status, 204 | 304) {
            return;
        }
        let mut fixed = Vec::new();
        write_head(
            &mut fixed,
            *status,
            self.kind.as_deref().unwrap_or("text/plain"),
            Some(size),
            &self.headers,
            "",
        );
        fixed.extend_from_slice(&PATTERN[..size]);
        self.fixed = Some(fixed);
    }
}

/// A body as gzip makes it; a body on demand is made piece by piece, since it may be a gigabyte.
pub(crate) fn gzip(bytes: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut bytes = bytes.peekable();
    while bytes.peek().is_some() {
        let piece: Vec<u8> = bytes.by_ref().take(PATTERN.len()).collect();
        // Writing to a Vec does not fail.
        let _ = encoder.write_all(&piece);
    }
    encoder.finish().unwrap_or_default()
}

fn write_head(
    out: &mut Vec<u8>,
    status: u16,
    kind: &str,
    length: Option<usize>,
    headers: &str,
    connection: &str,
) {
    let phrase = reason_phrase(status);
    let framing = match length {
        Some(length) => format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n"),
        None => String::new(),
    };
    // Writing to a Vec does not fail.
    let _ = write!(
        out,
        "HTTP/1.1 {status} {phrase}\r\n{framing}{headers}{connection}\r\n"
    );
}

fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

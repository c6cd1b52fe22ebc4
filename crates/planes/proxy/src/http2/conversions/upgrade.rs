//! An upstream HTTP/2 stream as the HTTP/1.1 engine sees it: it writes a request and reads an answer as if to an HTTP/1.1
//! server, and never knows. For services declared `http2` or `grpc` with an HTTP/1.1 client, and between sidecars where the
//! mesh's policy says that HTTP/1.1 travels as HTTP/2.
//!
//! ```text
//! engine ─ HTTP/1.1 bytes ─► Upgraded ─► HTTP/2 stream
//! ```
//! An upgrade to WebSocket becomes an extended CONNECT (RFC 8441), CONNECT stays what it is. Trailers go to clients that said `TE: trailers`.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use voile_http1::{Body, Framing, Progress, RequestHead, RequestIndex};
use voile_http2::{ErrorCode, Failure, Fields, RecvStream, ResponseFuture, SendStream};

use crate::http::io::Io;
use crate::http2::conversions::{headers, trailers};
use crate::http2::upstream::Lease;
use crate::http2::websocket;

/// Rest of the request.
enum RequestRemainder {
    /// A head that is not complete.
    Head,
    Body(Body),
    /// After an upgrade: bytes as they are.
    Tunnel,
    Over,
}

/// Rest of the answer.
enum ResponseRemainder {
    /// No stream began.
    Nothing,
    Head(Option<ResponseFuture>),
    Body(RecvStream),
    Over,
}

/// See the module.
pub(crate) struct Upgraded {
    lease: Lease,
    index: Box<RequestIndex>,
    outward: Vec<u8>,
    asking: RequestRemainder,
    send: Option<SendStream>,
    chunk: Bytes,
    /// Lines behind the last chunk.
    trailers: Vec<u8>,
    /// END_STREAM went out.
    sent: bool,
    answering: ResponseRemainder,
    inward: Vec<u8>,
    taken: usize,
    /// Window to give back when all of `inward` was read.
    owed: usize,
    chunked: bool,
    is_head: bool,
    wants_trailers: bool,
    /// `Sec-WebSocket-Accept` for the client whose upgrade this is.
    websocket: Option<String>,
    /// True if the client asked for a CONNECT tunnel.
    connect: bool,
    /// Why the stream failed, once it did.
    failed: Option<Failure>,
}

impl Upgraded {
    pub(crate) fn new(lease: Lease) -> Self {
        Self {
            lease,
            index: Box::default(),
            outward: Vec::new(),
            asking: RequestRemainder::Head,
            send: None,
            chunk: Bytes::new(),
            trailers: Vec::new(),
            sent: false,
            answering: ResponseRemainder::Nothing,
            inward: Vec::new(),
            taken: 0,
            owed: 0,
            chunked: false,
            is_head: false,
            wants_trailers: false,
            websocket: None,
            connect: false,
            failed: None,
        }
    }

    /// Its place on a connection.
    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Takes bytes of the request.
    fn ask(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = match self.asking {
            RequestRemainder::Head => {
                self.outward.extend_from_slice(bytes);
                std::mem::take(&mut self.outward)
            }
            _ => bytes.to_vec(),
        };
        if matches!(self.asking, RequestRemainder::Head) {
            let parsed = self.index.parse(&rest);
            if parsed.map_err(|_| io::ErrorKind::InvalidData)? == Progress::Partial {
                self.outward = rest;
                return Ok(());
            }
            self.begin(&rest)?;
            rest.drain(..self.index.head_len());
        }
        self.chunk = match &mut self.asking {
            RequestRemainder::Body(body) => {
                let unwrapped = body.unwrap_keeping_trailers(&mut rest, &mut self.trailers);
                let (_, data) = unwrapped.map_err(|_| io::ErrorKind::InvalidData)?;
                rest.truncate(data);
                rest.into()
            }
            RequestRemainder::Tunnel => rest.into(),
            RequestRemainder::Head | RequestRemainder::Over => Bytes::new(),
        };
        Ok(())
    }

    /// Opens the stream.
    fn begin(&mut self, bytes: &[u8]) -> io::Result<()> {
        let head = self.index.head(bytes);
        self.is_head = head.method() == "HEAD";
        self.wants_trailers = head.header("te").is_some();
        let key = head.header("sec-websocket-key");
        let upgrade = websocket::is_handshake(&head);
        if head.wants_upgrade() && !upgrade {
            // HTTP/2 has no other upgrades; the server answers as if it had not been asked.
            tracing::debug!("removed an Upgrade header that HTTP/2 cannot carry");
        }
        let request = request(&head, upgrade).ok_or(io::ErrorKind::InvalidData)?;
        let body = Body::new(head.framing());
        self.connect = head.is_connect();
        let tunnel = upgrade || self.connect;
        let empty = matches!(head.framing(), Framing::None | Framing::Length(0)) && !tunnel;
        self.websocket = upgrade.then(|| websocket::accept(key.unwrap_or_default()));
        let Some((response, send)) = self.lease.link.send_request(request, empty) else {
            // The connection is closing: nothing of this request went anywhere.
            return Err(self.fail(Failure::Unprocessed));
        };
        self.answering = ResponseRemainder::Head(Some(response));
        self.send = Some(send);
        self.sent = empty;
        self.asking = match (tunnel, empty) {
            (true, _) => RequestRemainder::Tunnel,
            (_, true) => RequestRemainder::Over,
            _ => RequestRemainder::Body(body),
        };
        Ok(())
    }

    /// Passes on what of the request is waiting.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let over = match &self.asking {
            RequestRemainder::Body(body) => body.is_done(),
            RequestRemainder::Over => true,
            RequestRemainder::Head | RequestRemainder::Tunnel => false,
        };
        let Some(send) = &mut self.send else {
            return Poll::Ready(Ok(()));
        };
        let end = (over, &mut self.trailers, &mut self.sent);
        trailers::poll_give_all(send, &mut self.chunk, end, cx)
    }

    /// Makes sure that there is something to read, unless it is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.taken < self.inward.len() {
            return Poll::Ready(Ok(()));
        }
        if let (ResponseRemainder::Body(body), 1..) = (&mut self.answering, self.owed) {
            body.release_capacity(self.owed);
        }
        (self.owed, self.taken) = (0, 0);
        self.inward.clear();
        while self.inward.is_empty() {
            match &mut self.answering {
                // The request is written first, so its stream could not begin: no answer will wake the reader.
                ResponseRemainder::Nothing => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                ResponseRemainder::Over => break,
                ResponseRemainder::Head(slot) => {
                    let Some(response) = slot else {
                        return Poll::Pending;
                    };
                    if let Poll::Ready(Some(early)) = response.poll_informational(cx) {
                        line(&mut self.inward, early.status());
                        lines(&mut self.inward, &early);
                        self.inward.extend_from_slice(b"\r\n");
                        break;
                    }
                    match (ready!(response.poll_head(cx)), slot.take()) {
                        (Ok(answer), Some(rest)) => self.head(answer, rest.into_body()),
                        (Err(failure), _) => return Poll::Ready(Err(self.fail(failure))),
                        (Ok(_), None) => return Poll::Pending,
                    }
                }
                ResponseRemainder::Body(body) => match ready!(body.poll_data(cx)) {
                    Some(Ok(data)) => self.take(&data),
                    Some(Err(failure)) => return Poll::Ready(Err(self.fail(failure))),
                    None => {
                        let trailers = ready!(body.poll_trailers(cx));
                        let trailers = trailers.map_err(|failure| self.fail(failure))?;
                        self.end(trailers);
                    }
                },
            }
        }
        Poll::Ready(Ok(()))
    }

    fn fail(&mut self, failure: Failure) -> io::Error {
        self.failed = Some(failure);
        io::ErrorKind::ConnectionReset.into()
    }

    /// Writes the head of the answer in HTTP/1.1's words.
    fn head(&mut self, mut answer: Fields, body: RecvStream) {
        headers::clean(&mut answer);
        let status = answer.status();
        if let Some(accept) = self
            .websocket
            .as_deref()
            .filter(|_| (200..300).contains(&status))
        {
            answer.remove("content-length");
            line(&mut self.inward, 101);
            lines(&mut self.inward, &answer);
            let upgraded = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: ";
            self.inward.extend_from_slice(upgraded.as_bytes());
            self.inward.extend_from_slice(accept.as_bytes());
            self.inward.extend_from_slice(b"\r\n\r\n");
            self.answering = ResponseRemainder::Body(body);
            return;
        }
        let tunnel = self.connect && (200..300).contains(&status);
        if tunnel {
            answer.remove("content-length");
        }
        line(&mut self.inward, status);
        lines(&mut self.inward, &answer);
        let bodiless = tunnel || self.is_head || matches!(status, 204 | 304);
        if !bodiless && !answer.contains("content-length") {
            if body.is_end_stream() {
                self.inward.extend_from_slice(b"content-length: 0\r\n");
            } else {
                self.chunked = true;
                self.inward
                    .extend_from_slice(b"transfer-encoding: chunked\r\n");
            }
        }
        self.inward.extend_from_slice(b"\r\n");
        self.answering = ResponseRemainder::Body(body);
    }

    fn take(&mut self, data: &[u8]) {
        self.owed = data.len();
        if data.is_empty() {
            return;
        }
        if self.chunked {
            // Writing into a Vec cannot fail.
            let _ = write!(self.inward, "{:x}\r\n", data.len());
            self.inward.extend_from_slice(data);
            self.inward.extend_from_slice(b"\r\n");
        } else {
            self.inward.extend_from_slice(data);
        }
    }

    fn end(&mut self, trailers: Option<Fields>) {
        self.answering = ResponseRemainder::Over;
        if !self.chunked {
            return;
        }
        let trailers = trailers.filter(|_| self.wants_trailers);
        trailers::write_end(trailers.as_ref(), &mut self.inward);
    }
}

fn line(out: &mut Vec<u8>, status: u16) {
    let known = StatusCode::from_u16(status).ok();
    let reason = known.and_then(|code| code.canonical_reason());
    // Writing into a Vec cannot fail.
    let _ = write!(out, "HTTP/1.1 {status} {}\r\n", reason.unwrap_or_default());
}

fn lines(out: &mut Vec<u8>, fields: &Fields) {
    for (name, value) in fields.iter() {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// The request in HTTP/2's words. The head is one that the engine wrote, so what belongs to a connection is gone already.
fn request(head: &RequestHead<'_>, websocket: bool) -> Option<Fields> {
    let mut request = Fields::new();
    let method = if websocket { "CONNECT" } else { head.method() };
    request.push(":method", method.as_bytes());
    if !head.is_connect() {
        request.push(":scheme", b"http");
        request.push(":path", head.path_and_query().as_bytes());
    }
    let authority = head.authority().unwrap_or(headers::NO_AUTHORITY);
    request.push(":authority", authority.as_bytes());
    if websocket {
        request.push(":protocol", b"websocket");
    }
    for (name, value) in head.headers() {
        if !request.push_checked(name.as_bytes(), value) {
            return None;
        }
    }
    request.retain(|name, value| {
        let of_the_handshake = websocket && name == "sec-websocket-key";
        headers::travels(name, value) && name != "host" && !of_the_handshake
    });
    Some(request)
}

impl AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_fill(cx))?;
        let rest = &self.inward[self.taken..];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        self.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_chunk(cx))?;
        self.ask(buf)?;
        // Bytes that do not fit now go first next time.
        if let Poll::Ready(Err(error)) = self.poll_chunk(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_chunk(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_chunk(cx))?;
        if matches!(self.asking, RequestRemainder::Tunnel) {
            self.asking = RequestRemainder::Over;
            return self.poll_chunk(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl Io for Upgraded {
    fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.lease.local_address()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_fill(cx)
    }

    fn failed(&self) -> Option<Failure> {
        self.failed
    }

    fn abort(&mut self) {
        if let Some(send) = &mut self.send {
            send.send_reset(ErrorCode::CANCEL);
        }
    }
}

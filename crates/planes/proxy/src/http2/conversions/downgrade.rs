//! A downstream HTTP/2 stream served by the HTTP/1.1 engine, because its service is declared `http`: the stream plays an
//! HTTP/1.1 client with one request. So the two versions share one set of rules for pools, repeats, timeouts and bodies.
//!
//! ```text
//! HTTP/2 stream ─► Caller ─ HTTP/1.1 bytes ─► engine ─ pool ─► HTTP/1.1 upstream
//! ```
//! WebSockets (RFC 8441) become an upgrade, CONNECT stays what it is. Trailers pass both ways where the other side's body has a place for them.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use voile_http1::{Body, Progress, RequestSummary, ResponseHead, ResponseIndex};
use voile_http2::{ErrorCode, Failure, Fields};
use voile_traffic::Attempt;

use crate::http::codec::{AnswerSink as _, BodySink as _, BodySource as _, StreamCodec};
use crate::http::ending::ExchangeEnd;
use crate::http::io::Io;
use crate::http::{
    ConnectFailure, Exchange, ExchangeRecord, HeadAmendment, HeadEdit, HttpHead, HttpRole,
    HttpWorker, RequestRoute, ResponseFlag, Revocation, RoleRefusal, UpstreamResponse,
    serve_connection,
};
use crate::http2::conversions::grpc::{self, Messages};
use crate::http2::conversions::{headers, trailers};
use crate::http2::session::Live;
use crate::http2::stream_call::{ClientCall, StreamRequest};
use crate::http2::stream_copy::Replay;
use crate::http2::websocket;

/// The status of an upgrade.
const SWITCHING_PROTOCOLS: u16 = 101;

/// The role of one stream: it has decided already, on the head that really came.
struct Translated<R: HttpRole> {
    role: Rc<R>,
    route: RefCell<Option<RequestRoute<R>>>,
    parts: Fields,
    /// The client's side of it is that of the stream.
    record: RefCell<ExchangeRecord>,
    live: Live,
}

impl<R: HttpRole> HttpRole for Translated<R> {
    type Upstream = R::Upstream;
    type Key = R::Key;
    type Ticket = RequestRoute<R>;
    type Question = Infallible;

    fn route(&self, _: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let decided = self.route.borrow_mut().take();
        let flag = ResponseFlag::DownstreamProtocolError;
        let decided = decided
            .ok_or_else(|| RoleRefusal::new(400, flag, "only one request per stream is allowed"));
        decided.map(RequestRoute::carried_by)
    }

    async fn connect(&self, route: &RequestRoute<Self>) -> Result<R::Upstream, ConnectFailure> {
        self.role.connect(&route.ticket).await
    }

    fn again(&self, route: &mut RequestRoute<Self>, last: Attempt, made: u32) -> Option<Duration> {
        let pause = self.role.again(&mut route.ticket, last, made)?;
        route.key = route.ticket.key.clone();
        route.to_sidecar = route.ticket.to_sidecar;
        Some(pause)
    }

    fn answers(&self, ticket: &RequestRoute<R>, answer: UpstreamResponse) {
        self.role.answers(&ticket.ticket, answer);
    }

    const REVOCATION: Revocation = R::REVOCATION;

    fn is_revoked<'h>(&self, ticket: &RequestRoute<R>, _: impl FnOnce() -> HttpHead<'h>) -> bool {
        let head = || HttpHead::Http2(&self.parts);
        self.role.is_revoked(&ticket.ticket, head)
    }

    fn serves_sidecar(&self) -> bool {
        self.role.serves_sidecar()
    }

    /// The engine reads a head that was written here.
    fn serves_proxy(&self) -> bool {
        true
    }

    fn adds_to_own(&self) -> Option<Arc<HeadAmendment>> {
        self.role.adds_to_own()
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        let mut record = self.record.borrow_mut();
        let engine = exchange.record;
        record.status = engine.status;
        record.attempts = engine.attempts;
        record.upstream_reused = engine.upstream_reused;
        // The engine knows only that its client is gone; the stream knows how.
        let gone = engine.flag == ResponseFlag::DownstreamConnectionTermination;
        if !gone || record.details.is_empty() {
            (record.flag, record.details) = (engine.flag, engine.details);
        }
        record.finish();
        self.live.judge(&record);
        self.role.record(Exchange {
            head: Some(HttpHead::Http2(&self.parts)),
            ticket: exchange.ticket.map(|route| &route.ticket),
            record: &record,
        });
    }
}

/// Serves one stream whose route leads to an HTTP/1.1 upstream.
pub(crate) async fn serve<R: HttpRole + 'static, D: StreamCodec>(
    worker: &Rc<HttpWorker<R>>,
    role: Rc<R>,
    route: RequestRoute<R>,
    request: StreamRequest<D>,
    live: Live,
    mut record: ExchangeRecord,
) {
    let ended = request.is_empty();
    let (parts, ClientCall { respond, held, .. }) = (request.head, request.call);
    let Some(body) = request.body else { return };
    let upgrade = websocket::is_extended_connect(&parts);
    let connect = websocket::is_plain_connect(&parts);
    let chunked = !upgrade && !connect && !ended && !parts.contains("content-length");
    let key = upgrade.then(websocket::key);
    let head = request_head(&parts, key.as_deref(), chunked, route.edit());
    let asked = RequestSummary {
        head: parts.method() == "HEAD",
        upgrade,
        connect,
    };
    // The part that is held is counted with the rest.
    record.request_body_bytes = 0;
    let messages = (record.grpc.is_some() && !connect).then(Default::default);
    let translated = Translated {
        role,
        route: RefCell::new(Some(route)),
        parts,
        record: RefCell::new(record),
        live,
    };
    let mut caller = DowngradedStream::<D> {
        body,
        respond,
        send: None,
        inward: Vec::new(),
        taken: 0,
        owed: 0,
        chunked,
        ended: false,
        asked,
        index: Box::default(),
        outward: Vec::new(),
        phase: DowngradePhase::Head,
        chunk: Bytes::new(),
        trailers: Vec::new(),
        proof: key.map(|key| websocket::accept(key.as_bytes())),
        complete: false,
        record: &translated.record,
        messages,
    };
    for chunk in held.into_iter().flat_map(|held| held.chunks) {
        caller.take(&chunk);
    }
    // The sender has its window back already.
    caller.owed = 0;
    let engine = worker.shared();
    serve_connection(&engine, &translated, caller, &head).await;
}

/// A request that went on over HTTP/2, in HTTP/1.1's words; none where its body was too long to be kept.
pub(in crate::http2) fn copied(head: &Fields, replay: &Replay) -> Option<Vec<u8>> {
    let body = replay.bytes()?;
    let mut request = head.clone();
    if !body.is_empty() && !head.contains("content-length") {
        request.push("content-length", body.len().to_string().as_bytes());
    }
    let mut request = request_head(&request, None, false, HeadEdit::default());
    request.extend_from_slice(&body);
    Some(request)
}

/// The head in HTTP/1.1's words.
fn request_head(
    parts: &Fields,
    websocket_key: Option<&str>,
    chunked: bool,
    edit: HeadEdit<'_>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let method = match websocket_key {
        Some(_) => "GET",
        None => parts.method(),
    };
    let head = HttpHead::Http2(parts);
    let connect = websocket::is_plain_connect(parts);
    let renamed = edit.authority.filter(|_| !connect);
    let authority = renamed
        .or_else(|| head.authority())
        .or(edit.default_authority)
        .unwrap_or("localhost");
    let target = match connect {
        true => authority,
        false => edit.path.unwrap_or_else(|| head.path_and_query()),
    };
    put(
        &mut out,
        &[
            method,
            " ",
            target,
            " HTTP/1.1\r\nhost: ",
            authority,
            "\r\n",
        ],
    );
    let mut cookies = false;
    for (name, value) in parts.iter() {
        match name {
            "cookie" => cookies = true,
            "host" => {}
            name => field(&mut out, name, value),
        }
    }
    if cookies {
        // HTTP/2 may cut cookies into several fields; HTTP/1.1 may not (RFC 9113 section 8.2.3).
        let crumbs: Vec<_> = parts.get_all("cookie").collect();
        field(&mut out, "cookie", &crumbs.join(&b"; "[..]));
    }
    let bodiless = connect || matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE");
    if let Some(key) = websocket_key {
        put(
            &mut out,
            &[
                "upgrade: websocket\r\nconnection: upgrade, close\r\nsec-websocket-key: ",
                key,
                "\r\n\r\n",
            ],
        );
        return out;
    }
    if chunked {
        put(&mut out, &["transfer-encoding: chunked\r\n"]);
    } else if !bodiless && !parts.contains("content-length") {
        put(&mut out, &["content-length: 0\r\n"]);
    }
    put(&mut out, &["connection: close\r\n\r\n"]);
    out
}

fn put(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[derive(Debug)]
enum DowngradePhase {
    Head,
    Body(Body),
    Tunnel,
    Done,
}

/// The stream as the engine's client.
struct DowngradedStream<'a, D: StreamCodec> {
    body: D::Body,
    respond: D::Answer,
    send: Option<D::AnswerBody>,
    /// Bytes of the request for the engine, of which `taken` were read.
    inward: Vec<u8>,
    taken: usize,
    /// Window to give back when all of `inward` was read.
    owed: usize,
    chunked: bool,
    /// The client said all.
    ended: bool,
    asked: RequestSummary,
    index: Box<ResponseIndex>,
    /// Bytes of a head not yet complete.
    outward: Vec<u8>,
    phase: DowngradePhase,
    /// Bytes of the answer's body on their way.
    chunk: Bytes,
    /// Lines behind its last chunk.
    trailers: Vec<u8>,
    /// Answer that proves that a server read our WebSocket key.
    proof: Option<String>,
    /// END_STREAM went out.
    complete: bool,
    record: &'a RefCell<ExchangeRecord>,
    /// Messages of a gRPC call, each way.
    messages: Option<(Messages, Messages)>,
}

impl<D: StreamCodec> DowngradedStream<'_, D> {
    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.complete {
            return Poll::Pending;
        }
        let gone = match &mut self.send {
            Some(send) => send.poll_failed(cx),
            None => self.respond.poll_failed(cx),
        };
        gone.map(|cause| self.gone(cause))
    }

    fn gone(&mut self, cause: Failure) -> io::Error {
        let mut record = self.record.borrow_mut();
        let words = ExchangeEnd::Client(cause).reply(false, Revocation::CLIENT);
        (record.flag, record.details) = (words.flag, words.details);
        self.complete = true;
        io::ErrorKind::ConnectionReset.into()
    }

    /// Makes sure that there is something to read, unless it is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.taken < self.inward.len() {
            return Poll::Ready(Ok(()));
        }
        if self.owed > 0 {
            self.body.release_capacity(self.owed);
            self.owed = 0;
        }
        self.inward.clear();
        self.taken = 0;
        while !self.ended && self.inward.is_empty() {
            match ready!(self.body.poll_data(cx)) {
                Some(Ok(data)) => self.take(&data),
                Some(Err(cause)) => return Poll::Ready(Err(self.gone(cause))),
                None => match ready!(self.body.poll_trailers(cx)) {
                    Err(cause) => return Poll::Ready(Err(self.gone(cause))),
                    Ok(trailers) => {
                        self.ended = true;
                        if self.chunked {
                            trailers::write_end(trailers.as_ref(), &mut self.inward);
                        }
                    }
                },
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, data: &[u8]) {
        self.owed = data.len();
        if data.is_empty() {
            return;
        }
        let mut record = self.record.borrow_mut();
        record.request_body_bytes += data.len() as u64;
        if let (Some(call), Some((up, _))) = (&mut record.grpc, &mut self.messages) {
            call.request_messages = up.take(data);
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

    /// Returns true if the end of the request is the end of the connection for the engine.
    fn at_end(&self) -> bool {
        self.ended && (self.complete || matches!(self.phase, DowngradePhase::Tunnel))
    }

    /// Passes on what of the answer's body is waiting.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let over = match &self.phase {
            DowngradePhase::Body(body) => body.is_done(),
            DowngradePhase::Done => true,
            DowngradePhase::Head | DowngradePhase::Tunnel => false,
        };
        let Some(send) = &mut self.send else {
            return Poll::Ready(Ok(()));
        };
        if self.chunk.is_empty() && (!over || self.complete) {
            return Poll::Ready(Ok(()));
        }
        let mut record = self.record.borrow_mut();
        let (chunk, waiting) = (record.grpc.map(|_| self.chunk.clone()), self.chunk.len());
        let end = (over, &mut self.trailers, &mut self.complete);
        let given = trailers::poll_give_all(send, &mut self.chunk, end, cx);
        let passed = waiting - self.chunk.len();
        record.response_body_bytes += passed as u64;
        if let (Some(call), Some(chunk)) = (&mut record.grpc, chunk) {
            if let Some((_, down)) = &mut self.messages {
                call.response_messages = down.take(&chunk[..passed]);
            }
            if self.complete && !self.trailers.is_empty() {
                call.status = trailers::read(&self.trailers)
                    .as_ref()
                    .and_then(grpc::status);
            }
        }
        given
    }

    /// Takes bytes of the answer.
    fn answer(&mut self, bytes: &[u8]) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let mut rest = if matches!(self.phase, DowngradePhase::Head) {
            self.outward.extend_from_slice(bytes);
            std::mem::take(&mut self.outward)
        } else {
            bytes.to_vec()
        };
        while matches!(self.phase, DowngradePhase::Head) {
            let parsed = self.index.parse(&rest, self.asked).map_err(|_| invalid())?;
            if parsed == Progress::Partial {
                self.outward = rest;
                return Ok(());
            }
            let length = self.index.head_len();
            if self.head(&rest)? {
                self.phase = DowngradePhase::Tunnel;
            }
            rest.drain(..length);
            self.index.reset();
        }
        self.chunk = match &mut self.phase {
            DowngradePhase::Body(body) => {
                let unwrapped = body.unwrap_keeping_trailers(&mut rest, &mut self.trailers);
                let (_, data) = unwrapped.map_err(|_| invalid())?;
                rest.truncate(data);
                rest.into()
            }
            DowngradePhase::Tunnel => rest.into(),
            DowngradePhase::Head | DowngradePhase::Done => Bytes::new(),
        };
        Ok(())
    }

    fn is_proven(&self, head: &ResponseHead<'_>) -> bool {
        let mut said = head
            .headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-accept"));
        let said = said.next().map(|(_, value)| value);
        self.proof.is_some() && said == self.proof.as_deref().map(str::as_bytes)
    }

    /// Passes a head on. True if a tunnel begins behind it.
    fn head(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let gone = |_| io::Error::from(io::ErrorKind::ConnectionReset);
        let head = self.index.head(bytes);
        let status = head.status();
        let (interim, framing) = (head.is_interim(), head.framing());
        let tunnel = head.opens_tunnel();
        // A server that does not switch has opened no tunnel, whatever its answer says about the request. To the
        // client of an extended CONNECT any 2xx would mean a tunnel (RFC 8441 section 5). A server that switches must
        // have read the handshake (RFC 6455 section 4.1).
        let stays = self.asked.upgrade && (200..300).contains(&status);
        if stays || (status == SWITCHING_PROTOCOLS && !self.is_proven(&head)) {
            let refusal = Fields::response(502);
            self.complete = self.respond.send_response(refusal, true).is_ok();
            return Err(invalid());
        }
        let mut response = self.respond.block();
        response.push_status(match status {
            SWITCHING_PROTOCOLS => 200,
            status => status,
        });
        fields(&head, &mut response).ok_or_else(invalid)?;
        if response.contains("grpc-status") || tunnel {
            // HTTP/1.1's way to say that there is no body; trailers have no length.
            response.remove("content-length");
        }
        if interim {
            self.respond.send_informational(response).map_err(gone)?;
            return Ok(false);
        }
        let body = Body::new(framing);
        let end = body.is_done() && !tunnel;
        let mut record = self.record.borrow_mut();
        record.response_head_bytes = headers::size(&response);
        if let Some(call) = record.grpc.as_mut().filter(|_| end) {
            call.status = grpc::status(&response);
        }
        let send = self.respond.send_response(response, end).map_err(gone)?;
        self.send = Some(send);
        self.complete = end;
        self.phase = if end {
            DowngradePhase::Done
        } else {
            DowngradePhase::Body(body)
        };
        Ok(tunnel)
    }
}

/// The fields that mean something in HTTP/2.
fn fields(head: &ResponseHead<'_>, out: &mut Fields) -> Option<()> {
    for (name, value) in head.headers() {
        if !out.push_checked(name.as_bytes(), value) {
            return None;
        }
    }
    headers::clean(out);
    out.remove("sec-websocket-accept");
    Some(())
}

impl<D: StreamCodec> AsyncRead for DowngradedStream<'_, D> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_fill(cx))?;
        let rest = &self.inward[self.taken..];
        if rest.is_empty() && !self.at_end() {
            // A client that said all still waits for its answer.
            return self.poll_failed(cx).map(Err);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        self.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl<D: StreamCodec> AsyncWrite for DowngradedStream<'_, D> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_chunk(cx))?;
        self.answer(buf)?;
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
        if matches!(
            self.phase,
            DowngradePhase::Tunnel | DowngradePhase::Body(Body::UntilClose)
        ) {
            self.phase = DowngradePhase::Done;
            return self.poll_chunk(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl<D: StreamCodec> Io for DowngradedStream<'_, D> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_fill(cx))?;
        if self.taken < self.inward.len() || self.at_end() {
            return Poll::Ready(Ok(()));
        }
        self.poll_failed(cx).map(Err)
    }

    fn abort(&mut self) {
        self.cut(ErrorCode::INTERNAL_ERROR);
    }

    fn cut(&mut self, code: ErrorCode) {
        if !std::mem::replace(&mut self.complete, true) {
            match &mut self.send {
                Some(send) => send.send_reset(code),
                None => self.respond.send_reset(code),
            }
        }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_failed(cx).map(drop)
    }

    fn may_be_silent(&self) -> bool {
        self.messages.is_some()
    }

    fn lingers(&self) -> bool {
        false
    }
}

impl<D: StreamCodec> Drop for DowngradedStream<'_, D> {
    fn drop(&mut self) {
        self.cut(ErrorCode::INTERNAL_ERROR);
    }
}

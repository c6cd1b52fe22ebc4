//! The echo server's end of an HTTP/2 connection: requests in, answers out, windows both ways. The echo worker decides the
//! answers. No I/O.

mod live;

use std::sync::Arc;

use super::Malformed;
use super::core::{self, Http2Core, IncomingFrame};
use super::frame::Frames;
use crate::echo::{ResponsePlan, takes_gzip};
use crate::grpc::Messages;

/// Streams that one connection may have open: as many as usual load generators open, and no more memory than that.
const MAX_STREAMS: usize = 1000;
/// Bytes of request bodies that one connection may have us keep.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;
/// Memory that a stream may keep for the next one in its place.
const REUSED_BYTES: usize = 64 * 1024;
/// Bodies made on demand are cut from this.
static PATTERN: [u8; super::frame::MAX_PAYLOAD_BYTES] = [b'v'; super::frame::MAX_PAYLOAD_BYTES];

/// State of a request that the server reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestProgress {
    /// Its head: now is the time to decide whether its body is kept.
    Head(usize),
    /// Another message of a live stream.
    Piece(usize),
    /// All of it.
    Whole(usize),
}

/// The body of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ResponseBody {
    #[default]
    None,
    /// The bytes in the stream's `body`.
    Kept,
    /// So many bytes of a fixed pattern.
    Pattern(usize),
}

/// An answer's head and end.
#[derive(Debug, Default)]
pub(crate) struct Reply<'a> {
    pub(crate) status: u16,
    pub(crate) content_type: &'a str,
    /// Header lines as HTTP/1.1 has them.
    pub(crate) headers: &'a str,
    pub(crate) content: ResponseBody,
    /// For gRPC: the status in the trailers, and its message.
    pub(crate) grpc: Option<(u16, &'a str)>,
}

/// A request, its place in the connection, and the answer as far as it is sent.
#[derive(Debug, Default)]
pub(crate) struct ServerStream {
    pub(crate) method: Vec<u8>,
    pub(crate) target: Vec<u8>,
    /// Arguments given beside the target, in the field `echo-query`.
    pub(crate) arguments: Vec<u8>,
    pub(crate) grpc: bool,
    /// The client takes compressed answers.
    pub(crate) gzip: bool,
    /// The type of the request's body.
    pub(crate) kind: Vec<u8>,
    /// Keep the body.
    pub(crate) keep: bool,
    pub(crate) body: Vec<u8>,
    /// Bytes of body, kept or not.
    pub(crate) length: u64,
    /// Fields as lines: all of them, for `/debug` and for calls.
    pub(crate) fields: String,
    pub(crate) plan: Option<Arc<ResponsePlan>>,
    pub(crate) messages: Messages,
    /// Answers go out between its messages; see [`live`].
    pub(crate) live: bool,
    /// Live: the answer's head is out.
    begun: bool,
    /// Live stream: bytes to be sent, of which `sent` are gone, and the end of the stream.
    out: Vec<u8>,
    end: Option<(u16, String)>,
    /// Bytes of it that count against the connection's memory.
    held: usize,
    expected: Option<u64>,
    ended: bool,
    received: u32,
    window: i64,
    answering: bool,
    content: ResponseBody,
    sent: usize,
    trailers: Option<u16>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Http2Server {
    frames: Frames,
    state: ServerStreamState,
}

#[derive(Debug)]
struct ServerStreamState {
    core: Http2Core,
    /// By lane: the stream on it, or 0.
    ids: Vec<u32>,
    streams: Vec<ServerStream>,
    active: usize,
    last: u32,
    kept: usize,
    /// Answers that wait for a window.
    unsent: usize,
    /// We have reset a stream. Its client may not know yet, so frames to closed streams are no error.
    forgiving: bool,
    /// Stream that is whole with its head; reported after the head.
    whole: Option<usize>,
    /// Fields are wanted as text.
    describe: bool,
}

impl Http2Server {
    /// A connection whose preface has been read. With `describe`, the fields of all requests are kept as text.
    pub(crate) fn new(describe: bool) -> Self {
        let state = ServerStreamState {
            core: Http2Core::new(b"", Some(MAX_STREAMS as u32)),
            ids: Vec::new(),
            streams: Vec::new(),
            active: 0,
            last: 0,
            kept: 0,
            unsent: 0,
            forgiving: false,
            whole: None,
            describe,
        };
        Self {
            frames: Frames::default(),
            state,
        }
    }

    /// Bytes waiting to be written.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.state.core.unsent()
    }

    /// `count` bytes have been written.
    pub(crate) fn wrote(&mut self, count: usize) {
        self.state.core.wrote(count);
        self.state.send_all();
    }

    /// No request is open.
    pub(crate) fn idle(&self) -> bool {
        self.state.active == 0
    }

    /// Tells the client to bring no more.
    pub(crate) fn go_away(&mut self, malformed: bool) {
        let code = if malformed { self.state.core.fault } else { 0 };
        self.state.core.put_goaway(self.state.last, code);
    }

    pub(crate) fn stream(&mut self, lane: usize) -> &mut ServerStream {
        &mut self.state.streams[lane]
    }

    /// The stream on a lane, by which to find it later; none if it is over.
    pub(crate) fn id(&self, lane: usize) -> u32 {
        self.state.ids[lane]
    }

    /// The lane of a stream that may be over by now.
    pub(crate) fn find(&self, id: u32) -> Option<usize> {
        self.state.ids.iter().position(|known| *known == id)
    }

    /// Takes bytes until something has happened; none when all are used.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<RequestProgress>, Malformed> {
        loop {
            if let Some(lane) = self.state.whole.take() {
                return Ok(Some(RequestProgress::Whole(lane)));
            }
            let (used, frame) = self.frames.next(bytes)?;
            *bytes = &bytes[used..];
            let Some(frame) = frame else {
                return Ok(None);
            };
            let incoming = self.state.core.accept(&frame)?;
            if let Some(asked) = self.state.apply(incoming)? {
                return Ok(Some(asked));
            }
        }
    }

    /// Begins an answer; it goes out as the windows allow.
    pub(crate) fn answer(&mut self, lane: usize, reply: &Reply<'_>) {
        self.state.answer(lane, reply);
    }
}

impl ServerStreamState {
    fn apply(&mut self, incoming: IncomingFrame<'_>) -> Result<Option<RequestProgress>, Malformed> {
        match incoming {
            IncomingFrame::Nothing | IncomingFrame::GoAway { .. } => Ok(None),
            IncomingFrame::Headers { stream, end } => self.headers(stream, end),
            IncomingFrame::Data {
                stream,
                bytes,
                length,
                end,
            } => {
                let Some(lane) = self.lane(stream)? else {
                    return self.closed();
                };
                self.data(lane, bytes, length, end)
            }
            IncomingFrame::Reset { stream } => {
                if let Some(lane) = self.lane(stream)? {
                    self.free(lane);
                }
                Ok(None)
            }
            IncomingFrame::Window { stream, by } => {
                if stream != 0
                    && let Some(lane) = self.lane(stream)?
                    && !core::widen(&mut self.streams[lane].window, by)
                {
                    self.abort(lane, core::FLOW_CONTROL_ERROR);
                }
                self.send_all();
                Ok(None)
            }
            IncomingFrame::Initial { by } => {
                for stream in &mut self.streams {
                    if !core::widen(&mut stream.window, by) {
                        self.core.fault = core::FLOW_CONTROL_ERROR;
                        return Err(Malformed("window larger than 2^31-1"));
                    }
                }
                self.send_all();
                Ok(None)
            }
        }
    }

    fn lane(&self, id: u32) -> Result<Option<usize>, Malformed> {
        if id.is_multiple_of(2) || id > self.last {
            return Err(Malformed("refers to a stream that was never opened"));
        }
        Ok(self.ids.iter().position(|known| *known == id))
    }

    /// Something has come for a stream that is over.
    fn closed(&mut self) -> Result<Option<RequestProgress>, Malformed> {
        if self.forgiving {
            return Ok(None);
        }
        self.core.fault = core::STREAM_CLOSED;
        Err(Malformed("sends on a closed stream"))
    }

    fn headers(&mut self, id: u32, end: bool) -> Result<Option<RequestProgress>, Malformed> {
        if id.is_multiple_of(2) {
            return Err(Malformed("opens a stream with an even number"));
        }
        if id <= self.last {
            return self.trailers(id, end);
        }
        self.last = id;
        let Some(lane) = self.take_lane(id) else {
            self.core.fields(&mut |_, _| Ok(()))?;
            self.core.put_reset(id, core::REFUSED_STREAM);
            self.forgiving = true;
            return Ok(None);
        };
        let stream = &mut self.streams[lane];
        let mut head = HeadRules::default();
        let describe = self.describe;
        self.core.fields(&mut |name, value| {
            head.take(name, value, stream, describe);
            Ok(())
        })?;
        if !head.proper() {
            self.abort(lane, core::PROTOCOL_ERROR);
            return Ok(None);
        }
        stream.ended = end;
        if end {
            if stream.expected.is_some_and(|length| length > 0) {
                self.abort(lane, core::PROTOCOL_ERROR);
                return Ok(None);
            }
            self.whole = Some(lane);
        }
        Ok(Some(RequestProgress::Head(lane)))
    }

    fn trailers(&mut self, id: u32, end: bool) -> Result<Option<RequestProgress>, Malformed> {
        self.core.fields(&mut |_, _| Ok(()))?;
        let Some(lane) = self.lane(id)? else {
            return self.closed();
        };
        if self.streams[lane].ended {
            self.abort(lane, core::STREAM_CLOSED);
            return Ok(None);
        }
        if !end {
            self.abort(lane, core::PROTOCOL_ERROR);
            return Ok(None);
        }
        Ok(self.end(lane))
    }

    fn data(
        &mut self,
        lane: usize,
        bytes: &[u8],
        length: usize,
        end: bool,
    ) -> Result<Option<RequestProgress>, Malformed> {
        let stream = &mut self.streams[lane];
        if stream.ended {
            self.abort(lane, core::STREAM_CLOSED);
            return Ok(None);
        }
        stream.length += bytes.len() as u64;
        let before = stream.messages.whole;
        if stream.grpc {
            stream.messages.feed(bytes);
        }
        if stream.keep {
            stream.body.extend_from_slice(bytes);
            stream.held += bytes.len();
            self.kept += bytes.len();
            if self.kept > MAX_KEPT_BYTES {
                self.abort(lane, core::ENHANCE_YOUR_CALM);
                return Ok(None);
            }
        }
        if end {
            return Ok(self.end(lane));
        }
        let received = stream.received + length as u32;
        let more = stream.live && stream.messages.whole > before;
        self.streams[lane].received = self.core.replenish(received, self.ids[lane])?;
        Ok(more.then_some(RequestProgress::Piece(lane)))
    }

    /// The request is whole if its length matches the declared one.
    fn end(&mut self, lane: usize) -> Option<RequestProgress> {
        let stream = &mut self.streams[lane];
        stream.ended = true;
        if stream.answering && !stream.live {
            return None;
        }
        if stream
            .expected
            .is_some_and(|length| length != stream.length)
        {
            self.abort(lane, core::PROTOCOL_ERROR);
            return None;
        }
        Some(RequestProgress::Whole(lane))
    }

    fn take_lane(&mut self, id: u32) -> Option<usize> {
        let lane = match self.ids.iter().position(|known| *known == 0) {
            Some(lane) => lane,
            None if self.ids.len() < MAX_STREAMS => {
                self.ids.push(0);
                self.streams.push(ServerStream::default());
                self.ids.len() - 1
            }
            None => return None,
        };
        self.ids[lane] = id;
        self.active += 1;
        let old = std::mem::take(&mut self.streams[lane]);
        self.streams[lane] = ServerStream {
            method: emptied(old.method),
            target: emptied(old.target),
            arguments: emptied(old.arguments),
            body: emptied(old.body),
            kind: emptied(old.kind),
            plan: old.plan,
            window: self.core.initial,
            ..ServerStream::default()
        };
        Some(lane)
    }

    fn free(&mut self, lane: usize) {
        let stream = &mut self.streams[lane];
        if stream.answering {
            self.unsent -= 1;
            stream.answering = false;
        }
        self.kept = self.kept.saturating_sub(stream.held);
        stream.held = 0;
        stream.keep = false;
        if self.whole == Some(lane) {
            self.whole = None;
        }
        self.ids[lane] = 0;
        self.active -= 1;
    }

    fn abort(&mut self, lane: usize, code: u32) {
        self.core.put_reset(self.ids[lane], code);
        self.forgiving = true;
        self.free(lane);
    }

    fn answer(&mut self, lane: usize, reply: &Reply<'_>) {
        let id = self.ids[lane];
        let stream = &mut self.streams[lane];
        if id == 0 || stream.answering {
            return;
        }
        let length = match reply.content {
            ResponseBody::None => 0,
            ResponseBody::Kept => stream.body.len(),
            ResponseBody::Pattern(size) => size,
        };
        let bare = stream.method == b"HEAD" || matches!(reply.status, 204 | 304);
        stream.content = if bare {
            ResponseBody::None
        } else {
            reply.content
        };
        let empty = bare || length == 0;
        // A gRPC answer without a message is its trailers alone.
        let early = reply.grpc.filter(|_| empty);
        stream.trailers = reply.grpc.filter(|_| !empty).map(|(status, _)| status);
        stream.sent = 0;
        stream.answering = true;
        self.unsent += 1;
        let (mut one, mut two, mut three) =
            (Decimal::default(), Decimal::default(), Decimal::default());
        let (status, length) = (one.of(reply.status.into()), two.of(length as u64));
        let (code, why) = early.unwrap_or_default();
        let framed = reply.grpc.is_none() && !matches!(reply.status, 204 | 304);
        // A length that is asked for is one of few; one that a client's body has may be any.
        let known = matches!(reply.content, ResponseBody::Pattern(_));
        let fields = [
            (":status", status, true, true),
            (
                "content-type",
                reply.content_type,
                true,
                !reply.content_type.is_empty(),
            ),
            ("content-length", length, known, framed),
            ("grpc-status", three.of(code.into()), true, early.is_some()),
            ("grpc-message", why, true, !why.is_empty()),
        ];
        let more = lowered(reply.headers);
        let more = more
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str(), true, true));
        let fields = fields.into_iter().chain(more).filter(|field| field.3);
        self.core.encode(
            fields.map(|(name, value, learn, _)| (name.as_bytes(), value.as_bytes(), learn)),
        );
        self.core.put_coded(id, empty);
        if empty {
            self.over(lane);
        } else {
            self.send(lane);
        }
    }

    fn send_all(&mut self) {
        if self.unsent == 0 {
            return;
        }
        for lane in 0..self.ids.len() {
            if self.ids[lane] != 0 && self.streams[lane].answering {
                self.send(lane);
            }
        }
    }

    fn send(&mut self, lane: usize) {
        if self.streams[lane].begun {
            return self.push(lane);
        }
        let id = self.ids[lane];
        let stream = &mut self.streams[lane];
        let total = match stream.content {
            ResponseBody::None => 0,
            ResponseBody::Kept => stream.body.len(),
            ResponseBody::Pattern(size) => size,
        };
        while stream.sent < total {
            let room = self.core.room(stream.window, total - stream.sent);
            if room == 0 {
                return;
            }
            let piece = match stream.content {
                ResponseBody::Kept => &stream.body[stream.sent..stream.sent + room],
                ResponseBody::None | ResponseBody::Pattern(_) => &PATTERN[..room],
            };
            stream.sent += room;
            stream.window -= room as i64;
            let end = stream.sent == total && stream.trailers.is_none();
            self.core.put_data(piece, id, end);
        }
        if let Some(status) = stream.trailers {
            let mut text = Decimal::default();
            let status = text.of(status.into());
            self.core
                .encode([(&b"grpc-status"[..], status.as_bytes(), true)].into_iter());
            self.core.put_coded(id, true);
        }
        self.over(lane);
    }

    /// All is sent. A client that still sends gets a reset.
    fn over(&mut self, lane: usize) {
        if !self.streams[lane].ended {
            self.core.put_reset(self.ids[lane], 0);
            self.forgiving = true;
        }
        self.free(lane);
    }
}

/// A number as text, without the heap.
#[derive(Debug, Default)]
struct Decimal([u8; 20]);

impl Decimal {
    fn of(&mut self, mut value: u64) -> &str {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        std::str::from_utf8(&self.0[at..]).expect("invariant: digits are ASCII")
    }
}

fn emptied(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.capacity() > REUSED_BYTES {
        return Vec::new();
    }
    bytes.clear();
    bytes
}

/// Header lines as HTTP/2 fields.
fn lowered(lines: &str) -> Vec<(String, String)> {
    let lines = lines.split("\r\n").filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect()
}

/// Checks of a request's head (RFC 9113, section 8.3).
#[derive(Debug, Default)]
struct HeadRules {
    seen: u8,
    regular: bool,
    wrong: bool,
    described: bool,
}

impl HeadRules {
    fn take(&mut self, name: &[u8], value: &[u8], stream: &mut ServerStream, describe: bool) {
        let pseudo = match name {
            b":method" => 1,
            b":path" => 2,
            b":scheme" => 4,
            b":authority" => 8,
            _ => 0,
        };
        if pseudo != 0 {
            self.wrong |= self.regular || self.seen & pseudo != 0;
            self.seen |= pseudo;
        } else {
            self.regular = true;
            self.wrong |= name.is_empty()
                || name
                    .iter()
                    .any(|byte| byte.is_ascii_uppercase() || *byte <= b' ' || *byte == b':');
        }
        match name {
            b":method" => stream.method.extend_from_slice(value),
            b":path" => {
                stream.target.extend_from_slice(value);
                self.wrong |= value.is_empty();
                self.described |= memchr::memmem::find(value, b"/debug").is_some();
            }
            b"content-type" => {
                stream.grpc = value.starts_with(b"application/grpc");
                stream.kind.clear();
                stream.kind.extend_from_slice(value);
            }
            b"accept-encoding" => stream.gzip = takes_gzip(value),
            b"echo-query" => stream.arguments.extend_from_slice(value),
            b"content-length" => {
                let length = std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok());
                self.wrong |= length.is_none();
                stream.expected = length;
            }
            b"connection" | b"transfer-encoding" | b"upgrade" | b"keep-alive"
            | b"proxy-connection" => {
                self.wrong = true;
            }
            b"te" => self.wrong |= value != b"trailers",
            _ => {}
        }
        if (describe || self.described) && pseudo == 0 {
            stream.fields.push_str(&String::from_utf8_lossy(name));
            stream.fields.push_str(": ");
            stream.fields.push_str(&String::from_utf8_lossy(value));
            stream.fields.push('\n');
        }
    }

    fn proper(&self) -> bool {
        !self.wrong && self.seen & 7 == 7
    }
}

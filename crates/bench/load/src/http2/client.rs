//! The generator's end of an HTTP/2 connection: repeats the same requests on as many streams as there are lanes, and reports each
//! result. No I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use super::core::{self, Http2Core, IncomingFrame};
use super::frame::Frames;
use super::{Malformed, PREFACE};
use crate::grpc::Messages;
use crate::tally::RequestOutcome;
use crate::wire::{HttpResponse, PreparedRequest, WireEvent};

/// The last stream a connection may have; the next request needs another connection.
const LAST_STREAM: u32 = 0x7fff_ffff;

/// Template of a request, the same throughout a run.
#[derive(Debug, Default)]
pub(crate) struct RequestShape {
    /// Fields in order, names in lower case.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// A gRPC call: its status is in the trailers.
    pub(crate) grpc: bool,
    /// Messages that its answer must bring.
    pub(crate) messages: u32,
    /// A call stays open, and a request is a message of it; it ends after so many (0: never).
    pub(crate) interleave: Option<u32>,
    /// A HEAD request: its answer has no body, even if its head declares one.
    pub(crate) head: bool,
}

#[derive(Debug, Default)]
struct ClientStream {
    /// Bytes of body that may be sent, and that have been.
    window: i64,
    sent: usize,
    /// 0 until the head has come.
    status: u16,
    grpc_status: Option<u16>,
    length: Option<u64>,
    body: u64,
    received: u32,
    messages: Messages,
    /// Interleaved: messages sent in this call, and whether the last of them has no answer yet.
    said: u32,
    asking: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Http2Client {
    frames: Frames,
    state: ClientState,
}

#[derive(Debug)]
struct ClientState {
    core: Http2Core,
    requests: Arc<[PreparedRequest]>,
    /// The block of each request, once the server's table has learned its fields.
    steady: Vec<Option<Vec<u8>>>,
    /// By lane: the request that it sends.
    which: Vec<usize>,
    /// By lane: the stream it is on, or 0.
    ids: Vec<u32>,
    streams: Vec<ClientStream>,
    active: usize,
    next: u32,
    /// Lanes whose request waits for a stream to end.
    waiting: VecDeque<usize>,
    /// Bodies that wait for a window.
    unsent_bodies: usize,
    /// No new streams, for the server said so or the numbers have run out.
    closing: bool,
    /// Lanes above the last stream of a GOAWAY whose failure is not yet reported.
    failed: Vec<usize>,
    /// The lane whose answer was only a head.
    ended: Option<usize>,
    /// Event that follows the first byte of a message's answer, if the whole answer came with that byte.
    answered: Option<(usize, HttpResponse)>,
}

impl Http2Client {
    /// A new connection, with its preface ready to be written.
    pub(crate) fn new(requests: Arc<[PreparedRequest]>, lanes: usize) -> Self {
        let state = ClientState {
            core: Http2Core::new(PREFACE, None),
            steady: vec![None; requests.len()],
            requests,
            which: vec![0; lanes],
            ids: vec![0; lanes],
            streams: (0..lanes).map(|_| ClientStream::default()).collect(),
            active: 0,
            next: 1,
            waiting: VecDeque::new(),
            unsent_bodies: 0,
            closing: false,
            failed: Vec::new(),
            ended: None,
            answered: None,
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
        if self.state.unsent_bodies > 0 {
            self.state.send_bodies();
        }
    }

    /// Sends a lane's request, or lets it wait for a stream: then false.
    pub(crate) fn open(&mut self, lane: usize, which: usize) -> bool {
        let state = &mut self.state;
        state.which[lane] = which;
        if state.ids[lane] != 0 {
            state.say(lane);
            return true;
        }
        if state.closing || state.active >= state.core.max_streams {
            state.waiting.push_back(lane);
            return false;
        }
        state.open(lane);
        true
    }

    /// Gives a lane's request up.
    pub(crate) fn cancel(&mut self, lane: usize) {
        let state = &mut self.state;
        match state.ids[lane] {
            0 => state.waiting.retain(|waiting| *waiting != lane),
            stream => {
                state.core.put_reset(stream, core::CANCEL);
                state.free(lane);
            }
        }
    }

    /// The server takes no more streams, and none is left.
    pub(crate) fn spent(&self) -> bool {
        self.state.closing && self.state.active == 0 && self.state.failed.is_empty()
    }

    /// Reports if any request has been sent.
    pub(crate) fn used(&self) -> bool {
        self.state.next > 1
    }

    /// Takes bytes until something has happened; none when all are used.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<WireEvent>, Malformed> {
        loop {
            if let Some(event) = self.state.pending() {
                return Ok(Some(event));
            }
            let (used, frame) = self.frames.next(bytes)?;
            *bytes = &bytes[used..];
            let Some(frame) = frame else {
                return Ok(None);
            };
            let first = !self.state.core.settled;
            let incoming = self.state.core.accept(&frame)?;
            if let Some(event) = self.state.apply(incoming)? {
                return Ok(Some(event));
            }
            if first && self.state.core.settled {
                return Ok(Some(WireEvent::Ready));
            }
        }
    }
}

impl ClientState {
    /// Returns an event that earlier frames have caused.
    fn pending(&mut self) -> Option<WireEvent> {
        if let Some(lane) = self.ended.take() {
            return self.whole(lane);
        }
        if let Some((lane, answer)) = self.answered.take() {
            return Some(WireEvent::Answered(lane, answer));
        }
        if let Some(lane) = self.failed.pop() {
            return Some(WireEvent::Failed(lane, RequestOutcome::GoAway));
        }
        if self.closing || self.active >= self.core.max_streams {
            return None;
        }
        let lane = self.waiting.pop_front()?;
        self.open(lane);
        Some(WireEvent::Started(lane))
    }

    fn open(&mut self, lane: usize) {
        let id = self.next;
        self.closing |= id >= LAST_STREAM;
        self.next = id.wrapping_add(2);
        self.active += 1;
        self.ids[lane] = id;
        self.streams[lane] = ClientStream {
            window: self.core.initial,
            said: 1,
            asking: true,
            ..ClientStream::default()
        };
        let which = self.which[lane];
        let shape = &self.requests[which].shape;
        let end = shape.body.is_empty();
        if self.core.resized() {
            self.steady.fill(None);
        }
        if let Some(block) = &self.steady[which] {
            self.core.put_block(block, id, end);
        } else {
            let fields = shape.fields.iter();
            let fields = fields.map(|(name, value)| (name.as_bytes(), value.as_bytes(), true));
            let steady = self.core.encode(fields);
            self.core.put_coded(id, end);
            if steady {
                self.steady[which] = Some(self.core.coded().to_vec());
            } else if self.requests.len() > 1 {
                // The fields of one request may have evicted table entries that the block of another request refers to.
                self.steady.fill(None);
            }
        }
        if !end {
            self.unsent_bodies += 1;
            self.send_body(lane);
        }
    }

    fn shape(&self, lane: usize) -> &RequestShape {
        &self.requests[self.which[lane]].shape
    }

    fn send_bodies(&mut self) {
        for lane in 0..self.ids.len() {
            if self.ids[lane] != 0 && self.streams[lane].sent < self.shape(lane).body.len() {
                self.send_body(lane);
            }
        }
    }

    fn send_body(&mut self, lane: usize) {
        let shape = &self.requests[self.which[lane]].shape;
        let (body, interleave) = (&shape.body, shape.interleave);
        let stream = &mut self.streams[lane];
        while stream.sent < body.len() {
            let room = self.core.room(stream.window, body.len() - stream.sent);
            if room == 0 {
                return;
            }
            let piece = &body[stream.sent..stream.sent + room];
            stream.sent += room;
            stream.window -= room as i64;
            let open = interleave.is_some_and(|most| stream.said != most);
            let end = stream.sent == body.len() && !open;
            self.core.put_data(piece, self.ids[lane], end);
        }
        self.unsent_bodies -= 1;
    }

    fn free(&mut self, lane: usize) {
        if self.streams[lane].sent < self.shape(lane).body.len() {
            self.unsent_bodies -= 1;
        }
        self.ids[lane] = 0;
        self.active -= 1;
    }

    /// The lane of a stream; none if the stream is over.
    fn lane(&self, stream: u32) -> Result<Option<usize>, Malformed> {
        if stream.is_multiple_of(2) || stream >= self.next {
            return Err(Malformed("refers to a stream that was never opened"));
        }
        Ok(self.ids.iter().position(|id| *id == stream))
    }

    fn apply(&mut self, incoming: IncomingFrame<'_>) -> Result<Option<WireEvent>, Malformed> {
        match incoming {
            IncomingFrame::Nothing => Ok(None),
            IncomingFrame::Headers { stream, end } => self.headers(stream, end),
            IncomingFrame::Data {
                stream,
                bytes,
                length,
                end,
            } => {
                let Some(lane) = self.lane(stream)? else {
                    return Ok(None);
                };
                self.data(lane, bytes, length, end)
            }
            IncomingFrame::Reset { stream } => {
                let Some(lane) = self.lane(stream)? else {
                    return Ok(None);
                };
                self.free(lane);
                Ok(Some(WireEvent::Failed(lane, RequestOutcome::StreamReset)))
            }
            IncomingFrame::Window { stream, by } => {
                if stream != 0
                    && let Some(lane) = self.lane(stream)?
                {
                    self.widen(lane, by)?;
                }
                self.send_bodies();
                Ok(None)
            }
            IncomingFrame::Initial { by } => {
                for lane in 0..self.streams.len() {
                    self.widen(lane, by)?;
                }
                self.send_bodies();
                Ok(None)
            }
            IncomingFrame::GoAway { last } => {
                self.closing = true;
                for lane in 0..self.ids.len() {
                    if self.ids[lane] > last {
                        self.free(lane);
                        self.failed.push(lane);
                    }
                }
                Ok(None)
            }
        }
    }

    fn widen(&mut self, lane: usize, by: i64) -> Result<(), Malformed> {
        if core::widen(&mut self.streams[lane].window, by) {
            return Ok(());
        }
        Err(Malformed("window larger than 2^31-1"))
    }

    fn headers(&mut self, id: u32, end: bool) -> Result<Option<WireEvent>, Malformed> {
        let Some(lane) = self.lane(id)? else {
            self.core.fields(&mut |_, _| Ok(()))?;
            return Ok(None);
        };
        let stream = &mut self.streams[lane];
        let trailers = stream.status != 0;
        let mut status = 0;
        self.core.fields(&mut |name, value| {
            match name {
                b":status" if trailers || status != 0 => {
                    return Err(Malformed("more than one :status"));
                }
                b":status" => {
                    status = number(value)
                        .filter(|status| (100..=999).contains(status))
                        .unwrap_or(0);
                }
                b"grpc-status" => stream.grpc_status = number(value),
                b"content-length" if !trailers => {
                    stream.length = std::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                }
                _ => {}
            }
            Ok(())
        })?;
        if trailers {
            if !end {
                return Err(Malformed("trailers that do not end the stream"));
            }
            return Ok(self.whole(lane));
        }
        match status {
            0 | 101 => Err(Malformed("head without a final :status")),
            // Interim: the final head follows.
            100..200 if end => Err(Malformed("interim head that ends the stream")),
            100..200 => Ok(None),
            _ => {
                stream.status = status;
                if end {
                    self.ended = Some(lane);
                }
                Ok(Some(WireEvent::First(lane)))
            }
        }
    }

    fn data(
        &mut self,
        lane: usize,
        bytes: &[u8],
        length: usize,
        end: bool,
    ) -> Result<Option<WireEvent>, Malformed> {
        let stream = &mut self.streams[lane];
        if stream.status == 0 {
            return Err(Malformed("body before its head"));
        }
        stream.body += bytes.len() as u64;
        let shape = &self.requests[self.which[lane]].shape;
        let (interleave, begins) = (
            shape.interleave,
            stream.messages.bytes == 0 && !bytes.is_empty(),
        );
        if shape.grpc {
            stream.messages.feed(bytes);
        }
        if end {
            return Ok(self.whole(lane));
        }
        let received = stream.received + length as u32;
        self.streams[lane].received = self.core.replenish(received, self.ids[lane])?;
        Ok(interleave.and_then(|most| self.told(lane, most, begins)))
    }

    /// The next message of a call that is open.
    fn say(&mut self, lane: usize) {
        let stream = &mut self.streams[lane];
        (stream.sent, stream.asking) = (0, true);
        stream.said = stream.said.saturating_add(1);
        stream.messages = Messages::default();
        self.unsent_bodies += 1;
        self.send_body(lane);
    }

    /// Bytes of an answer within an open call. The answer to its last message is whole when the call is.
    fn told(&mut self, lane: usize, most: u32, begins: bool) -> Option<WireEvent> {
        let stream = &mut self.streams[lane];
        let later = stream.said > 1 && begins;
        if stream.messages.exactly(1) && stream.said != most && stream.asking {
            stream.asking = false;
            let answer = HttpResponse {
                status: Some(0),
                body: stream.messages.bytes,
                surplus: false,
            };
            self.answered = Some((lane, answer));
        } else if !stream.asking || stream.messages.whole > 1 {
            // A message without a request.
            self.core.put_reset(self.ids[lane], core::CANCEL);
            let asking = std::mem::take(&mut stream.asking);
            self.free(lane);
            return asking.then_some(WireEvent::Failed(lane, RequestOutcome::Protocol));
        }
        later
            .then_some(WireEvent::First(lane))
            .or_else(|| self.pending())
    }

    /// Result of a stream that the server has ended.
    fn whole(&mut self, lane: usize) -> Option<WireEvent> {
        if self.streams[lane].sent < self.shape(lane).body.len() {
            // The server answered before it had the whole request, and wants no more of it.
            self.core.put_reset(self.ids[lane], core::CANCEL);
        }
        self.free(lane);
        let (stream, shape) = (&self.streams[lane], self.shape(lane));
        if !stream.asking {
            // A call ended between two messages; the next one begins another.
            return None;
        }
        let unframed = shape.head || stream.status == 304;
        let body_fits = unframed || stream.length.is_none_or(|length| length == stream.body);
        let status = if shape.grpc && stream.status == 200 {
            stream.grpc_status
        } else {
            Some(stream.status)
        };
        let message_fits = status != Some(0) || stream.messages.exactly(shape.messages);
        if status.is_none() || !body_fits || !message_fits {
            return Some(WireEvent::Failed(lane, RequestOutcome::Protocol));
        }
        let body = if shape.grpc {
            stream.messages.bytes
        } else {
            stream.body
        };
        let answer = HttpResponse {
            status,
            body,
            surplus: false,
        };
        Some(WireEvent::Answered(lane, answer))
    }
}

fn number(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

//! One request's stream of QUIC, as an exchange reads and writes it. The task of the request moves the bytes: before each of its
//! turns it writes what is left of the answer, and afterwards it reads ahead as far as HTTP/2's windows would let a client send.
//! So a request counts as received although its server does not take it yet, and a client that leaves is noticed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use quinn::{SendStream, StoppedError, VarInt, WriteError};
use voile_http2::{ErrorCode, Failure, Fields, HeadKind, check_head};
use voile_http3::{Code, FrameEvent, data_head, encode, head_frame};

use super::limits::MAX_CHUNK;
use super::quic;
use super::request_frames::{RequestEnd, RequestFrames, decode_block};
use super::session::{Http3Session, add, take};
use crate::http::codec::{AnswerSink, BodySink, BodySource, StreamCodec};
use crate::http2::limits::{CONNECTION_WINDOW, HEAD_COPIES, MAX_HEADS, STREAM_WINDOW};

/// Bytes of an answer that are taken at once at least.
const MIN_DATA: usize = 1024;

/// HTTP/3.
pub(super) struct Http3Codec;

impl StreamCodec for Http3Codec {
    type Body = Handle;
    type Answer = Handle;
    type AnswerBody = Handle;
}

/// A handle of the exchange.
pub(super) struct Handle(pub(super) Rc<RefCell<QuicStream>>);

/// Parts of the answer that were said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerState {
    Nothing,
    Head,
    /// All, and perhaps not written yet.
    All,
    Finished,
}

/// See the module.
pub(super) struct QuicStream {
    frames: RequestFrames,
    send: SendStream,
    /// Ready when the client wants no more of the answer, or has all of it.
    stopped: Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>>>>,
    /// The request's task.
    waker: Waker,
    session: Rc<Http3Session>,
    /// Place in the connection's list.
    place: usize,
    /// Bytes of heads, both ways, that the connection counts.
    heads: usize,
    /// Bytes of the body that came and did not go on.
    held: usize,
    /// Bytes of the body that were read and not taken.
    ahead: Vec<u8>,
    /// Bytes that were taken last.
    took: usize,
    /// Bytes of the body still to come, where the head said it.
    expected: Option<u64>,
    trailers: Option<Fields>,
    /// All of the request came.
    received: bool,
    /// Nothing can come any more.
    ended: bool,
    /// The exchange waits for more of the body, in this turn.
    starved: bool,
    out: VecDeque<Bytes>,
    answer: AnswerState,
    failed: Option<(Failure, RequestEnd)>,
}

impl QuicStream {
    /// The stream behind a head with this `content-length`.
    pub(super) fn open(
        session: &Rc<Http3Session>,
        frames: RequestFrames,
        send: SendStream,
        expected: Option<u64>,
        waker: Waker,
    ) -> Rc<RefCell<Self>> {
        let stream = Rc::new(RefCell::new(Self {
            frames,
            stopped: Box::pin(send.stopped()),
            send,
            waker,
            session: Rc::clone(session),
            place: 0,
            heads: 0,
            held: 0,
            ahead: Vec::new(),
            took: 0,
            expected,
            trailers: None,
            received: false,
            ended: false,
            starved: false,
            out: VecDeque::new(),
            answer: AnswerState::Nothing,
            failed: None,
        }));
        stream.borrow_mut().place = session.add(&stream);
        stream
    }

    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Bytes that it holds.
    pub(super) fn holds(&self) -> usize {
        let unsent: usize = self.out.iter().map(Bytes::len).sum();
        self.heads * HEAD_COPIES + self.held.max(self.ahead.capacity()) + unsent
    }

    /// Why it ended before its time.
    pub(super) fn end(&self) -> Option<RequestEnd> {
        self.failed.map(|(_, end)| end)
    }

    fn fail(&mut self, failure: Failure, end: RequestEnd) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some((failure, end));
        self.ahead = Vec::new();
        self.out = VecDeque::new();
        if let Some(code) = end.code() {
            // One that is closed already needs no more.
            let _ = self.send.reset(quic(code));
        }
    }

    /// Ends the stream with a code.
    pub(super) fn reset(&mut self, reason: ErrorCode) {
        if self.answer != AnswerState::Finished {
            let end = RequestEnd::Stream(code_of(reason));
            self.fail(Failure::Reset(reason), end);
        }
    }

    // --- the request

    /// Counts the head, and looks whether more is there. The exchange shall not begin with a request that is none.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, head: usize) {
        if !(self.count_head(head) && self.frames.keep_room(head)) {
            let rejected = RequestEnd::Stream(Code::REQUEST_REJECTED);
            return self.fail(Failure::Unprocessed, rejected);
        }
        self.read(cx, 1);
    }

    /// Reads until so many bytes are at hand. True if something came.
    fn read(&mut self, cx: &mut Context<'_>, most: usize) -> bool {
        let mut came = false;
        while !self.ended && self.failed.is_none() && self.ahead.len() < most {
            let Poll::Ready(event) = self.frames.poll_event(cx) else {
                break;
            };
            came = true;
            let taken = event.map_err(failure_of).and_then(|event| self.take(event));
            if let Err((failure, end)) = taken {
                self.fail(failure, end);
            }
        }
        came
    }

    fn take(&mut self, event: Option<FrameEvent>) -> Result<(), (Failure, RequestEnd)> {
        match event {
            Some(FrameEvent::Data(_) | FrameEvent::Block { .. }) if self.received => {
                let unexpected = RequestEnd::Connection(Code::FRAME_UNEXPECTED);
                return Err(failure_of(unexpected));
            }
            Some(FrameEvent::Data(data)) => {
                if let Some(expected) = &mut self.expected {
                    *expected = expected.checked_sub(data.len() as u64).ok_or(MALFORMED)?;
                }
                self.keep(&data);
                return Ok(());
            }
            Some(FrameEvent::Block { bytes, whole }) => {
                self.trailers = Some(self.read_trailers(&bytes, whole)?);
            }
            Some(FrameEvent::Settings | FrameEvent::Goaway) => return Ok(()),
            None => self.ended = true,
        }
        self.received = true;
        match self.expected.unwrap_or(0) {
            0 => Ok(()),
            _ => Err(MALFORMED),
        }
    }

    /// Copies data, so that small frames keep no packets alive.
    fn keep(&mut self, data: &[u8]) {
        if self.ahead.capacity() == 0 {
            self.ahead.reserve(self.took.clamp(data.len(), MAX_CHUNK));
        }
        self.ahead.extend_from_slice(data);
        self.held += data.len();
        add(&self.session.bodies, data.len());
        self.session.pool.grew(data.len());
    }

    fn read_trailers(
        &mut self,
        bytes: &[u8],
        whole: bool,
    ) -> Result<Fields, (Failure, RequestEnd)> {
        let decoded = decode_block(bytes, whole).map_err(failure_of)?;
        if !decoded.whole {
            return Err(failure_of(RequestEnd::Stream(Code::EXCESSIVE_LOAD)));
        }
        check_head(HeadKind::Trailers, &decoded.fields).map_err(|_| MALFORMED)?;
        let size = decoded.fields.size();
        if !(self.count_head(size) && self.frames.keep_room(self.heads)) {
            let calm = Failure::Violation(ErrorCode::ENHANCE_YOUR_CALM);
            return Err((calm, RequestEnd::Stream(Code::EXCESSIVE_LOAD)));
        }
        Ok(decoded.fields)
    }

    /// Counts a head to the connection, and one that came to the budget of all. False where there is no room.
    fn count_head(&mut self, bytes: usize) -> bool {
        self.heads += bytes;
        add(&self.session.heads, bytes);
        self.session.heads.get() <= MAX_HEADS
    }

    /// Reads on although nobody asks for more yet. True if something came.
    fn read_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        let taken = self.held - self.ahead.len();
        let most = (STREAM_WINDOW as usize).saturating_sub(taken);
        let is_full = self.session.bodies.get() >= CONNECTION_WINDOW as usize;
        if self.starved || is_full || self.session.pool.is_short() {
            return false;
        }
        self.read(cx, most)
    }

    // --- the answer

    fn send_head(&mut self, head: Fields, next: AnswerState) -> Result<(), Failure> {
        self.may_send()?;
        let frame = head_frame(&encode(&head));
        self.session.pool.give_block(head);
        if !self.count_head(frame.len()) {
            self.reset(ErrorCode::ENHANCE_YOUR_CALM);
            return Err(Failure::Reset(ErrorCode::ENHANCE_YOUR_CALM));
        }
        self.out.push_back(frame.into());
        self.answer = next;
        self.write();
        Ok(())
    }

    fn may_send(&self) -> Result<(), Failure> {
        match (self.failed, self.answer) {
            (Some((failure, _)), _) => Err(failure),
            (None, AnswerState::All | AnswerState::Finished) => Err(Failure::Connection),
            (None, _) => Ok(()),
        }
    }

    /// Writes as much as the client's windows allow.
    fn write(&mut self) {
        let waker = self.waker.clone();
        let cx = &mut Context::from_waker(&waker);
        while !self.out.is_empty() {
            let parts = self.out.make_contiguous();
            let written = pin!(self.send.write_chunks(parts)).poll(cx);
            match written {
                Poll::Ready(Ok(written)) => drop(self.out.drain(..written.chunks)),
                Poll::Ready(Err(WriteError::Stopped(_))) => {
                    return self.fail(GIVEN_UP.0, GIVEN_UP.1);
                }
                Poll::Ready(Err(_)) => return self.fail(Failure::Connection, RequestEnd::Gone),
                Poll::Pending => return,
            }
        }
        if self.answer == AnswerState::All {
            self.answer = AnswerState::Finished;
            // A connection that closes says so elsewhere.
            let _ = self.send.finish();
        }
    }

    /// Goes on writing, and notices a client that wants no more.
    fn look(&mut self, cx: &mut Context<'_>) {
        self.write();
        if self.failed.is_none() && self.answer != AnswerState::Finished {
            match self.stopped.as_mut().poll(cx) {
                Poll::Ready(Err(_)) => self.fail(Failure::Connection, RequestEnd::Gone),
                Poll::Ready(Ok(_)) => self.fail(GIVEN_UP.0, GIVEN_UP.1),
                Poll::Pending => {}
            }
        }
    }

    /// Writes the rest of the answer of an exchange that is over. Ready when all is written, or the stream failed.
    fn poll_rest(&mut self) -> Poll<()> {
        self.write();
        if matches!(self.answer, AnswerState::Nothing | AnswerState::Head) {
            self.reset(ErrorCode::CANCEL);
        }
        match self.failed.is_some() || self.answer == AnswerState::Finished {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Ready when the client has all of the answer, or wants no more of it.
    fn poll_arrived(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.failed {
            Some(_) => Poll::Ready(()),
            None => self.stopped.as_mut().poll(cx).map(drop),
        }
    }

    /// Wants no more of the request.
    pub(super) fn stop(&mut self, code: Code) {
        self.frames.stop(code);
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        self.session.remove(self.place);
        take(&self.session.heads, self.heads);
        take(&self.session.bodies, self.held);
        self.session.pool.freed(self.held);
    }
}

/// Moves a stream's bytes while its exchange is served.
pub(super) async fn carry(stream: &RefCell<QuicStream>, mut serving: Pin<Box<impl Future>>) {
    poll_fn(|cx| {
        stream.borrow_mut().look(cx);
        loop {
            stream.borrow_mut().starved = false;
            if serving.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if !stream.borrow_mut().read_ahead(cx) {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Writes the rest of an answer.
pub(super) async fn write_rest(stream: &RefCell<QuicStream>) {
    poll_fn(|_| stream.borrow_mut().poll_rest()).await;
}

/// Waits until an answer has arrived.
pub(super) async fn arrived(stream: &RefCell<QuicStream>) {
    poll_fn(|cx| stream.borrow_mut().poll_arrived(cx)).await;
}

/// A request that breaks a rule of its own.
const MALFORMED: (Failure, RequestEnd) = (
    Failure::Violation(ErrorCode::PROTOCOL_ERROR),
    RequestEnd::Malformed,
);

const GIVEN_UP: (Failure, RequestEnd) = (Failure::Reset(ErrorCode::CANCEL), RequestEnd::GivenUp);

/// The end of a request as its exchange sees it.
fn failure_of(end: RequestEnd) -> (Failure, RequestEnd) {
    let failure = match end {
        RequestEnd::Malformed => return MALFORMED,
        RequestEnd::Connection(_) | RequestEnd::Gone => Failure::Connection,
        RequestEnd::Stream(_) | RequestEnd::GivenUp | RequestEnd::Answered => GIVEN_UP.0,
    };
    (failure, end)
}

/// Translates the exchange's reason for the end of a stream.
fn code_of(reason: ErrorCode) -> Code {
    match reason {
        ErrorCode::REFUSED_STREAM => Code::REQUEST_REJECTED,
        ErrorCode::PROTOCOL_ERROR => Code::MESSAGE_ERROR,
        ErrorCode::ENHANCE_YOUR_CALM => Code::EXCESSIVE_LOAD,
        ErrorCode::CANCEL => Code::REQUEST_CANCELLED,
        _ => Code::INTERNAL_ERROR,
    }
}

impl BodySource for Handle {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        let mut stream = self.0.borrow_mut();
        if stream.ahead.is_empty() {
            stream.read(cx, MAX_CHUNK);
        }
        if !stream.ahead.is_empty() {
            let data = std::mem::take(&mut stream.ahead);
            stream.took = data.len();
            return Poll::Ready(Some(Ok(data.into())));
        }
        match (stream.failed, stream.received) {
            (Some((failure, _)), _) => Poll::Ready(Some(Err(failure))),
            (None, true) => Poll::Ready(None),
            (None, false) => {
                stream.starved = true;
                Poll::Pending
            }
        }
    }

    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Fields>, Failure>> {
        if let Some(data) = ready!(self.poll_data(cx)) {
            // The body was read, so this is its failure.
            data?;
        }
        Poll::Ready(Ok(self.0.borrow_mut().trailers.take()))
    }

    fn is_received(&self) -> bool {
        self.0.borrow().received
    }

    fn is_end_stream(&self) -> bool {
        let stream = self.0.borrow();
        stream.received && stream.ahead.is_empty() && stream.trailers.is_none()
    }

    fn release_capacity(&mut self, bytes: usize) {
        let stream = &mut *self.0.borrow_mut();
        let bytes = bytes.min(stream.held);
        stream.held -= bytes;
        take(&stream.session.bodies, bytes);
    }
}

impl BodySink for Handle {
    fn poll_capacity(&mut self, _cx: &mut Context<'_>) -> Poll<Result<usize, Failure>> {
        let mut stream = self.0.borrow_mut();
        stream.write();
        stream.may_send()?;
        // What the client does not take of all answers is less than a window of the connection.
        let live = stream.session.requests.live.get().max(1);
        let share = (CONNECTION_WINDOW as usize / live).clamp(MIN_DATA, MAX_CHUNK);
        match stream.out.is_empty() {
            true => Poll::Ready(Ok(share)),
            false => Poll::Pending,
        }
    }

    fn send_data(&mut self, data: Bytes, end: bool) -> Result<(), Failure> {
        let mut stream = self.0.borrow_mut();
        stream.may_send()?;
        if !data.is_empty() {
            stream.out.push_back(data_head(data.len()).into());
            stream.out.push_back(data);
        }
        if end {
            stream.answer = AnswerState::All;
        }
        stream.write();
        Ok(())
    }

    fn send_trailers(&mut self, trailers: Fields) -> Result<(), Failure> {
        self.0.borrow_mut().send_head(trailers, AnswerState::All)
    }

    fn send_reset(&mut self, reason: ErrorCode) {
        self.0.borrow_mut().reset(reason);
    }

    fn poll_failed(&mut self, _cx: &mut Context<'_>) -> Poll<Failure> {
        match self.0.borrow().failed {
            Some((failure, _)) => Poll::Ready(failure),
            None => Poll::Pending,
        }
    }

    fn block(&mut self) -> Fields {
        self.0.borrow().session.pool.block()
    }

    fn give_block(&mut self, block: Fields) {
        self.0.borrow().session.pool.give_block(block);
    }
}

impl AnswerSink for Handle {
    type Body = Self;

    fn send_informational(&mut self, head: Fields) -> Result<(), Failure> {
        let mut stream = self.0.borrow_mut();
        let state = stream.answer;
        stream.send_head(head, state)
    }

    fn send_response(&mut self, head: Fields, end: bool) -> Result<Self, Failure> {
        let next = match end {
            true => AnswerState::All,
            false => AnswerState::Head,
        };
        self.0.borrow_mut().send_head(head, next)?;
        Ok(Self(Rc::clone(&self.0)))
    }

    fn send_reset(&mut self, reason: ErrorCode) {
        self.0.borrow_mut().reset(reason);
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        BodySink::poll_failed(self, cx)
    }

    fn block(&mut self) -> Fields {
        BodySink::block(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_stream_is_said_in_the_words_of_http3() {
        for (reason, code) in [
            (ErrorCode::REFUSED_STREAM, Code::REQUEST_REJECTED),
            (ErrorCode::PROTOCOL_ERROR, Code::MESSAGE_ERROR),
            (ErrorCode::ENHANCE_YOUR_CALM, Code::EXCESSIVE_LOAD),
            (ErrorCode::CANCEL, Code::REQUEST_CANCELLED),
            (ErrorCode::INTERNAL_ERROR, Code::INTERNAL_ERROR),
        ] {
            assert_eq!(code_of(reason), code, "{reason:?}");
        }
    }
}

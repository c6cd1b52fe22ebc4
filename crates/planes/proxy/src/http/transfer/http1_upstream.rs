//! One request of a stream on a connection of HTTP/1.1: takes the body that the stream sends, and gives its answer. The head, a
//! piece of the body and its framing leave in one write. Answers are read into the worker's buffers, and only while bytes are there.

use std::cell::RefCell;
use std::io::{self, IoSlice, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use voile_http1::{Body, BodyError, Framing, Progress, RequestSummary};
use voile_http2::{ErrorCode, Failure, Fields};
use voile_traffic::Attempt;

use super::buffers::{Buffer, Buffers, ExchangeBuffers};
use super::codec::{BodySink, BodySource};
use crate::http::ending::ExchangeEnd;
use crate::http::io::Io;
use crate::http2::downgrade::{self, DowngradedRequest};
use crate::http2::trailers;

/// See the module. Its handles belong to one task.
pub(crate) struct Http1Upstream<U: Io>(Rc<RefCell<Http1Call<U>>>);

impl<U: Io> Clone for Http1Upstream<U> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

/// State of a connection with one request.
struct Http1Call<U: Io> {
    /// None once it is cut, or went back to its pool.
    stream: Option<U>,
    buffers: Buffers,
    /// A verified sidecar answers: it may say that it did nothing.
    from_sidecar: bool,
    /// It carried a request before.
    reused: bool,
    /// Bytes that were written to it before this request.
    mark: u64,
    request: RequestRest,
    response: ResponseRest,
}

/// The request, as far as it is not written.
#[derive(Default)]
struct RequestRest {
    asked: RequestSummary,
    proof: Option<String>,
    framing: Framing,
    /// Bytes before the piece of the body, of which `written` are gone.
    before: Vec<u8>,
    written: usize,
    piece: Bytes,
    /// Bytes behind it.
    after: Vec<u8>,
    unflushed: bool,
    /// A byte was written.
    started: bool,
    /// All of it was given.
    whole: bool,
    /// The end of a tunnel was said.
    shut: bool,
    broken: bool,
}

/// The answer, as far as it is not read.
#[derive(Default)]
struct ResponseRest {
    buffer: Option<Buffer>,
    /// Work space while a head is parsed.
    desk: Option<Box<ExchangeBuffers>>,
    /// A byte was read.
    heard: bool,
    /// The final head, until it is taken.
    head: Option<Result<Fields, ExchangeEnd>>,
    body: Body,
    trailers: Vec<u8>,
    tunnel: bool,
    unprocessed: bool,
    /// The server keeps the connection, for this time if it says so.
    keeps: bool,
    patience: Option<Duration>,
    error: Option<BodyError>,
}

impl<U: Io> Http1Upstream<U> {
    /// A connection, fresh or of a pool (`reused`).
    pub(crate) fn new(stream: U, reused: bool, from_sidecar: bool, buffers: &Buffers) -> Self {
        let call = Http1Call {
            mark: stream.written(),
            stream: Some(stream),
            buffers: buffers.clone(),
            from_sidecar,
            reused,
            request: RequestRest::default(),
            response: ResponseRest::default(),
        };
        Self(Rc::new(RefCell::new(call)))
    }

    /// Sends the head; it leaves with the first bytes of the body.
    pub(crate) fn begin(&self, head: DowngradedRequest) {
        let request = &mut self.0.borrow_mut().request;
        request.before = head.text;
        request.whole = head.whole;
        (request.framing, request.asked, request.proof) = (head.framing, head.asked, head.proof);
    }

    pub(crate) fn is_reused(&self) -> bool {
        self.0.borrow().reused
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.0.borrow().stream.as_ref()?.local_address()
    }

    /// The attempt, if the server ended it without a word.
    pub(crate) fn attempt(&self) -> Option<Attempt> {
        let call = self.0.borrow();
        if call.response.heard {
            return None;
        }
        let closed = || {
            let stream = call.stream.as_ref();
            stream.is_some_and(|stream| stream.closed_before(call.mark))
        };
        let reused = call.reused;
        Some(match call.request.started {
            false => Attempt::NotSent,
            true if closed() => Attempt::NotReceived,
            true => Attempt::Unanswered { reused },
        })
    }

    /// Returns true if the sidecar that answered did nothing with the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        self.0.borrow().response.unprocessed
    }

    /// The connection with the time for which its server keeps it, if it can carry another request.
    pub(crate) fn release(&self) -> Option<(U, Option<Duration>)> {
        let mut call = self.0.borrow_mut();
        let Http1Call {
            request, response, ..
        } = &*call;
        let quiet = response.buffer.as_ref().is_none_or(Buffer::is_empty);
        let clean = request.is_over() && response.keeps && response.body.is_done() && quiet;
        let patience = response.patience;
        Some((call.stream.take().filter(|_| clean)?, patience))
    }

    /// The next interim head; none when the final one is there, or none will come.
    pub(crate) fn poll_informational(&self, cx: &mut Context<'_>) -> Poll<Option<Fields>> {
        let call = &mut *self.0.borrow_mut();
        if call.response.head.is_some() {
            return Poll::Ready(None);
        }
        match ready!(call.poll_head(cx)) {
            Ok((early, true)) => return Poll::Ready(Some(early)),
            Ok((head, _)) => call.response.head = Some(Ok(head)),
            Err(end) => call.response.head = Some(Err(end)),
        }
        if call.response.tunnel {
            // The client's first bytes may wait for it.
            cx.waker().wake_by_ref();
        }
        Poll::Ready(None)
    }

    /// The final head.
    pub(crate) fn poll_head(&self) -> Poll<Result<Fields, ExchangeEnd>> {
        let head = self.0.borrow_mut().response.head.take();
        head.map_or(Poll::Pending, Poll::Ready)
    }

    /// The end of an exchange whose answer's body failed.
    pub(crate) fn end(&self, cause: Failure) -> ExchangeEnd {
        let error = self.0.borrow().response.error;
        error.map_or(ExchangeEnd::Upstream(cause), ExchangeEnd::ResponseBody)
    }
}

impl RequestRest {
    /// Returns true if all of it was written.
    fn is_over(&self) -> bool {
        let left = self.before.len() - self.written + self.piece.len() + self.after.len();
        self.whole && left == 0 && !self.unflushed && !self.broken
    }

    /// Adds a piece of the body behind what was written before.
    fn add(&mut self, data: Bytes) -> Result<(), Failure> {
        let too_much = Failure::Violation(ErrorCode::PROTOCOL_ERROR);
        match &mut self.framing {
            Framing::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(too_much)?;
            }
            Framing::Chunked => {
                // Writing into a Vec cannot fail.
                let _ = write!(self.before, "{:x}\r\n", data.len());
                self.after.extend_from_slice(b"\r\n");
            }
            Framing::UntilClose => {}
            Framing::None => return Err(too_much),
        }
        self.piece = data;
        Ok(())
    }

    fn finish(&mut self, trailers: Option<&Fields>) -> Result<(), Failure> {
        match self.framing {
            Framing::None | Framing::Length(0) => {}
            Framing::Length(_) => return Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR)),
            Framing::Chunked => {
                // Behind a piece whose framing may be half written.
                let last = match self.piece.is_empty() && self.after.is_empty() {
                    true => &mut self.before,
                    false => &mut self.after,
                };
                trailers::write_end(trailers, last);
            }
            Framing::UntilClose => self.shut = true,
        }
        self.whole = true;
        Ok(())
    }

    /// Writes all that there is.
    fn poll_write<U: Io>(&mut self, cx: &mut Context<'_>, stream: &mut U) -> Poll<io::Result<()>> {
        loop {
            let before = &self.before[self.written..];
            let parts = [before, &self.piece, &self.after].map(IoSlice::new);
            let left = match (before, &*self.piece, &*self.after) {
                ([], [], []) => break,
                ([], [], one) | ([], one, []) | (one, [], []) => {
                    Pin::new(&mut *stream).poll_write(cx, one)
                }
                _ => Pin::new(&mut *stream).poll_write_vectored(cx, &parts),
            };
            let mut sent = ready!(left)?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            (self.started, self.unflushed) = (true, true);
            let of_head = sent.min(before.len());
            self.written += of_head;
            sent -= of_head;
            let of_piece = sent.min(self.piece.len());
            drop(self.piece.split_to(of_piece));
            self.after.drain(..sent - of_piece);
        }
        self.written = 0;
        match self.whole {
            // The answer may take long.
            true => (self.before, self.after) = (Vec::new(), Vec::new()),
            false => self.before.clear(),
        }
        Poll::Ready(Ok(()))
    }
}

impl<U: Io> Http1Call<U> {
    /// Writes what there is, and with `flush` sees it off.
    fn poll_write(&mut self, cx: &mut Context<'_>, flush: bool) -> Poll<Result<(), Failure>> {
        let request = &mut self.request;
        let Some(stream) = self.stream.as_mut().filter(|_| !request.broken) else {
            return Poll::Ready(Err(Failure::Connection));
        };
        let write = || {
            ready!(request.poll_write(cx, stream))?;
            if flush && request.unflushed {
                ready!(Pin::new(&mut *stream).poll_flush(cx))?;
                request.unflushed = false;
            }
            if flush && request.shut {
                ready!(Pin::new(stream).poll_shutdown(cx))?;
                request.shut = false;
            }
            Poll::Ready(Ok::<_, io::Error>(()))
        };
        let written = write();
        request.broken |= matches!(written, Poll::Ready(Err(_)));
        written.map_err(|_| Failure::Connection)
    }

    /// The next head, and true if it is an interim one.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Fields, bool), ExchangeEnd>> {
        loop {
            if let Some(found) = self.take_head()? {
                return Poll::Ready(Ok(found));
            }
            if !matches!(ready!(self.poll_read(cx)), Ok(1..)) {
                let end = ExchangeEnd::Upstream(Failure::Connection);
                return Poll::Ready(Err(end));
            }
            self.response.heard = true;
        }
    }

    /// A head, if one is at hand.
    fn take_head(&mut self) -> Result<Option<(Fields, bool)>, ExchangeEnd> {
        let (response, asked) = (&mut self.response, self.request.asked);
        let Some(buffer) = response.buffer.as_mut().filter(|it| !it.is_empty()) else {
            return Ok(None);
        };
        let desk = response.desk.get_or_insert_with(|| {
            let mut desk = self.buffers.take_desk();
            desk.response.reset();
            desk
        });
        let index = &mut desk.response;
        let parsed = index.parse(buffer.filled(), asked);
        if parsed.map_err(ExchangeEnd::ResponseHead)? == Progress::Partial {
            return Ok(None);
        }
        let head = index.head(buffer.filled());
        let mut answer = self.buffers.http2.block();
        downgrade::answer(&head, asked, self.request.proof.as_deref(), &mut answer)
            .map_err(ExchangeEnd::ResponseHead)?;
        let interim = head.is_interim();
        if !interim {
            response.tunnel = head.opens_tunnel();
            response.body = match response.tunnel {
                true => Body::UntilClose,
                false => Body::new(head.framing()),
            };
            let trusted = self.from_sidecar && !asked.connect;
            response.unprocessed = trusted && head.is_unprocessed();
            response.keeps = head.keep_alive() && !response.tunnel && !asked.connect;
            let patience = head.keep_alive_timeout();
            response.patience = patience.map(|seconds| Duration::from_secs(seconds.into()));
        }
        buffer.start += index.head_len();
        index.reset();
        if let Some(desk) = response.desk.take_if(|_| !interim) {
            self.buffers.give_desk(desk);
        }
        Ok(Some((answer, interim)))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Some(stream) => self
                .buffers
                .poll_read(cx, &mut self.response.buffer, stream),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// The next piece of the answer's body.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        loop {
            let response = &mut self.response;
            if response.body.is_done() {
                return Poll::Ready(None);
            }
            if let Some(buffer) = response.buffer.as_mut().filter(|it| !it.is_empty()) {
                let (start, end) = (buffer.start, buffer.end);
                let at_hand = &mut buffer.bytes_mut()[start..end];
                let body = &mut response.body;
                match body.unwrap_keeping_trailers(at_hand, &mut response.trailers) {
                    Ok((used, data)) => {
                        let piece = Bytes::copy_from_slice(&at_hand[..data]);
                        buffer.start += used;
                        if !piece.is_empty() {
                            return Poll::Ready(Some(Ok(piece)));
                        }
                    }
                    Err(error) => {
                        response.error = Some(error);
                        return Poll::Ready(Some(Err(Failure::Connection)));
                    }
                }
                continue;
            }
            match ready!(self.poll_read(cx)) {
                Ok(1..) => {}
                Ok(0) if matches!(self.response.body, Body::UntilClose) => {
                    self.response.body = Body::default();
                }
                _ => return Poll::Ready(Some(Err(Failure::Connection))),
            }
        }
    }
}

impl<U: Io> Drop for Http1Call<U> {
    fn drop(&mut self) {
        if let Some(buffer) = self.response.buffer.take() {
            self.buffers.give(buffer);
        }
        if let Some(desk) = self.response.desk.take() {
            self.buffers.give_desk(desk);
        }
    }
}

impl<U: Io> BodySink for Http1Upstream<U> {
    /// Room for one piece, once those before are written; for a tunnel's once it is granted.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Failure>> {
        let call = &mut *self.0.borrow_mut();
        if call.request.framing == Framing::UntilClose && !call.response.tunnel {
            return Poll::Pending;
        }
        if !call.request.piece.is_empty() || !call.request.after.is_empty() {
            ready!(call.poll_write(cx, false))?;
        }
        Poll::Ready(Ok(usize::MAX))
    }

    fn send_data(&mut self, data: Bytes, end: bool) -> Result<(), Failure> {
        let call = &mut *self.0.borrow_mut();
        let added = match data.is_empty() {
            true => Ok(()),
            false => call.request.add(data),
        };
        let given = added.and_then(|()| match end {
            true => call.request.finish(None),
            false => Ok(()),
        });
        if given.is_err() {
            // Not what the head said: the server gets no more of it.
            call.stream = None;
        }
        given
    }

    fn send_trailers(&mut self, trailers: Fields) -> Result<(), Failure> {
        self.0.borrow_mut().request.finish(Some(&trailers))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.0.borrow_mut().poll_write(cx, true)
    }

    /// The end of the connection shows that something is missing; in a tunnel only an error does.
    fn send_reset(&mut self, _: ErrorCode) {
        let call = &mut *self.0.borrow_mut();
        if let Some(mut stream) = call.stream.take()
            && call.response.tunnel
        {
            stream.abort();
        }
    }

    fn poll_failed(&mut self, _: &mut Context<'_>) -> Poll<Failure> {
        Poll::Pending
    }

    fn block(&mut self) -> Fields {
        self.0.borrow().buffers.http2.block()
    }

    fn give_block(&mut self, block: Fields) {
        self.0.borrow().buffers.http2.give_block(block);
    }
}

impl<U: Io> BodySource for Http1Upstream<U> {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        self.0.borrow_mut().poll_piece(cx)
    }

    fn poll_trailers(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Fields>, Failure>> {
        Poll::Ready(Ok(trailers::read(&self.0.borrow().response.trailers)))
    }

    fn is_received(&self) -> bool {
        self.0.borrow().response.body.is_done()
    }

    fn is_end_stream(&self) -> bool {
        let response = &self.0.borrow().response;
        response.body.is_done() && response.trailers.is_empty()
    }

    /// Pieces are copies: the buffer they came in is free already.
    fn release_capacity(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;

    /// A connection that takes `step` bytes in every second call, and says `answer`.
    struct Stingy {
        step: usize,
        full: bool,
        written: Rc<RefCell<Vec<u8>>>,
        answer: &'static [u8],
    }

    impl AsyncRead for Stingy {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            room: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let (now, later) = self.answer.split_at(self.step.min(self.answer.len()));
            room.put_slice(now);
            self.answer = later;
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Stingy {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.full = !self.full;
            if self.full {
                return Poll::Pending;
            }
            let some = self.step.min(bytes.len());
            self.written.borrow_mut().extend_from_slice(&bytes[..some]);
            Poll::Ready(Ok(some))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Io for Stingy {
        fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn abort(&mut self) {}
    }

    type Call = (Http1Upstream<Stingy>, Rc<RefCell<Vec<u8>>>);

    fn call(step: usize, framing: Framing, answer: &'static [u8]) -> Call {
        let written = Rc::default();
        let stream = Stingy {
            step,
            full: false,
            written: Rc::clone(&written),
            answer,
        };
        let call = Http1Upstream::new(stream, false, false, &Buffers::new());
        call.begin(DowngradedRequest {
            text: b"HEAD.".to_vec(),
            framing,
            whole: false,
            asked: RequestSummary::default(),
            proof: None,
        });
        (call, written)
    }

    fn until<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(done) = poll(&mut cx) {
                return done;
            }
        }
    }

    #[test]
    fn a_body_is_framed_the_same_however_little_the_server_takes_at_once() {
        let pieces = ["hello", "x", "a longer piece"];
        let chunks = "HEAD.5\r\nhello\r\n1\r\nx\r\ne\r\na longer piece\r\n0\r\nx-sum: 1\r\n\r\n";
        for (framing, expected) in [
            (Framing::Chunked, chunks),
            (Framing::Length(20), "HEAD.helloxa longer piece"),
        ] {
            // The end comes when so many calls were made behind the last piece.
            for (step, calls) in (1..=20).flat_map(|step| (0..60).map(move |calls| (step, calls))) {
                let (mut call, written) = call(step, framing, b"");
                for piece in pieces {
                    until(|cx| call.poll_capacity(cx)).expect("it is open");
                    call.send_data(piece.into(), false).expect("it fits");
                }
                let mut cx = Context::from_waker(Waker::noop());
                for _ in 0..calls {
                    let _ = call.poll_flush(&mut cx);
                }
                let mut trailers = Fields::new();
                trailers.push("x-sum", b"1");
                call.send_trailers(trailers).expect("it is all");
                until(|cx| call.poll_flush(cx)).expect("it is open");
                let written = written.borrow();
                assert_eq!(
                    String::from_utf8_lossy(&written),
                    expected,
                    "{step} {calls}"
                );
            }
        }
    }

    /// The connection ends, so that no server takes other bytes for the rest, and it serves nobody else.
    #[test]
    fn a_body_of_another_length_than_said_cuts_the_request() {
        for (said, given) in [(4, "hello"), (0, "h"), (6, "hello")] {
            let (mut call, written) = call(100, Framing::Length(said), b"");
            until(|cx| call.poll_capacity(cx)).expect("it is open");
            assert!(call.send_data(given.into(), true).is_err(), "{said}");
            assert!(until(|cx| call.poll_flush(cx)).is_err(), "{said}");
            assert!(!written.borrow().ends_with(b"hello"), "{said}");
            assert!(call.release().is_none(), "{said}");
        }
    }

    #[test]
    fn an_answer_is_read_the_same_in_however_small_pieces_it_comes() {
        let answer = b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       3\r\nfoo\r\n4;x=y\r\nbarb\r\n0\r\nX-Sum: 8\r\n\r\n";
        for step in 1..=answer.len() {
            let (mut call, _) = call(step, Framing::None, answer);
            let early = until(|cx| call.poll_informational(cx)).expect("it hints");
            assert_eq!((early.status(), early.get("a")), (103, Some(&b"b"[..])));
            assert!(until(|cx| call.poll_informational(cx)).is_none());
            let head = until(|_| call.poll_head()).expect("a head");
            assert_eq!((head.status(), head.iter().count()), (200, 0));
            let mut body = Vec::new();
            while let Some(piece) = until(|cx| call.poll_data(cx)) {
                body.extend_from_slice(&piece.expect("a piece"));
            }
            assert_eq!(body, b"foobarb", "{step}");
            assert!(call.is_received() && !call.is_end_stream());
            let trailers = until(|cx| call.poll_trailers(cx)).expect("an end");
            assert_eq!(trailers.expect("trailers").get("x-sum"), Some(&b"8"[..]));
        }
    }
}

//! One direction of one stream: passes on data and trailers. The pump takes a chunk, and gives its sender the window back,
//! only after the last chunk went on. So a slow reader slows only its own writer.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use voile_http2::{Failure, Fields};

use super::grpc::Messages;
use crate::http::codec::{BodySink, BodySource};
use crate::http::external_check::{Names, TakenBody};

/// Side that ended a pump early, with its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokenSide {
    /// The side that sends the body.
    Source(Cause),
    /// The side that takes it.
    Sink(Cause),
}

/// Cause of a stream's end.
pub(crate) type Cause = Failure;

/// Sent part of a request, as long as it may have to be sent again.
#[derive(Default)]
pub(crate) struct Replay {
    /// Most requests are one chunk, which takes no list.
    first: Option<Bytes>,
    chunks: Vec<Bytes>,
    bytes: usize,
    lost: bool,
}

impl Replay {
    fn keep(&mut self, chunk: &Bytes) {
        if self.lost {
            return;
        }
        self.bytes += chunk.len();
        if self.bytes > super::limits::MAX_REPLAY_BYTES {
            self.forget();
        } else {
            match &self.first {
                None => self.first = Some(chunk.clone()),
                Some(_) => self.chunks.push(chunk.clone()),
            }
        }
    }

    /// It will not be needed, or cannot be had.
    pub(crate) fn forget(&mut self) {
        (self.first, self.chunks) = (None, Vec::new());
        self.lost = true;
    }

    /// Everything sent so far, if it is all that there was.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        let chunks = self.first.iter().chain(&self.chunks);
        (!self.lost).then(|| chunks.flatten().copied().collect())
    }

    pub(crate) fn is_whole(&self) -> bool {
        !self.lost
    }

    /// Everything sent so far, to be sent again.
    pub(crate) fn take(&mut self) -> Vec<Bytes> {
        self.bytes = 0;
        let chunks = std::mem::take(&mut self.chunks);
        self.first.take().into_iter().chain(chunks).collect()
    }
}

/// See the module.
pub(crate) struct Pump<F: BodySource, T: BodySink> {
    source: F,
    sink: T,
    /// Taken, not yet passed on.
    chunk: Bytes,
    /// Chunks of an earlier attempt, to be sent before anything else.
    again: std::vec::IntoIter<Bytes>,
    /// The source has not yet got back the window of the chunk.
    owed: bool,
    done: bool,
    /// Waiting for the sink.
    pub(crate) stalled: bool,
    /// Bytes of the body passed on.
    pub(crate) bytes: u64,
    pub(crate) messages: Option<Messages>,
    pub(crate) trailers: Option<Fields>,
}

impl<F: BodySource, T: BodySink> Drop for Pump<F, T> {
    fn drop(&mut self) {
        if let Some(trailers) = self.trailers.take() {
            self.sink.give_block(trailers);
        }
    }
}

impl<F: BodySource, T: BodySink> Pump<F, T> {
    pub(crate) fn new(source: F, sink: T, grpc: bool) -> Self {
        Self {
            source,
            sink,
            chunk: Bytes::new(),
            again: Vec::new().into_iter(),
            owed: false,
            done: false,
            stalled: false,
            bytes: 0,
            messages: grpc.then(Messages::default),
            trailers: None,
        }
    }

    /// Returns true if all of it left.
    pub(crate) fn is_done(&self) -> bool {
        self.done && !self.stalled
    }

    /// Returns true if all of the body was received, passed on or not.
    pub(crate) fn is_received(&self) -> bool {
        self.done || self.source.is_received()
    }

    pub(crate) fn source(&self) -> &F {
        &self.source
    }

    pub(crate) fn sink(&mut self) -> &mut T {
        &mut self.sink
    }

    /// Marks the end: no more chunks are passed on.
    pub(crate) fn finish(&mut self) {
        (self.done, self.stalled) = (true, false);
    }

    /// Passes on nothing, or first what was taken before, whose sender has its window back already.
    pub(crate) fn begin(&mut self, empty: bool, held: Option<Box<TakenBody>>) {
        self.done = empty;
        if let Some(held) = held {
            self.again = held.chunks.into_iter();
        }
    }

    /// Starts over into another sink, with the chunks sent before.
    pub(crate) fn restart(&mut self, sink: T, replay: &mut Replay) {
        self.sink = sink;
        let mut sent = replay.take();
        let rest = std::mem::take(&mut self.chunk);
        if !rest.is_empty() {
            if self.owed {
                // Held here like the rest, so its sender may go on.
                self.source.release_capacity(rest.len());
            }
            sent.push(rest);
        }
        sent.extend(std::mem::take(&mut self.again));
        self.again = sent.into_iter();
        self.done = false;
        self.bytes = 0;
        self.messages = self.messages.is_some().then(Messages::default);
    }

    /// Passes on what there is, without trailers of these names. Ready when the end went on too.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        replay: Option<&mut Replay>,
        forbidden: &Names,
    ) -> Poll<Result<(), BrokenSide>> {
        self.stalled = false;
        let passed = self.poll_pass(cx, replay, forbidden);
        if let Poll::Ready(Err(_)) = passed {
            return passed;
        }
        // Also while more is to come: no bytes wait here for the peer's next.
        match self.sink.poll_flush(cx) {
            Poll::Ready(Ok(())) => passed,
            Poll::Ready(Err(cause)) => Poll::Ready(Err(BrokenSide::Sink(cause))),
            Poll::Pending => {
                self.stalled = true;
                Poll::Pending
            }
        }
    }

    fn poll_pass(
        &mut self,
        cx: &mut Context<'_>,
        mut replay: Option<&mut Replay>,
        forbidden: &Names,
    ) -> Poll<Result<(), BrokenSide>> {
        while !self.done {
            if self.chunk.is_empty() {
                match ready!(self.poll_chunk(cx))? {
                    Some(chunk) => self.chunk = chunk,
                    None => {
                        ready!(self.poll_end(cx, forbidden))?;
                        self.done = true;
                    }
                }
                continue;
            }
            self.stalled = true;
            let room = ready!(self.sink.poll_capacity(cx)).map_err(BrokenSide::Sink)?;
            self.stalled = false;
            let part = self.chunk.split_to(room.min(self.chunk.len()));
            if let Some(replay) = replay.as_deref_mut() {
                replay.keep(&part);
            }
            self.pass(part)?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BrokenSide>> {
        if let Some(chunk) = self.again.next() {
            self.owed = false;
            return Poll::Ready(Ok(Some(chunk)));
        }
        self.owed = true;
        let chunk = ready!(self.source.poll_data(cx)).transpose();
        Poll::Ready(chunk.map_err(BrokenSide::Source))
    }

    fn pass(&mut self, part: Bytes) -> Result<(), BrokenSide> {
        let length = part.len();
        self.bytes += length as u64;
        if let Some(messages) = &mut self.messages {
            messages.take(&part);
        }
        // The end travels with the last data, so that it costs no frame of its own.
        let end = self.chunk.is_empty() && self.again.len() == 0 && self.source.is_end_stream();
        let sent = self.sink.send_data(part, end);
        sent.map_err(BrokenSide::Sink)?;
        if self.owed {
            self.source.release_capacity(length);
        }
        self.done |= end;
        Ok(())
    }

    fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        forbidden: &Names,
    ) -> Poll<Result<(), BrokenSide>> {
        let trailers = ready!(self.source.poll_trailers(cx));
        let trailers = trailers.map_err(BrokenSide::Source)?;
        let sent = match trailers {
            Some(mut trailers) => {
                super::conversions::headers::clean_trailers(&mut trailers, forbidden);
                let mut sent = self.sink.block();
                sent.extend_from(&trailers, |_, _| true);
                self.trailers = Some(trailers);
                self.sink.send_trailers(sent)
            }
            None => self.sink.send_data(Bytes::new(), true),
        };
        Poll::Ready(sent.map_err(BrokenSide::Sink))
    }
}

/// Gives what waits in `chunk` as far as the receiver's window allows; `over` says that nothing follows it, and
/// `ended` that the receiver was told so. For streams that play an HTTP/1.1 end, which only know that the other is gone.
pub(super) fn poll_give(
    send: &mut impl BodySink,
    chunk: &mut Bytes,
    over: bool,
    ended: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let gone = || io::Error::from(io::ErrorKind::ConnectionReset);
    while !chunk.is_empty() {
        let room = ready!(send.poll_capacity(cx)).map_err(|_| gone())?;
        let part = chunk.split_to(room.min(chunk.len()));
        let end = over && chunk.is_empty();
        send.send_data(part, end).map_err(|_| gone())?;
        *ended |= end;
    }
    if over && !*ended {
        send.send_data(Bytes::new(), true).map_err(|_| gone())?;
        *ended = true;
    }
    Poll::Ready(Ok(()))
}

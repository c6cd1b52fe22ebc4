//! Frames of a request, as they come from the client: the head, and what follows it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use quinn::{ReadError, RecvStream};
use voile_http2::{Fields, HeadRoom};
use voile_http3::{Code, DecodedBlock, FrameEvent, Frames, decode};

use super::limits::{MAX_BLOCK, MAX_CHUNK, WAITING_STREAM};
use super::quic;

/// Why a request goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEnd {
    /// The stream ends with this.
    Stream(Code),
    /// The request breaks a rule of its own.
    Malformed,
    /// The connection ends with this.
    Connection(Code),
    /// The client wants no answer any more.
    GivenUp,
    /// The client is gone.
    Gone,
    /// It was answered without an exchange.
    Answered,
}

impl RequestEnd {
    /// The code by which the stream ends.
    pub(super) fn code(self) -> Option<Code> {
        match self {
            Self::Stream(code) => Some(code),
            Self::Malformed => Some(Code::MESSAGE_ERROR),
            Self::GivenUp => Some(Code::REQUEST_CANCELLED),
            Self::Answered => Some(Code::NO_ERROR),
            Self::Connection(_) | Self::Gone => None,
        }
    }
}

/// See the module.
pub(super) struct RequestFrames {
    stream: RecvStream,
    frames: Frames,
    /// Room of incomplete heads.
    room: HeadRoom,
    /// Room of complete ones.
    kept: HeadRoom,
    chunk: Bytes,
    /// Nothing came before a head.
    waits: bool,
}

impl RequestFrames {
    /// The frames of a stream, whose heads take room from these.
    pub(super) fn new(stream: RecvStream, room: HeadRoom, kept: HeadRoom) -> Self {
        Self {
            stream,
            frames: Frames::of_request(MAX_BLOCK),
            room,
            kept,
            chunk: Bytes::new(),
            waits: true,
        }
    }

    /// Takes room for so many bytes of complete heads. False where there is none.
    pub(super) fn keep_room(&mut self, bytes: usize) -> bool {
        self.kept.resize(bytes)
    }

    /// Bytes; false at the end.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, RequestEnd>> {
        let chunk = pin!(self.stream.read_chunk(MAX_CHUNK, true)).poll(cx);
        let Poll::Ready(chunk) = chunk else {
            if self.waits && !self.room.resize(self.frames.kept() + WAITING_STREAM) {
                return Poll::Ready(Err(RequestEnd::Stream(Code::REQUEST_REJECTED)));
            }
            return Poll::Pending;
        };
        let chunk = chunk.map_err(|error| match error {
            ReadError::Reset(_) => RequestEnd::GivenUp,
            _ => RequestEnd::Gone,
        })?;
        Poll::Ready(match chunk {
            Some(chunk) => {
                self.chunk = chunk.bytes;
                Ok(true)
            }
            None if self.frames.is_between() => Ok(false),
            None => Err(RequestEnd::Connection(Code::FRAME_ERROR)),
        })
    }

    /// Next event; none at the end.
    pub(super) fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FrameEvent>, RequestEnd>> {
        loop {
            let event = self.frames.next(&mut self.chunk);
            if let Some(event) = event.map_err(RequestEnd::Connection)? {
                self.room.resize(0);
                return Poll::Ready(Ok(Some(event)));
            }
            if !self.room.resize(self.frames.kept()) {
                return Poll::Ready(Err(RequestEnd::Stream(Code::REQUEST_REJECTED)));
            }
            if !ready!(self.poll_more(cx))? {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// The head. One that is too large is cut, to be refused.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Fields, RequestEnd>> {
        Poll::Ready(match ready!(self.poll_event(cx))? {
            Some(FrameEvent::Block { bytes, whole }) => {
                self.waits = false;
                let DecodedBlock { mut fields, whole } = decode_block(&bytes, whole)?;
                if !whole {
                    let all = std::mem::take(&mut fields);
                    all.excerpt(&mut fields);
                }
                fields.mark_http3();
                Ok(fields)
            }
            Some(_) => Err(RequestEnd::Connection(Code::FRAME_UNEXPECTED)),
            None => Err(RequestEnd::Stream(Code::REQUEST_INCOMPLETE)),
        })
    }

    /// Returns true if there was no head yet.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Wants no more.
    pub(super) fn stop(&mut self, code: Code) {
        // A stream that is over already needs no more.
        let _ = self.stream.stop(quic(code));
    }
}

pub(super) fn decode_block(bytes: &[u8], whole: bool) -> Result<DecodedBlock, RequestEnd> {
    let decoded = decode(bytes, whole, MAX_BLOCK);
    decoded.map_err(|_| RequestEnd::Connection(Code::DECOMPRESSION_FAILED))
}

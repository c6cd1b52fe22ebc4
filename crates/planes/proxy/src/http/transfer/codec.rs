//! The handles by which an exchange reads a stream and writes one, whichever version moves its bytes: heads, body pieces,
//! trailers, resets. A failure is told in the words of HTTP/2.

use std::task::{Context, Poll};

use bytes::Bytes;
use voile_http2::{ErrorCode, Failure, Fields, RecvStream, SendResponse, SendStream};

/// The handles of a client's stream. All belong to one task.
pub(crate) trait StreamCodec: 'static {
    type Body: BodySource;
    type Answer: AnswerSink<Body = Self::AnswerBody>;
    type AnswerBody: BodySink;
}

/// A body and its trailers, as the peer sends them.
pub(crate) trait BodySource: Unpin {
    /// The next bytes; none at the end. The peer may send as many more once they are released.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>>;

    /// The trailers behind the last bytes.
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Fields>, Failure>>;

    /// Returns true if everything was received, read or not.
    fn is_received(&self) -> bool;

    /// Returns true if everything was received and read.
    fn is_end_stream(&self) -> bool;

    /// So many bytes went on.
    fn release_capacity(&mut self, bytes: usize);
}

/// A body and its trailers, as this end sends them.
pub(crate) trait BodySink: Unpin {
    /// Bytes that may be sent now.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Failure>>;

    fn send_data(&mut self, data: Bytes, end: bool) -> Result<(), Failure>;

    fn send_trailers(&mut self, trailers: Fields) -> Result<(), Failure>;

    /// Ready when all that was sent has left, as far as this end sees to that: a task of its own does for streams.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }

    fn send_reset(&mut self, reason: ErrorCode);

    /// Why the stream failed, once it did.
    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<Failure>;

    /// An empty block to fill.
    fn block(&mut self) -> Fields;

    /// Gives a block back.
    fn give_block(&mut self, block: Fields);
}

/// The way to answer a request.
pub(crate) trait AnswerSink: Unpin {
    type Body: BodySink;

    fn send_informational(&mut self, head: Fields) -> Result<(), Failure>;

    /// Sends the head; `end` says that no body follows.
    fn send_response(&mut self, head: Fields, end: bool) -> Result<Self::Body, Failure>;

    fn send_reset(&mut self, reason: ErrorCode);

    /// Why the stream failed, once it did.
    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<Failure>;

    /// An empty block to fill.
    fn block(&mut self) -> Fields;
}

/// HTTP/2.
pub(crate) struct Http2Codec;

impl StreamCodec for Http2Codec {
    type Body = RecvStream;
    type Answer = SendResponse;
    type AnswerBody = SendStream;
}

/// Methods that a handle of HTTP/2 has by itself.
macro_rules! own {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        #[inline]
        fn $name(&mut self, $($arg: $type),*) -> $out {
            (*self).$name($($arg),*)
        }
    )*};
}

impl BodySource for RecvStream {
    own! {
        poll_data(cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>>;
        poll_trailers(cx: &mut Context<'_>) -> Poll<Result<Option<Fields>, Failure>>;
        release_capacity(bytes: usize) -> ();
    }

    #[inline]
    fn is_received(&self) -> bool {
        self.is_received()
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.is_end_stream()
    }
}

impl BodySink for SendStream {
    own! {
        poll_capacity(cx: &mut Context<'_>) -> Poll<Result<usize, Failure>>;
        send_data(data: Bytes, end: bool) -> Result<(), Failure>;
        send_trailers(trailers: Fields) -> Result<(), Failure>;
        send_reset(reason: ErrorCode) -> ();
        poll_failed(cx: &mut Context<'_>) -> Poll<Failure>;
        block() -> Fields;
        give_block(block: Fields) -> ();
    }
}

impl AnswerSink for SendResponse {
    type Body = SendStream;

    own! {
        send_informational(head: Fields) -> Result<(), Failure>;
        send_response(head: Fields, end: bool) -> Result<SendStream, Failure>;
        send_reset(reason: ErrorCode) -> ();
        poll_failed(cx: &mut Context<'_>) -> Poll<Failure>;
        block() -> Fields;
    }
}

//! The upstream of a stream's exchange: a stream of a shared connection of HTTP/2, or a connection of HTTP/1.1. Which of them is
//! looked at once a poll.

use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use voile_http2::{ErrorCode, Failure, Fields, RecvStream, ResponseFuture, SendStream};
use voile_traffic::Attempt;

use super::codec::{BodySink, BodySource};
use super::http1_upstream::Http1Upstream;
use crate::http::ending::ExchangeEnd;
use crate::http::io::Io;
use crate::http::limits::MAX_ATTEMPTS;
use crate::http2::upstream::Lease;

/// Place of one attempt.
pub(crate) enum StreamUpstream<U: Io> {
    Http1(Http1Upstream<U>),
    Http2(Lease),
}

/// The way of the request's body.
pub(crate) enum UpstreamSink<U: Io> {
    Http1(Http1Upstream<U>),
    Http2(SendStream),
}

/// A request whose head was sent.
pub(crate) type SentRequest<U> = (UpstreamHead<U>, UpstreamSink<U>);

/// The answer's head.
pub(crate) enum UpstreamHead<U: Io> {
    Http1(Http1Upstream<U>),
    Http2(ResponseFuture),
}

/// The answer's body.
pub(crate) enum UpstreamBody<U: Io> {
    Http1(Http1Upstream<U>),
    Http2(RecvStream),
}

impl<U: Io> StreamUpstream<U> {
    /// Returns true if it carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        match self {
            Self::Http1(call) => call.is_reused(),
            Self::Http2(lease) => lease.reused,
        }
    }

    /// Our end of the connection.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Http1(call) => call.local_address(),
            Self::Http2(lease) => lease.local_address(),
        }
    }

    /// The attempt that the server ended like this. Gives up a connection without a future.
    pub(crate) fn attempt(&self, cause: Failure) -> Option<Attempt> {
        match self {
            Self::Http1(call) => call.attempt(),
            Self::Http2(lease) => Some(lease.attempt(cause)),
        }
    }

    /// Returns true if a harmless attempt is made anew whatever the role says: a stale connection is replaced, once.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Http1(call) if call.is_reused())
    }

    /// The same after the role was asked, which may know a better place.
    pub(crate) fn may_repeat(&self, made: u32) -> bool {
        matches!(self, Self::Http2(_)) && made < MAX_ATTEMPTS
    }

    /// A connection of HTTP/1.1 that can carry another request, with the time for which its server keeps it.
    pub(crate) fn release(&self) -> Option<(U, Option<Duration>)> {
        match self {
            Self::Http1(call) => call.release(),
            Self::Http2(_) => None,
        }
    }

    /// The connection takes no more streams.
    pub(crate) fn spoiled(&self) {
        if let Self::Http2(lease) = self {
            lease.spoiled();
        }
    }
}

impl<U: Io> UpstreamHead<U> {
    /// The next interim head; none when the final one is there, or none will come.
    pub(crate) fn poll_informational(&mut self, cx: &mut Context<'_>) -> Poll<Option<Fields>> {
        match self {
            Self::Http1(call) => call.poll_informational(cx),
            Self::Http2(response) => response.poll_informational(cx),
        }
    }

    /// The final head, once the interim ones are taken.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Fields, ExchangeEnd>> {
        match self {
            Self::Http1(call) => call.poll_head(),
            Self::Http2(response) => response.poll_head(cx).map_err(ExchangeEnd::Upstream),
        }
    }

    /// Returns true if the sidecar that answered did nothing with the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        matches!(self, Self::Http1(call) if call.is_unprocessed())
    }

    pub(crate) fn into_body(self) -> UpstreamBody<U> {
        match self {
            Self::Http1(call) => UpstreamBody::Http1(call),
            Self::Http2(response) => UpstreamBody::Http2(response.into_body()),
        }
    }
}

impl<U: Io> UpstreamBody<U> {
    /// The end of an exchange whose answer's body failed.
    pub(crate) fn end(&self, cause: Failure) -> ExchangeEnd {
        match self {
            Self::Http1(call) => call.end(cause),
            Self::Http2(_) => ExchangeEnd::Upstream(cause),
        }
    }
}

/// Methods that are those of either kind.
macro_rules! of_each {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        #[inline]
        fn $name(&mut self, $($arg: $type),*) -> $out {
            match self {
                Self::Http1(call) => call.$name($($arg),*),
                Self::Http2(stream) => stream.$name($($arg),*),
            }
        }
    )*};
}

impl<U: Io> BodySink for UpstreamSink<U> {
    of_each! {
        fn poll_capacity(cx: &mut Context<'_>) -> Poll<Result<usize, Failure>>;
        fn send_data(data: Bytes, end: bool) -> Result<(), Failure>;
        fn send_trailers(trailers: Fields) -> Result<(), Failure>;
        fn poll_flush(cx: &mut Context<'_>) -> Poll<Result<(), Failure>>;
        fn send_reset(reason: ErrorCode) -> ();
        fn poll_failed(cx: &mut Context<'_>) -> Poll<Failure>;
        fn block() -> Fields;
        fn give_block(block: Fields) -> ();
    }
}

impl<U: Io> BodySource for UpstreamBody<U> {
    of_each! {
        fn poll_data(cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>>;
        fn poll_trailers(cx: &mut Context<'_>) -> Poll<Result<Option<Fields>, Failure>>;
        fn release_capacity(bytes: usize) -> ();
    }

    #[inline]
    fn is_received(&self) -> bool {
        match self {
            Self::Http1(call) => call.is_received(),
            Self::Http2(stream) => stream.is_received(),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(call) => call.is_end_stream(),
            Self::Http2(stream) => stream.is_end_stream(),
        }
    }
}

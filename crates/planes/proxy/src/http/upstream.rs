//! Upstream of a request: a connection of its own, or a stream of a shared HTTP/2 connection that looks like one; and the pool's
//! rules for connections of HTTP/1.1, whichever version the client speaks.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use voile_http2::Failure;
use voile_transport::SocketEvents;

use super::io::Io;
use super::limits::KEEP_ALIVE_MARGIN;
use super::role::{ConnectFailure, HttpRole, RequestRoute};
use super::worker::HttpWorker;
use crate::http2::upgrade::Upgraded;
use crate::http2::upstream::Lease;

/// An idle connection for the route. Before a request that could not be repeated the kernel is asked whether it still stands;
/// for the others finding out is cheaper than asking every time.
pub(crate) fn checkout<R: HttpRole>(
    worker: &HttpWorker<R>,
    route: &RequestRoute<R>,
    idempotent: bool,
) -> Option<R::Upstream> {
    loop {
        let mut stream = worker.pool.checkout(&route.key)?;
        if idempotent || stream.news() == SocketEvents::None {
            return Some(stream);
        }
    }
}

/// A new connection for the route.
pub(crate) async fn connect<R: HttpRole>(
    role: &R,
    route: &RequestRoute<R>,
) -> Result<R::Upstream, ConnectFailure> {
    let connected = tokio::time::timeout(route.connect_timeout, role.connect(route)).await;
    connected.map_err(|_| ConnectFailure::new("upstream_connect_timeout"))?
}

/// Keeps a connection whose request and answer are over, unless its time is. `patience` is how long the server keeps it.
pub(crate) fn keep<R: HttpRole>(
    worker: &HttpWorker<R>,
    route: &RequestRoute<R>,
    (mut upstream, patience): (R::Upstream, Option<Duration>),
    now: Instant,
) {
    let most = route.terms.requests;
    if most.is_some_and(|most| upstream.carried() >= most.get()) {
        return;
    }
    let left = route.terms.left(upstream.age());
    // The server is given a head start by a margin, which what we wish ourselves does not need.
    let ours = [route.terms.idle(), left].into_iter().flatten();
    let ours = ours.map(|time| time + KEEP_ALIVE_MARGIN);
    let patience = ours.chain(patience).min();
    worker.pool.checkin(&route.key, upstream, now, patience);
}

/// See the module.
pub(crate) enum Upstream<U> {
    /// A connection, pooled between requests.
    Http1(U),
    /// A stream, good for one request.
    Http2(Box<Upgraded>),
}

/// The same call on whichever kind it is.
macro_rules! each {
    ($self:expr, $io:ident => $call:expr) => {
        match $self {
            Upstream::Http1($io) => $call,
            Upstream::Http2($io) => $call,
        }
    };
}

impl<U> Upstream<U> {
    /// The stream's place on its connection.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(stream) => Some(stream.lease()),
        }
    }
}

impl<U: Io> AsyncRead for Upstream<U> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), io => Pin::new(io).poll_read(cx, buf))
    }
}

impl<U: Io> AsyncWrite for Upstream<U> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, io => io.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), io => Pin::new(io).poll_shutdown(cx))
    }
}

impl<U: Io> Io for Upstream<U> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, io => io.poll_readable(cx))
    }

    fn abort(&mut self) {
        each!(self, io => io.abort());
    }

    fn local_address(&self) -> Option<std::net::SocketAddr> {
        each!(self, io => io.local_address())
    }

    fn news(&mut self) -> SocketEvents {
        each!(self, io => io.news())
    }

    fn failed(&self) -> Option<Failure> {
        each!(self, io => io.failed())
    }

    fn written(&self) -> u64 {
        each!(self, io => io.written())
    }

    fn closed_before(&self, mark: u64) -> bool {
        each!(self, io => io.closed_before(mark))
    }
}

//! A connection to an endpoint, with its place within the destination's limit and its endpoint's count. Dropping it gives
//! both back.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use voile_transport::{SocketEvents, TransportStream};

use crate::clock;
use crate::health::{ConnectionSeat, WaitError};
use crate::http::{ConnectFailure, Io, UpstreamHttp};
use crate::plan::{SharedPart, TrafficPlan};
use crate::worker::upstream::endpoint::Endpoint;

/// See the module.
pub(crate) struct UpstreamLine {
    stream: TransportStream,
    carried: u32,
    /// Milliseconds of the process; fits beside `carried`, so that an idle connection is no larger for it.
    opened: u32,
    /// Boxed: few have a limit, and every connection would pay for its size.
    _seated: Option<Box<ConnectionSeat>>,
    _counted: ConnectionCount,
}

/// The time now, which begins anew after 49 days; so many milliseconds are the longest age, too.
fn milliseconds() -> u32 {
    clock::now().as_millis() as u32
}

/// One connection of this worker's in its endpoint's count.
struct ConnectionCount(Rc<Cell<u32>>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl UpstreamLine {
    /// A connection that was just opened.
    pub(crate) fn new(
        stream: TransportStream,
        seated: Option<ConnectionSeat>,
        count: &Rc<Cell<u32>>,
    ) -> Self {
        count.set(count.get() + 1);
        Self {
            stream,
            carried: 0,
            opened: milliseconds(),
            _seated: seated.map(Box::new),
            _counted: ConnectionCount(Rc::clone(count)),
        }
    }
}

impl AsyncRead for UpstreamLine {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for UpstreamLine {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl Io for UpstreamLine {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Io::poll_readable(&mut self.stream, cx)
    }

    fn is_readable(&mut self) -> bool {
        Io::is_readable(&mut self.stream)
    }

    fn abort(&mut self) {
        self.stream.abort();
    }

    fn news(&mut self) -> SocketEvents {
        Io::news(&mut self.stream)
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_address()
    }

    fn carried(&mut self) -> u32 {
        self.carried = self.carried.saturating_add(1);
        self.carried
    }

    fn age(&self) -> Option<Duration> {
        let age = milliseconds().wrapping_sub(self.opened);
        Some(Duration::from_millis(age.into()))
    }

    fn written(&self) -> u64 {
        Io::written(&self.stream)
    }

    fn closed_before(&self, mark: u64) -> bool {
        Io::closed_before(&self.stream, mark)
    }
}

/// Place for a connection to an endpoint, if connections are limited. As with Envoy, a worker's first connection to an endpoint
/// is always allowed: all others may be idle ones of other workers.
pub(in crate::worker) async fn seat(
    traffic: &TrafficPlan,
    endpoint: &Endpoint,
    upstream: UpstreamHttp,
) -> Result<Option<ConnectionSeat>, ConnectFailure> {
    let Some(SharedPart(gate)) = &traffic.breaker else {
        return Ok(None);
    };
    let seated = gate.seat();
    if seated.is_some() || endpoint.lines.get() == 0 {
        return Ok(seated);
    }
    // Requests of HTTP/2 share the connections that there are.
    if upstream == UpstreamHttp::Http2 {
        return Err(ConnectFailure::overflow());
    }
    match Box::pin(gate.connection()).await {
        Ok(seated) => Ok(Some(seated)),
        Err(WaitError::InVain) => Err(ConnectFailure::overflow()),
        Err(WaitError::Freed) => Err(ConnectFailure::look_again()),
    }
}

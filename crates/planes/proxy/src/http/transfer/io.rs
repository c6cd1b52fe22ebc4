//! Requirements of the engine on a byte stream beyond reading and writing.
//!
//! Idle connections hold no buffers, so a stream must say that it is worth reading before the engine lends it a
//! buffer. A response cut short must never look like a clean end, so a stream must be able to end with an error.

use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use voile_http2::Failure;
use voile_transport::SocketEvents;

/// A byte stream that the engine can serve: plain TCP, or TLS over it.
pub trait Io: AsyncRead + AsyncWrite + Unpin {
    /// Ready when a read is worth trying: bytes, end of stream or an error are likely there. Consumes nothing.
    ///
    /// A false alarm is allowed (the read then is pending); a missed one is not. For TLS, decrypted bytes waiting in the
    /// session count as readable.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Returns true if a read is worth trying now, as far as known without asking the kernel. Registers no waker.
    fn is_readable(&mut self) -> bool {
        self.poll_readable(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    /// Makes the coming drop noticeable to the peer as an error (TCP: reset instead of FIN; TLS: also no close_notify).
    fn abort(&mut self);

    /// Returns true if the peer has closed its sending side, by the kernel's state at this moment, however much of its data is
    /// unread. Streams that cannot tell return false.
    fn has_left(&self) -> bool {
        false
    }

    /// Reports if the peer sent data or closed, by the kernel's state at this moment. Streams that cannot
    /// tell return none.
    fn news(&mut self) -> SocketEvents {
        SocketEvents::None
    }

    /// Local address of the connection. Streams that cannot tell return none.
    fn local_address(&self) -> Option<std::net::SocketAddr> {
        None
    }

    /// Number of requests that it carried, the one that just ended included. Each is reported once.
    fn carried(&mut self) -> u32 {
        1
    }

    /// Time since the connection was opened. Streams that cannot tell return none.
    fn age(&self) -> Option<Duration> {
        None
    }

    /// Why the stream failed, if it is one of HTTP/2 and did.
    fn failed(&self) -> Option<Failure> {
        None
    }

    /// Bytes written so far, as they travel; a mark for [`Io::closed_before`].
    fn written(&self) -> u64 {
        0
    }

    /// Returns true if the peer provably closed before it received any byte written after `mark`. Streams that
    /// cannot tell return false.
    fn closed_before(&self, mark: u64) -> bool {
        let _ = mark;
        false
    }
}

impl Io for TcpStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn abort(&mut self) {
        // Only a wish: if it fails the peer still sees fewer bytes than were promised.
        let _ = socket2::SockRef::from(&*self).set_linger(Some(Duration::ZERO));
    }
}

impl Io for voile_transport::TransportStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_readable(self, cx)
    }

    fn is_readable(&mut self) -> bool {
        Self::is_readable(self)
    }

    fn abort(&mut self) {
        self.reset();
    }

    fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.local()
    }

    fn has_left(&self) -> bool {
        Self::has_left(self)
    }

    fn news(&mut self) -> SocketEvents {
        Self::news(self)
    }

    fn written(&self) -> u64 {
        Self::written(self)
    }

    fn closed_before(&self, mark: u64) -> bool {
        Self::closed_before(self, mark)
    }
}

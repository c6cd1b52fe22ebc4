//! A tunnel as a stream of bytes, for code that reads and writes connections of any kind.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use voile_http2::{ErrorCode, RecvStream, SendStream};
use voile_transport::{Readable, SocketEvents, TunnelledStream};

use crate::pool::Lease;

/// See the module.
pub struct Tunnel {
    ends: RefCell<TunnelEnds>,
    /// Of the connection that it travels in.
    local: Option<SocketAddr>,
    peer: SocketAddr,
    /// Its place on a connection of ours.
    _lease: Option<Lease>,
}

struct TunnelEnds {
    receive: RecvStream,
    send: SendStream,
    /// Come, and not yet read.
    chunk: Bytes,
    /// Of it, these were read before and put back: their room was given back already.
    unread: usize,
    /// The peer has said all.
    heard: bool,
    /// We have.
    said: bool,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the tunnel was reset")
}

impl TunnelEnds {
    /// Ready when there is something to read, or nothing more will come.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.chunk.is_empty() && !self.heard {
            match ready!(self.receive.poll_data(cx)) {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(_)) => return Poll::Ready(Err(broken())),
                None => self.heard = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, count: usize) {
        self.chunk.advance(count);
        let again = count.min(self.unread);
        self.unread -= again;
        if count > again {
            self.receive.release_capacity(count - again);
        }
    }
}

impl Tunnel {
    /// A tunnel on a connection from `peer`, or, with its lease, to it.
    #[must_use]
    pub fn new(
        (receive, send): (RecvStream, SendStream),
        peer: SocketAddr,
        local: Option<SocketAddr>,
        lease: Option<Lease>,
    ) -> Self {
        Self {
            ends: RefCell::new(TunnelEnds {
                receive,
                send,
                chunk: Bytes::new(),
                unread: 0,
                heard: false,
                said: false,
            }),
            local,
            peer,
            _lease: lease,
        }
    }

    /// Puts bytes back that were read: they come out again first.
    pub fn unread(&mut self, bytes: Vec<u8>) {
        let ends = self.ends.get_mut();
        ends.unread += bytes.len();
        ends.chunk = match ends.chunk.is_empty() {
            true => bytes.into(),
            false => [&bytes, &*ends.chunk].concat().into(),
        };
    }
}

impl Drop for Tunnel {
    /// Buffered bytes still go out, as with a socket that is closed.
    fn drop(&mut self) {
        let ends = self.ends.get_mut();
        if !ends.said {
            // One that failed hears nothing.
            let _ = ends.send.send_data(Bytes::new(), true);
        }
    }
}

impl Readable for Tunnel {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ends.borrow_mut().poll_fill(cx)
    }
}

impl TunnelledStream for Tunnel {
    fn is_readable(&self) -> bool {
        let ends = self.ends.borrow();
        !ends.chunk.is_empty() || ends.heard || ends.receive.has_news()
    }

    fn news(&self) -> SocketEvents {
        if !self.is_readable() {
            return SocketEvents::None;
        }
        // It is ready, so that no task is to be woken.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut ends = self.ends.borrow_mut();
        match ends.poll_fill(&mut cx) {
            Poll::Pending => SocketEvents::None,
            Poll::Ready(Ok(())) if !ends.chunk.is_empty() => SocketEvents::Bytes,
            Poll::Ready(_) => SocketEvents::End,
        }
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.ends.borrow_mut().send.poll_failed(cx).map(drop)
    }

    fn reset(&self) {
        let mut ends = self.ends.borrow_mut();
        ends.said = true;
        ends.send.send_reset(ErrorCode::CANCEL);
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn local(&self) -> Option<SocketAddr> {
        self.local
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let ends = self.ends.get_mut();
        ready!(ends.poll_fill(cx))?;
        let count = ends.chunk.len().min(buf.remaining());
        buf.put_slice(&ends.chunk[..count]);
        ends.take(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let ends = self.ends.get_mut();
        if ends.said {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = ready!(ends.send.poll_capacity(cx)).map_err(|_| broken())?;
        let count = room.min(buf.len());
        let sent = ends.send.send_copy(&buf[..count], false);
        Poll::Ready(sent.map(|()| count).map_err(|_| broken()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's driver writes the queued bytes.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ends = self.ends.get_mut();
        if !std::mem::replace(&mut ends.said, true)
            && ends.send.send_data(Bytes::new(), true).is_err()
        {
            return Poll::Ready(Err(broken()));
        }
        Poll::Ready(Ok(()))
    }
}

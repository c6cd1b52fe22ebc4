//! The socket under an HTTP/2 connection. Received bytes go to the connection; bytes of all its streams leave in one
//! write per wake-up. Buffers are borrowed from the worker while bytes are at hand.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use voile_http2::Link;

use super::limits::MAX_UNWRITTEN;
use crate::http::buffers::Buffers;
use crate::http::io::Io;
use crate::http::limits::MAX_LINGER_BYTES;

/// Reads in a row before others get their turn.
const MAX_READS: usize = 16;

/// See the module.
pub(crate) struct Wire<S> {
    stream: S,
    link: Link,
    buffers: Buffers,
    /// A TLS session may hold what was written.
    unflushed: bool,
    /// True if bytes came since the last call of `take_heard`.
    heard: bool,
}

/// Streams have tasks of their own: they hear that nothing moves their bytes any more, whatever ended this one.
impl<S> Drop for Wire<S> {
    fn drop(&mut self) {
        self.link.borrow().closed();
    }
}

impl<S: Io> Wire<S> {
    pub(crate) fn new(stream: S, link: Link, buffers: Buffers) -> Self {
        Self {
            stream,
            link,
            buffers,
            unflushed: false,
            heard: false,
        }
    }

    /// Moves bytes both ways until neither goes on. Ready when everything was written.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let paused = self.read(cx);
            ready!(self.poll_flush(cx))?;
            let mut connection = self.link.borrow();
            if connection.replenish() {
                cx.waker().wake_by_ref();
            }
            if !paused && connection.output().is_empty() {
                connection.watch(cx);
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Reads what there is; true when it stopped because too much waits to be written.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let reads = match self.link.borrow().is_short_of_memory() {
            true => 1,
            false => MAX_READS,
        };
        for _ in 0..reads {
            let mut connection = self.link.borrow();
            if connection.output().len() > MAX_UNWRITTEN {
                return true;
            }
            if connection.is_over() {
                return false;
            }
            let mut buffer = self.buffers.take();
            let read = buffer.poll_read(cx, &mut self.stream);
            match read {
                Poll::Ready(Ok(1..)) => {
                    self.heard = true;
                    connection.receive(buffer.filled());
                }
                Poll::Ready(_) => connection.closed(),
                Poll::Pending => {
                    self.buffers.give(buffer);
                    return false;
                }
            }
            self.buffers.give(buffer);
        }
        cx.waker().wake_by_ref();
        false
    }

    /// Writes what is waiting.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut connection = self.link.borrow();
            if connection.output().is_empty() {
                break;
            }
            let written = Pin::new(&mut self.stream).poll_write(cx, connection.output());
            match written {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => connection.wrote(written),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    // More may be said meanwhile, and read.
                    connection.watch(cx);
                    return Poll::Pending;
                }
            }
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns true if bytes came since the last call.
    pub(crate) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Ends with an error: the peer must notice that something is missing.
    pub(crate) fn abort(&mut self) {
        self.stream.abort();
    }

    /// Writes the last bytes and closes. Then reads the bytes that are still on their way; otherwise they
    /// would destroy the last ones.
    pub(crate) async fn close(&mut self) {
        let closing = std::future::poll_fn(|cx| {
            ready!(self.poll_flush(cx))?;
            Pin::new(&mut self.stream).poll_shutdown(cx)
        });
        if closing.await.is_err() {
            return;
        }
        let mut buffer = self.buffers.take();
        let mut left = MAX_LINGER_BYTES;
        loop {
            (buffer.start, buffer.end) = (0, 0);
            let stream = &mut self.stream;
            let read = std::future::poll_fn(|cx| buffer.poll_read(cx, stream)).await;
            match read {
                Ok(read @ 1..) if read <= left => left -= read,
                _ => break,
            }
        }
        self.buffers.give(buffer);
    }
}

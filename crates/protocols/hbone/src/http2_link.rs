//! One HTTP/2 connection on a TLS stream: its driver moves bytes both ways; holders of the [`Link`] move streams.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use voile_http2::{Config, HeadBudget, Link};
use voile_transport::TransportStream;
use voile_transport::buffers::{Buffer, Class};

/// The limits of HBONE, both ends; ztunnel's where two proxies must fit.
pub const CONFIG: Config = Config {
    // Enough for 1 Gbit/s over 30 ms.
    stream_window: 4 * 1024 * 1024,
    // Limit of the bytes held for one peer, however many streams it opens.
    connection_window: 16 * 1024 * 1024,
    max_header_list: 16 * 1024,
    max_continuations: 8,
    max_peer_streams: MAX_PEER_STREAMS,
    initial_streams: MAX_STREAMS as u32,
    max_remembered_resets: MAX_PEER_STREAMS as usize,
    max_unseen_resets: 32,
    max_provoked_resets: 256,
    forgiving_streams: 16,
    // Heads of a full connection, each as large as may be, and then no more.
    max_unsent: 1024 * 1024,
    max_empty_frames: 100,
    max_interim: 8,
    max_heads: 1024 * 1024,
    max_window_changes: 100,
};

/// Room for the output of one connection, in bytes: four TLS records, one write. It is a little less than TCP takes
/// at a time for a device of Ethernet's size (65,160 bytes over IPv4, 64,260 over IPv6). Otherwise a few bytes would
/// be sent separately after each write.
const ROOM_BYTES: usize = 62 * 1024;

/// Returns the pool of blocks that one thread's HBONE connections share, with the process's budget of large heads.
pub(crate) fn blocks(heads: Option<Arc<HeadBudget>>) -> voile_http2::Pool {
    voile_http2::Pool::with_budget(ROOM_BYTES, heads)
}

/// Streams that a peer may have open on one connection: twice the number that this side opens.
const MAX_PEER_STREAMS: u32 = 200;

/// Streams of ours on one connection before another is opened: beyond that one worker at the other end has all the work.
pub const MAX_STREAMS: usize = 100;

/// Reads in a row before others get their turn.
const MAX_READS: usize = 16;

/// Unwritten bytes beyond which nothing more is read: a peer that does not read need not send.
const MAX_UNWRITTEN: usize = 64 * 1024;

/// See the module.
pub struct Wire {
    stream: TransportStream,
    link: Link,
    class: Class,
    unflushed: bool,
    heard: bool,
    said: bool,
}

/// Streams hear that nothing moves their bytes any more, whatever ended the driver.
impl Drop for Wire {
    fn drop(&mut self) {
        self.link.borrow().closed();
    }
}

impl Wire {
    /// The connection of `link` on a stream whose handshake is done.
    #[must_use]
    pub fn new(mut stream: TransportStream, link: Link) -> Self {
        // Windows bound the amount of data, not the speed of reading.
        stream.read_ahead();
        Self {
            stream,
            link,
            class: Class::default(),
            unflushed: false,
            heard: false,
            said: false,
        }
    }

    /// Reports if bytes were received, and if bytes were sent, since the last call.
    pub(crate) fn take_moved(&mut self) -> (bool, bool) {
        let moved = (self.heard, self.said);
        (self.heard, self.said) = (false, false);
        moved
    }

    /// Moves bytes until neither way goes on. Pending, or the socket's failure, after which the connection is over.
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

    /// Reads the available bytes; true when it stopped because too much waits to be written.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let reads = match self.link.borrow().is_short_of_memory() {
            true => {
                // Until the largest holders have ended, little is read at a time.
                self.class = Class::default();
                1
            }
            false => MAX_READS,
        };
        for _ in 0..reads {
            {
                let connection = self.link.borrow();
                if connection.output().len() > MAX_UNWRITTEN {
                    return true;
                }
                if connection.is_over() {
                    return false;
                }
            }
            if self.stream.poll_readable(cx).is_pending() {
                return false;
            }
            let mut buffer = Buffer::take(self.class);
            let mut read = ReadBuf::new(buffer.bytes_mut());
            match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                    self.heard = true;
                    self.class = self.class.after(read.filled().len());
                    self.link.borrow().receive(read.filled());
                }
                Poll::Ready(_) => self.link.borrow().closed(),
            }
        }
        cx.waker().wake_by_ref();
        false
    }

    /// Writes the waiting bytes.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut connection = self.link.borrow();
            if connection.output().is_empty() {
                break;
            }
            match Pin::new(&mut self.stream).poll_write(cx, connection.output()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => connection.wrote(count),
                Poll::Ready(Err(error)) => {
                    connection.closed();
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {
                    connection.watch(cx);
                    return Poll::Pending;
                }
            }
            (self.unflushed, self.said) = (true, true);
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Says the last word, and closes.
    pub async fn close(&mut self) {
        let closing = std::future::poll_fn(|cx| {
            ready!(self.poll_flush(cx))?;
            Pin::new(&mut self.stream).poll_shutdown(cx)
        });
        // A peer that is gone hears nothing.
        let _ = tokio::time::timeout(voile_transport::LINGER_QUIET, closing).await;
    }
}

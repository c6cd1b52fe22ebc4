//! The stream under an HTTP/2 connection, with one write per wake-up. The h2 crate flushes after every large frame; here
//! frames collect in a buffer of the worker's, and whoever drives the connection flushes when nothing more is to be said.
//!
//! ```text
//! h2 ── write, flush ──► Coalesced ─► buffer ─(Outlet::poll_flush)─► stream
//!    ◄───────────── read ────────────────────────────────────────────┘
//! ```

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::limits::COALESCE_BYTES;
use crate::http::buffers::{Buffer, Buffers};
use crate::http::io::Io;

/// Most slices of one write: ours and h2's two.
const MAX_SLICES: usize = 8;

struct Shared<S> {
    stream: S,
    pending: Option<Buffer>,
    buffers: Buffers,
    /// A write was refused for want of room: the connection is to be polled again when there is some.
    blocked: bool,
    /// A TLS session may hold what was written.
    unflushed: bool,
    greeting: Greeting,
}

/// How much came of the peer's first frame, which is its settings.
#[derive(Default)]
struct Greeting {
    head: [u8; LENGTH_BYTES],
    bytes: usize,
}

/// A frame begins with the length of its payload in so many bytes.
const LENGTH_BYTES: usize = 3;

/// Bytes of a frame besides its payload.
const FRAME_HEAD_BYTES: usize = 9;

impl Greeting {
    fn take(&mut self, bytes: &[u8]) {
        if self.is_whole() {
            return;
        }
        for (place, byte) in self.head.iter_mut().skip(self.bytes).zip(bytes) {
            *place = *byte;
        }
        self.bytes += bytes.len();
    }

    fn is_whole(&self) -> bool {
        let [high, middle, low] = self.head.map(usize::from);
        self.bytes >= FRAME_HEAD_BYTES + (high << 16 | middle << 8 | low)
    }
}

/// The driver's end.
pub(crate) struct Outlet<S>(Rc<RefCell<Shared<S>>>);

/// The end that h2 writes to and reads from.
pub(crate) struct Coalesced<S>(Rc<RefCell<Shared<S>>>);

impl<S: Io> Outlet<S> {
    /// Both ends of `stream`.
    pub(crate) fn new(stream: S, buffers: Buffers) -> (Self, Coalesced<S>) {
        let shared = Rc::new(RefCell::new(Shared {
            stream,
            pending: None,
            buffers,
            blocked: false,
            unflushed: false,
            greeting: Greeting::default(),
        }));
        (Self(Rc::clone(&shared)), Coalesced(shared))
    }

    /// Writes what was collected. Ready(Ok(true)) when a write had been refused, so that more is to be collected now.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut shared = self.0.borrow_mut();
        ready!(shared.poll_drain(cx))?;
        if shared.unflushed {
            ready!(Pin::new(&mut shared.stream).poll_flush(cx))?;
            shared.unflushed = false;
        }
        Poll::Ready(Ok(std::mem::take(&mut shared.blocked)))
    }

    /// Whether the peer's first frame was read whole.
    pub(crate) fn is_greeted(&self) -> bool {
        self.0.borrow().greeting.is_whole()
    }

    /// Ends rudely: the peer must notice that something is missing.
    pub(crate) fn abort(&self) {
        self.0.borrow_mut().stream.abort();
    }
}

impl<S: Io> Shared<S> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(pending) = &mut self.pending {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, pending.filled()))?;
            self.wrote(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes what was written out of the buffer, and gives the buffer back with its last byte.
    fn wrote(&mut self, written: usize) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.unflushed = true;
        if let Some(pending) = &mut self.pending {
            pending.start += written;
            if pending.is_empty()
                && let Some(empty) = self.pending.take()
            {
                self.buffers.give(empty);
            }
        }
        Ok(())
    }

    /// Collects `slices`, or writes them behind what was collected when they are too large for that.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let new: usize = slices.iter().map(|slice| slice.len()).sum();
        loop {
            let have = self.pending.as_ref().map_or(0, |pending| pending.end);
            if have + new <= COALESCE_BYTES {
                let pending = self.pending.get_or_insert_with(|| self.buffers.take());
                for slice in slices {
                    pending.extend(slice);
                }
                return Poll::Ready(Ok(new));
            }
            let old = self.pending.as_ref().map_or(&[][..], Buffer::filled);
            let mut all = [IoSlice::new(&[]); MAX_SLICES];
            all[0] = IoSlice::new(old);
            let count = slices.len().min(MAX_SLICES - 1);
            for (to, from) in all[1..].iter_mut().zip(slices) {
                *to = IoSlice::new(from);
            }
            let (from, old) = (usize::from(old.is_empty()), old.len());
            let write = Pin::new(&mut self.stream).poll_write_vectored(cx, &all[from..=count]);
            let Poll::Ready(written) = write else {
                self.blocked = true;
                return Poll::Pending;
            };
            let written = written?;
            if old > 0 {
                self.wrote(written.min(old))?;
            }
            if written > old {
                self.unflushed = true;
                return Poll::Ready(Ok(written - old));
            }
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
    }
}

impl<S: Io> AsyncRead for Coalesced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let shared = &mut *self.0.borrow_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut shared.stream).poll_read(cx, buf))?;
        shared.greeting.take(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: Io> AsyncWrite for Coalesced<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Not yet: [`Outlet::poll_flush`] does it once per wake-up.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.0.borrow_mut();
        ready!(shared.poll_drain(cx))?;
        Pin::new(&mut shared.stream).poll_shutdown(cx)
    }
}

impl<S> Drop for Shared<S> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.buffers.give(pending);
        }
    }
}

//! Bytes between two tasks of a worker, both ways: it replaces a socket between HTTP/3 and the HTTP/2 engine. It holds as much as
//! a socket's buffer would; a task that writes more waits.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::io::Io;

/// Bytes that lie between, each way.
const ROOM: usize = 64 * 1024;

/// One way.
#[derive(Default)]
struct PipeDirection {
    bytes: Vec<u8>,
    taken: usize,
    /// True once the writer has ended.
    ended: bool,
    /// The reader is gone, or the stream ended with an error.
    broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PipeDirection {
    fn left(&self) -> usize {
        self.bytes.len() - self.taken
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }
}

/// One end.
pub(super) struct Pipe {
    comes: Rc<RefCell<PipeDirection>>,
    goes: Rc<RefCell<PipeDirection>>,
}

/// Both ends.
pub(super) fn pipe() -> (Pipe, Pipe) {
    let (one, other) = (Rc::<RefCell<PipeDirection>>::default(), Rc::default());
    let ours = Pipe {
        comes: Rc::clone(&one),
        goes: Rc::clone(&other),
    };
    let theirs = Pipe {
        comes: other,
        goes: one,
    };
    (ours, theirs)
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut comes = self.comes.borrow_mut();
        comes.broken = true;
        comes.wake();
        let mut goes = self.goes.borrow_mut();
        goes.ended = true;
        goes.wake();
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut way = self.comes.borrow_mut();
        let count = way.left().min(buf.remaining());
        if count > 0 {
            buf.put_slice(&way.bytes[way.taken..way.taken + count]);
            way.taken += count;
            if way.left() == 0 {
                // An idle connection holds no buffer.
                (way.bytes, way.taken) = (Vec::new(), 0);
            }
            if let Some(writer) = way.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Ok(()));
        }
        if way.broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if way.ended {
            return Poll::Ready(Ok(()));
        }
        way.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut way = self.goes.borrow_mut();
        if way.broken || way.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = ROOM.saturating_sub(way.left()).min(buf.len());
        if count == 0 && !buf.is_empty() {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if way.taken > ROOM {
            let taken = std::mem::take(&mut way.taken);
            way.bytes.drain(..taken);
        }
        way.bytes.extend_from_slice(&buf[..count]);
        if let Some(reader) = way.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut way = self.goes.borrow_mut();
        way.ended = true;
        way.wake();
        Poll::Ready(Ok(()))
    }
}

impl Io for Pipe {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut way = self.comes.borrow_mut();
        if way.left() > 0 || way.ended || way.broken {
            return Poll::Ready(Ok(()));
        }
        way.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn abort(&mut self) {
        let mut way = self.goes.borrow_mut();
        way.broken = true;
        way.wake();
    }

    fn is_http3(&self) -> bool {
        true
    }
}

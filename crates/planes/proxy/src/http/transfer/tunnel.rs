//! Bytes both ways after an upgrade, each direction ending by itself (half-close).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::http::buffers::{Buffer, Buffers};
use crate::http::io::Io;

/// One direction: read, write all, read again; a buffer only while bytes are at hand.
#[derive(Default)]
pub(crate) struct TunnelDirection {
    buffer: Option<Buffer>,
    ended: bool,
    done: bool,
    /// Bytes written to the other side.
    pub(crate) bytes: u64,
}

impl TunnelDirection {
    /// A direction that begins with bytes at hand.
    pub(crate) fn new(buffer: Option<Buffer>) -> Self {
        Self {
            buffer,
            ..Self::default()
        }
    }

    /// Ready when the source ended and the sink was told, or with the error of either.
    pub(crate) fn poll<A: Io, B: Io>(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        source: &mut A,
        sink: &mut B,
    ) -> Poll<std::io::Result<()>> {
        while !self.done {
            if let Some(buffer) = &mut self.buffer {
                while !buffer.is_empty() {
                    let sent = ready!(Pin::new(&mut *sink).poll_write(cx, buffer.filled()))?;
                    if sent == 0 {
                        return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
                    }
                    buffer.start += sent;
                    self.bytes += sent as u64;
                }
                (buffer.start, buffer.end) = (0, 0);
            }
            if self.ended {
                ready!(Pin::new(&mut *sink).poll_shutdown(cx))?;
                self.done = true;
                break;
            }
            match self.poll_read(cx, buffers, source) {
                Poll::Ready(read) => self.ended = read? == 0,
                Poll::Pending => {
                    self.give_back(buffers);
                    ready!(Pin::new(&mut *sink).poll_flush(cx))?;
                    return Poll::Pending;
                }
            }
        }
        self.give_back(buffers);
        Poll::Ready(Ok(()))
    }

    fn poll_read<A: Io>(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        source: &mut A,
    ) -> Poll<std::io::Result<usize>> {
        ready!(source.poll_readable(cx))?;
        self.buffer
            .get_or_insert_with(|| buffers.take())
            .poll_read(cx, source)
    }

    /// Returns the buffer to the pool, if there is one.
    pub(crate) fn give_back(&mut self, buffers: &Buffers) {
        if let Some(buffer) = self.buffer.take() {
            buffers.give(buffer);
        }
    }
}

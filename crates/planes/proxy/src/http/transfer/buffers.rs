//! A worker's byte buffers: lent to a connection while it has bytes, and given back before it waits idly.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use voile_http1::{RequestIndex, ResponseIndex};
use voile_http2::HeadBudget;

use crate::http::exchange_clock::ExchangeClock;
use crate::http::io::Io;
use crate::http::limits::{BUFFER_BYTES, MAX_FREE_BUFFERS};

/// The free buffers of one worker. Clones share the same list.
#[derive(Clone, Default)]
pub struct Buffers {
    free: Rc<RefCell<Vec<Vec<u8>>>>,
    #[expect(
        clippy::vec_box,
        reason = "a desk is 3 kB and goes in and out with every request; its box does not move"
    )]
    desks: Rc<RefCell<Vec<Box<ExchangeBuffers>>>>,
    /// Buffers that HTTP/2 connections share.
    pub(crate) http2: voile_http2::Pool,
}

/// Work space of one exchange, besides bytes: its clock, indexes of the two heads and room for the two forwarded heads.
#[derive(Default)]
pub(crate) struct ExchangeBuffers {
    pub(crate) clock: ExchangeClock,
    pub(crate) request: RequestIndex,
    pub(crate) response: ResponseIndex,
    pub(crate) to_upstream: Vec<u8>,
    /// End of its own lines, once a second attempt added one.
    pub(crate) head_end: usize,
    pub(crate) to_client: Vec<u8>,
}

impl Buffers {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty list whose HTTP/2 connections take room for large heads from a budget.
    pub(crate) fn with_heads(heads: Arc<HeadBudget>) -> Self {
        let room = voile_http2::ROOM_BYTES;
        Self {
            http2: voile_http2::Pool::with_budget(room, Some(heads)),
            ..Self::default()
        }
    }

    /// A buffer with nothing in it and [`BUFFER_BYTES`] of initialised room.
    pub fn take(&self) -> Buffer {
        let bytes = self.free.borrow_mut().pop();
        Buffer {
            bytes: bytes.unwrap_or_else(|| self.fresh()),
            start: 0,
            end: 0,
        }
    }

    #[cold]
    fn fresh(&self) -> Vec<u8> {
        self.http2.grew(BUFFER_BYTES);
        vec![0; BUFFER_BYTES]
    }

    /// Takes a buffer back. A buffer that grew is freed instead, so that an unusual request does not leave the
    /// worker larger.
    pub fn give(&self, buffer: Buffer) {
        let mut free = self.free.borrow_mut();
        if buffer.bytes.len() == BUFFER_BYTES && free.len() < MAX_FREE_BUFFERS {
            free.push(buffer.bytes);
        } else {
            drop(free);
            self.http2.freed(buffer.bytes.len());
        }
    }

    /// Reads once behind what of an answer is at hand. Lends a buffer, and only while it has bytes.
    pub(crate) fn poll_read<S: Io>(
        &self,
        cx: &mut Context<'_>,
        slot: &mut Option<Buffer>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        let buffer = match slot {
            Some(buffer) => buffer,
            None => {
                ready!(stream.poll_readable(cx))?;
                slot.insert(self.take())
            }
        };
        if buffer.is_empty() {
            (buffer.start, buffer.end) = (0, 0);
        } else if buffer.room() == 0 {
            // Only an unfinished head is kept over a read; the codec bounds it.
            buffer.compact();
            buffer.grow(buffer.end);
        }
        let read = buffer.poll_read(cx, stream);
        if read.is_pending()
            && let Some(empty) = slot.take_if(|buffer| buffer.is_empty())
        {
            self.give(empty);
        }
        read
    }

    pub(crate) fn take_desk(&self) -> Box<ExchangeBuffers> {
        let mut desk = self.desks.borrow_mut().pop().unwrap_or_default();
        desk.request.reset();
        desk
    }

    pub(crate) fn give_desk(&self, desk: Box<ExchangeBuffers>) {
        let mut desks = self.desks.borrow_mut();
        let lean = desk.to_upstream.capacity().max(desk.to_client.capacity()) <= BUFFER_BYTES;
        if lean && desks.len() < MAX_FREE_BUFFERS {
            desks.push(desk);
        }
    }

    /// Free buffers at this moment.
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }
}

/// Initialised room with a filled part `start..end`.
pub struct Buffer {
    bytes: Vec<u8>,
    /// Start of the filled part.
    pub start: usize,
    /// One past the filled part.
    pub end: usize,
}

impl Buffer {
    /// The filled part.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Everything from the buffer's beginning, by absolute position.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns true if nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Room after the filled part, in bytes.
    pub fn room(&self) -> usize {
        self.bytes.len() - self.end
    }

    /// Makes sure of `room` bytes after the filled part.
    pub fn grow(&mut self, room: usize) {
        if self.room() < room {
            let length = self.end + room;
            self.bytes.reserve_exact(length - self.bytes.len());
            self.bytes.resize(length, 0);
        }
    }

    /// Adds bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.grow(bytes.len());
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Moves the filled part to the beginning, so that all room is behind it.
    pub fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Reads once into the room. 0 is the end of the stream; the room must not be empty.
    pub fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(self.room() > 0);
        let mut room = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut room))?;
        let read = room.filled().len();
        self.end += read;
        Poll::Ready(Ok(read))
    }
}

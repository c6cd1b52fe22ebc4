//! Ends of streams: a clean end, a reset, the end of their connection, or no handle left.

use super::stream::HalfState;
use super::{ClosedStream, Connection, ConnectionSide, Failure, ShutdownState};
use crate::frame::{ErrorCode, kind};

/// Places for streams that a connection keeps when it has none.
const FEW_STREAMS: usize = 64;

/// Memory that is freed with a stream, its task included, as a rule.
const STREAM_BYTES: usize = 4096;

impl Drop for Connection {
    /// Gives back the room for heads of streams that nobody accepted, and of a head that was not whole.
    fn drop(&mut self) {
        let streams = self.streams.iter();
        let of_streams: u32 = streams.map(|(_, stream)| stream.budgeted).sum();
        let of_block = self.input.block.as_ref().map_or(0, |block| block.budgeted);
        if of_streams + of_block > 0 {
            self.give_heads(of_streams + of_block);
        }
        self.pool.unlist(self.place as usize);
    }
}

impl Connection {
    pub(super) fn fail_all(&mut self, failure: Failure) {
        for key in self.ids.keys() {
            self.fail(key, failure, ClosedStream::Over);
        }
        while let Some(key) = self.opening.pop_front() {
            self.fail(key, failure, ClosedStream::Over);
        }
    }

    /// The stream ends before its time.
    pub(super) fn fail(&mut self, key: usize, failure: Failure, how: ClosedStream) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if stream.failed.is_none() {
            stream.failed = Some(failure);
        }
        stream.queue.clear();
        stream.wake();
        self.close(key, how);
    }

    /// No more frames go or come on the stream.
    pub(super) fn close(&mut self, key: usize, how: ClosedStream) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if std::mem::replace(&mut stream.closed, true) {
            return;
        }
        let (id, local) = (stream.id, stream.id % 2 == 1);
        if id != 0 {
            self.ids.close(id, how, self.config.max_remembered_resets);
            match local == (self.side == ConnectionSide::Client) {
                true => self.open_local -= 1,
                false => self.open_peer -= 1,
            }
        }
        if self.streams[key].refs == 0 && self.streams[key].accepted {
            self.forget(key);
        }
        if !self.opening.is_empty() {
            self.open_more();
        }
        if self.leaving != ShutdownState::No && self.open_local == 0 && self.open_peer == 0 {
            self.nudge();
        }
    }

    pub(super) fn close_if_done(&mut self, key: usize) {
        let stream = &self.streams[key];
        if stream.send == HalfState::Ended
            && stream.recv == HalfState::Ended
            && stream.queue.is_empty()
        {
            self.forgive();
            self.close(key, ClosedStream::Over);
        }
    }

    /// Counts a stream that ended well. Good streams, not time, make errors forgotten: there is no clock here, and a
    /// peer that only makes errors is never forgiven.
    fn forgive(&mut self) {
        self.well += 1;
        if self.well >= self.config.forgiving_streams {
            self.well = 0;
            self.provoked = self.provoked.saturating_sub(1);
        }
    }

    /// Drops a stream that has no handle left.
    pub(super) fn forget(&mut self, key: usize) {
        let Some(mut stream) = self.streams.try_remove(key) else {
            return;
        };
        self.heads -= stream.heads;
        if stream.budgeted > 0 {
            self.give_heads(stream.budgeted);
        }
        self.released += stream.held;
        if stream.held > 0 {
            self.pool.freed(stream.held as usize);
            self.update_connection_window();
        }
        if stream.waiting {
            self.waiting.retain(|other| *other != key);
        }
        if stream.id == 0 {
            self.opening.retain(|other| *other != key);
        }
        if self.streams.is_empty() && self.streams.capacity() > FEW_STREAMS {
            self.rest();
        }
        let heads = stream
            .early
            .drain(..)
            .chain(stream.head)
            .chain(stream.trailers);
        heads.for_each(|block| self.pool.give_block(block));
    }

    /// Many streams were open at once, and the last one ended.
    #[cold]
    fn rest(&mut self) {
        self.pool.freed(self.streams.capacity() * STREAM_BYTES);
        self.streams.shrink_to_fit();
    }

    pub(crate) fn hold(&mut self, key: usize) {
        self.streams[key].refs += 1;
    }

    /// A handle went; with the last one the stream ends, if it has not.
    pub(crate) fn release_handle(&mut self, key: usize) {
        let stream = &mut self.streams[key];
        stream.refs -= 1;
        if stream.refs > 0 {
            return;
        }
        if stream.closed {
            return self.forget(key);
        }
        if stream.id == 0 {
            stream.closed = true;
            return self.forget(key);
        }
        let said_all = stream.send == HalfState::Ended;
        if said_all && !stream.queue.is_empty() {
            // The rest goes out first; see `flush_queue`.
            return;
        }
        let reason = match (said_all, self.side) {
            (true, ConnectionSide::Server) => ErrorCode::NO_ERROR,
            _ => ErrorCode::CANCEL,
        };
        self.reset(key, reason);
        self.nudge();
    }

    /// Ends the stream with a code.
    pub(crate) fn reset(&mut self, key: usize, reason: ErrorCode) {
        let stream = &mut self.streams[key];
        if stream.closed {
            return;
        }
        if stream.id == 0 {
            // The peer has not heard of the stream.
            stream.failed = Some(Failure::Reset(reason));
            stream.queue.clear();
            return;
        }
        let id = stream.id;
        self.write(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
        self.fail(key, Failure::Reset(reason), ClosedStream::ResetByUs);
        self.nudge();
    }

    /// Handles a stream error of RFC 9113.
    pub(super) fn stream_error(&mut self, id: u32, reason: ErrorCode) {
        self.write(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
        match self.ids.get(id) {
            Some(key) => self.fail(key, Failure::Violation(reason), ClosedStream::ResetByUs),
            None => self.ids.close(
                id,
                ClosedStream::ResetByUs,
                self.config.max_remembered_resets,
            ),
        }
        self.provoked += 1;
        if self.provoked > self.config.max_provoked_resets {
            self.abort(ErrorCode::ENHANCE_YOUR_CALM);
        }
    }
}

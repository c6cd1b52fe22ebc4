//! Received bodies, and the windows that limit them. A window is given back when a task has taken the data, in
//! halves, so that small messages cost no frames.

use super::receive::PendingData;
use super::{ClosedStream, Connection, ConnectionSide, HalfState};
use crate::frame::{DEFAULT_MAX_FRAME, ErrorCode, FrameHead, flag, kind};

/// Largest room made for expected data: each of a connection's streams may hold it for a single byte.
const MAX_EXPECTED_BYTES: usize = 64 * 1024;

/// Data that is counted as memory that grows: each of these is likely to be an allocation.
const LARGE_DATA: usize = 4096;

impl Connection {
    /// The head of a DATA frame: all of it counts in both windows, padding too.
    pub(super) fn begin_data(&mut self, head: FrameHead) -> Result<(), ErrorCode> {
        let (id, length) = (head.stream, head.length);
        if id == 0 || self.is_idle(id) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let padded = head.has(flag::PADDED);
        if padded && length == 0 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        let end = head.has(flag::END_STREAM);
        self.count_empty(length, end)?;
        if length as i64 > self.recv_window {
            return Err(ErrorCode::FLOW_CONTROL_ERROR);
        }
        self.recv_window -= length as i64;
        let wanted = match self.ids.get(id) {
            Some(key) => self.expects(key, length),
            None => match (self.ids.gone(id), self.side) {
                (Some(ClosedStream::Over), _) => return Err(ErrorCode::STREAM_CLOSED),
                (None, ConnectionSide::Server) => Err(ErrorCode::STREAM_CLOSED),
                (Some(ClosedStream::ResetByUs), _) | (None, ConnectionSide::Client) => {
                    Err(ErrorCode::NO_ERROR)
                }
            },
        };
        match wanted {
            Ok(()) => {}
            // No task will take it.
            Err(reason) => {
                self.released += length as u32;
                self.update_connection_window();
                if reason != ErrorCode::NO_ERROR {
                    self.stream_error(id, reason);
                }
            }
        }
        let passing = PendingData {
            stream: id,
            padded,
            left: length,
            padding: 0,
            end,
        };
        self.pass_on(passing)
    }

    /// Checks that so much data may come on the stream now.
    fn expects(&mut self, key: usize, length: usize) -> Result<(), ErrorCode> {
        let stream = &mut self.streams[key];
        match stream.recv {
            HalfState::Head => return Err(ErrorCode::PROTOCOL_ERROR),
            HalfState::Ended => return Err(ErrorCode::STREAM_CLOSED),
            HalfState::Open => {}
        }
        if length as i64 > stream.recv_window {
            return Err(ErrorCode::FLOW_CONTROL_ERROR);
        }
        stream.recv_window -= length as i64;
        stream.held += length as u32;
        Ok(())
    }

    fn count_empty(&mut self, length: usize, end: bool) -> Result<(), ErrorCode> {
        if length > 0 || end {
            self.empty = 0;
            return Ok(());
        }
        self.empty += 1;
        match self.empty > self.config.max_empty_frames {
            true => Err(ErrorCode::ENHANCE_YOUR_CALM),
            false => Ok(()),
        }
    }

    /// Bytes of a DATA frame.
    pub(super) fn take_data(
        &mut self,
        mut passing: PendingData,
        bytes: &[u8],
    ) -> Result<usize, ErrorCode> {
        if passing.padded {
            passing.padded = false;
            passing.left -= 1;
            passing.padding = usize::from(bytes[0]);
            if passing.padding > passing.left {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
            if let Some(key) = self.ids.get(passing.stream) {
                self.release(key, passing.padding + 1);
            }
            self.pass_on(passing)?;
            return Ok(1);
        }
        let taken = passing.left.min(bytes.len());
        let data = passing.left.saturating_sub(passing.padding).min(taken);
        passing.left -= taken;
        if data > 0
            && let Some(key) = self.ids.get(passing.stream)
        {
            self.append(key, &bytes[..data]);
        }
        self.pass_on(passing)?;
        Ok(taken)
    }

    /// Waits for the rest of the frame, or ends it.
    fn pass_on(&mut self, passing: PendingData) -> Result<(), ErrorCode> {
        let whole = passing.left == 0 && !passing.padded;
        self.input.passing = (!whole).then_some(passing);
        if whole
            && passing.end
            && let Some(key) = self.ids.get(passing.stream)
        {
            self.end_of_stream(key);
        }
        Ok(())
    }

    fn append(&mut self, key: usize, data: &[u8]) {
        let stream = &mut self.streams[key];
        // To HEAD, and with 204 and 304, there is none; an HTTP/1.1 client would take it for the next answer.
        let room = match stream.expected {
            _ if stream.bodiless => Some(0),
            expected => expected,
        };
        if let Some(room) = room {
            let Some(rest) = room.checked_sub(data.len() as u64) else {
                let id = stream.id;
                return self.stream_error(id, ErrorCode::PROTOCOL_ERROR);
            };
            stream.expected = Some(rest);
        }
        // After much data, as much is likely to come again. Growing step by step would copy it once more.
        if stream.data.capacity() == 0 && stream.took > DEFAULT_MAX_FRAME {
            stream
                .data
                .reserve((stream.took as usize).clamp(data.len(), MAX_EXPECTED_BYTES));
        }
        let room_before = stream.data.capacity();
        stream.data.extend_from_slice(data);
        let grown = stream.data.capacity() - room_before;
        stream.wake();
        // A peer chooses the size of its frames: data in small ones is counted by the room that it takes.
        let taken = if data.len() > LARGE_DATA {
            data.len()
        } else {
            grown
        };
        if taken > 0 {
            self.pool.grew(taken);
        }
    }

    /// The peer said all on the stream.
    pub(super) fn end_of_stream(&mut self, key: usize) {
        let stream = &mut self.streams[key];
        if stream.recv == HalfState::Ended {
            return;
        }
        if stream.expected.is_some_and(|missing| missing > 0) && !stream.bodiless {
            let id = stream.id;
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR);
        }
        stream.recv = HalfState::Ended;
        stream.wake();
        self.close_if_done(key);
    }

    /// A task took so many bytes.
    pub(crate) fn release(&mut self, key: usize, bytes: usize) {
        let half = self.config.stream_window / 2;
        let stream = &mut self.streams[key];
        let bytes = (bytes as u32).min(stream.held);
        stream.held -= bytes;
        self.released += bytes;
        if stream.recv == HalfState::Open && !stream.closed {
            stream.released += bytes;
            if stream.released >= half {
                let (id, more) = (stream.id, std::mem::take(&mut stream.released));
                stream.recv_window += i64::from(more);
                self.write(kind::WINDOW_UPDATE, 0, id, &more.to_be_bytes());
                self.nudge();
            }
        }
        self.update_connection_window();
    }

    pub(super) fn update_connection_window(&mut self) {
        if self.released >= self.config.connection_window / 2 && self.over.is_none() {
            let more = std::mem::take(&mut self.released);
            self.recv_window += i64::from(more);
            self.write(kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
            self.nudge();
        }
    }
}

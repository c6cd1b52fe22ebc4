//! Bytes to frames. Bodies pass in the pieces in which they come. Other frames are read in place when they are whole,
//! and collected when they are not, so that an idle connection holds no buffer.

use super::{ClosedStream, Connection, ConnectionSide, Failure, GOODBYE, ShutdownState};
use crate::frame::{
    DEFAULT_MAX_FRAME, ErrorCode, FrameHead, HEAD_BYTES, MAX_WINDOW, PREFACE, flag, kind, number,
};

/// A header block that is being collected.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) end_stream: bool,
    /// The stream was said to depend on itself.
    pub(super) own_parent: bool,
    pub(super) continuations: u32,
    /// Bytes of it that were taken from the budget of large heads.
    pub(super) budgeted: u32,
    pub(super) text: Vec<u8>,
}

/// A DATA frame whose bytes are passing.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingData {
    pub(super) stream: u32,
    /// The next byte says how much padding there is.
    pub(super) padded: bool,
    pub(super) left: usize,
    pub(super) padding: usize,
    pub(super) end: bool,
}

/// Progress of reading.
#[derive(Debug)]
pub(super) struct Input {
    /// Bytes of the preface still to come.
    preface: usize,
    /// The first frame is settings.
    greeted: bool,
    head: [u8; HEAD_BYTES],
    have: usize,
    /// The beginning of a frame that is not whole.
    partial: Vec<u8>,
    pub(super) passing: Option<PendingData>,
    pub(super) block: Option<Box<Block>>,
}

impl Input {
    pub(super) fn new(preface: bool) -> Self {
        Self {
            preface: if preface { PREFACE.len() } else { 0 },
            greeted: false,
            head: [0; HEAD_BYTES],
            have: 0,
            partial: Vec::new(),
            passing: None,
            block: None,
        }
    }
}

impl Connection {
    /// Takes bytes from the peer, all of them.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.over.is_none() {
            match self.take(bytes) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(reason) => self.abort(reason),
            }
        }
    }

    /// Returns true if the peer has sent its preface and settings.
    pub fn is_greeted(&self) -> bool {
        self.input.greeted
    }

    fn take(&mut self, bytes: &[u8]) -> Result<usize, ErrorCode> {
        if self.input.preface > 0 {
            return self.take_preface(bytes);
        }
        if let Some(passing) = self.input.passing {
            return self.take_data(passing, bytes);
        }
        let missing = HEAD_BYTES - self.input.have;
        if missing > 0 {
            let taken = missing.min(bytes.len());
            let have = self.input.have;
            self.input.head[have..have + taken].copy_from_slice(&bytes[..taken]);
            self.input.have += taken;
            if taken == missing {
                self.begin_frame()?;
            }
            return Ok(taken);
        }
        let head = FrameHead::read(&self.input.head);
        if self.input.partial.is_empty() && bytes.len() >= head.length {
            self.input.have = 0;
            self.frame(head, &bytes[..head.length])?;
            return Ok(head.length);
        }
        let taken = (head.length - self.input.partial.len()).min(bytes.len());
        self.input.partial.extend_from_slice(&bytes[..taken]);
        if self.input.partial.len() == head.length {
            let payload = std::mem::take(&mut self.input.partial);
            self.input.have = 0;
            self.frame(head, &payload)?;
        }
        Ok(taken)
    }

    fn take_preface(&mut self, bytes: &[u8]) -> Result<usize, ErrorCode> {
        let expected = &PREFACE[PREFACE.len() - self.input.preface..];
        let taken = expected.len().min(bytes.len());
        if bytes[..taken] != expected[..taken] {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        self.input.preface -= taken;
        Ok(taken)
    }

    /// A frame's head is there.
    fn begin_frame(&mut self) -> Result<(), ErrorCode> {
        let head = FrameHead::read(&self.input.head);
        if !self.input.greeted && head.kind != kind::SETTINGS {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if head.length > DEFAULT_MAX_FRAME as usize {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        if self.input.block.is_some() && head.kind != kind::CONTINUATION {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if head.kind == kind::DATA {
            self.input.have = 0;
            return self.begin_data(head);
        }
        if head.length == 0 {
            self.input.have = 0;
            return self.frame(head, &[]);
        }
        Ok(())
    }

    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        let on_stream = head.stream != 0;
        match head.kind {
            kind::HEADERS if on_stream => self.headers(head, payload),
            kind::CONTINUATION if on_stream => self.continuation(head, payload),
            kind::PRIORITY if on_stream => self.priority(head.stream, payload),
            kind::RST_STREAM if on_stream => self.reset_by_peer(head.stream, payload),
            kind::SETTINGS if !on_stream => {
                self.input.greeted |= !head.has(flag::ACK);
                self.settings(head.flags, payload)
            }
            kind::PING if !on_stream => self.ping(head, payload),
            kind::GOAWAY if !on_stream => self.peer_leaves(payload),
            kind::WINDOW_UPDATE => self.window_update(head.stream, payload),
            // The peer may not push, and frames of a stream need a stream.
            kind::DATA..=kind::CONTINUATION => Err(ErrorCode::PROTOCOL_ERROR),
            // An unknown frame means nothing (RFC 9113 section 5.5).
            _ => Ok(()),
        }
    }

    /// Returns true if the stream has not been opened yet.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        let by_client = id % 2 == 1;
        match (self.side, by_client) {
            (ConnectionSide::Server, true) => id > self.last_peer,
            (ConnectionSide::Client, true) => id >= self.next_local,
            // Push is not used.
            (_, false) => true,
        }
    }

    fn priority(&mut self, id: u32, payload: &[u8]) -> Result<(), ErrorCode> {
        if payload.len() != 5 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        if number(payload) & 0x7fff_ffff == id {
            self.stream_error(id, ErrorCode::PROTOCOL_ERROR);
        }
        Ok(())
    }

    fn reset_by_peer(&mut self, id: u32, payload: &[u8]) -> Result<(), ErrorCode> {
        if payload.len() != 4 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        if self.is_idle(id) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some(key) = self.ids.get(id) else {
            return Ok(());
        };
        let failure = match ErrorCode(number(payload)) {
            ErrorCode::REFUSED_STREAM => Failure::Unprocessed,
            reason => Failure::Reset(reason),
        };
        if !self.streams[key].accepted {
            self.unseen += 1;
            if self.unseen > self.config.max_unseen_resets {
                return Err(ErrorCode::ENHANCE_YOUR_CALM);
            }
        }
        self.fail(key, failure, ClosedStream::Over);
        Ok(())
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        if payload.len() != 8 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        if !head.has(flag::ACK) {
            self.write(kind::PING, flag::ACK, 0, payload);
        } else if payload == GOODBYE && self.leaving == ShutdownState::Announced {
            self.leaving = ShutdownState::After(self.last_peer);
            self.say_goodbye(self.last_peer, ErrorCode::NO_ERROR);
        }
        Ok(())
    }

    fn peer_leaves(&mut self, payload: &[u8]) -> Result<(), ErrorCode> {
        if payload.len() < 8 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        self.peer_leaves = true;
        if self.side == ConnectionSide::Server {
            return Ok(());
        }
        let last = number(payload) & 0x7fff_ffff;
        for key in self.ids.keys() {
            if self.streams[key].id > last {
                self.fail(key, Failure::Unprocessed, ClosedStream::ResetByUs);
            }
        }
        while let Some(key) = self.opening.pop_front() {
            self.fail(key, Failure::Unprocessed, ClosedStream::Over);
        }
        // No end can begin a stream any more; the last one ends the connection.
        self.leaving = ShutdownState::Announced;
        Ok(())
    }

    fn window_update(&mut self, id: u32, payload: &[u8]) -> Result<(), ErrorCode> {
        if payload.len() != 4 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        let more = i64::from(number(payload) & 0x7fff_ffff);
        if id == 0 {
            self.send_window += more;
            return match more {
                0 => Err(ErrorCode::PROTOCOL_ERROR),
                _ if self.send_window > MAX_WINDOW => Err(ErrorCode::FLOW_CONTROL_ERROR),
                _ => Ok(()),
            };
        }
        if self.is_idle(id) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some(key) = self.ids.get(id) else {
            return Ok(());
        };
        let stream = &mut self.streams[key];
        stream.send_window += more;
        if more == 0 {
            self.stream_error(id, ErrorCode::PROTOCOL_ERROR);
        } else if stream.send_window > MAX_WINDOW {
            self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR);
        } else if stream.queue.is_empty() {
            stream.wake();
        } else {
            self.resume(key);
        }
        Ok(())
    }
}

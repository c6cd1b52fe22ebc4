//! Frames of a stream, read piece by piece as the bytes come. Heads are kept up to a limit, data is passed on as it
//! is, and unknown frames are skipped, as they must be.

use bytes::{Buf, Bytes};

use crate::code::Code;
use crate::integer;

mod kind {
    pub(super) const DATA: u64 = 0;
    pub(super) const HEADERS: u64 = 1;
    pub(super) const CANCEL_PUSH: u64 = 3;
    pub(super) const SETTINGS: u64 = 4;
    pub(super) const PUSH_PROMISE: u64 = 5;
    pub(super) const GOAWAY: u64 = 7;
    pub(super) const MAX_PUSH_ID: u64 = 13;
    /// HTTP/2's PRIORITY, PING, WINDOW_UPDATE and CONTINUATION, which are an error here (RFC 9114 section 7.2.8).
    pub(super) const OF_HTTP2: [u64; 4] = [2, 6, 8, 9];
}

/// Longest beginning of a frame: two integers.
const LONGEST_BEGIN: usize = 16;

/// Largest frame of a control stream that is read, in bytes: settings are a few pairs of integers.
const MAX_CONTROL: usize = 4096;

/// Forbidden settings: HTTP/2's, which mean nothing here.
const SETTINGS_OF_HTTP2: [u64; 4] = [2, 3, 4, 5];
/// The largest head that we take.
const MAX_FIELD_SECTION_SIZE: u64 = 6;

/// Content of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameEvent {
    /// A block of fields; not `whole` if it is longer than the limit, and then these are its first bytes.
    Block {
        /// Its bytes.
        bytes: Vec<u8>,
        /// True if these are all.
        whole: bool,
    },
    /// Bytes of the body.
    Data(Bytes),
    /// Settings, which say nothing that we need.
    Settings,
    /// The peer leaves.
    Goaway,
}

#[derive(Debug)]
enum FrameState {
    Begin {
        bytes: [u8; LONGEST_BEGIN],
        have: usize,
    },
    Block {
        left: u64,
        kept: Vec<u8>,
    },
    Control {
        kind: u64,
        left: u64,
        kept: Vec<u8>,
    },
    Data {
        left: u64,
    },
    Skip {
        left: u64,
    },
}

const BEGIN: FrameState = FrameState::Begin {
    bytes: [0; LONGEST_BEGIN],
    have: 0,
};

/// The frames of one stream.
#[derive(Debug)]
pub struct Frames {
    state: FrameState,
    /// Bytes of a block that are kept.
    limit: usize,
    control: bool,
    /// Of a control stream: settings came.
    settled: bool,
    /// Of a control stream: the largest push ID that the peer allows.
    max_push: Option<u64>,
    /// Of a control stream: the last ID of the peer's farewell.
    goaway: Option<u64>,
}

impl Frames {
    /// Those of a request, whose blocks are kept up to `limit` bytes.
    #[must_use]
    pub fn of_request(limit: usize) -> Self {
        Self {
            state: BEGIN,
            limit,
            control: false,
            settled: false,
            max_push: None,
            goaway: None,
        }
    }

    /// Those of a control stream.
    #[must_use]
    pub fn of_control() -> Self {
        Self {
            limit: MAX_CONTROL,
            control: true,
            ..Self::of_request(0)
        }
    }

    /// Returns true if the stream may end here: between two frames.
    #[must_use]
    pub fn is_between(&self) -> bool {
        matches!(self.state, FrameState::Begin { have: 0, .. })
    }

    /// Bytes of a block of fields that are kept until its end comes.
    #[must_use]
    pub fn kept(&self) -> usize {
        match &self.state {
            FrameState::Block { kept, .. } => kept.len(),
            _ => 0,
        }
    }

    /// Reads `bytes` up to the next event, or to their end.
    ///
    /// # Errors
    /// The code that ends the connection.
    pub fn next(&mut self, bytes: &mut Bytes) -> Result<Option<FrameEvent>, Code> {
        loop {
            match &mut self.state {
                FrameState::Begin { bytes: begin, have } => {
                    let Some(byte) = bytes.first().copied() else {
                        return Ok(None);
                    };
                    bytes.advance(1);
                    begin[*have] = byte;
                    *have += 1;
                    let begin = &begin[..*have];
                    let Some((kind, first)) = integer::take(begin) else {
                        continue;
                    };
                    let Some((length, _)) = integer::take(&begin[first..]) else {
                        continue;
                    };
                    self.state = self.begun(kind, length)?;
                }
                FrameState::Data { left: 0 } | FrameState::Skip { left: 0 } => self.state = BEGIN,
                FrameState::Data { left } => {
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    let data = bytes.split_to(at_most(*left, bytes.len()));
                    *left -= data.len() as u64;
                    return Ok(Some(FrameEvent::Data(data)));
                }
                FrameState::Skip { left } => {
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    let skipped = at_most(*left, bytes.len());
                    bytes.advance(skipped);
                    *left -= skipped as u64;
                }
                FrameState::Block { left, kept } => {
                    let room = self.limit - kept.len();
                    let part = bytes.split_to(at_most(*left, bytes.len()).min(room));
                    *left -= part.len() as u64;
                    kept.extend_from_slice(&part);
                    if *left == 0 || kept.len() == self.limit {
                        let (bytes, whole) = (std::mem::take(kept), *left == 0);
                        self.state = FrameState::Skip { left: *left };
                        return Ok(Some(FrameEvent::Block { bytes, whole }));
                    }
                    return Ok(None);
                }
                FrameState::Control { kind, left, kept } => {
                    let part = bytes.split_to(at_most(*left, bytes.len()));
                    *left -= part.len() as u64;
                    kept.extend_from_slice(&part);
                    if *left > 0 {
                        return Ok(None);
                    }
                    let (kind, kept) = (*kind, std::mem::take(kept));
                    self.state = BEGIN;
                    if let Some(event) = self.heard(kind, &kept)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    /// Reads a frame of a control stream.
    fn heard(&mut self, kind: u64, kept: &[u8]) -> Result<Option<FrameEvent>, Code> {
        if kind == kind::SETTINGS {
            return settled(kept);
        }
        let (id, length) = integer::take(kept).ok_or(Code::FRAME_ERROR)?;
        if length != kept.len() {
            return Err(Code::FRAME_ERROR);
        }
        match kind {
            // A farewell only ever comes nearer (RFC 9114 section 5.2).
            kind::GOAWAY if self.goaway.is_some_and(|last| id > last) => Err(Code::ID_ERROR),
            kind::GOAWAY => {
                self.goaway = Some(id);
                Ok(Some(FrameEvent::Goaway))
            }
            // Nothing is ever promised, so there is nothing to cancel (RFC 9114 section 7.2.3).
            kind::CANCEL_PUSH => Err(Code::ID_ERROR),
            // MAX_PUSH_ID, which never shrinks (RFC 9114 section 7.2.7).
            _ if self.max_push.is_some_and(|last| id < last) => Err(Code::ID_ERROR),
            _ => {
                self.max_push = Some(id);
                Ok(None)
            }
        }
    }

    /// Returns the state after the beginning of a frame of this kind and length.
    fn begun(&mut self, kind: u64, left: u64) -> Result<FrameState, Code> {
        if kind::OF_HTTP2.contains(&kind) {
            return Err(Code::FRAME_UNEXPECTED);
        }
        let kept = Vec::new();
        if !self.control {
            return match kind {
                kind::DATA => Ok(FrameState::Data { left }),
                kind::HEADERS => Ok(FrameState::Block { left, kept }),
                kind::CANCEL_PUSH
                | kind::SETTINGS
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID => Err(Code::FRAME_UNEXPECTED),
                _ => Ok(FrameState::Skip { left }),
            };
        }
        match (self.settled, kind) {
            (false, kind::SETTINGS) => self.settled = true,
            (false, _) => return Err(Code::MISSING_SETTINGS),
            (true, kind::SETTINGS | kind::DATA | kind::HEADERS | kind::PUSH_PROMISE) => {
                return Err(Code::FRAME_UNEXPECTED);
            }
            (true, kind::GOAWAY | kind::MAX_PUSH_ID | kind::CANCEL_PUSH) => {}
            (true, _) => return Ok(FrameState::Skip { left }),
        }
        match left > self.limit as u64 {
            true => Err(Code::EXCESSIVE_LOAD),
            false => Ok(FrameState::Control { kind, left, kept }),
        }
    }
}

fn at_most(left: u64, there: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(there)
}

/// Checks settings.
fn settled(mut rest: &[u8]) -> Result<Option<FrameEvent>, Code> {
    let mut seen = Vec::new();
    while !rest.is_empty() {
        let mut integer = || {
            let (value, length) = integer::take(rest).ok_or(Code::FRAME_ERROR)?;
            rest = &rest[length..];
            Ok(value)
        };
        let (name, _) = (integer()?, integer()?);
        if SETTINGS_OF_HTTP2.contains(&name) || seen.contains(&name) {
            return Err(Code::SETTINGS_ERROR);
        }
        seen.push(name);
    }
    Ok(Some(FrameEvent::Settings))
}

fn begin(out: &mut Vec<u8>, kind: u64, length: usize) {
    integer::put(out, kind);
    integer::put(out, length as u64);
}

/// Returns the frame's beginning before a body part of this length.
#[must_use]
pub fn data_head(length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(LONGEST_BEGIN);
    begin(&mut out, kind::DATA, length);
    out
}

/// A frame with this block of fields.
#[must_use]
pub fn head_frame(block: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() + LONGEST_BEGIN);
    begin(&mut out, kind::HEADERS, block.len());
    out.extend_from_slice(block);
    out
}

/// Our settings: no dynamic table, which is the protocol's default, and the largest head that we take.
#[must_use]
pub fn settings(max_head: u64) -> Vec<u8> {
    let mut body = Vec::new();
    integer::put(&mut body, MAX_FIELD_SECTION_SIZE);
    integer::put(&mut body, max_head);
    let mut out = Vec::new();
    begin(&mut out, kind::SETTINGS, body.len());
    out.extend_from_slice(&body);
    out
}

/// Says that requests on this stream and on later ones are not looked at.
#[must_use]
pub fn goaway(stream: u64) -> Vec<u8> {
    let mut body = Vec::new();
    integer::put(&mut body, stream);
    let mut out = Vec::new();
    begin(&mut out, kind::GOAWAY, body.len());
    out.extend_from_slice(&body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads these bytes, and checks that the result does not depend on how they are cut.
    fn read(mut frames: impl FnMut() -> Frames, bytes: &[u8]) -> Result<Vec<FrameEvent>, Code> {
        let whole = events(&mut frames(), [bytes]);
        let each = events(&mut frames(), bytes.chunks(1));
        assert_eq!(joined(&whole), joined(&each), "{bytes:x?}");
        whole
    }

    fn events<'a>(
        frames: &mut Frames,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<FrameEvent>, Code> {
        let mut all = Vec::new();
        for part in parts {
            let mut part = Bytes::copy_from_slice(part);
            while let Some(event) = frames.next(&mut part)? {
                all.push(event);
            }
            assert!(part.is_empty());
        }
        Ok(all)
    }

    /// Data that lies side by side is one.
    fn joined(events: &Result<Vec<FrameEvent>, Code>) -> String {
        let mut out = String::new();
        for event in events.as_ref().into_iter().flatten() {
            match event {
                FrameEvent::Data(data) => out.push_str(&String::from_utf8_lossy(data)),
                other => out.push_str(&format!("<{other:?}>")),
            }
        }
        format!("{out}{:?}", events.as_ref().err())
    }

    fn request(bytes: &[u8]) -> Result<Vec<FrameEvent>, Code> {
        read(|| Frames::of_request(8), bytes)
    }

    #[test]
    fn a_request_is_a_block_data_and_perhaps_another_block_with_the_unknown_between() {
        let block = |bytes: &[u8], whole| FrameEvent::Block {
            bytes: bytes.to_vec(),
            whole,
        };
        let bytes = [
            &[0x1, 3][..],
            b"abc",
            &[0x21, 2, 9, 9, 0, 2],
            b"hi",
            &[0, 0, 1, 0],
        ]
        .concat();
        let expected = vec![
            block(b"abc", true),
            FrameEvent::Data(Bytes::from_static(b"hi")),
            block(b"", true),
        ];
        assert_eq!(request(&bytes), Ok(expected));
    }

    #[test]
    fn of_a_block_beyond_the_limit_the_beginning_is_kept_and_nothing_waits_for_the_rest() {
        let mut frames = Frames::of_request(8);
        // A gibibyte is announced.
        let mut bytes = vec![1, 0xc0, 0, 0, 0, 0x40, 0, 0, 0];
        bytes.extend_from_slice(b"0123456789");
        let mut bytes = Bytes::from(bytes);
        let event = frames.next(&mut bytes);
        let expected = FrameEvent::Block {
            bytes: b"01234567".to_vec(),
            whole: false,
        };
        assert_eq!(event, Ok(Some(expected)));
        assert_eq!(frames.next(&mut bytes), Ok(None));
        assert!(bytes.is_empty() && !frames.is_between());
    }

    #[test]
    fn frames_that_may_not_be_on_a_stream_end_the_connection() {
        for kind in [2, 3, 4, 5, 6, 7, 8, 9, 13] {
            assert_eq!(request(&[kind, 0]), Err(Code::FRAME_UNEXPECTED), "{kind}");
        }
        let control = |bytes: &[u8]| read(Frames::of_control, bytes).map(|events| events.len());
        for (bytes, expected) in [
            (&[4, 0][..], Ok(1)),
            (&[4, 2, 6, 9, 7, 1, 0, 13, 1, 5, 0x21, 1, 0], Ok(2)),
            (&[7, 1, 0], Err(Code::MISSING_SETTINGS)),
            (&[4, 0, 4, 0], Err(Code::FRAME_UNEXPECTED)),
            (&[4, 0, 0, 0], Err(Code::FRAME_UNEXPECTED)),
            (&[4, 2, 2, 0], Err(Code::SETTINGS_ERROR)),
            (&[4, 4, 6, 1, 6, 1], Err(Code::SETTINGS_ERROR)),
            (&[4, 1, 6], Err(Code::FRAME_ERROR)),
            (&[4, 0, 7, 2, 0, 0], Err(Code::FRAME_ERROR)),
            (&[4, 0, 7, 0], Err(Code::FRAME_ERROR)),
            (&[4, 0, 3, 1, 0], Err(Code::ID_ERROR)),
            (&[4, 0, 13, 1, 5, 3, 1, 3], Err(Code::ID_ERROR)),
            (&[4, 0, 3, 0], Err(Code::FRAME_ERROR)),
            (&[4, 0, 13, 1, 5, 13, 1, 5, 13, 1, 6], Ok(1)),
            (&[4, 0, 13, 1, 5, 13, 1, 4], Err(Code::ID_ERROR)),
            (&[4, 0, 7, 1, 8, 7, 1, 4, 7, 1, 4], Ok(4)),
            (&[4, 0, 7, 1, 4, 7, 1, 8], Err(Code::ID_ERROR)),
            (&[4, 0x9f, 0, 0, 0], Err(Code::EXCESSIVE_LOAD)),
            (&[4, 0, 6, 0], Err(Code::FRAME_UNEXPECTED)),
        ] {
            assert_eq!(control(bytes), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn what_we_say_is_what_we_would_hear() {
        let mut said = settings(61_440);
        said.extend(goaway(400));
        let heard = read(Frames::of_control, &said);
        assert_eq!(heard, Ok(vec![FrameEvent::Settings, FrameEvent::Goaway]));
        let said = [head_frame(b"ab"), data_head(1), b"x".to_vec()].concat();
        assert_eq!(request(&said).map(|events| events.len()), Ok(2));
    }
}

//! HTTP/2 frames (RFC 9113, sections 4 and 6): bytes into whole frames, and frames into bytes. No I/O, no meaning.

use super::Malformed;

/// Length of a frame's head.
pub(crate) const HEAD_BYTES: usize = 9;
/// The longest payload we accept: the protocol's default, so one frame is one small buffer.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 16 * 1024;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const PRIORITISED: u8 = 0x20;

/// A whole frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'a [u8],
}

impl Frame<'_> {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Cuts bytes, as they come, into frames. Keeps at most one frame that has come in part.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    partial: Vec<u8>,
    /// `partial` was a whole frame and has been given out.
    given: bool,
}

impl Frames {
    /// The next whole frame, if there is one, and how many of the bytes are used.
    pub(crate) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Frame<'a>>), Malformed> {
        if std::mem::take(&mut self.given) {
            self.partial.clear();
        }
        if self.partial.is_empty() {
            let wanted = wanted(bytes)?;
            if bytes.len() < wanted {
                self.partial.extend_from_slice(bytes);
                return Ok((bytes.len(), None));
            }
            return Ok((wanted, Some(parse(&bytes[..wanted]))));
        }
        let mut used = 0;
        loop {
            let missing = wanted(&self.partial)? - self.partial.len();
            if missing == 0 {
                self.given = true;
                return Ok((used, Some(parse(&self.partial))));
            }
            let taken = missing.min(bytes.len() - used);
            if taken == 0 {
                return Ok((used, None));
            }
            self.partial.extend_from_slice(&bytes[used..used + taken]);
            used += taken;
        }
    }
}

/// Returns the length of the frame that begins with these bytes; at least the length of a frame's head.
fn wanted(begun: &[u8]) -> Result<usize, Malformed> {
    let Some(head) = begun.get(..HEAD_BYTES) else {
        return Ok(HEAD_BYTES);
    };
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    if length > MAX_PAYLOAD_BYTES {
        return Err(Malformed("frame longer than 16 KiB, or not HTTP/2"));
    }
    Ok(HEAD_BYTES + length)
}

fn parse(frame: &[u8]) -> Frame<'_> {
    Frame {
        kind: frame[3],
        flags: frame[4],
        stream: number(&frame[5..]) & 0x7fff_ffff,
        payload: &frame[HEAD_BYTES..],
    }
}

/// The first four bytes as a number; the caller has made sure of them.
pub(crate) fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Appends the head of a frame.
pub(crate) fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let length = (length as u32).to_be_bytes();
    out.extend_from_slice(&[length[1], length[2], length[3], kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Appends a frame whose payload is one number: RST_STREAM and WINDOW_UPDATE.
pub(crate) fn put_number(out: &mut Vec<u8>, kind: u8, stream: u32, value: u32) {
    put_head(out, 4, kind, 0, stream);
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a GOAWAY.
pub(crate) fn put_goaway(out: &mut Vec<u8>, last: u32, code: u32) {
    put_head(out, 8, GOAWAY, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
}

/// Appends a SETTINGS frame.
pub(crate) fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    put_head(out, settings.len() * 6, SETTINGS, 0, 0);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

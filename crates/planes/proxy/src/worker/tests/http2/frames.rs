//! HTTP/2 frames by hand, for peers that break the rules: a library would not let them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GO_AWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block of literals, as they stand.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            length(&mut bytes, text.len());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

/// HPACK's integer with a prefix of seven bits.
fn length(bytes: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return bytes.push(length as u8);
    }
    bytes.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        bytes.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    bytes.push(rest as u8);
}

pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

/// A frame that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GO_AWAY { 4 } else { 0 };
        let code = self.payload[at..at + 4].try_into();
        u32::from_be_bytes(code.expect("four bytes"))
    }

    /// The status of a head whose first field is an indexed `:status`; 0 for a literal one.
    pub(crate) fn status(&self) -> u16 {
        // A table size update may come first.
        let first = self.payload.iter().find(|byte| **byte & 0xe0 != 0x20);
        match first {
            Some(0x88) => 200,
            Some(0x89) => 204,
            Some(0x8b) => 304,
            Some(0x8c) => 400,
            Some(0x8d) => 404,
            Some(0x8e) => 500,
            _ => 0,
        }
    }
}

/// Reads one frame; none at the end.
pub(crate) async fn read(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some(Frame {
        kind: head[3],
        flags: head[4],
        stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
        payload,
    })
}

/// Reads frames until one is wanted, acknowledging settings; none at the end.
pub(crate) async fn until(
    stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin),
    wanted: impl Fn(&Frame) -> bool,
) -> Option<Frame> {
    loop {
        let frame = read(stream).await?;
        if frame.kind == SETTINGS && frame.flags & ACK == 0 {
            let acknowledged = stream.write_all(&self::frame(SETTINGS, ACK, 0, &[])).await;
            acknowledged.ok()?;
        }
        if wanted(&frame) {
            return Some(frame);
        }
    }
}

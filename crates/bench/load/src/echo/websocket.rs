//! WebSocket as the echo server speaks it (RFC 6455): a client's frames into messages, and messages into frames. No I/O.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// String that the server appends to the key of an upgrade before it hashes both for the answer (RFC 6455, section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The longest message that is sent back.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// The longest payload of a control frame.
const MAX_CONTROL_BYTES: usize = 125;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Codes of a close.
const PROTOCOL_ERROR: u16 = 1002;
const NOT_UTF8: u16 = 1007;
const TOO_BIG: u16 = 1009;

/// The answer to an upgrade with that key.
pub(crate) fn welcome(key: &str, headers: &str) -> String {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    let accept = STANDARD.encode(hash.as_ref());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n{headers}\r\n"
    )
}

/// Result of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameMeaning {
    /// Nothing to do: a piece of a message, a pong, or a ping that was answered.
    Nothing,
    /// A message is whole: its kind, and its payload in [`Frames::message`].
    Message,
    /// The connection ends once all is written.
    Over,
}

/// The frames of a connection.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The message, as far as it has come.
    pub(crate) message: Vec<u8>,
    /// Kind of the message; 0 between messages.
    kind: u8,
}

impl Frames {
    /// Processes one whole frame and returns its length, or 0 while the frame is incomplete. An immediate answer goes to `out`.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, FrameMeaning) {
        match self.frame(bytes, out) {
            Ok(None) => (0, FrameMeaning::Nothing),
            Ok(Some(heard)) => heard,
            Err(code) => {
                put_frame(out, CLOSE, &code.to_be_bytes());
                (bytes.len(), FrameMeaning::Over)
            }
        }
    }

    fn frame(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, FrameMeaning)>, u16> {
        let Some((head, length)) = head(bytes)? else {
            return Ok(None);
        };
        let (kind, last) = (bytes[0] & 0x0f, bytes[0] & 0x80 != 0);
        let control = kind >= CLOSE;
        if control && (!last || length > MAX_CONTROL_BYTES) {
            return Err(PROTOCOL_ERROR);
        }
        // A continuation continues, anything else begins.
        if !control && (kind > BINARY || (kind == 0) == (self.kind == 0)) {
            return Err(PROTOCOL_ERROR);
        }
        if !control && self.message.len() + length > MAX_MESSAGE_BYTES {
            return Err(TOO_BIG);
        }
        let Some(payload) = bytes.get(head..head + length) else {
            return Ok(None);
        };
        let mask = &bytes[head - 4..head];
        let plain = payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask);
        let used = head + length;
        if control {
            let payload: Vec<u8> = plain.collect();
            return Ok(Some((used, self.control(kind, &payload, out)?)));
        }
        if kind != 0 {
            self.kind = kind;
            self.message.clear();
        }
        self.message.extend(plain);
        if last && self.kind == TEXT && std::str::from_utf8(&self.message).is_err() {
            return Err(NOT_UTF8);
        }
        Ok(Some((
            used,
            if last {
                FrameMeaning::Message
            } else {
                FrameMeaning::Nothing
            },
        )))
    }

    fn control(&self, kind: u8, payload: &[u8], out: &mut Vec<u8>) -> Result<FrameMeaning, u16> {
        match kind {
            CLOSE => {
                put_frame(out, CLOSE, payload.get(..2).unwrap_or_default());
                Ok(FrameMeaning::Over)
            }
            PING => {
                put_frame(out, PONG, payload);
                Ok(FrameMeaning::Nothing)
            }
            PONG => Ok(FrameMeaning::Nothing),
            _ => Err(PROTOCOL_ERROR),
        }
    }

    /// Appends a message of the kind last heard, and makes ready for the next.
    pub(crate) fn answer(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        put_frame(out, self.kind, payload);
        self.kind = 0;
    }
}

/// Length of a frame's head with its mask, and of its payload; none while it is not all there.
fn head(bytes: &[u8]) -> Result<Option<(usize, usize)>, u16> {
    let [first, second, rest @ ..] = bytes else {
        return Ok(None);
    };
    // A client must mask its frames, and no extension was agreed on.
    if first & 0x70 != 0 || second & 0x80 == 0 {
        return Err(PROTOCOL_ERROR);
    }
    let wide = match second & 0x7f {
        126 => 2,
        127 => 8,
        length => return Ok((rest.len() >= 4).then_some((6, usize::from(length)))),
    };
    if rest.len() < wide + 4 {
        return Ok(None);
    }
    let length = rest[..wide]
        .iter()
        .fold(0u64, |length, byte| length << 8 | u64::from(*byte));
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_MESSAGE_BYTES);
    Ok(Some((2 + wide + 4, length.ok_or(TOO_BIG)?)))
}

fn put_frame(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.push(0x80 | kind);
    match payload.len() {
        length @ 0..126 => out.push(length as u8),
        length @ 126..65_536 => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

//! WebSocket (RFC 6455): one upgrade for each connection, then a masked binary message is a request and the message that comes back
//! is its answer. Pings are answered; a close ends the connection.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{HttpResponse, PreparedRequest, Wire, WireEvent};
use crate::body::Malformed;
use crate::options::LoadOptions;
use crate::response::MAX_HEAD_BYTES;
use crate::tally::RequestOutcome;

/// String that the server appends to our key before it hashes both (RFC 6455, section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Any key would do: it only shows that the server understands.
const KEY: &str = "dm9pbGUtbG9hZC0wMDAwMQ==";
/// Every message's mask; it protects proxies from clients that others control, which we are not.
const MASK: [u8; 4] = [0x56, 0x6f, 0x69, 0x6c];
/// The most bytes of a control frame.
const MAX_CONTROL_BYTES: u64 = 125;
/// Unsent answers to pings beyond which a server is not serious.
const MAX_PONG_BYTES: usize = 64 * 1024;

const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A masked frame that ends its message.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | kind];
    match payload.len() {
        length @ 0..126 => bytes.push(0x80 | length as u8),
        length @ 126..65_536 => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&MASK);
    bytes.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

/// The bytes of a request.
pub(crate) fn message(payload: &[u8]) -> Vec<u8> {
    frame(2, payload)
}

#[derive(Debug)]
pub(super) struct WebSocket {
    requests: Arc<[PreparedRequest]>,
    upgrade: Vec<u8>,
    accept: String,
    upgraded: bool,
    /// The upgrade, and answers to pings.
    control: Vec<u8>,
    current: Option<usize>,
    written: usize,
    /// Received part of an incomplete head: of the upgrade, of a frame, or of a control frame.
    partial: Vec<u8>,
    /// Bytes left of the current frame.
    left: u64,
    last: bool,
    /// State of the current message: if it has begun, and its bytes.
    begun: bool,
    body: u64,
}

impl WebSocket {
    pub(super) fn new(requests: Arc<[PreparedRequest]>, options: &LoadOptions) -> Self {
        let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{KEY}{GUID}").as_bytes());
        let upgrade = upgrade(options);
        Self {
            requests,
            control: upgrade.clone(),
            upgrade,
            accept: STANDARD.encode(hash.as_ref()),
            upgraded: false,
            current: None,
            written: 0,
            partial: Vec::new(),
            left: 0,
            last: false,
            begun: false,
            body: 0,
        }
    }

    fn request(&self) -> &[u8] {
        match self.current {
            Some(which) => &self.requests[which].bytes[self.written..],
            None => &[],
        }
    }

    /// Reads the answer to the upgrade; how many bytes it took, once it is whole.
    fn welcome(&mut self) -> Result<Option<usize>, Malformed> {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut fields);
        let used = match head.parse(&self.partial) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) if self.partial.len() < MAX_HEAD_BYTES => {
                return Ok(None);
            }
            _ => return Err(Malformed("not an answer to an upgrade")),
        };
        let has = |name: &str, value: &str| {
            head.headers.iter().any(|field| {
                field.name.eq_ignore_ascii_case(name)
                    && field
                        .value
                        .trim_ascii()
                        .eq_ignore_ascii_case(value.as_bytes())
            })
        };
        let accepted = head.headers.iter().any(|field| {
            field.name.eq_ignore_ascii_case("sec-websocket-accept")
                && field.value.trim_ascii() == self.accept.as_bytes()
        });
        if head.code != Some(101) || !has("upgrade", "websocket") || !accepted {
            return Err(Malformed("the server refuses the upgrade"));
        }
        Ok(Some(used))
    }

    /// Reads the head of a frame, and of a control frame all: how many bytes it took, once it is whole.
    fn head(&mut self, events: &mut Vec<WireEvent>) -> Result<Option<usize>, Malformed> {
        let [first, second, rest @ ..] = self.partial.as_slice() else {
            return Ok(None);
        };
        let (kind, last) = (first & 0x0f, first & 0x80 != 0);
        if first & 0x70 != 0 || second & 0x80 != 0 {
            return Err(Malformed(
                "frame with reserved bits that were not negotiated",
            ));
        }
        let (length, head) = match (second & 0x7f, rest) {
            (126, [a, b, ..]) => (u64::from(u16::from_be_bytes([*a, *b])), 4),
            (127, [bytes @ .., _]) if bytes.len() >= 7 => {
                let mut eight = [0; 8];
                eight.copy_from_slice(&rest[..8]);
                (u64::from_be_bytes(eight), 10)
            }
            (126 | 127, _) => return Ok(None),
            (length, _) => (u64::from(length), 2),
        };
        if kind >= CLOSE {
            if length > MAX_CONTROL_BYTES || !last {
                return Err(Malformed("control frame too long or fragmented"));
            }
            let Some(payload) = self.partial.get(head..head + length as usize) else {
                return Ok(None);
            };
            match kind {
                CLOSE => {
                    events.push(WireEvent::Close);
                    if self.current.take().is_some() {
                        events.push(WireEvent::Failed(0, RequestOutcome::Reset));
                    }
                }
                PING => {
                    let pong = frame(PONG, payload);
                    self.control.extend_from_slice(&pong);
                }
                PONG => {}
                _ => return Err(Malformed("frame of an unknown kind")),
            }
            if self.control.len() > MAX_PONG_BYTES {
                return Err(Malformed("too many pings"));
            }
            return Ok(Some(head + length as usize));
        }
        // A continuation continues, anything else begins.
        if kind > 2 || (kind == 0) != self.begun || length > u64::MAX >> 1 {
            return Err(Malformed("unexpected frame"));
        }
        if self.current.is_none() {
            events.push(WireEvent::Unsolicited);
            return Ok(Some(head));
        }
        if !self.begun {
            (self.begun, self.body) = (true, 0);
            events.push(WireEvent::First(0));
        }
        (self.left, self.last) = (length, last);
        Ok(Some(head))
    }

    /// The frame's payload is whole.
    fn ended(&mut self, events: &mut Vec<WireEvent>) {
        let (true, Some(which)) = (self.last && self.begun, self.current) else {
            return;
        };
        self.begun = false;
        if !self.request().is_empty() {
            events.push(WireEvent::Close);
        }
        self.current = None;
        let body = self.body;
        events.push(if body == self.requests[which].answer_bytes {
            let answer = HttpResponse {
                status: None,
                body,
                surplus: false,
            };
            WireEvent::Answered(0, answer)
        } else {
            WireEvent::Failed(0, RequestOutcome::Size)
        });
    }
}

fn upgrade(options: &LoadOptions) -> Vec<u8> {
    let target = &options.target;
    let mut head = format!("GET {} HTTP/1.1\r\n", target.path);
    let named = options
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"));
    if !named {
        head += &format!("Host: {}\r\n", target.authority);
    }
    for (name, value) in &options.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
    head += &format!("Sec-WebSocket-Key: {KEY}\r\n\r\n");
    head.into_bytes()
}

impl Wire for WebSocket {
    fn reset(&mut self) {
        self.control.clone_from(&self.upgrade);
        (self.upgraded, self.begun, self.current) = (false, false, None);
        (self.left, self.written) = (0, 0);
        self.partial.clear();
    }

    fn greets(&self) -> bool {
        true
    }

    fn send(&mut self, _lane: usize, which: usize) {
        (self.current, self.written) = (Some(which), 0);
    }

    fn unsent(&self) -> &[u8] {
        // A frame begun is ended before another.
        if self.control.is_empty() || (self.written > 0 && !self.request().is_empty()) {
            self.request()
        } else {
            &self.control
        }
    }

    fn wrote(&mut self, count: usize) {
        if self.control.is_empty() || (self.written > 0 && !self.request().is_empty()) {
            self.written += count;
        } else {
            self.control.drain(..count);
        }
    }

    fn feed(&mut self, bytes: &[u8], events: &mut Vec<WireEvent>) -> Result<(), Malformed> {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = bytes
                    .len()
                    .min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= taken as u64;
                self.body += taken as u64;
                bytes = &bytes[taken..];
            } else {
                let before = self.partial.len();
                self.partial.extend_from_slice(bytes);
                let used = if self.upgraded {
                    self.head(events)?
                } else {
                    self.welcome()?
                };
                let Some(used) = used else { return Ok(()) };
                bytes = &bytes[used - before..];
                self.partial.clear();
                if !self.upgraded {
                    self.upgraded = true;
                    events.push(WireEvent::Ready);
                    continue;
                }
            }
            if self.left == 0 {
                self.ended(events);
            }
        }
        Ok(())
    }
}

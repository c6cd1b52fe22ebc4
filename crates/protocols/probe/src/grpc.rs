//! `grpc.health.v1.Health/Check` as a client of a few frames: one stream of HTTP/2 (RFC 9113) with prior knowledge. The
//! answer's message says all that matters, so fields (and with them HPACK's state) are never looked at.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest frame that may come while we announce nothing else, in bytes.
const MAX_FRAME_BYTES: usize = 16 * 1024;
/// The largest message of an answer, in bytes: a health answer is two bytes.
const MAX_MESSAGE_BYTES: usize = 1024;
/// Frames that are read until the answer has come; a server sends five or so.
const MAX_FRAMES: usize = 100;
/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// Asks.
pub(crate) fn check(
    stream: &mut (impl Read + Write),
    address: SocketAddr,
    service: &str,
) -> io::Result<()> {
    stream.write_all(&question(&address.to_string(), service))?;
    let mut message = Vec::new();
    for _ in 0..MAX_FRAMES {
        let frame = read_frame(stream)?;
        match (frame.kind, frame.stream) {
            (SETTINGS, 0) if frame.flags & ACK == 0 => {
                stream.write_all(&head(0, SETTINGS, ACK, 0))?;
            }
            (PING, 0) if frame.flags & ACK == 0 && frame.payload.len() == 8 => {
                let mut answer = head(8, PING, ACK, 0);
                answer.extend(&frame.payload);
                stream.write_all(&answer)?;
            }
            (DATA, 1) => {
                message.extend(unpadded(&frame)?);
                if let Some(status) = status(&message)? {
                    return match status {
                        SERVING => Ok(()),
                        0 => Err(wrong("the health status is UNKNOWN")),
                        2 => Err(wrong("the health status is NOT_SERVING")),
                        3 => Err(wrong("the health status is SERVICE_UNKNOWN")),
                        _ => Err(wrong("the health status has an unknown value")),
                    };
                }
            }
            (RST_STREAM, 1) => return Err(wrong("the server reset the call")),
            (GOAWAY, 0) => return Err(wrong("the server ends the connection")),
            _ => {}
        }
        if matches!(frame.kind, DATA | HEADERS)
            && frame.stream == 1
            && frame.flags & END_STREAM != 0
        {
            return Err(wrong(
                "answered without a health status (does it serve grpc.health.v1.Health, and that service?)",
            ));
        }
    }
    Err(wrong("no response among the frames received"))
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn head(length: usize, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(length).unwrap_or(0).to_be_bytes();
    let mut head = vec![a, b, c, kind, flags];
    head.extend(stream.to_be_bytes());
    head
}

/// Preface, settings and the whole call.
fn question(authority: &str, service: &str) -> Vec<u8> {
    // HPACK (RFC 7541): indexed `:method POST` and `:scheme http`; then literals that stay out of the table, without
    // Huffman.
    let mut fields = vec![0x83, 0x86];
    let literal = |fields: &mut Vec<u8>, name: &[u8], value: &str| {
        fields.extend(name);
        fields.push(u8::try_from(value.len()).unwrap_or(0)); // each of them is shorter than 127
        fields.extend(value.as_bytes());
    };
    literal(&mut fields, &[0x04], "/grpc.health.v1.Health/Check");
    literal(&mut fields, &[0x01], authority);
    literal(&mut fields, &[0x0f, 0x10], "application/grpc");
    literal(&mut fields, b"\0\x02te", "trailers");
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a); // field 1, a string
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push((length & 0x7f) as u8);
        message.extend(service.as_bytes());
    }
    let mut all = PREFACE.to_vec();
    all.extend(head(0, SETTINGS, 0, 0));
    all.extend(head(fields.len(), HEADERS, END_HEADERS, 1));
    all.extend(&fields);
    all.extend(head(message.len() + 5, DATA, END_STREAM, 1));
    all.push(0); // not compressed
    all.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
    all.extend(&message);
    all
}

fn read_frame(stream: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    stream
        .read_exact(&mut head)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => wrong("the connection ended before an answer"),
            _ => error,
        })?;
    let [a, b, c, kind, flags, d, e, f, g] = head;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(wrong("the answer is not HTTP/2"));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Frame {
        kind,
        flags,
        stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff,
        payload,
    })
}

fn unpadded(frame: &Frame) -> io::Result<&[u8]> {
    if frame.flags & PADDED == 0 {
        return Ok(&frame.payload);
    }
    let rest = frame.payload.split_first();
    rest.and_then(|(padding, rest)| {
        let length = rest.len().checked_sub(usize::from(*padding))?;
        rest.get(..length)
    })
    .ok_or_else(|| wrong("the answer is not HTTP/2"))
}

/// The status of an answer, once its message is whole.
fn status(bytes: &[u8]) -> io::Result<Option<u64>> {
    let Some((head, rest)) = bytes.split_at_checked(5) else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] != 0 || length > MAX_MESSAGE_BYTES {
        return Err(wrong("the answer is not a health status"));
    }
    let Some(message) = rest.get(..length) else {
        return Ok(None);
    };
    match message {
        [] => Ok(Some(0)), // what is 0 is not written
        [0x08, status, ..] if *status < 0x80 => Ok(Some((*status).into())),
        _ => Err(wrong("the answer is not a health status")),
    }
}

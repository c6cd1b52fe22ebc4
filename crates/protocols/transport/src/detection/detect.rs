//! Telling a protocol by its first bytes. The decision is pure ([`detect`]); [`read_prefix`] feeds it from a socket
//! until it is sure or the deadline passes, and hands back every byte it read.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

use crate::client_hello::{self, ClientHello, HelloError};
use crate::limits::{DETECTION_BUFFER, MAX_DETECTION_BYTES};

/// Protocol by the first bytes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectedProtocol {
    /// A complete TLS ClientHello.
    Tls(ClientHello),
    /// The beginning of an HTTP/1.x request.
    Http1,
    /// HTTP/2's connection preface.
    Http2,
    /// None of those.
    Opaque,
    /// The client closed without a word.
    Silent,
    /// The deadline passed first: nothing came, or a beginning that fits several. More may still come.
    Undecided,
}

/// Stream that can be waited for without a buffer.
pub trait Readable: AsyncRead + Unpin {
    /// Ready when a read would probably yield bytes, the end or an error; a false alarm is allowed.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl Readable for TcpStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }
}

/// Waits until a read would probably not wait.
///
/// # Errors
/// When the stream fails.
pub async fn readable(stream: &impl Readable) -> io::Result<()> {
    poll_fn(|cx| stream.poll_readable(cx)).await
}

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// With these in front of a path nothing but HTTP is meant, so the rest of the line need not be waited for.
const METHODS: [&[u8]; 8] = [
    b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE",
];

/// Method that asks a forward proxy for a tunnel. The bytes of the tunnel are no HTTP, so detection takes both as
/// opaque.
const TUNNEL: &[u8] = b"CONNECT";

/// Returns true if opaque bytes begin a CONNECT request, where HTTP is expected.
#[must_use]
pub fn begins_connect(bytes: &[u8]) -> bool {
    let rest = without_blank(bytes, LINES).strip_prefix(TUNNEL);
    rest.is_some_and(|rest| rest.first().is_some_and(|byte| BLANK.contains(byte)))
}

/// Returns true if the bytes may still become a request with a common method. The proxy then waits for more.
#[must_use]
pub fn may_become_request(bytes: &[u8]) -> bool {
    let line = without_blank(bytes, LINES);
    let method = line.iter().take_while(|byte| is_token(**byte)).count();
    let (method, rest) = line.split_at(method);
    let mut known = METHODS.iter().copied().chain([TUNNEL, b"PRI"]);
    !method.is_empty()
        && detect(bytes).is_none()
        && known.any(|known| match rest.is_empty() {
            true => known.starts_with(method),
            false => known == method,
        })
}

/// Between the parts of a request line.
const BLANK: &[u8] = b" \t";
/// Before a request line: servers skip empty lines (RFC 9112 section 2.2), and some any blank.
const LINES: &[u8] = b" \t\r\n";

fn without_blank<'a>(bytes: &'a [u8], blank: &[u8]) -> &'a [u8] {
    let count = bytes.iter().take_while(|byte| blank.contains(byte)).count();
    &bytes[count..]
}

/// Returns the protocol that `bytes` begin, or `None` while several are possible.
#[must_use]
pub fn detect(bytes: &[u8]) -> Option<DetectedProtocol> {
    let first = *bytes.first()?;
    if first == 22 {
        return match client_hello::parse(bytes) {
            Ok(hello) => Some(DetectedProtocol::Tls(hello)),
            Err(HelloError::Malformed) => Some(DetectedProtocol::Opaque),
            Err(HelloError::NeedMore) if bytes.len() >= MAX_DETECTION_BYTES => {
                Some(DetectedProtocol::Opaque)
            }
            Err(HelloError::NeedMore) => None,
        };
    }
    if bytes.starts_with(HTTP2_PREFACE) {
        return Some(DetectedProtocol::Http2);
    }
    if HTTP2_PREFACE.starts_with(bytes) {
        return None;
    }
    request_line(bytes)
}

/// Returns true for a character of a method.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns true if this is one word and nothing else. It may become a request line, or be the client's whole message.
#[must_use]
pub fn is_word(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_token(*byte))
}

/// Detects `METHOD target HTTP/` with as few bytes as is safe, and as any server may read it. Bytes that a careless
/// server takes for a request go to the HTTP engine, which refuses them if they are none.
fn request_line(bytes: &[u8]) -> Option<DetectedProtocol> {
    let more = match bytes.len() >= MAX_DETECTION_BYTES {
        true => Some(DetectedProtocol::Opaque),
        false => None,
    };
    let line = without_blank(bytes, LINES);
    let method = line.iter().take_while(|byte| is_token(**byte)).count();
    let (method, rest) = line.split_at(method);
    let target = without_blank(rest, BLANK);
    match rest.first() {
        None => return more,
        Some(byte) if method.is_empty() || !BLANK.contains(byte) => {
            return Some(DetectedProtocol::Opaque);
        }
        Some(_) if method == TUNNEL => return Some(DetectedProtocol::Opaque),
        Some(_) => {}
    }
    if target.first() == Some(&b'/') && METHODS.contains(&method) {
        return Some(DetectedProtocol::Http1);
    }
    let Some(end) = target
        .iter()
        .position(|byte| *byte <= b' ' || *byte == 0x7f)
    else {
        return more;
    };
    let (target, rest) = target.split_at(end);
    let version = without_blank(rest, BLANK);
    if target.is_empty() || rest.len() == version.len() {
        return Some(DetectedProtocol::Opaque);
    }
    const VERSION: &[u8] = b"HTTP/";
    let same = version.len().min(VERSION.len());
    match version[..same].eq_ignore_ascii_case(&VERSION[..same]) {
        false => Some(DetectedProtocol::Opaque),
        true if same == VERSION.len() => Some(DetectedProtocol::Http1),
        true => more,
    }
}

/// Reads until the protocol is known, the client closes, or `deadline` passes. Every byte read is in `prefix`.
///
/// # Errors
/// When the socket fails.
pub async fn read_prefix(
    tcp: &mut impl Readable,
    prefix: &mut Vec<u8>,
    deadline: Option<Duration>,
) -> io::Result<DetectedProtocol> {
    match deadline {
        None => read_until_sure(tcp, prefix).await,
        Some(limit) => match tokio::time::timeout(limit, read_until_sure(tcp, prefix)).await {
            Ok(answer) => answer,
            Err(_) => Ok(DetectedProtocol::Undecided),
        },
    }
}

/// As [`read_prefix`], but does not wait after a single word: returns [`Detected::Undecided`] then.
///
/// # Errors
/// When the socket fails.
pub async fn read_opening(
    tcp: &mut TcpStream,
    prefix: &mut Vec<u8>,
    limit: Duration,
) -> io::Result<DetectedProtocol> {
    let reading = async {
        tcp.readable().await?;
        prefix.reserve_exact(DETECTION_BUFFER);
        match tcp.read_buf(prefix).await? {
            0 => Ok(DetectedProtocol::Silent),
            _ if is_word(prefix) && detect(prefix).is_none() => Ok(DetectedProtocol::Undecided),
            _ => read_until_sure(tcp, prefix).await,
        }
    };
    match tokio::time::timeout(limit, reading).await {
        Ok(answer) => answer,
        Err(_) => Ok(DetectedProtocol::Undecided),
    }
}

/// Detects the protocol of a client that should speak HTTP; nearly always without taking its bytes or holding a
/// buffer. Bytes that had to be read are in `prefix`.
///
/// # Errors
/// When the socket fails.
pub async fn read_http(tcp: &mut TcpStream, prefix: &mut Vec<u8>) -> io::Result<DetectedProtocol> {
    let mut bytes = [0; HTTP2_PREFACE.len()];
    let count = tcp.peek(&mut bytes).await?;
    if count == 0 {
        return Ok(DetectedProtocol::Silent);
    }
    match detect(&bytes[..count]) {
        None if HTTP2_PREFACE.starts_with(&bytes[..count]) => {
            // A piece of the preface: peeking again would not wait for the rest.
            read_until_sure(tcp, prefix).await
        }
        // The first bytes of a request: the engine waits for the rest.
        None => Ok(DetectedProtocol::Http1),
        // CONNECT is a request as any other, where HTTP is expected.
        Some(DetectedProtocol::Opaque) if begins_connect(&bytes[..count]) => {
            Ok(DetectedProtocol::Http1)
        }
        Some(detected) => Ok(detected),
    }
}

/// First byte of a TLS connection: a record of handshake messages.
pub const TLS_HANDSHAKE_RECORD: u8 = 22;

/// Waits for the first byte and returns it; `None` when the client closed. Bytes that were read are in `prefix`.
///
/// # Errors
/// When the socket fails or nothing comes within `limit`.
pub async fn read_first(
    tcp: &mut TcpStream,
    prefix: &mut Vec<u8>,
    limit: Duration,
) -> io::Result<Option<u8>> {
    let reading = async {
        tcp.readable().await?;
        prefix.reserve_exact(DETECTION_BUFFER);
        tcp.read_buf(prefix).await
    };
    tokio::time::timeout(limit, reading)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(prefix.first().copied())
}

async fn read_until_sure(
    tcp: &mut impl Readable,
    prefix: &mut Vec<u8>,
) -> io::Result<DetectedProtocol> {
    loop {
        if let Some(answer) = detect(prefix) {
            return Ok(answer);
        }
        // No buffer while nothing is there to fill it.
        readable(tcp).await?;
        if prefix.len() == prefix.capacity() {
            let more = if prefix.is_empty() {
                DETECTION_BUFFER
            } else {
                prefix.len()
            };
            prefix.reserve_exact(more.min(MAX_DETECTION_BYTES + DETECTION_BUFFER - prefix.len()));
        }
        // `read_buf` is cancel safe: a byte is either still in the kernel or in `prefix`.
        if tcp.read_buf(prefix).await? == 0 {
            return Ok(if prefix.is_empty() {
                DetectedProtocol::Silent
            } else {
                DetectedProtocol::Opaque
            });
        }
    }
}

//! A small strict reader of the first TLS flight: server name and ALPN out of a ClientHello, nothing else.
//! It decides between mesh TLS and TLS that belongs to the application, so anything malformed is simply not TLS.

/// Server name and ALPN of a ClientHello.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientHello {
    /// The host of the server_name extension.
    pub server_name: Option<String>,
    /// The names of the ALPN extension, in the client's order.
    pub alpn: Vec<Vec<u8>>,
}

impl ClientHello {
    /// Returns true if the client is a sidecar that speaks the mesh's mutual TLS.
    #[must_use]
    pub fn is_mesh(&self) -> bool {
        self.alpn.iter().any(|name| crate::alpn::is_mesh(name))
    }
}

/// Why the bytes are no complete ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelloError {
    /// So far it could be one.
    NeedMore,
    /// It is not, and will not become one.
    Malformed,
}

const RECORD_HANDSHAKE: u8 = 22;
const RECORD_HEADER: usize = 5;
/// TLSPlaintext.length (RFC 8446, 5.1).
const MAX_RECORD: usize = 1 << 14;
const CLIENT_HELLO: u8 = 1;
const HANDSHAKE_HEADER: usize = 4;
/// A ClientHello larger than one record is legal and unknown in the wild; larger ones are not ours to read.
const MAX_HELLO: usize = MAX_RECORD;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ALPN: u16 = 16;
/// Longest DNS name in presentation form.
const MAX_NAME: usize = 253;

/// Reads a ClientHello from the start of `bytes`, which may hold more after it.
///
/// # Errors
/// `NeedMore` while every byte so far fits, `Malformed` as soon as one does not.
pub(crate) fn parse(bytes: &[u8]) -> Result<ClientHello, HelloError> {
    let mut joined = Vec::new();
    let mut rest = bytes;
    loop {
        let (fragment, complete, after) = record(rest)?;
        if joined.is_empty() {
            match message(fragment) {
                Err(HelloError::NeedMore) if complete => {}
                other => return other,
            }
        }
        joined.extend_from_slice(fragment);
        match message(&joined) {
            Err(HelloError::NeedMore) if complete => rest = after,
            other => return other,
        }
        if joined.len() > MAX_HELLO {
            return Err(HelloError::Malformed);
        }
    }
}

/// Splits off one handshake record: its payload so far, if that is complete, and the rest.
fn record(bytes: &[u8]) -> Result<(&[u8], bool, &[u8]), HelloError> {
    let check = |at: usize, good: fn(u8) -> bool| bytes.get(at).is_none_or(|byte| good(*byte));
    if !check(0, |b| b == RECORD_HANDSHAKE) || !check(1, |b| b == 3) || !check(2, |b| b <= 4) {
        return Err(HelloError::Malformed);
    }
    let Some(header) = bytes.get(..RECORD_HEADER) else {
        return Err(HelloError::NeedMore);
    };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length == 0 || length > MAX_RECORD {
        return Err(HelloError::Malformed);
    }
    let body = &bytes[RECORD_HEADER..];
    if body.len() < length {
        Ok((body, false, &[]))
    } else {
        Ok((&body[..length], true, &body[length..]))
    }
}

/// Reads a ClientHello as QUIC carries it: the handshake message without records, perhaps not all here.
///
/// # Errors
/// As [`HelloError`] says.
pub fn message(bytes: &[u8]) -> Result<ClientHello, HelloError> {
    if bytes.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(HelloError::Malformed);
    }
    let Some(header) = bytes.get(..HANDSHAKE_HEADER) else {
        return Err(HelloError::NeedMore);
    };
    let length =
        usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]);
    if length > MAX_HELLO {
        return Err(HelloError::Malformed);
    }
    match bytes.get(HANDSHAKE_HEADER..HANDSHAKE_HEADER + length) {
        Some(body) => hello(body).ok_or(HelloError::Malformed),
        None => Err(HelloError::NeedMore),
    }
}

fn hello(body: &[u8]) -> Option<ClientHello> {
    let mut reader = Reader(body);
    let version = reader.u16()?;
    if version >> 8 != 3 {
        return None;
    }
    reader.take(32)?;
    let session = reader.vector8()?;
    let suites = reader.vector16()?;
    let compression = reader.vector8()?;
    if session.0.len() > 32
        || suites.0.is_empty()
        || suites.0.len() % 2 != 0
        || compression.0.is_empty()
    {
        return None;
    }
    let mut answer = ClientHello::default();
    if reader.0.is_empty() {
        return Some(answer);
    }
    let mut extensions = reader.vector16()?;
    if !reader.0.is_empty() {
        return None;
    }
    let (mut named, mut negotiated) = (false, false);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let value = extensions.vector16()?;
        match kind {
            EXTENSION_SERVER_NAME if !std::mem::replace(&mut named, true) => {
                answer.server_name = server_name(value)?;
            }
            EXTENSION_ALPN if !std::mem::replace(&mut negotiated, true) => {
                answer.alpn = protocols(value)?;
            }
            // An extension that comes twice is ambiguous, so the ClientHello is refused.
            EXTENSION_SERVER_NAME | EXTENSION_ALPN => return None,
            _ => {}
        }
    }
    Some(answer)
}

/// RFC 6066: a list in which exactly one host_name may stand. `Some(None)` is a list without one.
fn server_name(mut value: Reader<'_>) -> Option<Option<String>> {
    let mut list = value.vector16()?;
    if !value.0.is_empty() || list.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !list.0.is_empty() {
        let kind = list.u8()?;
        let name = list.vector16()?.0;
        if kind != 0 {
            continue;
        }
        let good = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if found.is_some() || name.is_empty() || name.len() > MAX_NAME || !name.iter().all(good) {
            return None;
        }
        found = Some(String::from_utf8(name.to_vec()).ok()?);
    }
    Some(found)
}

/// RFC 7301: at least one name, none empty.
fn protocols(mut value: Reader<'_>) -> Option<Vec<Vec<u8>>> {
    let mut list = value.vector16()?;
    if !value.0.is_empty() || list.0.is_empty() {
        return None;
    }
    let mut names = Vec::new();
    while !list.0.is_empty() {
        let name = list.vector8()?.0;
        if name.is_empty() {
            return None;
        }
        names.push(name.to_vec());
    }
    Some(names)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)
            .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn vector8(&mut self) -> Option<Reader<'a>> {
        let length = self.u8()?;
        self.take(usize::from(length)).map(Reader)
    }

    fn vector16(&mut self) -> Option<Reader<'a>> {
        let length = self.u16()?;
        self.take(usize::from(length)).map(Reader)
    }
}

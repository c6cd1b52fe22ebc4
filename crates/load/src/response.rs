//! A strict HTTP/1.1 response reader that is fed bytes as they come: what a load generator needs to know where a
//! response ends, what it said, and whether the connection may be used again. No I/O.

use std::fmt;

/// The largest response head accepted.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The most header fields accepted in a head.
const MAX_HEADERS: usize = 128;
/// The longest line between chunks (size with extensions, or a trailer field).
const MAX_CHUNK_LINE_BYTES: usize = 8 * 1024;

/// A response that has wholly arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Bytes of body, without chunk framing.
    pub body: u64,
    /// The connection may not be used again.
    pub close: bool,
}

/// Why bytes are not an HTTP/1.1 response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    UntilClose,
    ChunkLine,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
}

/// Reads the response to one request after the other.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// A head or chunk line of which only a part has come; empty in steady state.
    partial: Vec<u8>,
    status: u16,
    body: u64,
    close: bool,
    head_request: bool,
    begun: bool,
}

impl Reader {
    /// A reader for responses to GET-like requests, or to HEAD, which have no body whatever they say.
    #[must_use]
    pub fn new(head_request: bool) -> Self {
        let state = State::Head;
        Self {
            state,
            partial: Vec::new(),
            status: 0,
            body: 0,
            close: false,
            head_request,
            begun: false,
        }
    }

    /// Forgets a response begun: for a new connection.
    pub fn reset(&mut self) {
        self.state = State::Head;
        self.partial.clear();
        self.begun = false;
        self.body = 0;
    }

    /// Whether a part of a response has been seen.
    #[must_use]
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// Takes bytes; returns how many were used, and the response once it is whole. Bytes beyond it are left alone.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Response>), Malformed> {
        let mut used = 0;
        while used < bytes.len() {
            self.begun = true;
            let rest = &bytes[used..];
            let (count, whole) = match self.state {
                State::Head => self.head(rest)?,
                State::Length(left) => self.length(rest, left),
                State::UntilClose => {
                    self.body += rest.len() as u64;
                    (rest.len(), false)
                }
                State::ChunkLine => (self.chunk_line(rest)?, false),
                State::ChunkData(left) => (self.chunk_data(rest, left), false),
                State::ChunkEnd => (self.chunk_end(rest)?, false),
                State::Trailer => self.trailer(rest)?,
            };
            used += count;
            if whole {
                return Ok((used, Some(self.finish())));
            }
        }
        Ok((used, None))
    }

    /// The peer has closed: the response, if closing was its proper end.
    pub fn end_of_stream(&mut self) -> Option<Response> {
        (self.state == State::UntilClose).then(|| self.finish())
    }

    fn finish(&mut self) -> Response {
        let response = Response {
            status: self.status,
            body: self.body,
            close: self.close,
        };
        self.reset();
        response
    }

    fn head(&mut self, bytes: &[u8]) -> Result<(usize, bool), Malformed> {
        if self.partial.is_empty() {
            return match self.parse_head(bytes)? {
                Some(result) => Ok(result),
                None => {
                    self.partial.extend_from_slice(bytes);
                    Ok((bytes.len(), false))
                }
            };
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let joined = std::mem::take(&mut self.partial);
        let result = self.parse_head(&joined);
        self.partial = joined;
        match result? {
            Some((used, whole)) => {
                self.partial.clear();
                Ok((used.saturating_sub(before), whole))
            }
            None => Ok((bytes.len(), false)),
        }
    }

    /// Parses a whole head and chooses how the body ends; none when the head is not all there.
    fn parse_head(&mut self, bytes: &[u8]) -> Result<Option<(usize, bool)>, Malformed> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut fields);
        let used = match head.parse(bytes) {
            Ok(httparse::Status::Complete(used)) if used <= MAX_HEAD_BYTES => used,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
            Ok(_) => return Err(Malformed("response head larger than 64 KiB")),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Malformed("more than 128 header fields"));
            }
            Err(_) => return Err(Malformed("not an HTTP/1.1 response head")),
        };
        let status = head.code.unwrap_or(0);
        let framing = Framing::of(head.headers, head.version == Some(1))?;
        if (100..200).contains(&status) && status != 101 {
            // Interim: the final response follows.
            return Ok(Some((used, false)));
        }
        self.status = status;
        self.body = 0;
        self.close = framing.close || status == 101;
        let bodyless = self.head_request || matches!(status, 101 | 204 | 304);
        self.state = match (bodyless, framing.chunked, framing.length) {
            (true, ..) | (false, false, Some(0)) => return Ok(Some((used, true))),
            (false, true, _) => State::ChunkLine,
            (false, false, Some(length)) => State::Length(length),
            (false, false, None) => {
                self.close = true;
                State::UntilClose
            }
        };
        Ok(Some((used, false)))
    }

    fn length(&mut self, bytes: &[u8], left: u64) -> (usize, bool) {
        let taken = left.min(bytes.len() as u64);
        self.body += taken;
        self.state = State::Length(left - taken);
        (taken as usize, taken == left)
    }

    fn chunk_data(&mut self, bytes: &[u8], left: u64) -> usize {
        let taken = left.min(bytes.len() as u64);
        self.body += taken;
        self.state = if taken == left {
            State::ChunkEnd
        } else {
            State::ChunkData(left - taken)
        };
        taken as usize
    }

    fn chunk_end(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let (used, line) = self.line(bytes)?;
        match line.as_deref() {
            None => {}
            Some(b"") => self.state = State::ChunkLine,
            Some(_) => return Err(Malformed("chunk longer than its size")),
        }
        Ok(used)
    }

    fn chunk_line(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let (used, line) = self.line(bytes)?;
        if let Some(line) = line {
            self.state = match chunk_size(&line)? {
                0 => State::Trailer,
                size => State::ChunkData(size),
            };
        }
        Ok(used)
    }

    fn trailer(&mut self, bytes: &[u8]) -> Result<(usize, bool), Malformed> {
        let (used, line) = self.line(bytes)?;
        match line {
            Some(line) if line.is_empty() => Ok((used, true)),
            Some(line) if !line.contains(&b':') => Err(Malformed("trailer field without a colon")),
            _ => Ok((used, false)),
        }
    }

    /// Takes bytes up to and with CRLF; the line without it, once it is whole.
    fn line(&mut self, bytes: &[u8]) -> Result<(usize, Option<Vec<u8>>), Malformed> {
        let end = memchr::memchr(b'\n', bytes).map(|at| at + 1);
        let used = end.unwrap_or(bytes.len());
        if self.partial.len() + used > MAX_CHUNK_LINE_BYTES {
            return Err(Malformed("line between chunks longer than 8 KiB"));
        }
        self.partial.extend_from_slice(&bytes[..used]);
        if end.is_none() {
            return Ok((used, None));
        }
        let mut line = std::mem::take(&mut self.partial);
        if !line.ends_with(b"\r\n") {
            return Err(Malformed("line between chunks ends without CR"));
        }
        line.truncate(line.len() - 2);
        Ok((used, Some(line)))
    }
}

/// The hexadecimal size of a chunk line; extensions are ignored.
pub(crate) fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii_end();
    // 15 digits cannot overflow, and no honest chunk is a petabyte.
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(Malformed("chunk size is not a hexadecimal number"));
    }
    Ok(digits.iter().fold(0, |size, digit| {
        size * 16 + u64::from((*digit as char).to_digit(16).unwrap_or(0))
    }))
}

/// What the header fields say about where a message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Framing {
    pub(crate) length: Option<u64>,
    pub(crate) chunked: bool,
    pub(crate) close: bool,
}

impl Framing {
    /// Refuses what two readers could understand in two ways.
    pub(crate) fn of(fields: &[httparse::Header<'_>], http11: bool) -> Result<Self, Malformed> {
        let mut framing = Self {
            length: None,
            chunked: false,
            close: !http11,
        };
        for field in fields {
            if field.name.eq_ignore_ascii_case("content-length") {
                let length = content_length(field.value)?;
                if framing.length.is_some_and(|before| before != length) {
                    return Err(Malformed("two different Content-Length fields"));
                }
                framing.length = Some(length);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                if framing.chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed("Transfer-Encoding other than one chunked"));
                }
                framing.chunked = true;
            } else if field.name.eq_ignore_ascii_case("connection") {
                for option in field.value.split(|byte| *byte == b',') {
                    let option = option.trim_ascii();
                    if option.eq_ignore_ascii_case(b"close") {
                        framing.close = true;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") && !http11 {
                        framing.close = false;
                    }
                }
            }
        }
        if framing.chunked && framing.length.is_some() {
            return Err(Malformed("both Content-Length and Transfer-Encoding"));
        }
        Ok(framing)
    }
}

fn content_length(value: &[u8]) -> Result<u64, Malformed> {
    // 18 digits cannot overflow a u64.
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed("Content-Length is not a number"));
    }
    Ok(value
        .iter()
        .fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}

//! Framing of HTTP/1.1 messages from their header fields, and a decoder that takes the body in pieces. Client and echo server use
//! both. Strict: the reader refuses a message that two readers could understand in two ways.

use std::fmt;

/// The longest line between chunks (size with extensions, or a trailer field).
const MAX_CHUNK_LINE_BYTES: usize = 8 * 1024;

/// Reason why bytes are not an HTTP/1.1 message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// Framing of a message's body, as the header fields declare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Framing {
    pub(crate) length: Option<u64>,
    pub(crate) chunked: bool,
    pub(crate) close: bool,
}

impl Framing {
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
                if framing.chunked || !http11 || !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed("Transfer-Encoding other than one chunked"));
                }
                framing.chunked = true;
            } else if field.name.eq_ignore_ascii_case("connection") {
                framing.connection(field.value, http11);
            }
        }
        if framing.chunked && framing.length.is_some() {
            return Err(Malformed("both Content-Length and Transfer-Encoding"));
        }
        Ok(framing)
    }

    fn connection(&mut self, value: &[u8], http11: bool) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") && !http11 {
                self.close = false;
            }
        }
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

/// The hexadecimal size of a chunk line; extensions are ignored.
fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyState {
    Length(u64),
    UntilClose,
    ChunkLine,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    Whole,
}

/// Decodes one body after the other.
#[derive(Debug)]
pub(crate) struct Body {
    state: BodyState,
    /// A line between chunks of which only a part has come.
    line: Vec<u8>,
}

impl Body {
    pub(crate) fn new() -> Self {
        Self {
            state: BodyState::Whole,
            line: Vec::new(),
        }
    }

    /// Begins a body of known length.
    pub(crate) fn begin_length(&mut self, length: u64) {
        self.begin(if length == 0 {
            BodyState::Whole
        } else {
            BodyState::Length(length)
        });
    }

    /// Begins a chunked body.
    pub(crate) fn begin_chunked(&mut self) {
        self.begin(BodyState::ChunkLine);
    }

    /// Begins a body that lasts until the connection closes.
    pub(crate) fn begin_until_close(&mut self) {
        self.begin(BodyState::UntilClose);
    }

    fn begin(&mut self, state: BodyState) {
        self.state = state;
        self.line.clear();
    }

    /// All of the body has been seen.
    pub(crate) fn whole(&self) -> bool {
        self.state == BodyState::Whole
    }

    /// The end of the stream is the proper end of this body.
    pub(crate) fn ends_with_stream(&self) -> bool {
        self.state == BodyState::UntilClose
    }

    /// Takes bytes, passes the body's own to `sink`, and returns how many were used: all, unless the body ends.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<usize, Malformed> {
        let mut used = 0;
        while used < bytes.len() && !self.whole() {
            let rest = &bytes[used..];
            used += match self.state {
                BodyState::Length(left) => {
                    let taken = take(rest, left, sink);
                    self.state = match left - taken {
                        0 => BodyState::Whole,
                        left => BodyState::Length(left),
                    };
                    taken as usize
                }
                BodyState::ChunkData(left) => {
                    let taken = take(rest, left, sink);
                    self.state = match left - taken {
                        0 => BodyState::ChunkEnd,
                        left => BodyState::ChunkData(left),
                    };
                    taken as usize
                }
                BodyState::UntilClose => {
                    sink(rest);
                    rest.len()
                }
                BodyState::ChunkLine | BodyState::ChunkEnd | BodyState::Trailer => {
                    self.between_chunks(rest)?
                }
                BodyState::Whole => 0,
            };
        }
        Ok(used)
    }

    fn between_chunks(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let end = memchr::memchr(b'\n', bytes).map(|at| at + 1);
        let used = end.unwrap_or(bytes.len());
        if self.line.len() + used > MAX_CHUNK_LINE_BYTES {
            return Err(Malformed("line between chunks longer than 8 KiB"));
        }
        self.line.extend_from_slice(&bytes[..used]);
        if end.is_none() {
            return Ok(used);
        }
        let Some(line) = self.line.strip_suffix(b"\r\n") else {
            return Err(Malformed("line between chunks ends without CR"));
        };
        self.state = match self.state {
            BodyState::ChunkEnd if line.is_empty() => BodyState::ChunkLine,
            BodyState::ChunkEnd => return Err(Malformed("chunk longer than its size")),
            BodyState::ChunkLine => match chunk_size(line)? {
                0 => BodyState::Trailer,
                size => BodyState::ChunkData(size),
            },
            BodyState::Trailer if line.is_empty() => BodyState::Whole,
            BodyState::Trailer if !line.contains(&b':') => {
                return Err(Malformed("trailer field without a colon"));
            }
            state => state,
        };
        self.line.clear();
        Ok(used)
    }
}

fn take(bytes: &[u8], left: u64, sink: &mut impl FnMut(&[u8])) -> u64 {
    let taken = left.min(bytes.len() as u64);
    sink(&bytes[..taken as usize]);
    taken
}

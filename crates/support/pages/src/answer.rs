//! An HTTP/1 answer: status, fields, and the body's data. The head is read as leniently as the kubelet's client does, because
//! nothing of it is forwarded.

use std::fmt;
use std::io::{self, Read};

/// The largest head of an answer with the informational ones before it, in bytes: as much as servers commonly send.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Fields of a head that are read at most.
const MAX_FIELDS: usize = 128;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Reason why bytes are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerError {
    /// The head is not of HTTP/1.
    Head(httparse::Error),
    /// The status is below 100.
    Status,
    /// The head is larger than [`MAX_HEAD_BYTES`].
    LargeHead,
    /// The connection ended before the end of the head.
    NoHead,
    /// The connection ended within the body.
    CutBody,
    /// A chunk's head or end is wrong.
    Chunk,
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, "the answer is not HTTP/1: {error}"),
            Self::Status => f.write_str("the answer is not HTTP/1: the status is below 100"),
            Self::LargeHead => {
                write!(
                    f,
                    "the head of the answer is larger than {MAX_HEAD_BYTES} bytes"
                )
            }
            Self::NoHead => f.write_str("the connection ended before an answer"),
            Self::CutBody => f.write_str("the connection ended within the answer's body"),
            Self::Chunk => f.write_str("a chunk of the answer's body is malformed"),
        }
    }
}

impl std::error::Error for AnswerError {}

impl From<AnswerError> for io::Error {
    fn from(error: AnswerError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Part of an answer that comes next (RFC 9112, sections 6 and 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Part {
    #[default]
    Head,
    /// So many bytes, and then the end.
    Length(u64),
    UntilClose,
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    End,
}

/// An answer to a `GET` or `POST`.
#[derive(Debug, Default)]
pub struct Answer {
    next: Part,
    /// Bytes that came and are not understood yet.
    bytes: Vec<u8>,
    /// Bytes of all heads, the informational ones included.
    head_bytes: usize,
    status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    /// Takes the next bytes of the connection; none means that it ended. Returns true once the answer is whole.
    ///
    /// # Errors
    /// When the bytes are not HTTP/1, or the connection ended too early.
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, AnswerError> {
        if bytes.is_empty() {
            return match self.next {
                Part::Head => Err(AnswerError::NoHead),
                Part::UntilClose | Part::End => Ok(true),
                _ => Err(AnswerError::CutBody),
            };
        }
        let mut came = std::mem::take(&mut self.bytes);
        came.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((used, next)) = self.step(&came[at..])? {
            at += used;
            self.next = next;
        }
        came.drain(..at);
        self.bytes = came;
        Ok(self.next == Part::End)
    }

    /// Reads one part: bytes it took, and the part after it. None if more bytes are needed.
    fn step(&mut self, bytes: &[u8]) -> Result<Option<(usize, Part)>, AnswerError> {
        Ok(match self.next {
            Part::Head => return self.read_head(bytes),
            Part::End => None,
            _ if bytes.is_empty() => None,
            Part::Length(left) => {
                let (used, left) = take(&mut self.body, bytes, left);
                Some((
                    used,
                    if left == 0 {
                        Part::End
                    } else {
                        Part::Length(left)
                    },
                ))
            }
            Part::UntilClose => {
                self.body.extend_from_slice(bytes);
                Some((bytes.len(), Part::UntilClose))
            }
            Part::ChunkSize => match httparse::parse_chunk_size(bytes) {
                Ok(httparse::Status::Complete((used, 0))) => Some((used, Part::Trailers)),
                Ok(httparse::Status::Complete((used, size))) => Some((used, Part::ChunkData(size))),
                Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => None,
                _ => return Err(AnswerError::Chunk),
            },
            Part::ChunkData(left) => {
                let (used, left) = take(&mut self.body, bytes, left);
                Some((
                    used,
                    if left == 0 {
                        Part::ChunkEnd
                    } else {
                        Part::ChunkData(left)
                    },
                ))
            }
            Part::ChunkEnd if bytes.starts_with(b"\r\n") => Some((2, Part::ChunkSize)),
            Part::ChunkEnd if bytes == b"\r" => None,
            Part::ChunkEnd => return Err(AnswerError::Chunk),
            // Their text does not matter.
            Part::Trailers if bytes.starts_with(b"\r\n") => Some((2, Part::End)),
            Part::Trailers => match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(at) => Some((at + 4, Part::End)),
                None if bytes.len() < MAX_HEAD_BYTES => None,
                None => return Err(AnswerError::Chunk),
            },
        })
    }

    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<(usize, Part)>, AnswerError> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut head = httparse::Response::new(&mut fields);
        let mut lenient = httparse::ParserConfig::default();
        lenient
            .allow_obsolete_multiline_headers_in_responses(true)
            .allow_spaces_after_header_name_in_responses(true)
            .ignore_invalid_headers_in_responses(true);
        let parsed = lenient.parse_response(&mut head, bytes);
        let httparse::Status::Complete(used) = parsed.map_err(AnswerError::Head)? else {
            return match self.head_bytes + bytes.len() > MAX_HEAD_BYTES {
                true => Err(AnswerError::LargeHead),
                false => Ok(None),
            };
        };
        self.head_bytes += used;
        if self.head_bytes > MAX_HEAD_BYTES {
            return Err(AnswerError::LargeHead);
        }
        self.status = head.code.unwrap_or_default();
        let text = |field: &httparse::Header<'_>| {
            let value = String::from_utf8_lossy(field.value);
            (field.name.to_ascii_lowercase(), value.trim().to_owned())
        };
        self.fields = head.headers.iter().map(text).collect();
        let length = self
            .field("content-length")
            .and_then(|length| length.parse().ok());
        let next = match (self.status, self.field("transfer-encoding"), length) {
            (0..100, ..) => return Err(AnswerError::Status),
            // Informational responses, such as 103, come first.
            (102..200 | 100, ..) => Part::Head,
            (101 | 204 | 304, ..) | (_, None, Some(0)) => Part::End,
            (_, Some(_), _) => Part::ChunkSize,
            (_, None, Some(length)) => Part::Length(length),
            (_, None, None) => Part::UntilClose,
        };
        Ok(Some((used, next)))
    }

    /// The status; 0 before the head came.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The first field of this name, which is in small letters.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut own = self.fields.iter().filter(|(field, _)| field == name);
        own.next().map(|(_, value)| &**value)
    }

    /// The body's data that came.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The same, taken.
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Reads an answer until it is whole, or until more than `limit` bytes of its body came, which the caller judges.
    ///
    /// # Errors
    /// When reading fails, or as [`Answer::push`].
    pub fn read(stream: &mut impl Read, limit: usize) -> io::Result<Self> {
        let mut answer = Self::default();
        let mut bytes = [0; READ_BYTES];
        while answer.body.len() <= limit {
            let read = match stream.read(&mut bytes) {
                // TLS that ends without a farewell ends the connection all the same.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if answer.push(&bytes[..read])? {
                break;
            }
        }
        Ok(answer)
    }
}

/// Moves as many bytes to the body as there are and are left; how many, and how many are left then.
fn take(body: &mut Vec<u8>, bytes: &[u8], left: u64) -> (usize, u64) {
    let used = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
    body.extend_from_slice(&bytes[..used]);
    (used, left - used as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that come at once, and then the end of the connection.
    fn read(bytes: &[u8]) -> Result<Answer, String> {
        Answer::read(&mut &*bytes, 1 << 20).map_err(|error| error.to_string())
    }

    #[test]
    fn answers_are_read_or_refused() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n", "a".repeat(32 * 1024));
        for (bytes, expected) in [
            ("HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody", Ok((200, "body"))),
            (
                "HTTP/1.0 503 no\r\nCONTENT-length: 2\r\n\r\nnon",
                Ok((503, "no")),
            ),
            (
                "HTTP/1.1 200 x\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
                Ok((200, "abcde")),
            ),
            (
                "HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
                Ok((204, "")),
            ),
            ("HTTP/1.1 304 x\r\nContent-Length: 7\r\n\r\n", Ok((304, ""))),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nab",
                Err("within the answer's body"),
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab",
                Err("within the answer's body"),
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nab",
                Err("chunk"),
            ),
            ("HTTP/1.1 200 OK\r\n", Err("ended before an answer")),
            ("HTTP/1.1 99 x\r\n\r\n", Err("not HTTP/1")),
            ("HTTP/1.1 +20 x\r\n\r\n", Err("not HTTP/1")),
            ("SSH-2.0-x\r\n\r\n", Err("not HTTP/1")),
            ("", Err("ended before an answer")),
            (&long, Err("larger than")),
        ] {
            match (read(bytes.as_bytes()), expected) {
                (Ok(answer), Ok((status, body))) => {
                    let found = (answer.status(), answer.body());
                    assert_eq!(found, (status, body.as_bytes()), "{bytes:?}");
                }
                (Err(said), Err(part)) => assert!(said.contains(part), "{bytes:?}: {said}"),
                (found, _) => panic!("{bytes:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn informational_heads_without_end_are_refused() {
        let mut answer = Answer::default();
        let pushed = (0..MAX_HEAD_BYTES).map(|_| answer.push(b"HTTP/1.1 103 Hints\r\n\r\n"));
        let refused = pushed.into_iter().find_map(Result::err);
        assert_eq!(refused, Some(AnswerError::LargeHead));
    }

    #[test]
    fn an_answer_is_the_same_in_whatever_pieces_it_comes() {
        let whole = b"HTTP/1.1 100 x\r\n\r\nHTTP/1.1 302 x\r\nLocation: /y\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n4;x=y\r\nb 2\n\r\n0\r\n\r\n";
        for at in 1..whole.len() {
            let mut answer = Answer::default();
            assert_eq!(answer.push(&whole[..at]), Ok(false), "{at}");
            assert_eq!(answer.push(&whole[at..]), Ok(true), "{at}");
            assert_eq!(answer.field("location"), Some("/y"));
            assert_eq!((answer.status(), answer.body()), (302, &b"a 1\nb 2\n"[..]));
        }
    }

    #[test]
    fn no_byte_flipped_or_cut_of_an_answer_makes_more_of_it_than_an_answer() {
        let good =
            b"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 302 x\r\nLocation: /y\r\nContent-Length: 3\r\n\r\nabc";
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut changed = good.to_vec();
                changed[at] = value;
                for cut in [changed.len(), at] {
                    if let Ok(answer) = read(&changed[..cut]) {
                        assert!((100..1000).contains(&answer.status()), "{answer:?}");
                        assert!(answer.body().len() <= good.len());
                    }
                }
            }
        }
    }
}

//! A strict HTTP/1.1 response reader that takes bytes as they come. It finds the end of a response, its status, and if the
//! connection may be used again. No I/O.

use std::mem::MaybeUninit;

pub use crate::body::Malformed;
use crate::body::{Body, Framing};

/// The largest response head accepted.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The most header fields accepted in a head.
const MAX_HEADERS: usize = 128;
/// The longest head that is remembered, so that the same one need not be parsed again.
const MAX_KNOWN_BYTES: usize = 2 * 1024;

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

/// Reads the response to one request after the other.
#[derive(Debug)]
pub struct Reader {
    /// A head of which only a part has come; empty in steady state.
    partial: Vec<u8>,
    in_body: bool,
    body: Body,
    response: Response,
    head_request: bool,
    begun: bool,
    known: CachedResponseHead,
}

/// The last final head and its meaning. A server under load repeats its head, and equal bytes have equal meaning.
#[derive(Debug, Default)]
struct CachedResponseHead {
    bytes: Vec<u8>,
    meaning: Option<(u16, Framing)>,
}

impl Reader {
    /// A reader for responses to GET-like requests, or to HEAD, whose responses have no body even if their head declares one.
    #[must_use]
    pub fn new(head_request: bool) -> Self {
        let response = Response {
            status: 0,
            body: 0,
            close: false,
        };
        let (partial, body) = (Vec::new(), Body::new());
        Self {
            partial,
            in_body: false,
            body,
            response,
            head_request,
            begun: false,
            known: CachedResponseHead::default(),
        }
    }

    /// The next response is to a HEAD request, or not.
    pub fn set_head_request(&mut self, head: bool) {
        self.head_request = head;
    }

    /// Forgets a response begun: for a new connection.
    pub fn reset(&mut self) {
        self.partial.clear();
        self.in_body = false;
        self.begun = false;
    }

    /// Reports if a part of a response has come.
    #[must_use]
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// Takes bytes; returns how many were used, and the response once it is whole. Bytes beyond it are left alone.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Response>), Malformed> {
        self.feed_into(bytes, &mut |_| {})
    }

    /// As [`Reader::feed`], passing the bytes of the body on.
    pub fn feed_into(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Response>), Malformed> {
        let mut used = 0;
        self.begun |= !bytes.is_empty();
        while used < bytes.len() {
            if !self.in_body {
                used += self.head(&bytes[used..])?;
            }
            if self.in_body {
                let length = &mut self.response.body;
                used += self.body.feed(&bytes[used..], &mut |part: &[u8]| {
                    *length += part.len() as u64;
                    sink(part);
                })?;
                if self.body.whole() {
                    self.reset();
                    return Ok((used, Some(self.response)));
                }
            }
        }
        Ok((used, None))
    }

    /// The peer has closed: the response, if closing was its proper end.
    pub fn end_of_stream(&mut self) -> Option<Response> {
        let proper = self.in_body && self.body.ends_with_stream();
        self.reset();
        proper.then_some(self.response)
    }

    /// Uses bytes of a head; afterwards the body has begun, or all bytes are kept.
    fn head(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        if self.partial.is_empty() {
            return Ok(self.parse_head(bytes)?.unwrap_or_else(|| {
                self.partial.extend_from_slice(bytes);
                bytes.len()
            }));
        }
        let before = self.partial.len();
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(bytes);
        let parsed = self.parse_head(&joined)?;
        if let Some(used) = parsed {
            // The head did not end within what had come before, so it ends in the new bytes.
            return Ok(used.saturating_sub(before));
        }
        self.partial = joined;
        Ok(bytes.len())
    }

    /// Parses a whole head and begins its body, unless it is interim; none when the head is not all there.
    fn parse_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        // A head ends with an empty line, so one that begins with a known head is that head.
        if let Some((status, framing)) = self.known.meaning
            && bytes.starts_with(&self.known.bytes)
        {
            self.begin_body(status, framing);
            return Ok(Some(self.known.bytes.len()));
        }
        let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut []);
        let parser = httparse::ParserConfig::default();
        let used = match parser.parse_response_with_uninit_headers(&mut head, bytes, &mut fields) {
            Ok(httparse::Status::Complete(used)) if used <= MAX_HEAD_BYTES => used,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
            Ok(_) => return Err(Malformed("response head larger than 64 KiB")),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Malformed("more than 128 header fields"));
            }
            Err(_) => return Err(Malformed("not an HTTP/1.1 response head")),
        };
        let status = head.code.unwrap_or(0);
        if !(100..=999).contains(&status) {
            return Err(Malformed("status code below 100"));
        }
        let framing = Framing::of(head.headers, head.version == Some(1))?;
        if (100..200).contains(&status) && status != 101 {
            // Interim: the final response follows.
            return Ok(Some(used));
        }
        self.known.bytes.clear();
        self.known.meaning = (used <= MAX_KNOWN_BYTES).then_some((status, framing));
        if self.known.meaning.is_some() {
            self.known.bytes.extend_from_slice(&bytes[..used]);
        }
        self.begin_body(status, framing);
        Ok(Some(used))
    }

    fn begin_body(&mut self, status: u16, framing: Framing) {
        self.response = Response {
            status,
            body: 0,
            close: framing.close || status == 101,
        };
        self.in_body = true;
        if self.head_request || matches!(status, 101 | 204 | 304) {
            self.body.begin_length(0);
        } else if framing.chunked {
            self.body.begin_chunked();
        } else if let Some(length) = framing.length {
            self.body.begin_length(length);
        } else {
            self.response.close = true;
            self.body.begin_until_close();
        }
    }
}

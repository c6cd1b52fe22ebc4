//! A request head: parsed in place, kept as positions, read through a borrowed view.

use crate::bytes::{METHOD, TARGET};
use crate::fields::{Fields, KnownField, Span, list};
use crate::framing::{self, Framing, Version};
use crate::reject::Reject;
use crate::scan::{HeadScanner, ScannedLine, StartLineKind};
use crate::target::{self, RequestTarget};

/// State of reading a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Partial,
    /// The head ends at [`RequestIndex::head_len`] (or [`crate::ResponseIndex::head_len`]).
    Complete,
}

/// Positions of a request head's parts; reusable, so that parsing allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct RequestIndex {
    scanner: HeadScanner,
    /// The method's length and the version, once that line was complete.
    start_line: (usize, Version),
    pub(crate) fields: Fields,
    pub(crate) start: usize,
    pub(crate) line_end: usize,
    head_len: usize,
    method: Span,
    pub(crate) target: RequestTarget,
    pub(crate) host: Option<Span>,
    pub(crate) version: Version,
    framing: Framing,
    keep_alive: bool,
    expects_continue: bool,
    upgrade: bool,
    connect: bool,
}

impl RequestIndex {
    /// Forgets the last head and starts at the beginning of a buffer.
    pub fn reset(&mut self) {
        self.scanner = HeadScanner::default();
        self.head_len = 0;
    }

    /// Parses the head at the start of `bytes`, which holds everything of earlier calls since [`Self::reset`] and more.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Progress, Reject> {
        let (start_line, fields) = (&mut self.start_line, &mut self.fields);
        let layout = self.scanner.scan(bytes, StartLineKind::Request, |line| {
            match line {
                ScannedLine::Start(line) => *start_line = request_line(line)?,
                ScannedLine::Field(number, end) => fields.note_end(number, end),
            }
            Ok(())
        })?;
        let Some(layout) = layout else {
            return Ok(Progress::Partial);
        };
        self.start = layout.start;
        self.line_end = layout.line_end;
        self.head_len = layout.end;
        let (method_len, version) = self.start_line;
        let target_at = layout.start + method_len + 1;
        let target = &bytes[target_at..layout.line_end - VERSION_LEN];
        self.method = Span::new(layout.start, layout.start + method_len);
        self.version = version;
        let method = self.method.of(bytes);
        self.connect = method == target::CONNECT;
        self.fields.parse(bytes, &layout)?;
        self.target = target::parse(method, target, target_at)?;
        self.check_fields(bytes)?;
        Ok(Progress::Complete)
    }

    /// Bytes of the complete head, skipped empty lines included.
    pub fn head_len(&self) -> usize {
        self.head_len
    }

    /// Field lines of the complete head; the caller holds a client to [`crate::MAX_HEADERS`].
    pub fn field_count(&self) -> usize {
        self.fields.all().len()
    }

    /// Reads the head through this index. `bytes` must be the buffer it was parsed from.
    pub fn head<'a>(&'a self, bytes: &'a [u8]) -> RequestHead<'a> {
        RequestHead { bytes, index: self }
    }

    fn check_fields(&mut self, bytes: &[u8]) -> Result<(), Reject> {
        let options = self.fields.connection(bytes, true)?;
        self.framing = framing::declared(&self.fields, bytes, self.version)?.unwrap_or_default();
        if self.connect {
            // The bytes after CONNECT are for the tunnel's target, or there are none.
            match std::mem::take(&mut self.framing) {
                Framing::None | Framing::Length(0) => {}
                _ => return Err(Reject::Connect),
            }
        }
        self.host = None;
        self.expects_continue = false;
        let (mut upgrade, mut upgrade_to_http2) = (false, false);
        for field in self.fields.all() {
            let value = field.value.of(bytes);
            match field.known {
                KnownField::Host if self.host.is_some() || !target::is_authority(value) => {
                    return Err(Reject::Host);
                }
                KnownField::Host => self.host = Some(field.value),
                // CONNECT has no body to hold back, and a client that waits holds up a tunnel.
                KnownField::Expect if self.connect => return Err(Reject::Expectation),
                KnownField::Expect if value.eq_ignore_ascii_case(b"100-continue") => {
                    // RFC 9110 section 10.1.1: ignored from HTTP/1.0.
                    self.expects_continue = self.version == Version::Http11;
                }
                KnownField::Expect => return Err(Reject::Expectation),
                KnownField::Upgrade => {
                    upgrade = true;
                    upgrade_to_http2 |= list(value).any(is_http2_token);
                }
                _ => {}
            }
        }
        if self.host.is_none() && self.version == Version::Http11 {
            return Err(Reject::Host);
        }
        // An upgrade with a body, or to HTTP/2 in the clear (which would hide requests from policy), is not offered on.
        self.upgrade = upgrade
            && options.upgrade
            && !upgrade_to_http2
            && self.version == Version::Http11
            && matches!(self.framing, Framing::None | Framing::Length(0))
            && !self.connect;
        self.keep_alive = !options.close && (self.version == Version::Http11 || options.keep_alive);
        Ok(())
    }
}

fn is_http2_token(token: &[u8]) -> bool {
    let name = token.split(|byte| *byte == b'/').next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"http", b"tls"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

/// Bytes of the version and the blank before it.
const VERSION_LEN: usize = b" HTTP/1.1".len();

/// `METHOD SP target SP HTTP/1.x`, single spaces, nothing else. Gives the method's length and the version.
fn request_line(line: &[u8]) -> Result<(usize, Version), Reject> {
    let blank = |bytes: &[u8]| memchr::memchr(b' ', bytes);
    let parts = blank(line).and_then(|at| {
        let (method, rest) = (&line[..at], &line[at + 1..]);
        let (target, version) = rest.split_at(blank(rest)?);
        let empty = method.is_empty() || target.is_empty() || version[1..].contains(&b' ');
        (!empty).then_some((method, target, version))
    });
    let (method, target, version) = parts.ok_or(Reject::RequestLine)?;
    if !METHOD.hold(method) {
        return Err(Reject::Method);
    }
    if !TARGET.hold(target) {
        return Err(Reject::Target);
    }
    match version {
        b" HTTP/1.1" => Ok((method.len(), Version::Http11)),
        b" HTTP/1.0" => Ok((method.len(), Version::Http10)),
        [
            b' ',
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'0'..=b'9',
            b'.',
            b'0'..=b'9',
        ] => Err(Reject::Version),
        _ => Err(Reject::RequestLine),
    }
}

/// A complete request head.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) index: &'a RequestIndex,
}

fn text(bytes: &[u8]) -> &str {
    // Every span read as text was checked to be ASCII.
    std::str::from_utf8(bytes).unwrap_or_default()
}

impl<'a> RequestHead<'a> {
    /// The method, upper case.
    pub fn method(&self) -> &'a str {
        text(self.index.method.of(self.bytes))
    }

    /// The target as it came.
    pub fn target(&self) -> &'a str {
        text(self.index.target.whole.of(self.bytes))
    }

    /// Path and query, also of an absolute target; `*` for OPTIONS on the whole server, empty for CONNECT.
    pub fn path_and_query(&self) -> &'a str {
        match text(self.index.target.path.of(self.bytes)) {
            "" if self.is_connect() => "",
            "" if self.method() == "OPTIONS" => "*",
            "" => "/",
            path => path,
        }
    }

    /// The path alone.
    pub fn path(&self) -> &'a str {
        self.path_and_query().split('?').next().unwrap_or_default()
    }

    /// Host and port: the target's if it is absolute (RFC 9112 section 3.2.2) or CONNECT's, else `Host`. None only in HTTP/1.0.
    pub fn authority(&self) -> Option<&'a str> {
        let span = self.index.target.authority.or(self.index.host)?;
        Some(text(span.of(self.bytes)))
    }

    /// Returns true if there is an authority, without reading it.
    pub fn has_authority(&self) -> bool {
        self.index.target.authority.or(self.index.host).is_some()
    }

    /// The version the client spoke.
    pub fn version(&self) -> Version {
        self.index.version
    }

    /// Returns the framing of the body; never [`Framing::UntilClose`].
    pub fn framing(&self) -> Framing {
        self.index.framing
    }

    /// Returns true if the client wants the connection kept.
    pub fn keep_alive(&self) -> bool {
        self.index.keep_alive
    }

    /// Returns true if the client waits for 100 (Continue) before its body.
    pub fn expects_continue(&self) -> bool {
        self.index.expects_continue
    }

    /// Returns true if the client asks for a protocol upgrade that will be offered on.
    pub fn wants_upgrade(&self) -> bool {
        self.index.upgrade
    }

    /// Returns true if the client asks for a tunnel, to [`Self::authority`].
    pub fn is_connect(&self) -> bool {
        self.index.connect
    }

    /// Returns true if the request may be sent twice without harm (RFC 9110 section 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self.index.method.of(self.bytes),
            b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE"
        )
    }

    /// Returns true if the method is HEAD, whose answer has no body.
    pub fn is_head(&self) -> bool {
        self.index.method.of(self.bytes) == b"HEAD"
    }

    /// The first value of a field; names compare without case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(have, _)| have.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Every field line in order, as it came.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let bytes = self.bytes;
        self.index
            .fields
            .all()
            .iter()
            .map(move |field| (text(field.name.of(bytes)), field.value.of(bytes)))
    }
}

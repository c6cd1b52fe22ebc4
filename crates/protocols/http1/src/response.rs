//! A response head: parsed in place, kept as positions, read through a borrowed view.

use crate::fields::{ConnectionOptions, Field, Fields, KnownField, UNPROCESSED, list};
use crate::framing::{self, Framing, Version};
use crate::reject::Reject;
use crate::request::Progress;
use crate::scan::{HeadScanner, ScannedLine, StartLineKind};

/// Properties of the request that decide how to read its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestSummary {
    /// The method was HEAD, so there is no body whatever the head says.
    pub head: bool,
    /// An upgrade was asked for, so 101 is an answer.
    pub upgrade: bool,
    /// The method was CONNECT, so that every 2xx opens a tunnel.
    pub connect: bool,
}

/// Positions of a response head's parts; reusable, so that parsing allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct ResponseIndex {
    scanner: HeadScanner,
    pub(crate) fields: Fields,
    pub(crate) line_end: usize,
    head_len: usize,
    version: Version,
    status: u16,
    framing: Framing,
    options: ConnectionOptions,
    tunnel: bool,
}

impl ResponseIndex {
    /// Forgets the last head and starts at the beginning of a buffer.
    pub fn reset(&mut self) {
        self.scanner = HeadScanner::default();
        self.head_len = 0;
    }

    /// Parses the head at the start of `bytes`, which holds everything of earlier calls since [`Self::reset`] and more.
    pub fn parse(&mut self, bytes: &[u8], asked: RequestSummary) -> Result<Progress, Reject> {
        let start_line = (&mut self.version, &mut self.status);
        let fields = &mut self.fields;
        let layout = self.scanner.scan(bytes, StartLineKind::Response, |line| {
            match line {
                ScannedLine::Start(line) => (*start_line.0, *start_line.1) = status_line(line)?,
                ScannedLine::Field(number, end) => fields.note_end(number, end),
            }
            Ok(())
        })?;
        let Some(layout) = layout else {
            return Ok(Progress::Partial);
        };
        self.line_end = layout.line_end;
        self.head_len = layout.end;
        self.fields.parse(bytes, &layout)?;
        self.options = self.fields.connection(bytes, false)?;
        self.tunnel = match self.status {
            101 => asked.upgrade,
            200..300 => asked.connect,
            _ => false,
        };
        // No forward proxy frames its acceptance (RFC 9110 section 9.3.6). A server that answers `CONNECT` like any
        // request does. It would read the client's bytes in the tunnel as requests, unseen by policy.
        let declared = match self.tunnel && self.status == 101 {
            true => None,
            false => framing::declared(&self.fields, bytes, self.version)?,
        };
        if self.tunnel && (declared.is_some() || matches!(self.status, 204 | 205)) {
            return Err(Reject::FramedTunnel);
        }
        self.framing = match (self.status, declared) {
            _ if self.tunnel => Framing::None,
            (101, _) if !asked.upgrade => return Err(Reject::UnexpectedUpgrade),
            (100..200 | 204 | 304, _) => Framing::None,
            _ if asked.head => Framing::None,
            (_, Some(framing)) => framing,
            (_, None) => Framing::UntilClose,
        };
        Ok(Progress::Complete)
    }

    /// Bytes of the complete head.
    pub fn head_len(&self) -> usize {
        self.head_len
    }

    /// Reads the head through this index. `bytes` must be the buffer it was parsed from.
    pub fn head<'a>(&'a self, bytes: &'a [u8]) -> ResponseHead<'a> {
        ResponseHead { bytes, index: self }
    }
}

/// `HTTP/1.x SP 3DIGIT [SP reason]`: servers that leave out the blank before an empty reason are common and harmless.
fn status_line(line: &[u8]) -> Result<(Version, u16), Reject> {
    let version = match line.get(..9) {
        Some(b"HTTP/1.1 ") => Version::Http11,
        Some(b"HTTP/1.0 ") => Version::Http10,
        _ => return Err(Reject::StatusLine),
    };
    let (code, reason) = line[9..].split_at_checked(3).ok_or(Reject::StatusLine)?;
    let digits = code.iter().all(u8::is_ascii_digit) && code[0] != b'0';
    let reason_ok = matches!(reason, [] | [b' ', ..]) && !reason.contains(&b'\r');
    if !digits || !reason_ok {
        return Err(Reject::StatusLine);
    }
    let number = code
        .iter()
        .fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    Ok((version, number))
}

/// A complete response head.
#[derive(Clone, Copy)]
pub struct ResponseHead<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) index: &'a ResponseIndex,
}

impl ResponseHead<'_> {
    /// The status, 100..=999.
    pub fn status(&self) -> u16 {
        self.index.status
    }

    /// The version the server spoke.
    pub fn version(&self) -> Version {
        self.index.version
    }

    /// Returns the framing of the body.
    pub fn framing(&self) -> Framing {
        self.index.framing
    }

    /// Returns true if the bytes after it are no HTTP any more: 101, and 2xx to CONNECT.
    pub fn opens_tunnel(&self) -> bool {
        self.index.tunnel
    }

    /// Returns true if another response follows this one: every 1xx but 101.
    pub fn is_interim(&self) -> bool {
        matches!(self.index.status, 100 | 102..200)
    }

    /// Returns true if the server keeps the connection after this response.
    pub fn keep_alive(&self) -> bool {
        let options = self.index.options;
        let kept = self.index.version == Version::Http11 || options.keep_alive;
        kept && !options.close && self.index.framing != Framing::UntilClose
    }

    /// Returns true if a mesh sidecar says that it did nothing with the request. To be trusted only from a verified
    /// sidecar.
    pub fn is_unprocessed(&self) -> bool {
        self.hop(UNPROCESSED).is_some()
    }

    /// Returns the time for which the server keeps an idle connection, in seconds (`Keep-Alive: timeout=…`).
    pub fn keep_alive_timeout(&self) -> Option<u32> {
        list(self.hop(b"keep-alive")?).find_map(|member| {
            let (name, value) = std::str::from_utf8(member).ok()?.split_once('=')?;
            let value = value.trim().trim_matches('"');
            name.trim()
                .eq_ignore_ascii_case("timeout")
                .then(|| value.parse().ok())?
        })
    }

    /// The value of a field meant for one hop. Nearly no response has any.
    fn hop(&self, name: &[u8]) -> Option<&[u8]> {
        let of_hop = |field: &&Field| field.known == KnownField::Hop;
        let mut fields = self.index.fields.all().iter().filter(of_hop);
        fields
            .find(|field| field.name.of(self.bytes).eq_ignore_ascii_case(name))
            .map(|field| field.value.of(self.bytes))
    }

    /// Every field line in order, as it came.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.index.fields.all().iter().map(|field| {
            let name = std::str::from_utf8(field.name.of(self.bytes)).unwrap_or_default();
            (name, field.value.of(self.bytes))
        })
    }
}

//! The field lines of a head as positions in the buffer they came in: nothing is copied, nothing is allocated.

use crate::limits::{MAX_CONNECTION_OPTIONS, MAX_HEADERS};
use crate::reject::Reject;
use crate::scan::Layout;

/// A range of the head, in 16 bits because [`crate::MAX_HEAD_BYTES`] fits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u16,
    pub(crate) end: u16,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= usize::from(u16::MAX));
        Self {
            start: start as u16,
            end: end as u16,
        }
    }

    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[usize::from(self.start)..usize::from(self.end)]
    }

    pub(crate) fn to(self) -> usize {
        usize::from(self.end)
    }
}

/// The fields that framing or forwarding depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Known {
    #[default]
    Other,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    Te,
    Upgrade,
    Expect,
    /// Meant for one hop, always removed.
    Hop,
    /// Says who the peer is; believed from nobody, so always removed.
    Identity,
}

/// One sidecar's word to another that the request got no further than itself. Of one hop: nobody else hears it, and no
/// application can say it.
pub(crate) const UNPROCESSED: &[u8] = b"x-voile-unprocessed";

/// Fields removed in both directions because a forged one would be believed further on.
const IDENTITY_FIELDS: [&[u8]; 3] = [
    b"x-envoy-peer-metadata",
    b"x-envoy-peer-metadata-id",
    b"x-forwarded-client-cert",
];

/// Fields that `Connection` may not nominate: a client could otherwise make us remove what an earlier hop vouched for.
const NOT_NOMINABLE: [&[u8]; 10] = [
    b"host",
    b"content-length",
    b"authorization",
    b"cookie",
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-real-ip",
];

/// Equality as a careless receiver sees it: case ignored, `_` taken for `-` (CGI and WSGI do).
fn loosely_equal(name: &[u8], canonical: &[u8]) -> bool {
    name.len() == canonical.len()
        && name.iter().zip(canonical).all(|(&have, &want)| {
            have.eq_ignore_ascii_case(&want) || (have == b'_' && want == b'-')
        })
}

fn known(name: &[u8]) -> Result<Known, Reject> {
    let is = |canonical: &[u8]| name.eq_ignore_ascii_case(canonical);
    let framing = |canonical: &[u8], found| match () {
        () if is(canonical) => Ok(found),
        () if loosely_equal(name, canonical) => Err(Reject::AmbiguousName),
        () => Ok(Known::Other),
    };
    let when = |yes: bool, found| if yes { found } else { Known::Other };
    match name.len() {
        2 => Ok(when(is(b"te"), Known::Te)),
        4 => Ok(when(is(b"host"), Known::Host)),
        6 => Ok(when(is(b"expect"), Known::Expect)),
        7 => Ok(when(is(b"upgrade"), Known::Upgrade)),
        10 if is(b"connection") => Ok(Known::Connection),
        10 => Ok(when(is(b"keep-alive"), Known::Hop)),
        14 if is(b"http2-settings") => Ok(Known::Hop),
        14 => framing(b"content-length", Known::ContentLength),
        16 => Ok(when(is(b"proxy-connection"), Known::Hop)),
        17 => framing(b"transfer-encoding", Known::TransferEncoding),
        19 => Ok(when(is(UNPROCESSED), Known::Hop)),
        21 | 23 | 24 => {
            let forged = IDENTITY_FIELDS
                .iter()
                .any(|field| loosely_equal(name, field));
            Ok(when(forged, Known::Identity))
        }
        _ => Ok(Known::Other),
    }
}

/// One field line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Field {
    pub(crate) name: Span,
    pub(crate) value: Span,
    /// One past the line's CRLF; the line starts at `name.start`.
    pub(crate) line_end: u16,
    pub(crate) known: Known,
    /// Nominated by `Connection`.
    pub(crate) nominated: bool,
}

impl Field {
    /// Whether the line is `name: value` with exactly one space and no trailing blank, and so may be copied as it stands.
    pub(crate) fn is_plain(&self, bytes: &[u8]) -> bool {
        self.value.start == self.name.end + 2
            && self.line_end == self.value.end + 2
            && bytes[self.name.to() + 1] == b' '
    }
}

/// The options of `Connection` that mean something to us.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConnectionOptions {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
}

/// All field lines of one head. A fixed array: 100 entries are 1.4 kB and live in a reused index.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    entries: [Field; MAX_HEADERS],
    len: usize,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            entries: [Field::default(); MAX_HEADERS],
            len: 0,
        }
    }
}

/// Heads with at most this many fields are parsed with a small array, since clearing a large one costs more than parsing.
const FEW: usize = 24;

impl Fields {
    pub(crate) fn all(&self) -> &[Field] {
        &self.entries[..self.len]
    }

    /// Parses the lines between the start line and the empty line.
    pub(crate) fn parse(&mut self, bytes: &[u8], layout: &Layout) -> Result<(), Reject> {
        self.len = 0;
        if layout.fields <= FEW {
            self.parse_with(bytes, layout, &mut [httparse::EMPTY_HEADER; FEW])
        } else {
            self.parse_with(bytes, layout, &mut [httparse::EMPTY_HEADER; MAX_HEADERS])
        }
    }

    fn parse_with<'b>(
        &mut self,
        bytes: &'b [u8],
        layout: &Layout,
        room: &mut [httparse::Header<'b>],
    ) -> Result<(), Reject> {
        let base = layout.line_end + 2;
        let section = &bytes[base..layout.end];
        let parsed = match httparse::parse_headers(section, room) {
            Ok(httparse::Status::Complete((used, parsed))) if used == section.len() => parsed,
            Err(httparse::Error::TooManyHeaders) => return Err(Reject::TooManyHeaders),
            _ => return Err(Reject::HeaderLine),
        };
        // httparse is lenient about blanks and line ends in places; every byte between the parts is checked here.
        let offset = |slice: &[u8]| slice.as_ptr() as usize - bytes.as_ptr() as usize;
        let mut line_start = base;
        for header in parsed {
            let (name, value) = (header.name.as_bytes(), header.value);
            let name_start = offset(name);
            let name_end = name_start + name.len();
            if name_start != line_start || name.is_empty() || bytes[name_end] != b':' {
                return Err(Reject::HeaderLine);
            }
            let value_start = if value.is_empty() {
                name_end + 1
            } else {
                offset(value)
            };
            let value_end = value_start + value.len();
            let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
            let tail = &bytes[value_end..layout.end];
            let padding = tail.iter().take_while(|byte| blank(byte)).count();
            if !bytes[name_end + 1..value_start].iter().all(blank)
                || !tail[padding..].starts_with(b"\r\n")
            {
                return Err(Reject::HeaderLine);
            }
            line_start = value_end + padding + 2;
            self.entries[self.len] = Field {
                name: Span::new(name_start, name_end),
                value: Span::new(value_start, value_end),
                line_end: line_start as u16,
                known: known(name)?,
                nominated: false,
            };
            self.len += 1;
        }
        if self.len != layout.fields || line_start + 2 != layout.end {
            return Err(Reject::HeaderLine);
        }
        Ok(())
    }

    /// Reads every `Connection` line, marks what they nominate, and says what they ask for.
    /// `strict` refuses nominations that would remove an end-to-end field.
    pub(crate) fn connection(
        &mut self,
        bytes: &[u8],
        strict: bool,
    ) -> Result<ConnectionOptions, Reject> {
        let mut options = ConnectionOptions::default();
        let mut seen = 0;
        for line in 0..self.len {
            if self.entries[line].known != Known::Connection {
                continue;
            }
            let value = self.entries[line].value;
            for option in list(value.of(bytes)) {
                seen += 1;
                if seen > MAX_CONNECTION_OPTIONS {
                    return Err(Reject::ConnectionOption);
                }
                if option.eq_ignore_ascii_case(b"close") {
                    options.close = true;
                } else if option.eq_ignore_ascii_case(b"keep-alive") {
                    options.keep_alive = true;
                } else if option.eq_ignore_ascii_case(b"upgrade") {
                    options.upgrade = true;
                } else if strict
                    && NOT_NOMINABLE
                        .iter()
                        .any(|field| loosely_equal(option, field))
                {
                    return Err(Reject::ConnectionOption);
                } else {
                    self.nominate(bytes, option);
                }
            }
        }
        Ok(options)
    }

    fn nominate(&mut self, bytes: &[u8], option: &[u8]) {
        for field in &mut self.entries[..self.len] {
            // Fields with a meaning of their own keep their own rule.
            if field.known == Known::Other && field.name.of(bytes).eq_ignore_ascii_case(option) {
                field.nominated = true;
            }
        }
    }
}

/// The members of a comma-separated list, trimmed, empty ones skipped.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

//! The field lines of a head as positions in the buffer they came in: nothing is copied, nothing is allocated.

use crate::bytes::TOKEN;
use crate::limits::{MAX_CONNECTION_OPTIONS, MAX_FORWARDED_HEADERS};
use crate::reject::Reject;
use crate::scan::HeadLayout;

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
pub(crate) enum KnownField {
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
    /// Identity of the peer; it is never trusted, so always removed.
    Identity,
}

/// Field by which one sidecar tells another that the request got no further than itself. It counts for one hop: it is
/// not forwarded, and no application can set it.
pub(crate) const UNPROCESSED: &[u8] = b"x-voile-unprocessed";

/// Fields removed in both directions because a forged one would be believed further on.
const IDENTITY_FIELDS: [&[u8]; 3] = [
    b"x-envoy-peer-metadata",
    b"x-envoy-peer-metadata-id",
    b"x-forwarded-client-cert",
];

/// Fields that `Connection` may not nominate: a client could otherwise make this proxy remove a field of an earlier
/// hop.
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

/// Equality as a careless receiver sees it: case ignored, and `_` taken for `-` (CGI and WSGI do), or any other sign (some servers write
/// `_` in CGI's names for all that is neither letter nor digit).
pub fn loosely_equal(name: &[u8], canonical: &[u8]) -> bool {
    name.len() == canonical.len()
        && name.iter().zip(canonical).all(|(&have, &want)| {
            have.eq_ignore_ascii_case(&want) || (want == b'-' && !have.is_ascii_alphanumeric())
        })
}

fn known(name: &[u8]) -> Result<KnownField, Reject> {
    let is = |canonical: &[u8]| name.eq_ignore_ascii_case(canonical);
    let framing = |canonical: &[u8], found| match () {
        () if is(canonical) => Ok(found),
        () if loosely_equal(name, canonical) => Err(Reject::AmbiguousName),
        () => Ok(KnownField::Other),
    };
    let when = |yes: bool, found| if yes { found } else { KnownField::Other };
    match name.len() {
        2 => Ok(when(is(b"te"), KnownField::Te)),
        4 => Ok(when(is(b"host"), KnownField::Host)),
        6 => Ok(when(is(b"expect"), KnownField::Expect)),
        7 => Ok(when(is(b"upgrade"), KnownField::Upgrade)),
        10 if is(b"connection") => Ok(KnownField::Connection),
        10 => Ok(when(is(b"keep-alive"), KnownField::Hop)),
        14 if is(b"http2-settings") => Ok(KnownField::Hop),
        14 => framing(b"content-length", KnownField::ContentLength),
        16 => Ok(when(is(b"proxy-connection"), KnownField::Hop)),
        17 => framing(b"transfer-encoding", KnownField::TransferEncoding),
        19 => Ok(when(is(UNPROCESSED), KnownField::Hop)),
        21 | 23 | 24 => {
            let forged = IDENTITY_FIELDS
                .iter()
                .any(|field| loosely_equal(name, field));
            Ok(when(forged, KnownField::Identity))
        }
        _ => Ok(KnownField::Other),
    }
}

/// `name: value` CRLF at `start..end`, blanks only around the value (RFC 9112 section 5).
fn field_line(bytes: &[u8], start: usize, end: usize) -> Result<Field, Reject> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = bytes[start..end].strip_suffix(b"\r\n");
    let line = line.ok_or(Reject::HeaderLine)?;
    // Plain loops: adapters cost several times as much where nothing is inlined, and no less where all is.
    let mut name = 0;
    while line.get(name).is_some_and(|byte| TOKEN.has(*byte)) {
        name += 1;
    }
    if name == 0 || line.get(name) != Some(&b':') {
        return Err(Reject::HeaderLine);
    }
    let rest = &line[name + 1..];
    // All bytes at once, not up to the first bad one: that can be done sixteen at a time.
    let bad = rest.iter().fold(false, |bad, byte| {
        bad | !matches!(byte, b'\t' | 0x20..=0x7e | 0x80..)
    });
    if bad {
        return Err(Reject::HeaderLine);
    }
    let mut before = 0;
    while rest.get(before).is_some_and(blank) {
        before += 1;
    }
    let mut after = 0;
    while after < rest.len() && blank(&rest[rest.len() - 1 - after]) {
        after += 1;
    }
    let name_end = start + name;
    // Of nothing but blanks the value is empty, and right behind the colon.
    let value = match before == rest.len() {
        true => Span::new(name_end + 1, name_end + 1),
        false => Span::new(name_end + 1 + before, end - 2 - after),
    };
    Ok(Field {
        name: Span::new(start, name_end),
        value,
        line_end: end as u16,
        known: known(&line[..name])?,
        nominated: false,
    })
}

/// One field line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Field {
    pub(crate) name: Span,
    pub(crate) value: Span,
    /// One past the line's CRLF; the line starts at `name.start`.
    pub(crate) line_end: u16,
    pub(crate) known: KnownField,
    /// Nominated by `Connection`.
    pub(crate) nominated: bool,
}

impl Field {
    /// Returns true if the line is `name: value` with exactly one space and no trailing blank, and so may be copied
    /// as it stands.
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

/// All field lines of one head. A fixed array: 128 entries are 1.8 kB and live in a reused index.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    entries: [Field; MAX_FORWARDED_HEADERS],
    len: usize,
    /// A bit for each kind of field that is there.
    special: u16,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            entries: [Field::default(); MAX_FORWARDED_HEADERS],
            len: 0,
            special: 0,
        }
    }
}

impl Fields {
    pub(crate) fn all(&self) -> &[Field] {
        &self.entries[..self.len]
    }

    /// Remembers where a field line ends. The caller bounds their number.
    pub(crate) fn note_end(&mut self, number: usize, end: usize) {
        self.entries[number].line_end = end as u16;
    }

    /// Parses the lines between the start line and the empty line, whose ends were noted.
    pub(crate) fn parse(&mut self, bytes: &[u8], layout: &HeadLayout) -> Result<(), Reject> {
        self.len = 0;
        self.special = 0;
        let mut start = layout.line_end + 2;
        for entry in &mut self.entries[..layout.fields] {
            let end = usize::from(entry.line_end);
            *entry = field_line(bytes, start, end)?;
            self.special |= 1 << entry.known as u16;
            start = end;
        }
        self.len = layout.fields;
        Ok(())
    }

    /// Returns true if any field is of this kind. Most heads have few, and need not be searched for the others.
    pub(crate) fn have(&self, known: KnownField) -> bool {
        self.special & (1 << known as u16) != 0
    }

    /// Reads every `Connection` line, marks the nominated fields, and returns the options. `strict` refuses
    /// nominations that would remove an end-to-end field.
    pub(crate) fn connection(
        &mut self,
        bytes: &[u8],
        strict: bool,
    ) -> Result<ConnectionOptions, Reject> {
        let mut options = ConnectionOptions::default();
        if !self.have(KnownField::Connection) {
            return Ok(options);
        }
        let mut seen = 0;
        for line in 0..self.len {
            if self.entries[line].known != KnownField::Connection {
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
            if field.known == KnownField::Other && field.name.of(bytes).eq_ignore_ascii_case(option)
            {
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

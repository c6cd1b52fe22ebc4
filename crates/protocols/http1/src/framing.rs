//! Length of a body (RFC 9112 section 6.3), decided once and without leniency: two receivers that disagree here make
//! request smuggling possible.

use crate::bytes::TOKEN;
use crate::fields::{Fields, KnownField, list};
use crate::reject::Reject;

/// The protocol version a peer spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
}

impl Version {
    /// As it stands on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

/// Way to find a body's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Framing {
    /// There is no body.
    #[default]
    None,
    /// Exactly so many bytes.
    Length(u64),
    /// The chunked coding.
    Chunked,
    /// All bytes until the connection ends (responses only).
    UntilClose,
}

/// Returns the framing by `Content-Length` and `Transfer-Encoding` together.
pub(crate) fn declared(
    fields: &Fields,
    bytes: &[u8],
    version: Version,
) -> Result<Option<Framing>, Reject> {
    if !fields.have(KnownField::ContentLength) && !fields.have(KnownField::TransferEncoding) {
        return Ok(None);
    }
    let mut length = None;
    let mut encodings = 0;
    let mut encoding: &[u8] = b"";
    for field in fields.all() {
        match field.known {
            KnownField::ContentLength if length.is_some() => return Err(Reject::ContentLength),
            KnownField::ContentLength => length = Some(parse_length(field.value.of(bytes))?),
            KnownField::TransferEncoding => {
                encodings += 1;
                encoding = field.value.of(bytes);
            }
            _ => {}
        }
    }
    if encodings == 0 {
        return Ok(length.map(Framing::Length));
    }
    if length.is_some() {
        return Err(Reject::LengthAndEncoding);
    }
    if encodings > 1 || version == Version::Http10 {
        return Err(Reject::TransferEncoding);
    }
    if encoding.eq_ignore_ascii_case(b"chunked") {
        return Ok(Some(Framing::Chunked));
    }
    Err(other_coding(encoding))
}

/// The number that a `Content-Length` says.
///
/// # Errors
/// When another receiver might read another number.
pub fn parse_length(value: &[u8]) -> Result<u64, Reject> {
    // 18 digits never overflow; some parsers read a leading zero as octal.
    let plain = matches!(value, [b'0'] | [b'1'..=b'9', ..]) && value.len() <= 18;
    value
        .iter()
        .try_fold(0_u64, |sum, digit| {
            digit
                .is_ascii_digit()
                .then(|| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
        })
        .filter(|_| plain)
        .ok_or(Reject::ContentLength)
}

/// A coding we do not know is 501; chunked in the wrong place, or something that is no list of tokens, is 400.
fn other_coding(value: &[u8]) -> Reject {
    let tokens = list(value).all(|member| TOKEN.hold(member));
    let chunked = |member: &[u8]| member.eq_ignore_ascii_case(b"chunked");
    let last = list(value).last();
    let count = list(value).filter(|member| chunked(member)).count();
    match last {
        Some(last)
            if tokens
                && (count == 0 || (count == 1 && chunked(last) && list(value).count() > 1)) =>
        {
            Reject::UnknownCoding
        }
        _ => Reject::TransferEncoding,
    }
}

//! Checks of heads (RFC 9113 section 8.1.1 to 8.3). A head that fails is malformed, and its stream ends.

use crate::fields::{Field, Fields, is_name, is_value};
use crate::hpack::known;

/// Purpose of a block of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// Of a client.
    Request,
    /// Of a server, interim or final.
    Response,
    /// Behind a body.
    Trailers,
}

/// Facts of a valid head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckedHead {
    /// `content-length`.
    pub length: Option<u64>,
}

/// A head that breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Pseudo-header fields by their bit.
const METHOD: u8 = 1;
const SCHEME: u8 = 2;
const PATH: u8 = 4;
const AUTHORITY: u8 = 8;
const PROTOCOL: u8 = 16;
const STATUS: u8 = 32;
/// Beside them, of an excerpt.
const CONTENT_TYPE: u8 = 64;

/// Looks at every field once.
///
/// # Errors
/// When the head breaks a rule.
pub fn check(kind: HeadKind, fields: &Fields) -> Result<CheckedHead, Malformed> {
    let (mut seen, mut regular, mut checked) = (0_u8, false, CheckedHead::default());
    for field in fields.all() {
        let Field { name, value, .. } = field;
        if !field.sound && !is_sound(field.number, name, value) {
            return Err(Malformed);
        }
        if let Some(bit) = pseudo(field.number) {
            if regular || seen & bit != 0 || !fits(kind, bit) {
                return Err(Malformed);
            }
            seen |= bit;
            continue;
        }
        regular = true;
        match field.number {
            known::TRANSFER_ENCODING => return Err(Malformed),
            known::TE if value != b"trailers" => return Err(Malformed),
            known::CONTENT_LENGTH => {
                // Said twice it may be understood twice.
                if checked.length.is_some() {
                    return Err(Malformed);
                }
                checked.length = Some(length(value).ok_or(Malformed)?);
            }
            0 if is_of_one_connection(name) => return Err(Malformed),
            _ => {}
        }
    }
    let whole = match kind {
        HeadKind::Trailers => true,
        HeadKind::Response => seen == STATUS,
        HeadKind::Request => request(seen, fields),
    };
    if whole { Ok(checked) } else { Err(Malformed) }
}

/// Returns true if name and value consist of allowed bytes, whatever the head. The result holds for the table's
/// entry, too, so that a field which comes again is not checked again.
pub(crate) fn is_sound(number: u8, name: &[u8], value: &[u8]) -> bool {
    // Without a branch for each byte, so that many are looked at at once.
    if !value.iter().fold(true, |good, byte| good & is_value(*byte)) {
        return false;
    }
    match pseudo(number) {
        Some(bit) => pseudo_value(bit, value),
        None => number != 0 || (!name.is_empty() && name.iter().all(|byte| is_name(*byte))),
    }
}

/// Returns true if a field of an unchecked head is sound enough for the excerpt of a refused request. `seen` are the
/// bits of the fields before.
pub(crate) fn in_excerpt(field: &Field<'_>, seen: &mut u8) -> bool {
    let bit = match pseudo(field.number) {
        Some(bit) if fits(HeadKind::Request, bit) => bit,
        None if field.name == b"content-type" => CONTENT_TYPE,
        _ => return false,
    };
    let first = *seen & bit == 0;
    *seen |= bit;
    first && is_sound(field.number, field.name, field.value)
}

fn is_of_one_connection(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection" | b"keep-alive" | b"proxy-connection" | b"upgrade"
    )
}

fn pseudo(number: u8) -> Option<u8> {
    match number {
        known::METHOD => Some(METHOD),
        known::SCHEME => Some(SCHEME),
        known::PATH => Some(PATH),
        known::AUTHORITY => Some(AUTHORITY),
        known::PROTOCOL => Some(PROTOCOL),
        known::STATUS => Some(STATUS),
        _ => None,
    }
}

fn fits(kind: HeadKind, bit: u8) -> bool {
    match kind {
        HeadKind::Request => bit != STATUS,
        HeadKind::Response => bit == STATUS,
        HeadKind::Trailers => false,
    }
}

fn pseudo_value(bit: u8, value: &[u8]) -> bool {
    match bit {
        METHOD | PROTOCOL => {
            let token = |byte: &u8| is_name(byte.to_ascii_lowercase());
            !value.is_empty() && value.iter().all(token)
        }
        SCHEME => {
            let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
            value.first().is_some_and(u8::is_ascii_alphabetic) && value.iter().all(letter)
        }
        PATH => {
            let plain = |byte: &u8| *byte > b' ' && *byte != b'#';
            matches!(value, [b'/', ..] | b"*")
                && value.iter().all(plain)
                && (value.is_ascii() || std::str::from_utf8(value).is_ok())
        }
        AUTHORITY => {
            let plain = |byte: &u8| byte.is_ascii_graphic() && !b"/?#\\\"<>^`{|}".contains(byte);
            value.iter().all(plain)
        }
        STATUS => matches!(value, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']),
        _ => false,
    }
}

fn request(seen: u8, fields: &Fields) -> bool {
    let (connect, protocol) = (fields.method() == "CONNECT", seen & PROTOCOL != 0);
    let target = seen & (SCHEME | PATH);
    match (connect, protocol) {
        (true, false) => target == 0 && seen & METHOD != 0 && fields.authority().is_some(),
        // RFC 8441 section 4: as any other request.
        (true, true) | (false, false) => seen & METHOD != 0 && target == SCHEME | PATH,
        (false, true) => false,
    }
}

fn length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
    ];

    fn malformed(kind: HeadKind, list: &[(&str, &str)]) -> bool {
        let mut fields = Fields::new();
        for (name, value) in list {
            fields.push(name, value.as_bytes());
        }
        check(kind, &fields).is_err()
    }

    #[test]
    fn requests_are_whole_and_say_nothing_twice() {
        let with = |more: &[(&'static str, &'static str)]| [&GET[..], more].concat();
        let connect = |more: &[(&'static str, &'static str)]| {
            [&[(":method", "CONNECT"), (":authority", "a:1")], more].concat()
        };
        let target = [(":scheme", "http"), (":path", "/")];
        for (list, good) in [
            (with(&[]), true),
            (with(&[("te", "trailers")]), true),
            (with(&[("te", "gzip")]), false),
            (with(&[("connection", "close")]), false),
            (with(&[("upgrade", "x")]), false),
            (with(&[("X-A", "1")]), false),
            (with(&[("x a", "1")]), false),
            (with(&[("", "1")]), false),
            (with(&[("x-a", "1\r\n")]), false),
            (with(&[("x-a", "\u{e9}\t")]), true),
            (with(&[(":status", "200")]), false),
            (with(&[(":path", "/")]), false),
            (with(&[("x-a", ""), (":protocol", "x")]), false),
            (with(&[("content-length", "1")]), true),
            (with(&[("content-length", "+1")]), false),
            (with(&[("content-length", "")]), false),
            (with(&[("content-length", "99999999999999999999")]), false),
            (
                with(&[("content-length", "1"), ("content-length", "1")]),
                false,
            ),
            (with(&[(":protocol", "websocket")]), false),
            (GET[..3].to_vec(), true),
            (GET[1..].to_vec(), false),
            (connect(&[]), true),
            (connect(&target), false),
            (
                connect(&[&target[..], &[(":protocol", "websocket")]].concat()),
                true,
            ),
            (vec![(":method", "CONNECT")], false),
        ] {
            assert_eq!(malformed(HeadKind::Request, &list), !good, "{list:?}");
        }
    }

    #[test]
    fn targets_are_paths() {
        for (path, good) in [
            ("/", true),
            ("*", true),
            ("/a?b", true),
            ("/\u{e9}", true),
            ("", false),
            ("a", false),
            ("/a b", false),
            ("/a#b", false),
            ("http://a/", false),
        ] {
            let list = [GET[0], GET[1], (":path", path)];
            assert_eq!(malformed(HeadKind::Request, &list), !good, "{path:?}");
        }
    }

    #[test]
    fn answers_have_one_status_and_trailers_none() {
        for (kind, list, good) in [
            (HeadKind::Response, vec![(":status", "200")], true),
            (HeadKind::Response, vec![(":status", "20")], false),
            (HeadKind::Response, vec![(":status", "abc")], false),
            (HeadKind::Response, vec![("x-a", "1")], false),
            (
                HeadKind::Response,
                vec![(":status", "200"), (":path", "/")],
                false,
            ),
            (HeadKind::Trailers, vec![("grpc-status", "0")], true),
            (HeadKind::Trailers, vec![(":status", "200")], false),
        ] {
            assert_eq!(malformed(kind, &list), !good, "{list:?}");
        }
    }
}

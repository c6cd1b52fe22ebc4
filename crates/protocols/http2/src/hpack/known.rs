//! HPACK's static table (RFC 7541, appendix A), which both ends know from the beginning. A name that is known here or
//! is usual in calls has a number, so that a search for it compares no text.

/// `:authority`.
pub(crate) const AUTHORITY: u8 = 1;
/// `:method`.
pub(crate) const METHOD: u8 = 2;
/// `:path`.
pub(crate) const PATH: u8 = 4;
/// `:scheme`.
pub(crate) const SCHEME: u8 = 6;
/// `:status`.
pub(crate) const STATUS: u8 = 8;
/// `content-length`.
pub(crate) const CONTENT_LENGTH: u8 = 28;
/// `transfer-encoding`.
pub(crate) const TRANSFER_ENCODING: u8 = 57;
/// `:protocol`, the first number that is no index.
pub(crate) const PROTOCOL: u8 = 62;
/// `te`.
pub(crate) const TE: u8 = 63;

/// Names with a number behind the table's.
const MORE: [&str; 9] = [
    ":protocol",
    "te",
    "grpc-status",
    "grpc-message",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-timeout",
    "traceparent",
    "x-request-id",
];

/// Name and value by index, which begins at 1.
pub(super) const ENTRIES: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The name of index 1..=61.
pub(super) fn entry(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    let (name, value) = ENTRIES.get(index.checked_sub(1)?)?;
    Some((name.as_bytes(), value.as_bytes()))
}

/// The number of the name of index 1..=61: the first index with that name.
pub(super) fn name_of(index: usize) -> u8 {
    match index as u8 {
        METHOD..PATH => METHOD,
        PATH..SCHEME => PATH,
        SCHEME..STATUS => SCHEME,
        STATUS..15 => STATUS,
        other => other,
    }
}

/// The name with that number; none for 0.
pub(crate) fn text(number: u8) -> Option<&'static str> {
    let at = usize::from(number).checked_sub(1)?;
    match ENTRIES.get(at) {
        Some((name, _)) => Some(name),
        None => MORE.get(at - ENTRIES.len()).copied(),
    }
}

/// The name's number, 0 for none.
pub(crate) fn number(name: &[u8]) -> u8 {
    match name {
        b":authority" => 1,
        b":method" => 2,
        b":path" => 4,
        b":scheme" => 6,
        b":status" => 8,
        b"accept-charset" => 15,
        b"accept-encoding" => 16,
        b"accept-language" => 17,
        b"accept-ranges" => 18,
        b"accept" => 19,
        b"access-control-allow-origin" => 20,
        b"age" => 21,
        b"allow" => 22,
        b"authorization" => 23,
        b"cache-control" => 24,
        b"content-disposition" => 25,
        b"content-encoding" => 26,
        b"content-language" => 27,
        b"content-length" => 28,
        b"content-location" => 29,
        b"content-range" => 30,
        b"content-type" => 31,
        b"cookie" => 32,
        b"date" => 33,
        b"etag" => 34,
        b"expect" => 35,
        b"expires" => 36,
        b"from" => 37,
        b"host" => 38,
        b"if-match" => 39,
        b"if-modified-since" => 40,
        b"if-none-match" => 41,
        b"if-range" => 42,
        b"if-unmodified-since" => 43,
        b"last-modified" => 44,
        b"link" => 45,
        b"location" => 46,
        b"max-forwards" => 47,
        b"proxy-authenticate" => 48,
        b"proxy-authorization" => 49,
        b"range" => 50,
        b"referer" => 51,
        b"refresh" => 52,
        b"retry-after" => 53,
        b"server" => 54,
        b"set-cookie" => 55,
        b"strict-transport-security" => 56,
        b"transfer-encoding" => 57,
        b"user-agent" => 58,
        b"vary" => 59,
        b"via" => 60,
        b"www-authenticate" => 61,
        b":protocol" => PROTOCOL,
        b"te" => TE,
        b"grpc-status" => 64,
        b"grpc-message" => 65,
        b"grpc-encoding" => 66,
        b"grpc-accept-encoding" => 67,
        b"grpc-timeout" => 68,
        b"traceparent" => 69,
        b"x-request-id" => 70,
        _ => 0,
    }
}

/// The index of the name with that number, 0 for none.
pub(super) fn index(number: u8) -> usize {
    let index = usize::from(number);
    if index <= ENTRIES.len() { index } else { 0 }
}

/// The index of both, 0 for none; `name` is the result of [`number`].
pub(super) fn field(name: u8, value: &[u8]) -> u8 {
    match (name, value) {
        (2, b"GET") | (4, b"/") | (6, b"http") | (8, b"200") => name,
        (2, b"POST") | (4, b"/index.html") | (6, b"https") | (8, b"204") => name + 1,
        (8, b"206") => 10,
        (8, b"304") => 11,
        (8, b"400") => 12,
        (8, b"404") => 13,
        (8, b"500") => 14,
        (16, b"gzip, deflate") => 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_its_name_and_value() {
        for (at, (known, value)) in ENTRIES.iter().enumerate() {
            let first = usize::from(number(known.as_bytes()));
            assert_eq!(ENTRIES[first - 1].0, *known);
            assert!(first <= at + 1);
            assert_eq!(usize::from(name_of(at + 1)), first);
            if !value.is_empty() {
                let both = field(number(known.as_bytes()), value.as_bytes());
                assert_eq!(usize::from(both), at + 1, "{known}: {value}");
            }
        }
        assert_eq!(number(b"x-a"), 0);
        assert_eq!(field(number(b":status"), b"201"), 0);
    }

    #[test]
    fn every_number_is_that_of_its_name() {
        for (at, name) in MORE.iter().enumerate() {
            let number = number(name.as_bytes());
            assert_eq!(usize::from(number), ENTRIES.len() + 1 + at, "{name}");
            assert_eq!((text(number), index(number)), (Some(*name), 0));
        }
        assert_eq!((text(0), text(200)), (None, None));
        assert_eq!((text(2), index(2)), (Some(":method"), 2));
    }
}

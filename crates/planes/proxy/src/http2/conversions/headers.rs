//! Fields of a head that travel on, and fields that do not: for HTTP/2, as `voile_http1`'s forwarding does for
//! HTTP/1.1. `voile_http2` has already refused connection-specific fields, upper case and misplaced pseudo-header
//! fields.

use voile_http1::{MAX_FORWARDED_HEADERS, MAX_HEADERS, loosely_equal};
use voile_http2::Fields;

use crate::http::external_check::{Names, lines};
use crate::http::{HeadEdit, HeadObserver, HttpHead};
use crate::http2::websocket::is_plain_connect;

/// Fields removed in both directions because a forged one would be believed further on.
pub(crate) const IDENTITY_FIELDS: [&str; 3] = [
    "x-envoy-peer-metadata",
    "x-envoy-peer-metadata-id",
    "x-forwarded-client-cert",
];

/// The authority of a request that names none, where the role knows none either.
pub(crate) const NO_AUTHORITY: &str = "localhost";

/// Refuses a request before the role decides: a status, and one word for the log and the client. A proxy of the mesh may
/// have added fields.
pub(crate) fn check_request(head: &Fields, from_proxy: bool) -> Result<(), (u16, &'static str)> {
    if head.is_cut() {
        return Err((431, "head_too_large")); // HTTP/1.1's word for it.
    }
    let most = match from_proxy {
        true => MAX_FORWARDED_HEADERS,
        false => MAX_HEADERS,
    };
    if head.line_count() > most && field_count(head) > most {
        return Err((431, "too_many_headers")); // The same.
    }
    check_fields(head).map_err(|details| (400, details))
}

/// Fields as HTTP/1.1 would have them: cookies may come in pieces, which are one (RFC 9113 section 8.2.3).
fn field_count(head: &Fields) -> usize {
    let others = head.iter().filter(|(name, _)| *name != "cookie");
    others.count() + usize::from(head.contains("cookie"))
}

fn check_fields(head: &Fields) -> Result<(), &'static str> {
    if head.method().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("http2.method_lower_case");
    }
    if is_plain_connect(head) {
        let authority = head.authority().unwrap_or_default();
        if !voile_http1::is_tunnel_authority(authority.as_bytes()) {
            return Err("http2.connect_authority");
        }
        if head.contains("content-length") || head.contains("expect") {
            return Err("http2.connect_with_body");
        }
    }
    if head.path() == Some("*") && head.method() != "OPTIONS" {
        return Err("http2.path");
    }
    let mut hosts = head.get_all("host");
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err("http2.several_hosts");
    }
    if let Some(host) = host {
        match head.authority() {
            // Two different authorities name no host (RFC 9113 section 8.3.1).
            Some(authority) if !authority.as_bytes().eq_ignore_ascii_case(host) => {
                return Err("http2.host_is_not_authority");
            }
            Some(_) => {}
            None if is_authority(host) => {}
            None => return Err("http2.host"),
        }
    }
    if head
        .authority()
        .is_some_and(|authority| authority.contains('@'))
    {
        return Err("http2.userinfo");
    }
    Ok(())
}

/// Host and port, as far as a proxy looks.
fn is_authority(text: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !b"@/?#\\\"<>^`{|}".contains(byte);
    !text.is_empty() && text.iter().all(plain)
}

/// The authority that goes on.
pub(crate) fn authority<'a>(head: &'a Fields, edit: HeadEdit<'a>) -> &'a str {
    let renamed = edit.authority.filter(|_| !is_plain_connect(head));
    let named = renamed.or_else(|| HttpHead::Http2(head).authority());
    named.or(edit.default_authority).unwrap_or(NO_AUTHORITY)
}

/// The request that goes on over HTTP/2, in `out`, as the route edits it.
pub(crate) fn forward_request(
    head: &Fields,
    observer: Option<&dyn HeadObserver>,
    edit: HeadEdit<'_>,
    out: &mut Fields,
) {
    out.push(":method", head.method().as_bytes());
    if let Some(path) = edit.path.or_else(|| head.path()) {
        out.push(":scheme", head.scheme().unwrap_or("http").as_bytes());
        out.push(":path", path.as_bytes());
    }
    out.push(":authority", authority(head, edit).as_bytes());
    if let Some(protocol) = head.protocol() {
        out.push(":protocol", protocol.as_bytes());
    }
    out.extend_from(head, |name, value| {
        name != "host" && travels(name, value) && !is_left_out(observer, name)
    });
    if let Some(observer) = observer {
        add_lines(out, observer.adds());
    }
}

/// Returns true if a field of the request does not go on as it came.
pub(crate) fn is_left_out(observer: Option<&dyn HeadObserver>, name: &str) -> bool {
    let left_out = observer.map_or(&[][..], |observer| observer.leaves_out());
    let mut known = left_out.iter();
    known.any(|known| loosely_equal(name.as_bytes(), known.as_bytes()))
}

/// Removes the fields that no proxy passes on.
pub(crate) fn clean(fields: &mut Fields) {
    if fields.iter().any(|(name, value)| !travels(name, value)) {
        fields.retain(travels);
    }
}

/// Returns true if a proxy passes the field on.
pub(crate) fn travels(name: &str, value: &[u8]) -> bool {
    match name {
        "te" => value == b"trailers",
        // Fields of one connection, without meaning on the next (RFC 9113 section 8.2.2).
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" => false,
        name => !is_forged(name),
    }
}

/// Returns true if a field claims a fact that no peer may state, in any spelling that an application accepts: CGI and WSGI read
/// `_` as `-`. `voile_http1` does the same, and refuses framing fields. Lengths are compared first, since hardly any field has
/// one of these.
fn is_forged(name: &str) -> bool {
    let is = |canonical: &str| loosely_equal(name.as_bytes(), canonical.as_bytes());
    match name.len() {
        14 | 17 => is_ambiguous(name),
        // One sidecar's word to another over HTTP/1.1; over HTTP/2 REFUSED_STREAM says it.
        19 => name == "x-voile-unprocessed",
        21 | 23 | 24 => IDENTITY_FIELDS.iter().any(|field| is(field)),
        _ => false,
    }
}

/// Returns true for a name that a careless receiver takes for framing.
pub(crate) fn is_ambiguous(name: &str) -> bool {
    let is = |canonical: &str| loosely_equal(name.as_bytes(), canonical.as_bytes());
    match name.len() {
        14 => name != "content-length" && is("content-length"),
        17 => is("transfer-encoding"),
        _ => false,
    }
}

/// As [`clean`], for trailers, which frame and route nothing; those that are forbidden go, too.
pub(crate) fn clean_trailers(trailers: &mut Fields, forbidden: &Names) {
    clean(trailers);
    trailers.remove("host");
    trailers.remove("content-length");
    if !forbidden.is_empty() {
        trailers.retain(|name, _| {
            let mut known = forbidden.iter();
            !known.any(|known| loosely_equal(name.as_bytes(), known.as_bytes()))
        });
    }
}

/// Adds `name: value\r\n` lines; a line that is no field is left out.
fn add_lines(fields: &mut Fields, text: &[u8]) {
    for (name, value) in lines(text) {
        fields.push_checked(name, value);
    }
}

/// Bytes a head takes as HTTP/1.1 would write it, so that both versions' sizes compare.
pub(crate) fn size(fields: &Fields) -> u64 {
    fields.lines_size() as u64
}

/// Returns true if a request with this method may be sent twice without harm (RFC 9110 section 9.2.2).
pub(crate) fn is_idempotent(method: &str) -> bool {
    matches!(
        method,
        "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_of_an_identity_field_travels() {
        for canonical in IDENTITY_FIELDS {
            let dashes: Vec<usize> = canonical.match_indices('-').map(|(at, _)| at).collect();
            let spellings = (0..1 << dashes.len()).flat_map(|mask| [(mask, b'_'), (mask, b'.')]);
            for (mask, sign) in spellings {
                let mut name = canonical.as_bytes().to_vec();
                for (bit, at) in dashes.iter().enumerate() {
                    if mask & (1 << bit) != 0 {
                        name[*at] = sign;
                    }
                }
                let name = String::from_utf8(name).expect("ASCII");
                assert!(!travels(&name, b"forged"), "{name}");
                let mut fields = Fields::new();
                fields.push(&name, b"forged");
                fields.push(&name, b"twice");
                clean(&mut fields);
                assert_eq!(fields.iter().count(), 0, "{name}");
            }
        }
    }

    #[test]
    fn framing_in_another_spelling_does_not_travel_and_the_rest_does() {
        for (name, goes_on) in [
            ("content-length", true),
            ("content_length", false),
            ("transfer_encoding", false),
            ("x-voile-unprocessed", false),
            ("x-forwarded-client-cerz", true),
            ("x_request_id", true),
            ("x-forwarded-for", true),
        ] {
            assert_eq!(travels(name, b"1"), goes_on, "{name}");
        }
    }
}

//! Request targets and authorities (RFC 9112 section 3.2, RFC 3986 section 3.2).

use crate::bytes::{NAME, TARGET};
use crate::fields::Span;
use crate::reject::Reject;

/// Positions of the target's parts in the head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RequestTarget {
    /// The whole target as it came.
    pub(crate) whole: Span,
    /// Path and query; empty for an absolute target without a path, which means `/` (`*` for OPTIONS), and for CONNECT,
    /// which has none.
    pub(crate) path: Span,
    /// The authority of an absolute target, or the target of CONNECT.
    pub(crate) authority: Option<Span>,
}

/// Takes a target apart. `at` is where it starts in the head.
pub(crate) fn parse(method: &[u8], target: &[u8], at: usize) -> Result<RequestTarget, Reject> {
    let whole = Span::new(at, at + target.len());
    match target {
        _ if method == CONNECT => tunnel(target, whole),
        [b'/', ..] => Ok(RequestTarget {
            whole,
            path: whole,
            authority: None,
        }),
        b"*" if method == b"OPTIONS" => Ok(RequestTarget {
            whole,
            path: whole,
            authority: None,
        }),
        _ => absolute(target, at, whole),
    }
}

/// The method that asks for a tunnel.
pub(crate) const CONNECT: &[u8] = b"CONNECT";

/// Host and port, and nothing else (RFC 9112 section 3.2.3); a port that no server can listen on is refused (RFC 9110
/// section 9.3.6).
fn tunnel(target: &[u8], whole: Span) -> Result<RequestTarget, Reject> {
    if !is_tunnel_authority(target) {
        return Err(Reject::Target);
    }
    Ok(RequestTarget {
        whole,
        path: Span::new(whole.to(), whole.to()),
        authority: Some(whole),
    })
}

/// Returns true for `host ":" port`, both present, with a port that a server can listen on.
pub fn is_tunnel_authority(value: &[u8]) -> bool {
    let Some(colon) = memchr::memrchr(b':', value) else {
        return false;
    };
    let port = &value[colon + 1..];
    is_authority(value)
        && port.iter().all(u8::is_ascii_digit)
        && port.iter().any(|digit| *digit != b'0')
}

fn absolute(target: &[u8], at: usize, whole: Span) -> Result<RequestTarget, Reject> {
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        target
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    let from = scheme.ok_or(Reject::Target)?.len();
    let rest = &target[from..];
    let length = rest
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?'))
        .unwrap_or(rest.len());
    // `http://host?query` would need a slash that is not in the buffer; no client sends it.
    if !is_authority(&rest[..length]) || rest.get(length) == Some(&b'?') {
        return Err(Reject::Target);
    }
    Ok(RequestTarget {
        whole,
        path: Span::new(at + from + length, at + target.len()),
        authority: Some(Span::new(at + from, at + from + length)),
    })
}

/// Returns true for a target of a request line that is no authority: a path with its query, or `*`.
pub fn is_path(value: &[u8]) -> bool {
    matches!(value, [b'/', ..] | b"*") && TARGET.hold(value)
}

/// Returns true for `host [":" port]`, the host not empty and without user information.
pub fn is_authority(value: &[u8]) -> bool {
    let (host_ok, port) = if let Some(rest) = value.strip_prefix(b"[") {
        let Some(end) = memchr::memchr(b']', rest) else {
            return false;
        };
        let inside = &rest[..end];
        let digits = inside
            .iter()
            .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
        (digits && inside.contains(&b':'), &rest[end + 1..])
    } else {
        let end = memchr::memchr(b':', value).unwrap_or(value.len());
        let host = &value[..end];
        (!host.is_empty() && NAME.hold(host), &value[end..])
    };
    host_ok && is_port(port)
}

fn is_port(port: &[u8]) -> bool {
    match port {
        [] => true,
        [b':', digits @ ..] => {
            digits.len() <= 5
                && digits.iter().all(u8::is_ascii_digit)
                && digits
                    .iter()
                    .fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'))
                    <= 65_535
        }
        _ => false,
    }
}

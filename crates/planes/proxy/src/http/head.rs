//! A request head as roles see it, whichever engine parsed it. A view: nothing is copied and nothing allocated.

use std::time::Duration;

use voile_http1::{RequestHead, Version};
use voile_http2::Fields;

/// The version a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
    /// HTTP/3, carried to the HTTP/2 engine.
    Http3,
}

impl HttpVersion {
    /// As access logs write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        }
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub enum HttpHead<'a> {
    /// Positions in the HTTP/1.1 engine's buffer.
    Http1(RequestHead<'a>),
    /// Fields that the HTTP/2 engine decoded.
    Http2(&'a Fields),
}

impl<'a> HttpHead<'a> {
    /// The method.
    pub fn method(&self) -> &'a str {
        match self {
            Self::Http1(head) => head.method(),
            Self::Http2(head) => head.method(),
        }
    }

    /// The method as HTTP/1.1 would say it: a WebSocket over HTTP/2 begins with GET, too (RFC 8441).
    pub fn method_meant(&self) -> &'a str {
        match self {
            Self::Http2(head) if crate::http2::is_extended_connect(head) => "GET",
            _ => self.method(),
        }
    }

    /// Path and query, also of an absolute target; `*` for OPTIONS on the whole server, `/` where there is none, and
    /// nothing for CONNECT.
    pub fn path_and_query(&self) -> &'a str {
        match self {
            Self::Http1(head) => head.path_and_query(),
            Self::Http2(head) if crate::http2::is_plain_connect(head) => "",
            Self::Http2(head) => head.path().unwrap_or("/"),
        }
    }

    /// The path alone.
    pub fn path(&self) -> &'a str {
        self.path_and_query().split('?').next().unwrap_or_default()
    }

    /// Host and port: the target's or `:authority`, else `Host`.
    pub fn authority(&self) -> Option<&'a str> {
        match self {
            Self::Http1(head) => head.authority(),
            Self::Http2(head) => match head.authority() {
                Some(authority) => Some(authority),
                None => std::str::from_utf8(head.get("host")?).ok(),
            },
        }
    }

    /// `http`, unless the client says otherwise, which only HTTP/2 lets it.
    pub fn scheme(&self) -> &'a str {
        match self {
            Self::Http1(_) => "http",
            Self::Http2(head) => head.scheme().unwrap_or("http"),
        }
    }

    /// Returns true if there is an authority, without reading it.
    pub fn has_authority(&self) -> bool {
        match self {
            Self::Http1(head) => head.has_authority(),
            Self::Http2(_) => self.authority().is_some(),
        }
    }

    /// The version the client spoke.
    pub fn version(&self) -> HttpVersion {
        match self {
            Self::Http1(head) => match head.version() {
                Version::Http10 => HttpVersion::Http10,
                Version::Http11 => HttpVersion::Http11,
            },
            Self::Http2(head) if head.is_http3() => HttpVersion::Http3,
            Self::Http2(_) => HttpVersion::Http2,
        }
    }

    /// Returns true if the request may be sent twice without harm (RFC 9110 section 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        match self {
            Self::Http1(head) => head.is_idempotent(),
            Self::Http2(head) => crate::http2::is_idempotent(head.method()),
        }
    }

    /// Returns true if the request asks for another protocol on the connection or stream, or for a tunnel.
    pub fn wants_upgrade(&self) -> bool {
        match self {
            Self::Http1(head) => head.wants_upgrade() || head.is_connect(),
            Self::Http2(head) => head.method() == "CONNECT",
        }
    }

    /// Returns true for a gRPC call, by its content type. Only HTTP/2 carries gRPC, so HTTP/1.1 pays nothing for the check.
    pub fn is_grpc(&self) -> bool {
        match self {
            Self::Http1(_) => false,
            Self::Http2(head) => head.get("content-type").is_some_and(is_grpc),
        }
    }

    /// Timeout of the request's answer, at most `limit`. A gRPC caller with a shorter `grpc-timeout` is answered when that is
    /// over, as by Envoy.
    pub(crate) fn allows(&self, limit: Duration) -> Duration {
        let said = match self {
            Self::Http1(_) => None,
            Self::Http2(head) if self.is_grpc() => head.get("grpc-timeout"),
            Self::Http2(_) => None,
        };
        let said = said.and_then(crate::http2::grpc::timeout);
        said.map_or(limit, |said| said.min(limit))
    }

    /// The first value of a field; names compare without case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        match self {
            Self::Http1(head) => head.header(name),
            Self::Http2(head) => {
                let mut fields = head.iter();
                fields.find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
            }
        }
    }

    /// Every field line; in order as it came.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let (old, new) = match self {
            Self::Http1(head) => (Some(head.headers()), None),
            Self::Http2(head) => (None, Some(head.iter())),
        };
        let new = new.into_iter().flatten();
        old.into_iter().flatten().chain(new)
    }
}

/// `application/grpc`, with or without a message format or parameters; not gRPC-Web, which is plain HTTP.
pub(crate) fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    match content_type.split_at_checked(GRPC.len()) {
        Some((kind, rest)) => {
            kind.eq_ignore_ascii_case(GRPC) && matches!(rest, [] | [b'+' | b';' | b' ', ..])
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(content_type: &str) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/a.B/C?d=e"),
            (":authority", "shop.example:80"),
            ("content-type", content_type),
        ] {
            fields.push(name, value.as_bytes());
        }
        fields
    }

    #[test]
    fn a_head_of_http2_reads_like_one_of_http1() {
        let parts = parts("application/grpc+proto");
        let head = HttpHead::Http2(&parts);
        assert_eq!(head.method(), "POST");
        assert_eq!(head.path_and_query(), "/a.B/C?d=e");
        assert_eq!(head.path(), "/a.B/C");
        assert_eq!(head.authority(), Some("shop.example:80"));
        assert_eq!(head.version().name(), "HTTP/2");
        assert!(!head.is_idempotent());
        assert_eq!(
            head.header("Content-Type"),
            Some(&b"application/grpc+proto"[..])
        );
        assert_eq!(head.headers().count(), 1);
    }

    #[test]
    fn grpc_is_told_by_its_content_type() {
        for (content_type, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("Application/gRPC", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(
                HttpHead::Http2(&parts(content_type)).is_grpc(),
                grpc,
                "{content_type}"
            );
        }
    }
}

//! What travels on of a head, and what does not: the HTTP/2 side of what `voile_http1`'s forwarding does for HTTP/1.1.
//! The h2 crate has already refused connection-specific fields, upper case and misplaced pseudo-header fields.

use h2::ext::Protocol;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, TE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri};

use crate::http::Observe;

/// Fields removed in both directions because a forged one would be believed further on.
const IDENTITY_FIELDS: [HeaderName; 3] = [
    HeaderName::from_static("x-envoy-peer-metadata"),
    HeaderName::from_static("x-envoy-peer-metadata-id"),
    HeaderName::from_static("x-forwarded-client-cert"),
];

/// The authority of a request that names none, where the role knows none either.
const NO_AUTHORITY: &str = "localhost";

/// Why a request is refused before anybody decides on it: one word for the log and the client.
pub(crate) fn check_request(parts: &Parts) -> Result<(), &'static str> {
    if parts
        .method
        .as_str()
        .bytes()
        .any(|byte| byte.is_ascii_lowercase())
    {
        return Err("http2.method_lower_case");
    }
    if parts.method != Method::CONNECT || parts.extensions.get::<Protocol>().is_some() {
        let path = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
        let whole_server = path == "*" && parts.method == Method::OPTIONS;
        if !(path.starts_with('/') || whole_server) {
            return Err("http2.path");
        }
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err("http2.several_hosts");
    }
    if let Some(host) = host {
        let host = host.to_str().map_err(|_| "http2.host")?;
        match parts.uri.authority() {
            // Two answers to "for whom" are for nobody (RFC 9113 section 8.3.1).
            Some(authority) if !authority.as_str().eq_ignore_ascii_case(host) => {
                return Err("http2.host_is_not_authority");
            }
            Some(_) => {}
            None => {
                host.parse::<Authority>().map_err(|_| "http2.host")?;
            }
        }
    }
    if parts
        .uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err("http2.userinfo");
    }
    Ok(())
}

/// The request that goes on over HTTP/2. `default_authority` is for a request that names none.
pub(crate) fn forwarded_request(
    parts: &Parts,
    observer: Option<&dyn Observe>,
    default_authority: Option<&str>,
) -> Result<Request<()>, http::Error> {
    let authority = match parts.uri.authority() {
        Some(authority) => authority.clone(),
        None => {
            let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
            host.or(default_authority)
                .unwrap_or(NO_AUTHORITY)
                .parse::<Authority>()?
        }
    };
    let mut uri = http::uri::Parts::default();
    uri.authority = Some(authority);
    let protocol = parts.extensions.get::<Protocol>();
    if parts.method != Method::CONNECT || protocol.is_some() {
        uri.scheme = Some(parts.uri.scheme().cloned().unwrap_or(Scheme::HTTP));
        uri.path_and_query = parts.uri.path_and_query().cloned();
    }
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = Uri::from_parts(uri)?;
    *request.version_mut() = http::Version::HTTP_2;
    if let Some(protocol) = protocol {
        request.extensions_mut().insert(protocol.clone());
    }
    let headers = request.headers_mut();
    *headers = parts.headers.clone();
    headers.remove(HOST);
    clean(headers);
    if let Some(observer) = observer {
        for name in observer.leaves_out() {
            headers.remove(*name);
        }
        add_lines(headers, observer.adds());
    }
    Ok(request)
}

/// Takes out what no proxy passes on.
pub(crate) fn clean(headers: &mut HeaderMap) {
    for name in &IDENTITY_FIELDS {
        headers.remove(name);
    }
    for name in HOP_FIELDS {
        headers.remove(name);
    }
    if headers.get(TE).is_some_and(|value| value != "trailers") {
        headers.remove(TE);
    }
}

/// Fields of one connection that have no meaning on the next (RFC 9113 section 8.2.2).
const HOP_FIELDS: [HeaderName; 5] = [
    http::header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    http::header::TRANSFER_ENCODING,
    http::header::UPGRADE,
];

/// The same for trailers, which frame and route nothing.
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    clean(trailers);
    trailers.remove(HOST);
    trailers.remove(http::header::CONTENT_LENGTH);
}

/// Adds `name: value\r\n` lines; a line that is no field is left out.
fn add_lines(headers: &mut HeaderMap, lines: &[u8]) {
    for line in lines.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
}

/// Bytes a head takes as HTTP/1.1 would write it, so that both versions' sizes compare.
pub(crate) fn size(headers: &HeaderMap) -> u64 {
    let fields = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4);
    fields.sum::<usize>() as u64
}

/// Every field line, by name.
pub(crate) fn fields(headers: &HeaderMap) -> impl Iterator<Item = (&str, &[u8])> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
}

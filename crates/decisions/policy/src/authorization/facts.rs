//! Attributes of a request, borrowed from the connection and the request: building `Facts` costs nothing. At layer 4
//! `http` is absent.

use std::net::{IpAddr, SocketAddr};

use voile_model::Identity;

use crate::claims::Claims;

/// Attributes of one connection and of one request on it.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// Identity that the peer proved by mutual TLS that this proxy terminated.
    pub source: Option<&'a Identity>,
    /// The address of the direct peer.
    pub source_ip: IpAddr,
    /// The address of the original client: by X-Forwarded-For with trusted hops or the PROXY protocol, else the peer's.
    pub remote_ip: IpAddr,
    /// Destination of the connection: the workload's address and port.
    pub destination: SocketAddr,
    /// The server name of the TLS handshake.
    pub sni: Option<&'a str>,
    /// The request, when the protocol is HTTP.
    pub http: Option<HttpFacts<'a>>,
}

/// Attributes of one HTTP request.
#[derive(Clone, Copy)]
pub struct HttpFacts<'a> {
    /// `:authority` or `Host` as it came, with its port.
    pub authority: Option<&'a [u8]>,
    /// The method.
    pub method: &'a [u8],
    /// The path as it will be forwarded: normalised, with its query.
    pub path: &'a [u8],
    /// The headers, without the three above.
    pub headers: &'a dyn Headers,
    /// The claims of the verified token, those delimited by spaces already split into lists; none without a valid token.
    pub claims: Option<&'a Claims>,
}

impl std::fmt::Debug for HttpFacts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let mut shown = f.debug_struct("Http");
        shown
            .field("authority", &self.authority.map(text))
            .field("method", &text(self.method))
            .field("path", &text(self.path));
        self.headers.each(&mut |name, value| {
            shown.field(&text(name), &text(value));
        });
        shown.field("claims", &self.claims).finish()
    }
}

/// A request's headers, in any storage.
pub trait Headers {
    /// Shows each field line in order: its name in any case, its value without surrounding blanks.
    fn each<'a>(&'a self, show: &mut dyn FnMut(&'a [u8], &'a [u8]));
}

/// No headers at all.
#[derive(Debug, Clone, Copy)]
pub struct NoHeaders;

impl Headers for NoHeaders {
    fn each<'a>(&'a self, _: &mut dyn FnMut(&'a [u8], &'a [u8])) {}
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> Headers for Vec<(N, V)> {
    fn each<'a>(&'a self, show: &mut dyn FnMut(&'a [u8], &'a [u8])) {
        for (name, value) in self {
            show(name.as_ref(), value.as_ref());
        }
    }
}

/// The path for `paths`: the part before a query or a fragment.
pub(super) fn without_query(path: &[u8]) -> &[u8] {
    let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
    &path[..end.unwrap_or(path.len())]
}

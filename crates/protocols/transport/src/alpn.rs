//! ALPN names by which sidecars tell each other the protocol inside mutual TLS (Istio's names). ALPN chooses a
//! version of HTTP and nothing else. For a client without a name the proxy detects the protocol, so that no name
//! evades the rules for HTTP.

/// HTTP/1.1 between sidecars.
pub const HTTP11: &[u8] = b"istio-http/1.1";

/// HTTP/1.0 between sidecars; ours never offers it, Envoy may.
pub const HTTP10: &[u8] = b"istio-http/1.0";

/// HTTP/2 between sidecars.
pub const HTTP2: &[u8] = b"istio-h2";

/// HTTP/2 without a mesh's name.
pub const PLAIN_HTTP2: &[u8] = b"h2";

/// Opaque bytes between sidecars.
pub const TCP: &[u8] = b"istio";

/// HTTP/1.1 without a mesh's name: a client with a mesh certificate that is no sidecar.
pub const PLAIN_HTTP11: &[u8] = b"http/1.1";

/// Protocols of a server in the mesh, in order of preference.
pub const SERVER: [&[u8]; 6] = [HTTP11, HTTP2, TCP, HTTP10, PLAIN_HTTP2, PLAIN_HTTP11];

/// Protocol inside the connection, as ALPN named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InnerProtocol {
    /// HTTP/1.x.
    Http1,
    /// HTTP/2.
    Http2,
    /// A name that is no version of HTTP: the port's declaration and the bytes decide.
    Opaque,
    /// The client named nothing: the port's declaration and the bytes decide.
    Unnamed,
}

/// Returns the protocol that a negotiated ALPN name stands for.
#[must_use]
pub fn inner(negotiated: Option<&[u8]>) -> InnerProtocol {
    match negotiated {
        Some(name) if name == HTTP11 || name == HTTP10 || name == PLAIN_HTTP11 => {
            InnerProtocol::Http1
        }
        Some(name) if name == HTTP2 || name == PLAIN_HTTP2 => InnerProtocol::Http2,
        Some(_) => InnerProtocol::Opaque,
        None => InnerProtocol::Unnamed,
    }
}

/// Returns true if a name offered by a client marks a sidecar's mutual TLS (as opposed to TLS meant for the
/// application).
#[must_use]
pub fn is_mesh(name: &[u8]) -> bool {
    name == b"istio" || name.starts_with(b"istio-")
}

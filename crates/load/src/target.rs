//! Where a run goes and what is spoken there: URLs, schemes and protocols.

use std::net::{SocketAddr, ToSocketAddrs};

/// How a URL begins: what is spoken there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `http://`: HTTP/1.1, or HTTP/2 if told so.
    Http,
    /// `h2c://`: HTTP/2 without TLS, by prior knowledge.
    H2c,
    /// `grpc://`: gRPC unary calls.
    Grpc,
    /// `tcp://`: bytes.
    Tcp,
    /// `https://`: the first of these over TLS.
    Https,
    /// `h2://`: HTTP/2 over TLS.
    H2,
    /// `grpcs://`: gRPC over TLS.
    Grpcs,
    /// `tls://`: bytes over TLS.
    Tls,
    /// `ws://`: WebSocket.
    Ws,
    /// `wss://`: WebSocket over TLS.
    Wss,
}

/// What a run speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS, by prior knowledge.
    Http2,
    /// gRPC unary calls over it.
    Grpc,
    /// WebSocket: a message there, one back.
    WebSocket,
    /// TCP: so many bytes there, so many back, again and again.
    TcpRr,
    /// TCP: as many bytes as go through.
    TcpBulk,
}

/// Which way a bulk run moves its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bulk {
    /// To the server.
    Push,
    /// From the server, which sends without being asked.
    Pull,
}

impl Bulk {
    /// The word used in options and records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
        }
    }
}

impl Protocol {
    /// The word used in options and records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::WebSocket => "websocket",
            Self::TcpRr => "tcp-rr",
            Self::TcpBulk => "tcp-bulk",
        }
    }

    /// Whether one connection carries several requests at once.
    #[must_use]
    pub fn multiplexed(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc)
    }

    pub(crate) fn speaks(self, scheme: Scheme) -> bool {
        match self {
            Self::Http1 => matches!(scheme, Scheme::Http | Scheme::Https),
            Self::Http2 => matches!(
                scheme,
                Scheme::Http | Scheme::H2c | Scheme::Https | Scheme::H2
            ),
            Self::Grpc => !matches!(scheme, Scheme::Tcp | Scheme::Tls | Scheme::Ws | Scheme::Wss),
            Self::WebSocket => matches!(scheme, Scheme::Ws | Scheme::Wss),
            Self::TcpRr => matches!(scheme, Scheme::Tcp | Scheme::Tls),
            Self::TcpBulk => scheme == Scheme::Tcp,
        }
    }
}

impl Scheme {
    /// What is spoken unless told otherwise.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Http | Self::Https => Protocol::Http1,
            Self::H2c | Self::H2 => Protocol::Http2,
            Self::Grpc | Self::Grpcs => Protocol::Grpc,
            Self::Tcp | Self::Tls => Protocol::TcpRr,
            Self::Ws | Self::Wss => Protocol::WebSocket,
        }
    }

    /// Whether it goes over TLS.
    #[must_use]
    pub fn secure(self) -> bool {
        matches!(
            self,
            Self::Https | Self::H2 | Self::Grpcs | Self::Tls | Self::Wss
        )
    }

    /// The scheme that a URL begins with.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "http" => Self::Http,
            "h2c" => Self::H2c,
            "grpc" => Self::Grpc,
            "tcp" => Self::Tcp,
            "https" => Self::Https,
            "h2" => Self::H2,
            "grpcs" => Self::Grpcs,
            "tls" => Self::Tls,
            "ws" => Self::Ws,
            "wss" => Self::Wss,
            _ => return None,
        })
    }
}

/// A checked URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As written.
    pub url: String,
    /// How it begins; `http` where it does not say.
    pub scheme: Scheme,
    /// `host[:port]` as it goes into the Host header.
    pub authority: String,
    /// Where to connect.
    pub address: SocketAddr,
    /// Path and query, never empty.
    pub path: String,
}

impl Target {
    /// Parses and resolves; the first address of a name is taken for the whole run.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) => match Scheme::named(scheme) {
                Some(scheme) => (scheme, rest),
                None => {
                    return Err(format!(
                        "{url}: scheme `{scheme}` is not supported, only http, h2c, grpc, ws, tcp, and over TLS https, h2, grpcs, wss, tls"
                    ));
                }
            },
            None => (Scheme::Http, url),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.is_empty() || authority.contains('@') {
            return Err(format!("{url}: expected http://HOST[:PORT][/PATH][?QUERY]"));
        }
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        if let Some(byte) = url.bytes().find(|byte| *byte <= b' ' || *byte >= 0x7f) {
            return Err(format!("{url}: byte {byte:#04x} must be percent-encoded"));
        }
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.contains(']'));
        let named = if has_port {
            authority.to_owned()
        } else if matches!(scheme, Scheme::Tcp | Scheme::Tls) {
            return Err(format!("{url}: expected tcp://HOST:PORT"));
        } else if scheme.secure() {
            format!("{authority}:443")
        } else {
            format!("{authority}:80")
        };
        let address = named
            .to_socket_addrs()
            .map_err(|error| format!("{url}: cannot resolve {named}: {error}"))?
            .next()
            .ok_or_else(|| format!("{url}: {named} has no address"))?;
        Ok(Self {
            url: url.to_owned(),
            scheme,
            authority: authority.to_owned(),
            address,
            path,
        })
    }
}

impl Target {
    /// The authority without a port, and an IPv6 address without its brackets.
    pub(crate) fn host(&self) -> &str {
        let host = match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => host,
            _ => &self.authority,
        };
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

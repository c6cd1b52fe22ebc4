//! Targets of a run: URLs, schemes and protocols.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Scheme of a URL. It selects the default protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `http://`: HTTP/1.1, or HTTP/2 by option.
    Http,
    /// `h2c://`: HTTP/2 without TLS, by prior knowledge.
    H2c,
    /// `grpc://`: gRPC unary calls.
    Grpc,
    /// `tcp://`: bytes.
    Tcp,
    /// `udp://`: datagrams.
    Udp,
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

/// Protocol of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadProtocol {
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
    /// UDP: a datagram there, one back.
    Udp,
}

/// Direction of a bulk run.
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

impl LoadProtocol {
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
            Self::Udp => "udp",
        }
    }

    /// Reports if requests and answers are bare bytes, with no head around them.
    #[must_use]
    pub fn bare(self) -> bool {
        matches!(self, Self::TcpRr | Self::TcpBulk | Self::Udp)
    }

    /// Reports if one connection carries several requests at once.
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
            Self::Grpc => !matches!(
                scheme,
                Scheme::Tcp | Scheme::Udp | Scheme::Tls | Scheme::Ws | Scheme::Wss
            ),
            Self::WebSocket => matches!(scheme, Scheme::Ws | Scheme::Wss),
            Self::TcpRr => matches!(scheme, Scheme::Tcp | Scheme::Tls),
            Self::TcpBulk => scheme == Scheme::Tcp,
            Self::Udp => scheme == Scheme::Udp,
        }
    }
}

impl Scheme {
    /// Default protocol of the scheme.
    #[must_use]
    pub fn protocol(self) -> LoadProtocol {
        match self {
            Self::Http | Self::Https => LoadProtocol::Http1,
            Self::H2c | Self::H2 => LoadProtocol::Http2,
            Self::Grpc | Self::Grpcs => LoadProtocol::Grpc,
            Self::Tcp | Self::Tls => LoadProtocol::TcpRr,
            Self::Udp => LoadProtocol::Udp,
            Self::Ws | Self::Wss => LoadProtocol::WebSocket,
        }
    }

    /// Reports if the scheme carries bare bytes: the URL must name a port and has no path.
    #[must_use]
    pub fn bare(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp | Self::Tls)
    }

    /// Reports if the scheme uses TLS.
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
            "udp" => Self::Udp,
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

/// Choice among a name's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resolve {
    /// The first of IPv4, and of IPv6 if there is none: servers that listen on only one commonly do so on IPv4.
    #[default]
    Usual,
    /// The first of IPv4.
    V4,
    /// The first of IPv6.
    V6,
    /// This address, without a look-up of the name.
    To(IpAddr),
}

impl Resolve {
    /// Reads `ip4`, `ip6`, `ip` or an address.
    ///
    /// # Errors
    /// Says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "ip" => Self::Usual,
            "ip4" => Self::V4,
            "ip6" => Self::V6,
            _ => Self::To(text.parse().map_err(|_| {
                format!("`{text}`: expected an IP address, or ip4 or ip6 to say of which kind")
            })?),
        })
    }

    /// The address of `HOST:PORT`.
    fn choose(self, url: &str, named: &str) -> Result<SocketAddr, String> {
        if let Self::To(ip) = self {
            let port = named
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse().ok());
            let port = port.ok_or_else(|| format!("{url}: `{named}` does not end in a port"))?;
            return Ok(SocketAddr::new(ip, port));
        }
        let all: Vec<SocketAddr> = named
            .to_socket_addrs()
            .map_err(|error| {
                let text = error.to_string();
                let why = text.rsplit("information: ").next().unwrap_or_default();
                format!("{url}: cannot resolve {named}: {why}")
            })?
            .collect();
        let first = |v4: bool| all.iter().find(|address| address.is_ipv4() == v4).copied();
        let (found, what) = match self {
            Self::V4 => (first(true), "no IPv4 address"),
            Self::V6 => (first(false), "no IPv6 address"),
            _ => (first(true).or_else(|| first(false)), "no address"),
        };
        found.ok_or_else(|| format!("{url}: {named} has {what}"))
    }
}

/// A checked URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadTarget {
    /// The URL as written.
    pub url: String,
    /// Scheme of the URL; `http` if it names none.
    pub scheme: Scheme,
    /// `host[:port]` as it goes into the Host header.
    pub authority: String,
    /// Address to connect to.
    pub address: SocketAddr,
    /// Path and query, never empty.
    pub path: String,
}

impl LoadTarget {
    /// Parses and resolves; one address of a name is taken for the whole run, the first of IPv4 if there is one.
    ///
    /// # Errors
    /// Says which part of the URL is wrong, or that the name has no address.
    pub fn parse(url: &str) -> Result<Self, String> {
        Self::resolved(url, Resolve::default())
    }

    /// As [`Target::parse`], with the given choice of the address.
    ///
    /// # Errors
    /// Likewise.
    pub fn resolved(url: &str, resolve: Resolve) -> Result<Self, String> {
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) => match Scheme::named(scheme) {
                Some(scheme) => (scheme, rest),
                None => {
                    return Err(format!(
                        "{url}: scheme `{scheme}` is not supported, only http, h2c, grpc, ws, tcp, udp, and over TLS https, h2, grpcs, wss, tls"
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
        } else if scheme.bare() {
            return Err(format!("{url}: a port is missing; expected HOST:PORT"));
        } else if scheme.secure() {
            format!("{authority}:443")
        } else {
            format!("{authority}:80")
        };
        let address = resolve.choose(url, &named)?;
        Ok(Self {
            url: url.to_owned(),
            scheme,
            authority: authority.to_owned(),
            address,
            path,
        })
    }
}

impl LoadTarget {
    /// The authority without a port, and an IPv6 address without its brackets.
    pub(crate) fn host(&self) -> &str {
        let host = match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => host,
            _ => &self.authority,
        };
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

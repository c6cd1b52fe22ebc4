//! Names of resources: Istio's names where it has one, so that dashboards and people find them.

use std::net::SocketAddr;

use voile_model::mesh::{ConnectionPool, Mesh, Protocol, ServicePort};
use voile_model::{Hostname, Port};

/// Payload of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClusterTraffic {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// Bytes.
    Opaque,
}

impl ClusterTraffic {
    /// ALPN names between sidecars, and for servers that know HTTP by its common name only.
    pub(crate) fn alpn(self) -> &'static [&'static str] {
        match self {
            Self::Http1 => &["istio-http/1.1", "http/1.1"],
            Self::Http2 => &["istio-h2", "h2"],
            Self::Opaque => &["istio"],
        }
    }
}

/// Payload of calls to a service's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortProtocol {
    /// Always the same.
    One(ClusterTraffic),
    /// HTTP in the version in which it came.
    AnyHttp,
    /// Decided by the first bytes.
    Anything,
}

impl PortProtocol {
    /// To a service's port or a part of it, of which a DestinationRule says this.
    pub(crate) fn to(mesh: &Mesh, port: &ServicePort, pool: &ConnectionPool) -> Option<Self> {
        Some(match port.protocol {
            Protocol::Udp => return None,
            Protocol::Auto => Self::Anything,
            Protocol::Tcp | Protocol::Tls => Self::One(ClusterTraffic::Opaque),
            Protocol::Http | Protocol::Http2 | Protocol::Grpc if pool.use_client_protocol => {
                Self::AnyHttp
            }
            Protocol::Http2 | Protocol::Grpc => Self::One(ClusterTraffic::Http2),
            Protocol::Http if pool.http2_upgrade.unwrap_or(mesh.config.http2_upgrade) => {
                Self::One(ClusterTraffic::Http2)
            }
            Protocol::Http => Self::One(ClusterTraffic::Http1),
        })
    }

    /// All that it may be.
    pub(crate) fn each(self) -> &'static [ClusterTraffic] {
        match self {
            Self::One(ClusterTraffic::Http1) => &[ClusterTraffic::Http1],
            Self::One(ClusterTraffic::Http2) => &[ClusterTraffic::Http2],
            Self::One(ClusterTraffic::Opaque) => &[ClusterTraffic::Opaque],
            Self::AnyHttp => &[ClusterTraffic::Http1, ClusterTraffic::Http2],
            Self::Anything => &[
                ClusterTraffic::Http1,
                ClusterTraffic::Http2,
                ClusterTraffic::Opaque,
            ],
        }
    }

    /// Name of the cluster for this payload, with this prefix; `None` if there is no such cluster.
    pub(crate) fn cluster(self, base: String, carried: ClusterTraffic) -> Option<String> {
        match self {
            // The other version of HTTP is carried as this one, and HTTP to a port of bytes as bytes.
            Self::One(one) => {
                let fits = carried != ClusterTraffic::Opaque || one == ClusterTraffic::Opaque;
                fits.then_some(base)
            }
            spoken => spoken
                .each()
                .contains(&carried)
                .then(|| flavoured(&base, carried)),
        }
    }
}

/// `outbound|PORT|SUBSET|HOST`.
pub(crate) fn outbound(port: Port, subset: Option<&str>, host: &Hostname) -> String {
    let subset = subset.unwrap_or_default();
    format!("outbound|{port}|{subset}|{host}")
}

/// One of several clusters for one port.
pub(crate) fn flavoured(base: &str, carried: ClusterTraffic) -> String {
    match carried {
        ClusterTraffic::Http1 => format!("{base}~http"),
        ClusterTraffic::Http2 => format!("{base}~h2"),
        ClusterTraffic::Opaque => format!("{base}~tcp"),
    }
}

/// The name of what comes in at a port.
pub(crate) fn inbound(port: Port) -> String {
    format!("inbound|{port}||")
}

/// The server name of mutual TLS between sidecars.
pub(crate) fn server_name(port: Port, subset: Option<&str>, host: &Hostname) -> String {
    let subset = subset.unwrap_or_default();
    format!("outbound_.{port}_.{subset}_.{host}")
}

/// A listener by where it listens.
pub(crate) fn listener(address: SocketAddr) -> String {
    format!("{}_{}", address.ip(), address.port())
}

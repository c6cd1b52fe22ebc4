//! Model ⇄ wire, once. The control plane fills small checked types, which travel as messages and arrive as the same types in a
//! proxy, by one list of fields for both ways (`fields`). Istio's own messages are made in `encode` and read in `address`. Nothing
//! behind this wall ever sees a port of 70,000, an address of five bytes or an unset enum. Every refusal names the field and why.

mod action;
mod address;
mod capture;
mod configuration;
mod encode;
mod fields;
mod gateway;
mod health;
mod health_check;
mod host_names;
mod outbound;
mod remote_networks;
mod routes;
mod security;
mod telemetry;
mod traffic;
mod waypoint;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

pub use voile_model::mesh::AddressRange;
use voile_model::{Hostname, Namespace, Port, ServiceKey, TrustDomain};
use voile_proto::workload;

pub use address::{
    Address, ApplicationTunnel, Service, ServicePort, TelemetryLabels, Tunnel, WireEndpoint,
    WireWorkload, WorkloadType,
};
pub use capture::{CapturedPort, InboundCapture, ReachableHosts};
pub use configuration::{
    ClientCertificateDetails, ConnectionTimeouts, ForwardClientCertificate, InboundListener,
    MutualTls, OutboundListener, OutboundPolicy, PathNormalization, ProxyConfiguration, WireLimits,
};
pub use encode::{CLUSTER, encode_labels, encode_service, encode_workload, protocol_of};
pub use fields::{WireEntry, WireType, by_key};
pub use gateway::{
    Credential, Gateway, GatewayFiles, GatewayListener, GatewayServer, GatewayTls, ServerKind,
    VirtualHost,
};
pub use health::HealthProbe;
pub use health_check::HealthCheck;
pub use host_names::{NameMeaning, SEARCH, is_virtual, parse_search, search_name, search_name_of};
pub use outbound::{OutboundService, PolicyReference};
pub use remote_networks::{
    NetworkEntrance, RemoteGateway, RemoteWorkload, encode_network_gateway,
    encode_network_gateways, parse_away_address,
};
pub use routes::{
    ConnectionMatch, ConnectionRoute, Mirror, OpenedRoutes, PackedRoutes, RequestMatch,
    RouteDestination, RouteTarget, Routes, WireRoute,
};
pub use security::authorization::{decode_authorization, encode_authorization};
pub use security::authorizer::Authorizer;
pub use security::connections::{decode_connection_policy, encode_connection_policy};
pub use security::policy::{ClientPolicy, PortPolicy, ServicePolicy, Subset, SubsetPort};
pub use security::rate_limit::{GlobalLimits, LimitRule, RateLimit};
pub use security::tokens::{ReceivedTokens, decode_key_set, decode_tokens, encode_tokens};
pub use telemetry::{AccessLog, Collector, GrpcLog, LogSink, MetricOverride, Telemetry, Tracing};
pub use waypoint::{Waypoint, WaypointAddress, WaypointDestination, WaypointTo};

/// Why a message from the control plane is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireError {
    /// Path of the field, such as `inbound[2].bind.port`; empty for the whole message.
    pub field: String,
    /// Error of the field.
    pub reason: String,
}

impl WireError {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }

    fn within(mut self, outer: &str) -> Self {
        let dot = match self.field.as_bytes().first() {
            None | Some(b'[') => "",
            Some(_) if outer.is_empty() => "",
            Some(_) => ".",
        };
        self.field = format!("{outer}{dot}{}", self.field);
        self
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.field, self.reason),
        }
    }
}

impl std::error::Error for WireError {}

/// Characters of the decoder's words in a refusal. The decoder names every message that it was in, however deep they nest.
const MAX_DECODE_ERROR: usize = 256;

impl From<prost::DecodeError> for WireError {
    fn from(error: prost::DecodeError) -> Self {
        let error = error.to_string();
        let shown = error.char_indices().nth(MAX_DECODE_ERROR);
        let shown = shown.map_or(error.as_str(), |(end, _)| &error[..end]);
        Self::new("", format!("not a message of its type: {shown}"))
    }
}

/// Protocol of a port, as the proxy needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WireProtocol {
    /// Not said: found out from the first bytes.
    Auto,
    /// HTTP/1.x.
    Http,
    /// HTTP/2 in clear text.
    Http2,
    /// gRPC.
    Grpc,
    /// Opaque bytes.
    Tcp,
    /// TLS that is not ours, passed through.
    Tls,
}

impl WireProtocol {
    /// HTTP of either version was declared: the client speaks first.
    #[must_use]
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2 | Self::Grpc)
    }

    /// HTTP/2 was declared.
    #[must_use]
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc)
    }

    fn from_workload(value: i32) -> Self {
        use workload::AppProtocol as Wire;
        match Wire::try_from(value) {
            Ok(Wire::Http11) => Self::Http,
            Ok(Wire::Http2) => Self::Http2,
            Ok(Wire::Grpc) => Self::Grpc,
            Ok(Wire::Tcp) => Self::Tcp,
            Ok(Wire::Tls) => Self::Tls,
            // Istio may add protocols; what we do not know is found out from the first bytes.
            Ok(Wire::Unknown) | Err(_) => Self::Auto,
        }
    }

    fn to_workload(self) -> workload::AppProtocol {
        match self {
            Self::Auto => workload::AppProtocol::Unknown,
            Self::Http => workload::AppProtocol::Http11,
            Self::Http2 => workload::AppProtocol::Http2,
            Self::Grpc => workload::AppProtocol::Grpc,
            Self::Tcp => workload::AppProtocol::Tcp,
            Self::Tls => workload::AppProtocol::Tls,
        }
    }
}

fn unknown_value(field: &str, value: i32) -> WireError {
    WireError::new(
        field,
        format!("{value} is a value that this proxy does not know"),
    )
}

/// Bytes of an address as the wire carries them: 4 for IPv4, 16 for IPv6.
pub fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address(field: &str, bytes: &[u8]) -> Result<IpAddr, WireError> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ok(Ipv4Addr::from(v4).into());
    }
    match <[u8; 16]>::try_from(bytes) {
        Ok(v6) => Ok(Ipv6Addr::from(v6).into()),
        Err(_) => Err(WireError::new(
            field,
            format!("an address has 4 or 16 bytes, this one has {}", bytes.len()),
        )),
    }
}

fn port(field: &str, number: u32) -> Result<Port, WireError> {
    u16::try_from(number)
        .ok()
        .and_then(Port::new)
        .ok_or_else(|| WireError::new(field, format!("a port is 1 to 65535, not {number}")))
}

/// A duration on the wire; more than fits is as much as fits, and what is not nothing stays something.
fn milliseconds(duration: Duration) -> u32 {
    let whole = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    match duration.is_zero() {
        true => 0,
        false => whole.max(1),
    }
}

fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 100; // a hostile name may be megabytes; a log line should not be
    text.chars().take(SHOWN_CHARS).collect()
}

fn namespace(field: &str, text: &str) -> Result<Namespace, WireError> {
    Namespace::new(text)
        .ok_or_else(|| WireError::new(field, format!("`{}` is not a namespace", shown(text))))
}

fn hostname(field: &str, text: &str) -> Result<Hostname, WireError> {
    Hostname::new(text)
        .ok_or_else(|| WireError::new(field, format!("`{}` is not a host name", shown(text))))
}

fn service_key(field: &str, text: &str) -> Result<ServiceKey, WireError> {
    parse_service_key(text).ok_or_else(|| {
        WireError::new(
            field,
            format!("`{}` is not NAMESPACE/HOSTNAME", shown(text)),
        )
    })
}

/// Parses `namespace/hostname`.
pub fn parse_service_key(text: &str) -> Option<ServiceKey> {
    let (namespace, hostname) = text.split_once('/')?;
    Some(ServiceKey {
        namespace: Namespace::new(namespace)?,
        hostname: Hostname::new(hostname)?,
    })
}

fn trust_domain(field: &str, text: &str) -> Result<TrustDomain, WireError> {
    const ISTIO_DEFAULT: &str = "cluster.local"; // what an empty trust domain means on Istio's wire
    let text = if text.is_empty() { ISTIO_DEFAULT } else { text };
    TrustDomain::new(text)
        .ok_or_else(|| WireError::new(field, format!("`{}` is not a trust domain", shown(text))))
}

//! Configuration of one sidecar, its listeners and policies ⇄ `voile.proxy.v1.ProxyConfiguration`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use voile_model::{Labels, Port, ServiceKey, TrustDomain};
use voile_proto::proxy as wire;

use super::{
    Authorizer, Gateway, HealthCheck, HealthProbe, InboundCapture, RateLimit, Telemetry, Waypoint,
    WireError, WireProtocol, WireType,
};
use crate::wire::fields::forms::{always, each_named, named, or_default, required};
use crate::wire::fields::{wire_enum, wire_type};
use crate::wire::outbound::{OutboundService, PolicyReference};
pub use voile_model::mesh::{
    ClientCertificateDetails, ForwardClientCertificate, OutboundPolicy, PathNormalization,
};

/// The configuration of one sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfiguration {
    /// The workload it stands for.
    pub workload_uid: Arc<str>,
    /// Trust domain of its identity.
    pub trust_domain: TrustDomain,
    /// Trust domains that count as its own.
    pub trust_domain_aliases: Vec<TrustDomain>,
    /// Inbound listeners.
    pub inbound: Vec<InboundListener>,
    /// Outbound listeners.
    pub outbound: Vec<OutboundListener>,
    /// Treatment of traffic to undeclared hosts.
    pub outbound_policy: OutboundPolicy,
    /// Timeouts.
    pub connection: ConnectionTimeouts,
    /// Address upstream sockets bind; `None` lets the kernel choose.
    pub source_address: Option<IpAddr>,
    /// Treatment of connections that the kernel redirects here; `None` from a control plane that knows no
    /// capture.
    pub capture: Option<InboundCapture>,
    /// Telemetry of the traffic.
    pub telemetry: Telemetry,
    /// Limits of the proxy.
    pub limits: WireLimits,
    /// Policies that hold for it; all of them, or nothing is obeyed.
    pub authorization_policies: Vec<PolicyReference>,
    /// Normalization of paths before they are compared.
    pub path_normalization: PathNormalization,
    /// Proxies in front of it whose word in `x-forwarded-for` is believed.
    pub trusted_proxies: u32,
    /// Authorizers of its CUSTOM policies, as far as they can be called.
    pub authorizers: Vec<Authorizer>,
    /// Rules about tokens that hold for it; all of them, or nothing is obeyed.
    pub request_authentications: Vec<PolicyReference>,
    /// The key sets that those need.
    pub key_sets: Vec<Arc<str>>,
    /// True if clients in plaintext send a PROXY header with the original client.
    pub proxy_protocol: bool,
    /// Treatment of `x-forwarded-client-cert`.
    pub forwards: ForwardClientCertificate,
    /// Parts of a client's certificate that are forwarded.
    pub certificate_details: Option<ClientCertificateDetails>,
    /// The workload's own.
    pub labels: Labels,
    /// Gateway configuration; `None` for a sidecar.
    pub gateway: Option<Gateway>,
    /// Health probe of the application.
    pub health_probe: Option<HealthProbe>,
    /// Rate limits of its requests.
    pub rate_limits: Vec<RateLimit>,
    /// HealthChecks of endpoints; of those for one destination the first holds.
    pub health_checks: Vec<Arc<HealthCheck>>,
    /// Waypoint configuration; `None` for other proxies.
    pub waypoint: Option<Waypoint>,
}

/// Limits of a proxy, and the time for which it follows unused services; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WireLimits {
    /// Downstream connections.
    pub connections: u32,
    /// Requests in flight, of all clients to all destinations.
    pub requests: u32,
    /// Requests in flight to one port of one service.
    pub requests_per_destination: u32,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Time for which an unused service is followed.
    pub service_idle: Option<Duration>,
}

/// Mutual TLS mode of an inbound listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MutualTls {
    /// Plaintext only.
    Disable,
    /// Both.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

// Unset must never be read as "anything goes".
wire_enum! {
    MutualTls as wire::MutualTls {
        Disable, Permissive, Strict;
        refuse Unspecified: "UNSPECIFIED is not allowed"
    }
}

wire_enum! { OutboundPolicy as wire::OutboundPolicy { AllowAny, RegistryOnly } }

wire_enum! { WireProtocol as wire::Protocol { Auto, Http, Http2, Grpc, Tcp, Tls } }

/// An inbound listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundListener {
    /// Unique in its configuration, stable over edits.
    pub name: Arc<str>,
    /// Address of the listener.
    pub bind: SocketAddr,
    /// Protocol of the listener.
    pub protocol: WireProtocol,
    /// Mutual TLS mode of the listener.
    pub mutual_tls: MutualTls,
    /// Address of the application.
    pub endpoint: SocketAddr,
    /// The service whose target port this is, and the service's port; for metrics only.
    pub service: Option<(ServiceKey, Port)>,
    /// Bound where capture is on, too; the others stand in for capture.
    pub beside_capture: bool,
}

wire_type! {
    InboundListener as wire::InboundListener {
        name,
        bind with required,
        protocol,
        mutual_tls,
        endpoint with required,
        service = (service, service_port),
        beside_capture,
    }
}

/// An outbound listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboundListener {
    /// Unique in its configuration, stable over edits.
    pub name: Arc<str>,
    /// Address of the listener.
    pub bind: SocketAddr,
    /// Protocol of the listener.
    pub protocol: WireProtocol,
    /// Services that it can reach. HTTP selects by authority; TCP, and a lone service, takes the first.
    pub services: Vec<OutboundService>,
}

wire_type! {
    OutboundListener as wire::OutboundListener {
        name,
        bind with required,
        protocol,
        services,
    }
}

/// Timeouts; `None` leaves the proxy's named default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionTimeouts {
    /// TCP connect.
    pub connect_timeout: Option<Duration>,
    /// Waiting for first bytes.
    pub detection_timeout: Option<Duration>,
    /// A connection on which nothing happens.
    pub idle_timeout: Option<Duration>,
    /// Reading a request's headers.
    pub header_timeout: Option<Duration>,
    /// Letting connections end at shutdown.
    pub drain_timeout: Option<Duration>,
}

impl ProxyConfiguration {
    /// All that is told about the traffic: the proxy's own, and what a waypoint tells of some destinations.
    pub fn telemetries(&self) -> impl Iterator<Item = &Telemetry> {
        let behind = self.waypoint.iter().flat_map(|one| &one.telemetries);
        std::iter::once(&self.telemetry).chain(behind.map(|one| &**one))
    }

    /// Checks the bytes of a `voile.proxy.v1.ProxyConfiguration`.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Self::from_wire(wire::ProxyConfiguration::decode(bytes)?)
    }
}

wire_type! {
    ProxyConfiguration as wire::ProxyConfiguration {
        workload_uid by named,
        trust_domain,
        trust_domain_aliases,
        inbound,
        outbound,
        outbound_policy,
        connection with always,
        source_address,
        capture,
        telemetry with always,
        limits with or_default,
        authorization_policies,
        path_normalization,
        trusted_proxies,
        authorizers,
        request_authentications,
        key_sets by each_named,
        proxy_protocol,
        forwards = forward_client_certificate,
        certificate_details = client_certificate_details,
        labels,
        gateway,
        health_probe,
        rate_limits,
        health_checks,
        waypoint,
    }
    verify has_distinct_listeners
}

fn has_distinct_listeners(configuration: &ProxyConfiguration) -> Result<(), WireError> {
    let (inbound, outbound) = (&configuration.inbound, &configuration.outbound);
    distinct("inbound", inbound.iter().map(|one| (&one.name, one.bind)))?;
    distinct("outbound", outbound.iter().map(|one| (&one.name, one.bind)))
}

/// Checks that listeners have names, and that no name and no address is there twice.
pub(super) fn distinct<'a>(
    field: &str,
    listeners: impl Iterator<Item = (&'a Arc<str>, SocketAddr)>,
) -> Result<(), WireError> {
    let (mut names, mut binds) = (BTreeSet::new(), BTreeSet::new());
    for (index, (name, bind)) in listeners.enumerate() {
        let refuse = |part, reason| Err(WireError::new(format!("{field}[{index}].{part}"), reason));
        if name.is_empty() {
            return refuse("name", "missing".to_owned());
        }
        if !names.insert(name) {
            return refuse("name", format!("`{}` appears twice", super::shown(name)));
        }
        if !binds.insert(bind) {
            return refuse("bind", format!("{bind} appears twice"));
        }
    }
    Ok(())
}

wire_enum! {
    PathNormalization as wire::PathNormalization { Base, None, MergeSlashes, DecodeAndMergeSlashes }
}

wire_enum! {
    ForwardClientCertificate as wire::ForwardClientCertificate {
        Sanitize, ForwardOnly, AppendForward, SanitizeSet, AlwaysForwardOnly
    }
}

wire_type! {
    ClientCertificateDetails as wire::ClientCertificateDetails {
        subject,
        certificate,
        chain,
        dns,
        uri,
    }
}

wire_type! {
    WireLimits as wire::Limits {
        connections,
        requests,
        requests_per_destination,
        memory = memory_bytes,
        service_idle = service_idle_ms,
    }
}

wire_type! {
    ConnectionTimeouts as wire::ConnectionSettings {
        connect_timeout = connect_timeout_ms,
        detection_timeout = detection_timeout_ms,
        idle_timeout = idle_timeout_ms,
        header_timeout = header_timeout_ms,
        drain_timeout = drain_timeout_ms,
    }
}

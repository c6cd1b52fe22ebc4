//! Configuration of one sidecar, its listeners and policies, checked from `voile.proxy.v1.ProxyConfiguration`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use voile_model::{Labels, Port, ServiceKey, TrustDomain};
use voile_proto::proxy as wire;

use super::{
    Authorizer, Gateway, HealthCheck, HealthProbe, InboundCapture, RateLimit, Telemetry, Waypoint,
    WireError, WireProtocol, address, labels_of, port, service_key, socket, trust_domain,
};
use crate::wire::outbound::{OutboundService, PolicyReference, references};
pub use voile_model::mesh::{
    ClientCertificateDetails, ForwardClientCertificate, PathNormalization,
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
    pub certificate_details: ClientCertificateDetails,
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

/// Treatment of traffic to undeclared hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutboundPolicy {
    /// It goes where it was going.
    AllowAny,
    /// It is refused.
    RegistryOnly,
}

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
        Self::check(&wire::ProxyConfiguration::decode(bytes)?)
    }

    /// Checks a message.
    pub fn check(message: &wire::ProxyConfiguration) -> Result<Self, WireError> {
        if message.workload_uid.is_empty() {
            return Err(WireError::new("workload_uid", "missing"));
        }
        if message.trust_domain.is_empty() {
            return Err(WireError::new("trust_domain", "missing"));
        }
        let source_address = match message.source_address.as_slice() {
            [] => None,
            bytes => Some(address("source_address", bytes)?),
        };
        Ok(Self {
            workload_uid: message.workload_uid.as_str().into(),
            trust_domain: trust_domain("trust_domain", &message.trust_domain)?,
            trust_domain_aliases: aliases(&message.trust_domain_aliases)?,
            inbound: listeners("inbound", &message.inbound, InboundListener::check, |l| {
                (&l.name, l.bind)
            })?,
            outbound: listeners(
                "outbound",
                &message.outbound,
                OutboundListener::check,
                |l| (&l.name, l.bind),
            )?,
            outbound_policy: outbound_policy(message.outbound_policy)?,
            connection: message
                .connection
                .as_ref()
                .map(connection)
                .unwrap_or_default(),
            source_address,
            capture: match &message.capture {
                None => None,
                Some(capture) => {
                    Some(InboundCapture::check(capture).map_err(|error| error.within("capture"))?)
                }
            },
            telemetry: Telemetry::check(message.telemetry.as_ref())?,
            limits: message.limits.as_ref().map(limits).unwrap_or_default(),
            authorization_policies: references(
                "authorization_policies",
                &message.authorization_policies,
            )?,
            path_normalization: normalization(message.path_normalization)?,
            trusted_proxies: message.trusted_proxies,
            authorizers: authorizers(&message.authorizers)?,
            request_authentications: references(
                "request_authentications",
                &message.request_authentications,
            )?,
            key_sets: key_sets(&message.key_sets)?,
            proxy_protocol: message.proxy_protocol,
            forwards: forwards(message.forward_client_certificate)?,
            certificate_details: details(message.client_certificate_details),
            labels: labels_of(&message.labels),
            gateway: match &message.gateway {
                None => None,
                Some(gateway) => {
                    Some(Gateway::check(gateway).map_err(|error| error.within("gateway"))?)
                }
            },
            health_probe: health_probe(message)?,
            rate_limits: rate_limits(&message.rate_limits)?,
            health_checks: health_checks(&message.health_checks)?,
            waypoint: match &message.waypoint {
                None => None,
                Some(waypoint) => {
                    Some(Waypoint::check(waypoint).map_err(|error| error.within("waypoint"))?)
                }
            },
        })
    }
}

fn aliases(names: &[String]) -> Result<Vec<TrustDomain>, WireError> {
    let one = |(index, name): (usize, &String)| {
        trust_domain(&format!("trust_domain_aliases[{index}]"), name)
    };
    names.iter().enumerate().map(one).collect()
}

fn rate_limits(messages: &[wire::RateLimit]) -> Result<Vec<RateLimit>, WireError> {
    let one = |(index, message)| {
        let within = |error: WireError| error.within(&format!("rate_limits[{index}]"));
        RateLimit::check(message).map_err(within)
    };
    messages.iter().enumerate().map(one).collect()
}

fn health_checks(messages: &[wire::HealthCheck]) -> Result<Vec<Arc<HealthCheck>>, WireError> {
    let one = |(index, message)| {
        let within = |error: WireError| error.within(&format!("health_checks[{index}]"));
        HealthCheck::check(message).map(Arc::new).map_err(within)
    };
    messages.iter().enumerate().map(one).collect()
}

fn outbound_policy(said: i32) -> Result<OutboundPolicy, WireError> {
    match wire::OutboundPolicy::try_from(said) {
        Ok(wire::OutboundPolicy::AllowAny) => Ok(OutboundPolicy::AllowAny),
        Ok(wire::OutboundPolicy::RegistryOnly) => Ok(OutboundPolicy::RegistryOnly),
        Err(_) => Err(super::unknown_value("outbound_policy", said)),
    }
}

fn health_probe(message: &wire::ProxyConfiguration) -> Result<Option<HealthProbe>, WireError> {
    let probe = message.health_probe.as_ref().map(HealthProbe::check);
    let probe = probe.transpose();
    probe.map_err(|error| error.within("health_probe"))
}

fn authorizers(messages: &[wire::Authorizer]) -> Result<Vec<Authorizer>, WireError> {
    let one = |(index, message): (usize, &wire::Authorizer)| {
        let field = format!("authorizers[{index}]");
        Authorizer::check(message).map_err(|error| error.within(&field))
    };
    messages.iter().enumerate().map(one).collect()
}

impl MutualTls {
    pub(super) fn check(field: &str, value: i32) -> Result<Self, WireError> {
        match wire::MutualTls::try_from(value) {
            Ok(wire::MutualTls::Disable) => Ok(Self::Disable),
            Ok(wire::MutualTls::Permissive) => Ok(Self::Permissive),
            Ok(wire::MutualTls::Strict) => Ok(Self::Strict),
            // Unset must never be read as "anything goes".
            Ok(wire::MutualTls::Unspecified) => {
                Err(WireError::new(field, "UNSPECIFIED is not allowed"))
            }
            Err(_) => Err(super::unknown_value(field, value)),
        }
    }
}

/// Checks each, and that no name and no address is there twice.
pub(super) fn listeners<W, L>(
    field: &str,
    wire: &[W],
    check: impl Fn(&W) -> Result<L, WireError>,
    names: impl for<'a> Fn(&'a L) -> (&'a Arc<str>, SocketAddr),
) -> Result<Vec<L>, WireError> {
    let mut checked = Vec::with_capacity(wire.len());
    let mut seen_names = BTreeSet::new();
    let mut seen_binds = BTreeSet::new();
    for (index, listener) in wire.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let listener = check(listener).map_err(|error| error.within(&field))?;
        let (name, bind) = names(&listener);
        if name.is_empty() {
            return Err(WireError::new(format!("{field}.name"), "missing"));
        }
        if !seen_names.insert(name.clone()) {
            let reason = format!("`{}` appears twice", super::shown(name));
            return Err(WireError::new(format!("{field}.name"), reason));
        }
        if !seen_binds.insert(bind) {
            let reason = format!("{bind} appears twice");
            return Err(WireError::new(format!("{field}.bind"), reason));
        }
        checked.push(listener);
    }
    Ok(checked)
}

impl InboundListener {
    fn check(message: &wire::InboundListener) -> Result<Self, WireError> {
        let service = match message.service.as_str() {
            "" => None,
            name => Some((
                service_key("service", name)?,
                port("service_port", message.service_port)?,
            )),
        };
        Ok(Self {
            name: message.name.as_str().into(),
            bind: socket("bind", message.bind.as_ref())?,
            protocol: WireProtocol::from_proxy("protocol", message.protocol)?,
            mutual_tls: MutualTls::check("mutual_tls", message.mutual_tls)?,
            endpoint: socket("endpoint", message.endpoint.as_ref())?,
            service,
            beside_capture: message.beside_capture,
        })
    }
}

impl OutboundListener {
    fn check(message: &wire::OutboundListener) -> Result<Self, WireError> {
        let mut services = Vec::with_capacity(message.services.len());
        for (index, service) in message.services.iter().enumerate() {
            let field = format!("services[{index}]");
            services.push(OutboundService::check(service).map_err(|error| error.within(&field))?);
        }
        Ok(Self {
            name: message.name.as_str().into(),
            bind: socket("bind", message.bind.as_ref())?,
            protocol: WireProtocol::from_proxy("protocol", message.protocol)?,
            services,
        })
    }
}

fn key_sets(list: &[String]) -> Result<Vec<Arc<str>>, WireError> {
    match list.iter().position(String::is_empty) {
        Some(index) => Err(WireError::new(format!("key_sets[{index}]"), "missing")),
        None => Ok(list.iter().map(|name| name.as_str().into()).collect()),
    }
}

fn normalization(value: i32) -> Result<PathNormalization, WireError> {
    use wire::PathNormalization as Wire;
    match Wire::try_from(value) {
        Ok(Wire::Base) => Ok(PathNormalization::Base),
        Ok(Wire::None) => Ok(PathNormalization::None),
        Ok(Wire::MergeSlashes) => Ok(PathNormalization::MergeSlashes),
        Ok(Wire::DecodeAndMergeSlashes) => Ok(PathNormalization::DecodeAndMergeSlashes),
        Err(_) => Err(super::unknown_value("path_normalization", value)),
    }
}

fn forwards(value: i32) -> Result<ForwardClientCertificate, WireError> {
    use wire::ForwardClientCertificate as Wire;
    match Wire::try_from(value) {
        Ok(Wire::Sanitize) => Ok(ForwardClientCertificate::Sanitize),
        Ok(Wire::ForwardOnly) => Ok(ForwardClientCertificate::ForwardOnly),
        Ok(Wire::AppendForward) => Ok(ForwardClientCertificate::AppendForward),
        Ok(Wire::SanitizeSet) => Ok(ForwardClientCertificate::SanitizeSet),
        Ok(Wire::AlwaysForwardOnly) => Ok(ForwardClientCertificate::AlwaysForwardOnly),
        Err(_) => Err(super::unknown_value("forward_client_certificate", value)),
    }
}

fn details(message: Option<wire::ClientCertificateDetails>) -> ClientCertificateDetails {
    let message = message.unwrap_or_default();
    ClientCertificateDetails {
        subject: message.subject,
        certificate: message.certificate,
        chain: message.chain,
        dns: message.dns,
        uri: message.uri,
    }
}

fn limits(message: &wire::Limits) -> WireLimits {
    WireLimits {
        connections: message.connections,
        requests: message.requests,
        requests_per_destination: message.requests_per_destination,
        memory: message.memory_bytes,
        service_idle: milliseconds(message.service_idle_ms),
    }
}

/// Absent where nothing is said.
fn milliseconds(said: u32) -> Option<Duration> {
    (said != 0).then(|| Duration::from_millis(said.into()))
}

fn connection(message: &wire::ConnectionSettings) -> ConnectionTimeouts {
    ConnectionTimeouts {
        connect_timeout: milliseconds(message.connect_timeout_ms),
        detection_timeout: milliseconds(message.detection_timeout_ms),
        idle_timeout: milliseconds(message.idle_timeout_ms),
        header_timeout: milliseconds(message.header_timeout_ms),
        drain_timeout: milliseconds(message.drain_timeout_ms),
    }
}

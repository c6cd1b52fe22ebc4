//! Workloads and services as the proxy holds them, checked from Istio's `istio.workload.Address`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use voile_model::mesh::AddressRange;
use voile_model::mesh::workload::sidecar_takes_tunnels;
use voile_model::{Hostname, Identity, Labels, Namespace, Port, ServiceKey};
use voile_proto::workload as wire;

use super::{
    RemoteWorkload, WaypointAddress, WireError, WireProtocol, address, hostname, namespace, port,
    service_key, trust_domain,
};

/// One resource of type `istio.workload.Address`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart as soon as it is read"
)]
pub enum Address {
    /// Something that runs.
    Workload(WireWorkload),
    /// Something that can be called.
    Service(Service),
}

/// Protocol between sidecars or node proxies for calls to a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tunnel {
    /// In plaintext: there is no proxy before it.
    None,
    /// In mutual TLS, straight to its port (sidecar).
    Mtls,
    /// Through HBONE.
    Hbone,
}

/// Kind of what owns a workload, for metrics and baggage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadType {
    /// A Deployment.
    Deployment,
    /// A CronJob.
    CronJob,
    /// A bare Pod or entry.
    Pod,
    /// A Job.
    Job,
}

/// Labels of a workload for metrics and access logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryLabels {
    /// `canonical_service`.
    pub canonical_name: Arc<str>,
    /// `canonical_revision`, `latest` when the wire is silent.
    pub canonical_revision: Arc<str>,
    /// Name of what owns it.
    pub workload_name: Arc<str>,
    /// Kind of what owns it.
    pub workload_type: WorkloadType,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its cluster.
    pub cluster: Arc<str>,
    /// Labels `app` and `version`, where the control plane says that they are not the canonical names.
    pub app_and_version: Option<(Arc<str>, Arc<str>)>,
}

/// Name of the extension that carries [`TelemetryLabels::app_and_version`].
pub(crate) const LABELS_EXTENSION: &str = "voile.labels";
/// Says of a workload that it is a gateway, which takes the mesh's mutual TLS where a Gateway says so.
pub(crate) const GATEWAY_EXTENSION: &str = "voile.gateway";
/// The labels that metrics speak of.
pub(crate) const APP: &str = "app";
/// See [`APP`].
pub(crate) const VERSION: &str = "version";

/// Connection from a node proxy to a waypoint that takes no tunnels itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplicationTunnel {
    /// With a header of the PROXY protocol, which says what was asked for, and by whom.
    pub proxy: bool,
    /// At this port, if not at the one that was asked for.
    pub port: Option<Port>,
}

/// Something that runs at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireWorkload {
    /// Its name on the wire.
    pub uid: Arc<str>,
    /// Its own name (of the Pod).
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its addresses, the primary one first; empty when only `hostname` is known.
    pub addresses: Vec<IpAddr>,
    /// Its DNS name, when it has no address.
    pub hostname: Option<Hostname>,
    /// On which network it is, where that is not ours.
    pub away: Option<Box<RemoteWorkload>>,
    /// Identity that it must prove. `None` only if the tunnel is `None`.
    pub identity: Option<Identity>,
    /// Tunnel protocol of calls to it.
    pub tunnel: Tunnel,
    /// Its labels for metrics.
    pub labels: TelemetryLabels,
    /// The labels that it has, by which subsets of services choose it.
    pub own_labels: Labels,
    /// True if it is a gateway.
    pub gateway: bool,
    /// Services it stands behind: workload port by service port.
    pub services: BTreeMap<ServiceKey, BTreeMap<Port, Port>>,
    /// Its share of the load, 1 when not said.
    pub weight: u32,
    /// True if it may get traffic.
    pub healthy: bool,
    /// `region/zone/subzone`, as far as it is known; empty where it is not.
    pub locality: Arc<str>,
    /// The node it runs on, empty when not said.
    pub node: Arc<str>,
    /// Waypoint before it, for calls to its own address.
    pub waypoint: Option<WaypointAddress>,
    /// Connection to it, if it is a waypoint for which a node proxy takes tunnels.
    pub application_tunnel: Option<ApplicationTunnel>,
}

/// Address of one service port at one workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: Port,
}

impl WireWorkload {
    /// Address of this workload for a port of a service; `None` if it does not serve the port, or has no address.
    pub fn endpoint(&self, service: &ServiceKey, port: Port) -> Option<WireEndpoint> {
        let port = *self.services.get(service)?.get(&port)?;
        let address = *self.addresses.first()?;
        Some(WireEndpoint { address, port })
    }
}

impl WireWorkload {
    /// Returns true if it is on another network behind a gateway: its own addresses then lead nowhere, or to another workload.
    #[must_use]
    pub fn is_behind_gateway(&self) -> bool {
        self.away
            .as_ref()
            .is_some_and(|away| away.gateway.is_some())
    }

    /// Returns true if it takes HBONE tunnels: through its node proxy, or by its sidecar, whose labels say so.
    #[must_use]
    pub fn takes_tunnels(&self) -> bool {
        match self.tunnel {
            Tunnel::Hbone => true,
            Tunnel::Mtls => sidecar_takes_tunnels(&self.own_labels),
            Tunnel::None => false,
        }
    }

    /// Its addresses, as far as they are ours to call.
    #[must_use]
    pub fn near_addresses(&self) -> &[IpAddr] {
        match self.is_behind_gateway() {
            true => &[],
            false => &self.addresses,
        }
    }
}

/// Something that can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// `namespace/hostname`.
    pub key: ServiceKey,
    /// Name of the resource that declares it, for metrics.
    pub name: Arc<str>,
    /// Its virtual addresses on our network.
    pub addresses: Vec<IpAddr>,
    /// Ranges of addresses that are its, too.
    pub ranges: Vec<AddressRange>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// Identities its workloads may show besides their own.
    pub subject_alt_names: Vec<Arc<str>>,
    /// True if traffic goes to the address that the client named.
    pub passthrough: bool,
    /// Waypoint before it.
    pub waypoint: Option<WaypointAddress>,
}

/// One port of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServicePort {
    /// The number clients call.
    pub number: Port,
    /// The workloads' port; `None` when it differs from workload to workload (see [`Workload::services`]).
    pub target: Option<Port>,
    /// Protocol of the port.
    pub protocol: WireProtocol,
}

impl Address {
    /// Checks the bytes of an `istio.workload.Address`.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        match wire::Address::decode(bytes)?.r#type {
            Some(wire::address::Type::Workload(workload)) => {
                Ok(Self::Workload(WireWorkload::check(&workload)?))
            }
            Some(wire::address::Type::Service(service)) => {
                Ok(Self::Service(Service::check(&service)?))
            }
            None => Err(WireError::new("type", "neither workload nor service")),
        }
    }
}

impl WireWorkload {
    /// Checks a message.
    pub fn check(message: &wire::Workload) -> Result<Self, WireError> {
        if message.uid.is_empty() {
            return Err(WireError::new("uid", "missing"));
        }
        let tunnel = tunnel(message.tunnel_protocol)?;
        let namespace = namespace("namespace", &message.namespace)?;
        let mut addresses = Vec::with_capacity(message.addresses.len());
        for (index, bytes) in message.addresses.iter().enumerate() {
            addresses.push(address(&format!("addresses[{index}]"), bytes)?);
        }
        let hostname = match message.hostname.as_str() {
            "" => None,
            text => Some(hostname("hostname", text)?),
        };
        let mut services = BTreeMap::new();
        for (name, list) in &message.services {
            let field = format!("services[{}]", super::shown(name));
            let ports = port_list(&field, list)?;
            services.insert(service_key(&field, name)?, ports);
        }
        Ok(Self {
            uid: message.uid.as_str().into(),
            name: message.name.as_str().into(),
            identity: identity(message, &namespace, tunnel)?,
            labels: labels(message)?,
            own_labels: own_labels(message),
            gateway: message
                .extensions
                .iter()
                .any(|extension| extension.name == GATEWAY_EXTENSION),
            namespace,
            addresses,
            hostname,
            away: RemoteWorkload::read(message).map(Box::new),
            tunnel,
            services,
            weight: message.capacity.unwrap_or(1),
            healthy: message.status == wire::WorkloadStatus::Healthy as i32,
            locality: locality(message.locality.as_ref()),
            node: message.node.as_str().into(),
            waypoint: message.waypoint.as_ref().map(WaypointAddress::read),
            application_tunnel: application_tunnel(message)?,
        })
    }
}

fn application_tunnel(message: &wire::Workload) -> Result<Option<ApplicationTunnel>, WireError> {
    use wire::application_tunnel::Protocol;
    let Some(said) = &message.application_tunnel else {
        return Ok(None);
    };
    let proxy = match Protocol::try_from(said.protocol) {
        Ok(Protocol::None) => false,
        Ok(Protocol::Proxy) => true,
        // Never guessed: whoever reads a header that does not come believes the first bytes of a client.
        Err(_) => {
            let field = "application_tunnel.protocol";
            return Err(super::unknown_value(field, said.protocol));
        }
    };
    let port = match said.port {
        0 => None,
        number => Some(port("application_tunnel.port", number)?),
    };
    Ok(Some(ApplicationTunnel { proxy, port }))
}

fn locality(message: Option<&wire::Locality>) -> Arc<str> {
    let Some(wire::Locality {
        region,
        zone,
        subzone,
    }) = message
    else {
        return "".into();
    };
    let parts = [region, zone, subzone].map(String::as_str);
    let known = parts.iter().take_while(|part| !part.is_empty()).count();
    parts[..known].join("/").into()
}

fn tunnel(value: i32) -> Result<Tunnel, WireError> {
    match wire::TunnelProtocol::try_from(value) {
        Ok(wire::TunnelProtocol::None) => Ok(Tunnel::None),
        Ok(wire::TunnelProtocol::Hbone) => Ok(Tunnel::Hbone),
        Ok(wire::TunnelProtocol::LegacyIstioMtls) => Ok(Tunnel::Mtls),
        // Never guessed: a guess of "none" would send plaintext.
        Err(_) => Err(super::unknown_value("tunnel_protocol", value)),
    }
}

pub(super) fn identity(
    message: &wire::Workload,
    namespace: &Namespace,
    tunnel: Tunnel,
) -> Result<Option<Identity>, WireError> {
    let account = message.service_account.as_str();
    if account.is_empty() {
        return match tunnel {
            Tunnel::None => Ok(None),
            Tunnel::Mtls | Tunnel::Hbone => Err(WireError::new(
                "service_account",
                "missing, but the workload is called with mutual TLS",
            )),
        };
    }
    if !voile_model::names::is_dns_subdomain(account) {
        let reason = format!("`{}` is not a service account", super::shown(account));
        return Err(WireError::new("service_account", reason));
    }
    Ok(Some(Identity {
        trust_domain: trust_domain("trust_domain", &message.trust_domain)?,
        namespace: namespace.clone(),
        service_account: account.into(),
    }))
}

fn labels(message: &wire::Workload) -> Result<TelemetryLabels, WireError> {
    let workload_type = match wire::WorkloadType::try_from(message.workload_type) {
        Ok(wire::WorkloadType::Deployment) => WorkloadType::Deployment,
        Ok(wire::WorkloadType::Cronjob) => WorkloadType::CronJob,
        Ok(wire::WorkloadType::Pod) => WorkloadType::Pod,
        Ok(wire::WorkloadType::Job) => WorkloadType::Job,
        Err(_) => return Err(super::unknown_value("workload_type", message.workload_type)),
    };
    let or =
        |text: &str, other: &str| -> Arc<str> { if text.is_empty() { other } else { text }.into() };
    let workload_name = or(&message.workload_name, &message.name);
    Ok(TelemetryLabels {
        canonical_name: or(&message.canonical_name, &workload_name),
        canonical_revision: or(&message.canonical_revision, "latest"),
        workload_name,
        workload_type,
        namespace: message.namespace.as_str().into(),
        cluster: message.cluster_id.as_str().into(),
        app_and_version: app_and_version(message),
    })
}

/// Voile's own extension; Istio's control plane does not send it, and what cannot be read is as good as not sent.
fn extension(message: &wire::Workload) -> Option<voile_proto::proxy::WorkloadLabels> {
    let ours = |extension: &&wire::Extension| extension.name == LABELS_EXTENSION;
    let config = message.extensions.iter().find(ours)?.config.as_ref()?;
    voile_proto::proxy::WorkloadLabels::decode(&*config.value).ok()
}

fn app_and_version(message: &wire::Workload) -> Option<(Arc<str>, Arc<str>)> {
    let labels = extension(message)?;
    Some((labels.app.into(), labels.version.into()))
}

/// Without the extension there are two, and they are the canonical names.
fn own_labels(message: &wire::Workload) -> Labels {
    let said = extension(message);
    let (app, version) = match &said {
        Some(labels) => (&labels.app, &labels.version),
        None => (&message.canonical_name, &message.canonical_revision),
    };
    let both = [(APP, app.as_str()), (VERSION, version.as_str())];
    let both = both.into_iter().filter(|(_, value)| !value.is_empty());
    let others = said.iter().flat_map(|labels| &labels.others);
    let others = others.map(|label| (label.name.as_str(), label.value.as_str()));
    both.chain(others).collect()
}

fn port_list(field: &str, list: &wire::PortList) -> Result<BTreeMap<Port, Port>, WireError> {
    let mut ports = BTreeMap::new();
    for (index, entry) in list.ports.iter().enumerate() {
        let field = format!("{field}.ports[{index}]");
        let number = port(&format!("{field}.service_port"), entry.service_port)?;
        let target = port(&format!("{field}.target_port"), entry.target_port)?;
        if ports.insert(number, target).is_some() {
            return Err(WireError::new(
                field,
                format!("port {number} appears twice"),
            ));
        }
    }
    Ok(ports)
}

impl Service {
    /// Checks a message.
    pub fn check(message: &wire::Service) -> Result<Self, WireError> {
        let key = ServiceKey {
            namespace: namespace("namespace", &message.namespace)?,
            hostname: hostname("hostname", &message.hostname)?,
        };
        let (mut addresses, mut ranges) = (Vec::new(), Vec::new());
        for (index, entry) in message.addresses.iter().enumerate() {
            let checked = address(&format!("addresses[{index}]"), &entry.address)?;
            let whole: u8 = if checked.is_ipv4() { 32 } else { 128 };
            // Other networks are nothing a client can call.
            if !entry.network.is_empty() {
                continue;
            }
            match entry.length.map_or(Ok(whole), u8::try_from) {
                Ok(length) if length == whole => addresses.push(checked),
                Ok(prefix) if prefix < whole => ranges.push(AddressRange {
                    address: checked,
                    prefix,
                }),
                _ => {
                    let field = format!("addresses[{index}].length");
                    return Err(WireError::new(
                        field,
                        format!("the prefix is longer than {whole} bits"),
                    ));
                }
            }
        }
        let mut ports = Vec::with_capacity(message.ports.len());
        for (index, entry) in message.ports.iter().enumerate() {
            let field = format!("ports[{index}]");
            ports.push(ServicePort {
                number: port(&format!("{field}.service_port"), entry.service_port)?,
                target: match entry.target_port {
                    0 => None,
                    number => Some(port(&format!("{field}.target_port"), number)?),
                },
                protocol: WireProtocol::from_workload(entry.app_protocol),
            });
        }
        let passthrough = message.load_balancing.as_ref().is_some_and(|balancing| {
            balancing.mode == wire::load_balancing::Mode::Passthrough as i32
        });
        Ok(Self {
            key,
            name: message.name.as_str().into(),
            addresses,
            ports,
            subject_alt_names: message
                .subject_alt_names
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            ranges,
            passthrough,
            waypoint: message.waypoint.as_ref().map(WaypointAddress::read),
        })
    }

    /// The port with this number.
    pub fn port(&self, number: Port) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.number == number)
    }
}

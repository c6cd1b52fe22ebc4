//! Services that clients can call, from a Kubernetes Service or an Istio ServiceEntry.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::network::NETWORK;
use crate::mesh::traffic::{LocalitySetting, NODE, REGION, SUBZONE, ZONE};
use crate::mesh::waypoint::WaypointChoice;
use crate::names::{Hostname, Labels, Namespace, Port, ServiceKey};
use crate::ranges::masked;
use crate::source::Source;

/// One callable hostname. A ServiceEntry with several hosts makes several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshService {
    /// `namespace/hostname`.
    pub key: ServiceKey,
    /// Name of the resource that declares it.
    pub name: Arc<str>,
    /// File and line of its definition.
    pub source: Source,
    /// Which kind of resource declares it.
    pub origin: ServiceOrigin,
    /// Virtual addresses (cluster IPs), in the order written.
    pub addresses: Vec<IpAddr>,
    /// Virtual address ranges (ServiceEntry `addresses` in CIDR form).
    pub address_ranges: Vec<AddressRange>,
    /// Its ports, in the order written.
    pub ports: Vec<ServicePort>,
    /// Selects workloads of the same namespace; `None` selects nothing.
    pub selector: Option<Labels>,
    /// Membership of its workloads in the mesh.
    pub location: Location,
    /// Source of its endpoints for clients.
    pub resolution: Resolution,
    /// Kubernetes `clusterIP: None`: clients address workloads themselves.
    pub headless: bool,
    /// Endpoints written in the ServiceEntry. Those with an IP address are workloads of the mesh too.
    pub endpoints: Vec<ServiceEntryEndpoint>,
    /// Identities its endpoints may show besides their own, as URIs or names.
    pub subject_alt_names: Vec<Arc<str>>,
    /// Namespaces that see it.
    pub visibility: Visibility,
    /// Its own label for a waypoint; its namespace may have one too.
    pub waypoint: Option<WaypointChoice>,
    /// True if it is reachable from outside the mesh (`type: NodePort` or `LoadBalancer`).
    pub published: bool,
    /// True if other networks may call it (`istio.io/global`).
    pub global: bool,
    /// Preference of near endpoints, if it sets one.
    pub distribution: Option<TrafficDistribution>,
}

/// `trafficDistribution`: near endpoints get all calls as long as one is available, with or without outlier detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficDistribution {
    /// `PreferClose` and `PreferSameZone`: of the same network, then region, then zone.
    SameZone,
    /// `PreferSameNode`: the same, then of the same subzone, then node.
    SameNode,
}

impl TrafficDistribution {
    /// The same in the words of `localityLbSetting`.
    #[must_use]
    pub fn setting(self) -> LocalitySetting {
        const LABELS: [&str; 5] = [NETWORK, REGION, ZONE, SUBZONE, NODE];
        let labels = match self {
            Self::SameZone => &LABELS[..3],
            Self::SameNode => &LABELS[..],
        };
        LocalitySetting {
            always: true,
            priority: labels.iter().map(|label| (*label).into()).collect(),
            ..LocalitySetting::default()
        }
    }
}

impl MeshService {
    /// The port with this number.
    pub fn port(&self, number: Port) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.number == number)
    }

    /// Host names by which a client in `namespace` may call it: the hostname, and the short forms of a Kubernetes Service.
    pub fn authorities(&self, namespace: &Namespace) -> Vec<String> {
        let mut names = vec![self.key.hostname.to_string()];
        if self.origin == ServiceOrigin::Kubernetes {
            let (name, own) = (&self.name, &self.key.namespace);
            names.push(format!("{name}.{own}.svc"));
            names.push(format!("{name}.{own}"));
            if namespace == own {
                names.push(name.to_string());
            }
        }
        names
    }
}

/// Which kind of resource declares a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceOrigin {
    /// A Kubernetes Service.
    Kubernetes,
    /// An Istio ServiceEntry.
    ServiceEntry,
}

/// A range of addresses in CIDR form, host bits zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    /// First address.
    pub address: IpAddr,
    /// Bits that are fixed.
    pub prefix: u8,
}

impl AddressRange {
    /// Reads `ADDRESS` or `ADDRESS/PREFIX`; bits that are not fixed are dropped.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text
            .split_once('/')
            .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(bits), |prefix| {
            prefix.parse().ok().filter(|prefix| *prefix <= bits)
        })?;
        Some(Self {
            address: masked(address, prefix),
            prefix,
        })
    }

    /// Returns true if the range contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && masked(address, self.prefix) == self.address
    }

    /// Returns true if the range is one address.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.prefix == if self.address.is_ipv4() { 32 } else { 128 }
    }
}

impl std::fmt::Display for AddressRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty when a lone Kubernetes port has none.
    pub name: Arc<str>,
    /// The number clients call.
    pub number: Port,
    /// Its protocol.
    pub protocol: Protocol,
    /// The transport below.
    pub transport: Transport,
    /// Which port of the workload that is.
    pub target: TargetPort,
    /// `nodePort`: the port of the machine on which a published service is wished for.
    pub node_port: Option<Port>,
    /// File and line of its definition.
    pub source: Source,
}

/// Protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Not said: found out from the first bytes.
    Auto,
    /// HTTP/1.x (`http`).
    Http,
    /// HTTP/2 in clear text (`http2`, `kubernetes.io/h2c`).
    Http2,
    /// gRPC (`grpc`, and `grpc-web`, which is spoken over HTTP).
    Grpc,
    /// Opaque bytes (`tcp`, `mongo`, `mysql`, `redis`).
    Tcp,
    /// TLS that is not ours, passed through (`tls`, `https`, `kubernetes.io/wss`).
    Tls,
    /// UDP; no proxy touches it.
    Udp,
}

impl Protocol {
    /// Protocol of a port that declares none: detected from the first bytes. Exceptions are the ports whose servers
    /// speak first (SMTP, DNS, MySQL, MongoDB).
    pub fn undeclared(number: Port) -> Self {
        const SERVER_FIRST: [u16; 4] = [25, 53, 3306, 27017];
        match SERVER_FIRST.contains(&number.get()) {
            true => Self::Tcp,
            false => Self::Auto,
        }
    }
}

/// Below the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Which port of a workload serves a service port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetPort {
    /// This one.
    Number(Port),
    /// The container port of this name, workload by workload.
    Named(Arc<str>),
}

/// Membership of a service's workloads in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// They do.
    MeshInternal,
    /// They do not: no mutual TLS of ours.
    MeshExternal,
}

/// Source of the endpoints for clients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// Known addresses: selected workloads or written endpoints.
    Static,
    /// The address the client called (`NONE`, and headless Services).
    Passthrough,
    /// Asked of DNS, all answers used.
    Dns,
    /// Asked of DNS, first answer used for each new connection.
    DnsRoundRobin,
    /// Asked of DNS for each host a client names.
    DynamicDns,
    /// Another name for a host (`type: ExternalName`).
    Alias(Hostname),
}

/// An endpoint written inside a ServiceEntry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEntryEndpoint {
    /// Its address.
    pub address: EndpointAddress,
    /// Target port by service-port name; a port not here keeps the service's target.
    pub ports: BTreeMap<Arc<str>, Port>,
    /// Its labels.
    pub labels: Labels,
    /// Its network, empty for ours.
    pub network: Arc<str>,
    /// `region/zone/subzone`, empty when not said.
    pub locality: Arc<str>,
    /// Its share of the load.
    pub weight: Option<u32>,
    /// Its service account.
    pub service_account: Option<Arc<str>>,
    /// File and line of its definition.
    pub source: Source,
}

/// Address of a written endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointAddress {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name.
    Dns(Hostname),
}

/// Namespaces that see a service (`exportTo`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Visibility {
    /// Every namespace.
    Public,
    /// These namespaces only; `.` has become the service's own.
    Namespaces(Vec<Namespace>),
}

impl Visibility {
    /// Returns true if a client in `namespace` sees it.
    pub fn includes(&self, namespace: &Namespace) -> bool {
        match self {
            Self::Public => true,
            Self::Namespaces(list) => list.contains(namespace),
        }
    }
}

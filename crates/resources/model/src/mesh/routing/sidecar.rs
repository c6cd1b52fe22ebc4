//! Istio's Sidecar resource: the listeners of a proxy, and the services it can reach.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::config::OutboundPolicy;
use crate::mesh::service::Protocol;
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName, ServiceKey};
use crate::source::Source;

/// Settings of the proxies it selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
    /// Inbound listeners; empty means those that the services of the workload ask for.
    pub ingress: Vec<IngressListener>,
    /// Outbound listeners; empty means everything.
    pub egress: Vec<EgressListener>,
    /// Overrides the mesh's.
    pub outbound_policy: Option<OutboundPolicy>,
}

/// Port of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerPort {
    /// The number.
    pub number: Port,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its name, may be empty.
    pub name: Arc<str>,
}

/// The way traffic reaches a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CaptureMode {
    /// As the proxy is set up.
    Default,
    /// Redirected by the kernel.
    Iptables,
    /// Clients connect to it.
    None,
}

/// An inbound listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressListener {
    /// Its port.
    pub port: ListenerPort,
    /// Address it binds; `None` is the workload's own.
    pub bind: Option<IpAddr>,
    /// The way traffic reaches the listener.
    pub capture_mode: CaptureMode,
    /// Address of the application; `None` is the same port on the loopback address.
    pub default_endpoint: Option<DefaultEndpoint>,
    /// File and line of its definition.
    pub source: Source,
}

/// Address of the application behind an inbound listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefaultEndpoint {
    /// On which of its addresses.
    pub host: EndpointHost,
    /// On which port.
    pub port: Port,
}

/// On which address the application listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointHost {
    /// `127.0.0.1` or `[::1]`.
    Loopback(IpAddr),
    /// `0.0.0.0` or `[::]`: the workload's own address.
    Workload,
}

/// An outbound listener, or the hosts reachable through existing listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressListener {
    /// Its port; `None` is every port of the hosts.
    pub port: Option<ListenerPort>,
    /// Address it binds; `None` is the service's address, or loopback for `captureMode: NONE`.
    pub bind: Option<IpAddr>,
    /// The way traffic reaches the listener.
    pub capture_mode: CaptureMode,
    /// Reachable hosts.
    pub hosts: Vec<EgressHost>,
    /// File and line of its definition.
    pub source: Source,
}

/// One `namespace/dnsName`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressHost {
    /// Its namespace part.
    pub namespace: EgressNamespace,
    /// Which hosts in them; may be a wildcard.
    pub hostname: Hostname,
    /// File and line of its definition.
    pub source: Source,
}

/// The namespace part of an egress host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EgressNamespace {
    /// `*`: any.
    Any,
    /// `.`: that of the proxy.
    Own,
    /// `~`: none; nothing is reachable.
    Nothing,
    /// This one.
    Named(Namespace),
}

impl EgressHost {
    /// Returns true if this entry lets a proxy in `from` reach `service`. Visibility is not checked.
    pub fn matches(&self, from: &Namespace, service: &ServiceKey) -> bool {
        let namespace = match &self.namespace {
            EgressNamespace::Any => true,
            EgressNamespace::Own => *from == service.namespace,
            EgressNamespace::Nothing => false,
            EgressNamespace::Named(namespace) => *namespace == service.namespace,
        };
        namespace && self.hostname.covers(&service.hostname)
    }
}

impl fmt::Display for EgressHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = match &self.namespace {
            EgressNamespace::Any => "*",
            EgressNamespace::Own => ".",
            EgressNamespace::Nothing => "~",
            EgressNamespace::Named(namespace) => namespace.as_str(),
        };
        write!(f, "{namespace}/{}", self.hostname)
    }
}

//! A sidecar's handling of connections that the kernel redirects to it, ⇄ `voile.proxy.v1.Capture`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use voile_model::{Hostname, Namespace, Port, ServiceKey};
use voile_proto::proxy as wire;

use super::configuration::MutualTls;
use super::fields::{wire_key, wire_type};
use super::{AddressRange, WireError, WireProtocol, WireType};

/// The inbound half of transparent capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundCapture {
    /// Mode of workload ports that are not listed.
    pub mutual_tls: MutualTls,
    /// By workload port.
    pub ports: BTreeMap<Port, CapturedPort>,
    /// Address ranges of the mesh.
    pub mesh_ranges: Vec<AddressRange>,
    /// The services that exist for this workload; `None` is all.
    pub reachable: Option<Vec<ReachableHosts>>,
}

/// Services by namespace and host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachableHosts {
    /// `None` is any.
    pub namespace: Option<Namespace>,
    /// May be a wildcard.
    pub host: Hostname,
}

wire_type! { ReachableHosts as wire::ReachableHosts { namespace, host, } }

/// One port of the workload, as callers name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedPort {
    /// The port.
    pub port: Port,
    /// Protocol of the port.
    pub protocol: WireProtocol,
    /// Mutual TLS mode of the port.
    pub mutual_tls: MutualTls,
    /// The service whose target port this is, and the service's port; for metrics only.
    pub service: Option<(ServiceKey, Port)>,
    /// Address of the application, if it differs from the address that was called.
    pub endpoint: Option<SocketAddr>,
}

wire_type! {
    CapturedPort as wire::CapturedPort {
        port,
        protocol,
        mutual_tls,
        service = (service, service_port),
        endpoint,
    }
}
wire_key! { CapturedPort by port: Port }

wire_type! {
    InboundCapture as wire::Capture {
        mutual_tls,
        ports,
        mesh_ranges,
        reachable = (limited, reachable),
    }
}

/// Whether there is a limit, and the hosts inside it.
impl WireType<(bool, Vec<wire::ReachableHosts>)> for Option<Vec<ReachableHosts>> {
    fn to_wire(&self) -> (bool, Vec<wire::ReachableHosts>) {
        match self {
            None => (false, Vec::new()),
            Some(hosts) => (true, hosts.to_wire()),
        }
    }

    fn from_wire((limited, hosts): (bool, Vec<wire::ReachableHosts>)) -> Result<Self, WireError> {
        let hosts = Vec::from_wire(hosts).map_err(|error| error.within("reachable"))?;
        Ok(limited.then_some(hosts))
    }
}

impl InboundCapture {
    /// Returns true if the workload may reach a service.
    pub fn reaches(&self, service: &ServiceKey) -> bool {
        let Some(reachable) = &self.reachable else {
            return true;
        };
        reachable.iter().any(|hosts| {
            let namespace = hosts.namespace.as_ref();
            namespace.is_none_or(|namespace| *namespace == service.namespace)
                && hosts.host.covers(&service.hostname)
        })
    }
}

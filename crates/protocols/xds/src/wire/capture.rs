//! A sidecar's handling of connections that the kernel redirects to it, checked from `voile.proxy.v1.Capture`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use voile_model::{Hostname, Namespace, Port, ServiceKey};
use voile_proto::proxy as wire;

use super::configuration::MutualTls;
use super::{WireError, WireProtocol, address, hostname, namespace, port, service_key, socket};

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

impl ReachableHosts {
    fn check(message: &wire::ReachableHosts) -> Result<Self, WireError> {
        Ok(Self {
            namespace: match message.namespace.as_str() {
                "" => None,
                text => Some(namespace("namespace", text)?),
            },
            host: hostname("host", &message.host)?,
        })
    }
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// Its first address.
    pub address: IpAddr,
    /// Bits that are fixed.
    pub prefix: u8,
}

impl AddressRange {
    /// Returns true if an address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = |ours: u128, theirs: u128, bits: u8| {
            let free = u32::from(bits.saturating_sub(self.prefix));
            ours.checked_shr(free) == theirs.checked_shr(free)
        };
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                same(ours.to_bits().into(), theirs.to_bits().into(), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same(ours.to_bits(), theirs.to_bits(), 128),
            _ => false,
        }
    }

    pub(super) fn check(message: &wire::AddressRange) -> Result<Self, WireError> {
        let address = address("address", &message.address)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match u8::try_from(message.prefix) {
            Ok(prefix) if prefix <= most => Ok(Self { address, prefix }),
            _ => Err(WireError::new(
                "prefix",
                format!("{} is more than {most}", message.prefix),
            )),
        }
    }
}

/// One port of the workload, as callers name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedPort {
    /// Protocol of the port.
    pub protocol: WireProtocol,
    /// Mutual TLS mode of the port.
    pub mutual_tls: MutualTls,
    /// The service whose target port this is, and the service's port; for metrics only.
    pub service: Option<(ServiceKey, Port)>,
    /// Address of the application, if it differs from the address that was called.
    pub endpoint: Option<SocketAddr>,
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

    pub(super) fn check(message: &wire::Capture) -> Result<Self, WireError> {
        let mut ports = BTreeMap::new();
        for (index, entry) in message.ports.iter().enumerate() {
            let field = format!("ports[{index}]");
            let number = port(&format!("{field}.port"), entry.port)?;
            let checked = CapturedPort::check(entry).map_err(|error| error.within(&field))?;
            if ports.insert(number, checked).is_some() {
                let reason = format!("port {number} appears twice");
                return Err(WireError::new(format!("{field}.port"), reason));
            }
        }
        let mut mesh_ranges = Vec::with_capacity(message.mesh_ranges.len());
        for (index, range) in message.mesh_ranges.iter().enumerate() {
            let field = format!("mesh_ranges[{index}]");
            mesh_ranges.push(AddressRange::check(range).map_err(|error| error.within(&field))?);
        }
        Ok(Self {
            mutual_tls: MutualTls::check("mutual_tls", message.mutual_tls)?,
            ports,
            mesh_ranges,
            reachable: match message.limited {
                true => Some(reachable(&message.reachable)?),
                false => None,
            },
        })
    }
}

fn reachable(message: &[wire::ReachableHosts]) -> Result<Vec<ReachableHosts>, WireError> {
    let check = |(index, hosts): (usize, &wire::ReachableHosts)| {
        let field = format!("reachable[{index}]");
        ReachableHosts::check(hosts).map_err(|error| error.within(&field))
    };
    message.iter().enumerate().map(check).collect()
}

impl CapturedPort {
    fn check(message: &wire::CapturedPort) -> Result<Self, WireError> {
        let service = match message.service.as_str() {
            "" => None,
            name => Some((
                service_key("service", name)?,
                port("service_port", message.service_port)?,
            )),
        };
        let endpoint = match &message.endpoint {
            None => None,
            some => Some(socket("endpoint", some.as_ref())?),
        };
        Ok(Self {
            protocol: WireProtocol::from_proxy("protocol", message.protocol)?,
            mutual_tls: MutualTls::check("mutual_tls", message.mutual_tls)?,
            service,
            endpoint,
        })
    }
}

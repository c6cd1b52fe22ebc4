//! Whether a gateway's port is served in HTTP/3 as well. Whoever wants that says so as in Istio: the Service in front of the gateway
//! has a UDP port that leads to where a server of HTTPS listens. No UDP port, no HTTP/3.

use std::net::SocketAddr;

use voile_model::Port;
use voile_model::mesh::{Mesh, ServicePort, TargetPort, Transport, Workload};
use voile_xds::wire::{GatewayServer, ServerKind};

/// The port that clients call for it. Where TLS does not end here there is none, nor in the mesh's own.
pub(super) fn called(
    mesh: &Mesh,
    workload: &Workload,
    bind: SocketAddr,
    servers: &[GatewayServer],
) -> Option<Port> {
    let takes = |one: &GatewayServer| {
        let tls = one.tls.as_ref().filter(|tls| !tls.mesh && tls.tls13);
        one.kind == ServerKind::Requests && tls.is_some()
    };
    if !servers.iter().any(takes) {
        return None;
    }
    let target = |port: &ServicePort| match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Named(name) => workload.named_ports.get(name).copied(),
    };
    let leads = |port: &&ServicePort| {
        let there = target(port).is_some_and(|target| target.get() == bind.port());
        port.transport == Transport::Udp && there
    };
    let services = mesh.services_of(workload);
    let mut ports = services.iter().flat_map(|one| &one.service.ports);
    ports.find(leads).map(|port| port.number)
}

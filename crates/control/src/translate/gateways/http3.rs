//! Whether a gateway's port is served in HTTP/3 as well. Whoever wants that says so as in Istio: the Service in front of the gateway
//! has a UDP port that leads to where a server of HTTPS listens. No UDP port, no HTTP/3.

use std::net::SocketAddr;

use voile_model::Port;
use voile_model::mesh::{Mesh, Workload};
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
    mesh.udp_port_before(workload, Port::new(bind.port())?)
}

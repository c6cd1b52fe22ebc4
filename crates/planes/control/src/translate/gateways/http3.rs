//! HTTP/3 at a gateway is enabled as in Istio: the gateway's Service has a UDP port that targets an HTTPS server's port. Without
//! a UDP port there is no HTTP/3.

use std::net::SocketAddr;

use voile_model::Port;
use voile_model::mesh::{Mesh, Workload};
use voile_xds::wire::{GatewayServer, ServerKind};

/// The port that clients call for HTTP/3. There is none if TLS does not end here, and none for the mesh's own TLS.
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

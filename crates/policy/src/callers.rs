//! What clients decide before they connect: whether mutual TLS is spoken to a workload's port. The control plane tells it our
//! own proxies, and translations for others ask the same question here.

use voile_model::Port;
use voile_model::mesh::{CaptureMode, Mesh, Sidecar, Workload};

use crate::effective::effective;
use crate::inbound::Mode;

/// Whether the workload's sidecar is in the way of this port at all; a gateway speaks no mutual TLS of the mesh's by itself. Where it is not, whatever PeerAuthentication says, mutual
/// TLS would meet an application that knows nothing of it (in Istio such a port is out of reach until a rule says so).
pub fn is_taken(mesh: &Mesh, workload: &Workload, port: Port) -> bool {
    if workload.gateway {
        return false;
    }
    let listens = |sidecar: &Sidecar| {
        let mut listeners = sidecar.ingress.iter();
        listeners.any(|one| one.port.number == port && one.capture_mode == CaptureMode::None)
    };
    workload.captured_ports.contains(&port)
        || mesh.sidecar_for(workload).is_some_and(|s| listens(s))
}

/// Whether clients that follow the mesh (`enableAutoMtls`) speak mutual TLS to this port of the workload's.
pub fn speaks_mutual_tls(mesh: &Mesh, workload: &Workload, port: Port) -> bool {
    workload.has_sidecar
        && mesh.config.enable_auto_mtls
        && effective(mesh, workload, port).mode != Mode::Disable
        && is_taken(mesh, workload, port)
}

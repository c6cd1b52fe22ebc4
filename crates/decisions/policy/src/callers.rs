//! Decides whether clients speak mutual TLS to a workload's port. The control plane sends the answer to Voile's
//! proxies; translations for other data planes ask here too.

use voile_model::Port;
use voile_model::mesh::{CaptureMode, Mesh, Sidecar, Workload};

use crate::effective::effective;
use crate::inbound::Mode;

/// Returns true if the workload's sidecar intercepts this port. A gateway does not speak the mesh's mutual TLS by
/// itself. On a port that the sidecar does not intercept, mutual TLS would reach an application that does not
/// understand it. PeerAuthentication does not change that. (In Istio such a port is unreachable until a rule allows
/// it.)
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

/// Returns true if clients that follow the mesh (`enableAutoMtls`) speak mutual TLS to this port of the workload.
pub fn speaks_mutual_tls(mesh: &Mesh, workload: &Workload, port: Port) -> bool {
    workload.has_sidecar
        && mesh.config.enable_auto_mtls
        && effective(mesh, workload, port).mode != Mode::Disable
        && is_taken(mesh, workload, port)
}

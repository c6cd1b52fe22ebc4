//! Which kind of connection a workload's port takes: PeerAuthentication after inheritance. Workload before namespace before
//! mesh; in one scope the oldest wins; what is unset is inherited; a selector in the root namespace counts for nothing.

use voile_model::mesh::{Mesh, MutualTlsMode, PeerAuthentication, Workload};
use voile_model::{Namespace, Port};
use voile_proto::proxy::MutualTls;

/// The mode in force on one port of a workload.
pub(super) fn effective(mesh: &Mesh, workload: &Workload, port: Port) -> MutualTlsMode {
    let root = &mesh.config.root_namespace;
    let namespace = &workload.key.namespace;
    let whole = |namespace: &Namespace| {
        mesh.peer_authentications
            .iter()
            .find(|p| p.name.namespace == *namespace && p.selector.is_none())
            .and_then(|p| p.mode)
    };
    let inherited = (namespace != root)
        .then(|| whole(namespace))
        .flatten()
        .or_else(|| whole(root))
        .unwrap_or(MutualTlsMode::Permissive);
    let selects = |p: &&std::sync::Arc<PeerAuthentication>| {
        p.name.namespace == *namespace
            && namespace != root
            && p.selector
                .as_ref()
                .is_some_and(|s| s.selects(&workload.labels))
    };
    let Some(own) = mesh.peer_authentications.iter().find(selects) else {
        return inherited;
    };
    own.port_modes
        .get(&port)
        .and_then(|port| port.mode)
        .or(own.mode)
        .unwrap_or(inherited)
}

/// The wire's word for it.
pub(super) fn on_the_wire(mode: MutualTlsMode) -> MutualTls {
    match mode {
        MutualTlsMode::Disable => MutualTls::Disable,
        MutualTlsMode::Permissive => MutualTls::Permissive,
        MutualTlsMode::Strict => MutualTls::Strict,
    }
}

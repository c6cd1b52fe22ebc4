//! Which PeerAuthentication mode holds where (Istio's rules): port over workload over namespace over mesh, UNSET inherits,
//! in one scope the oldest wins, a selector in the root namespace is ignored, and with nothing said it is PERMISSIVE.

use std::sync::Arc;

use voile_model::mesh::{Mesh, MutualTlsMode, PeerAuthentication, Workload};
use voile_model::{Labels, Namespace, Port};

use crate::inbound::Mode;

/// The mode of a port, and its policy.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveMode {
    /// The mode.
    pub mode: Mode,
    /// The policy it comes from; `None` if no policy sets it.
    pub policy: Option<Arc<PeerAuthentication>>,
}

impl EffectiveMode {
    fn by(mode: MutualTlsMode, policy: &Arc<PeerAuthentication>) -> Self {
        Self {
            mode: mode.into(),
            policy: Some(policy.clone()),
        }
    }
}

impl From<MutualTlsMode> for Mode {
    fn from(mode: MutualTlsMode) -> Self {
        match mode {
            MutualTlsMode::Disable => Self::Disable,
            MutualTlsMode::Permissive => Self::Permissive,
            MutualTlsMode::Strict => Self::Strict,
        }
    }
}

/// The mode at a port of a workload. `port` is the WORKLOAD's port (a target port, not a service's).
pub fn effective(mesh: &Mesh, workload: &Workload, port: Port) -> EffectiveMode {
    effective_at(mesh, &workload.key.namespace, &workload.labels, port)
}

/// As `effective`, for a workload that is not yet running.
pub fn effective_at(
    mesh: &Mesh,
    namespace: &Namespace,
    labels: &Labels,
    port: Port,
) -> EffectiveMode {
    if let Some(policy) = selecting(mesh, namespace, labels)
        && let Some(mode) = policy.port_modes.get(&port).and_then(|entry| entry.mode)
    {
        return EffectiveMode::by(mode, policy);
    }
    inherited(mesh, namespace, labels)
}

/// The mode of ports that no `portLevelMtls` names.
pub fn inherited(mesh: &Mesh, namespace: &Namespace, labels: &Labels) -> EffectiveMode {
    let scopes = [
        selecting(mesh, namespace, labels),
        unselective(mesh, namespace),
        unselective(mesh, &mesh.config.root_namespace),
    ];
    let said = scopes
        .into_iter()
        .flatten()
        .find_map(|policy| Some(EffectiveMode::by(policy.mode?, policy)));
    said.unwrap_or(EffectiveMode {
        mode: Mode::Permissive,
        policy: None,
    })
}

/// The oldest policy of the namespace that selects these labels. In the root namespace a selector means nothing.
pub fn selecting<'a>(
    mesh: &'a Mesh,
    namespace: &Namespace,
    labels: &Labels,
) -> Option<&'a Arc<PeerAuthentication>> {
    if *namespace == mesh.config.root_namespace {
        return None;
    }
    let selects = |policy: &&Arc<PeerAuthentication>| {
        policy.name.namespace == *namespace
            && policy
                .selector
                .as_ref()
                .is_some_and(|selector| selector.selects(labels))
    };
    mesh.peer_authentications.iter().find(selects)
}

/// The oldest policy for all of a namespace.
fn unselective<'a>(mesh: &'a Mesh, namespace: &Namespace) -> Option<&'a Arc<PeerAuthentication>> {
    mesh.peer_authentications
        .iter()
        .find(|policy| policy.name.namespace == *namespace && policy.selector.is_none())
}

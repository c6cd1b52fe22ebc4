//! Programs that are not ours and speak xDS all the same. Their resources are made on request, from the resources for our
//! own proxies. So they are as closed and as new as those, and a mesh without strangers pays nothing for them.

pub(crate) mod envoy;
mod grpc;
mod limits;
mod translation_cache;

use voile_proto::discovery::Node;
use voile_xds::server::Resolution;

use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use envoy::MAX_WORKLOAD;
pub(crate) use limits::EnvoyLimits;
pub(crate) use translation_cache::TranslationCache;

/// Answers a stranger's request; `None` if no stranger asks for this type or name.
pub(crate) fn resolve(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    type_url: &str,
    name: &str,
) -> Option<Resolution> {
    match caller {
        SnapshotCaller::Envoy(known, seat) if envoy::TYPES.contains(&type_url) => {
            Some(envoy::resolve(snapshot, known, seat, type_url, name))
        }
        _ => grpc::resolve(snapshot, caller, type_url, name),
    }
}

/// By whose change the answer may change, as `Snapshot::rests_on` says it.
pub(crate) fn rests_on(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    type_url: &str,
    name: &str,
) -> Vec<(&'static str, std::sync::Arc<str>)> {
    grpc::rests_on(snapshot, caller, type_url, name)
}

/// A caller with a certificate has proved its identity and not yet which of its workloads it is: `node.id` says that, in
/// Istio's form (`sidecar~ADDRESS~POD.NAMESPACE~DOMAIN`). Being believed gets it no more than its identity would.
pub(crate) fn introduce(snapshot: &MeshSnapshot, caller: &mut SnapshotCaller, node: &Node) {
    if let (SnapshotCaller::Known(known), Some(seat)) = (&*caller, envoy::EnvoyNode::of(node)) {
        snapshot.envoys.came();
        *caller = SnapshotCaller::Envoy(known.clone(), seat.into());
        return;
    }
    let SnapshotCaller::Known(known) = caller else {
        return;
    };
    let mut parts = node.id.split('~').skip(2);
    let (Some(workload), Some(_), None) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    if let Some((pod, namespace)) = workload.rsplit_once('.')
        && known.pod.is_none()
        && !pod.is_empty()
        && pod.len() <= MAX_WORKLOAD
        && *namespace == *known.identity.namespace.as_str()
    {
        known.pod = Some(pod.to_owned());
    }
}

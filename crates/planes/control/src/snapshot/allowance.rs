//! Allowance of a caller: the limits that follow from the declared workloads of its identity, and the types that have
//! resources.

use std::sync::Arc;

use voile_proto::type_url;
use voile_xds::server::Allowance;

use super::{MeshSnapshot, SnapshotCaller};

/// The types that anybody is told anything of.
pub(super) const SERVED: [&str; 14] = [
    type_url::ADDRESS,
    type_url::AUTHORIZATION,
    type_url::PROXY_CONFIGURATION,
    type_url::SERVICE_POLICY,
    type_url::SERVICE_ROUTES,
    type_url::AUTHORIZATION_POLICY,
    type_url::REQUEST_AUTHENTICATION,
    type_url::KEY_SET,
    type_url::REVOCATION_LISTS,
    type_url::LISTENER,
    type_url::ROUTES,
    type_url::CLUSTER,
    type_url::SECRET,
    type_url::ENDPOINTS,
];

/// By what a caller's budget is kept.
pub(super) fn account(caller: &SnapshotCaller) -> Arc<str> {
    let (SnapshotCaller::Known(known) | SnapshotCaller::Envoy(known, _)) = caller;
    known.identity.to_string().into()
}

/// Allowance of a caller's identity.
pub(super) fn of(snapshot: &MeshSnapshot, caller: &SnapshotCaller) -> Allowance {
    let (SnapshotCaller::Known(known) | SnapshotCaller::Envoy(known, _)) = caller;
    let declared = snapshot.workload_counts.with(&known.identity);
    let workloads = match snapshot.staff.serves_node(known) {
        true => declared.max(snapshot.staff.node_count()),
        false => declared,
    };
    Allowance {
        workloads,
        resources: snapshot.counts().iter().map(|(_, number)| number).sum(),
        serves_nodes: snapshot.serves_node(caller),
    }
}

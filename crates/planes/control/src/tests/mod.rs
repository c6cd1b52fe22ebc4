//! Tests of the parts together, without sockets.

mod push_cost;
mod shared;
mod wire_bytes;

use std::time::SystemTime;

use voile_identity::CallerProof;
use voile_model::Identity;
use voile_proto::discovery::Node;
use voile_xds::server::Snapshot;

use crate::snapshot::{MeshSnapshot, SnapshotCaller};

/// A caller that proved its identity by a token of a pod.
fn caller(identity: Identity, pod: &str) -> SnapshotCaller {
    SnapshotCaller::Known(voile_identity::AuthenticatedCaller {
        identity,
        pod: Some(pod.to_owned()),
        proof: CallerProof::Token,
        until: SystemTime::UNIX_EPOCH,
        certificates: Box::default(),
    })
}

/// The same as a stock Envoy; `kind` is the first part of its node id.
fn envoy(snapshot: &MeshSnapshot, kind: &str, identity: Identity, pod: &str) -> SnapshotCaller {
    let namespace = &identity.namespace;
    let node = Node {
        id: format!("{kind}~-~{pod}.{namespace}~{namespace}.svc.cluster.local"),
        user_agent_name: "envoy".to_owned(),
        ..Node::default()
    };
    let mut caller = caller(identity, pod);
    snapshot.introduce(&mut caller, &node);
    caller
}

//! Which AuthorizationPolicies hold for a workload, by name and version: the policies themselves travel once, whoever obeys
//! them, and a proxy obeys a configuration only with the policies that were in force beside it.

use voile_model::mesh::{Mesh, PathNormalization, Workload};
use voile_proto::proxy as wire;

use crate::snapshot::MeshSnapshot;

/// The policies of a workload.
pub(super) fn references(
    mesh: &Mesh,
    workload: &Workload,
    snapshot: &MeshSnapshot,
) -> Vec<wire::PolicyReference> {
    let policies = mesh.authorization_for(workload).into_iter();
    let reference = |policy: &std::sync::Arc<voile_model::mesh::AuthorizationPolicy>| {
        let name = policy.name.to_string();
        let resource = snapshot.authorization.get(name.as_str());
        wire::PolicyReference {
            version: resource.map_or_else(String::new, |resource| resource.version.to_string()),
            name,
        }
    };
    policies.map(reference).collect()
}

/// The wire's word for a way of writing paths.
pub(super) fn normalization(mode: PathNormalization) -> wire::PathNormalization {
    match mode {
        PathNormalization::None => wire::PathNormalization::None,
        PathNormalization::Base => wire::PathNormalization::Base,
        PathNormalization::MergeSlashes => wire::PathNormalization::MergeSlashes,
        PathNormalization::DecodeAndMergeSlashes => wire::PathNormalization::DecodeAndMergeSlashes,
    }
}

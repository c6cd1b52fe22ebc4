//! Gateways on a cluster: GatewayClasses with their status, and a ServiceAccount, Deployment and Service for each Gateway. The
//! elected replica calls it. The model decides which Gateways are served, by which names and at which ports; here they become
//! objects.
//!
//! ```text
//! store ──plan──▶ PlannedGateway ──manifests──▶ objects ──deployer──▶ API server
//!                  ConfigMap of parametersRef ──parameters──┘
//! ```

mod classes;
mod deployer;
mod features;
mod manifests;
mod parameters;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use voile_model::SourceFile;
use voile_model::mesh::MeshConfig;
use voile_model::names::ResourceName;

use crate::inject::InjectorOptions;
use crate::revision::RevisionNames;

pub(crate) use classes::keep_classes;
pub(crate) use deployer::Deployer;
pub(crate) use manifests::requested_addresses;

/// Kinds of the files that decide about Gateways' objects.
const FILES: [&str; 4] = [
    "gateways.gateway.networking.k8s.io",
    "listenersets.gateway.networking.k8s.io",
    CLASSES,
    "namespaces",
];
/// Kind of the files of GatewayClasses.
const CLASSES: &str = "gatewayclasses.gateway.networking.k8s.io";

/// Why a Gateway gets no objects: which field of which object, and the cure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GatewayError(String);

/// The objects of each Gateway that the revision deploys, in the order of their creation, or why it gets none. The files are those of
/// the cluster's source: their names are `PLURAL.GROUP/NAMESPACE/NAME`, and their text is JSON.
#[must_use]
pub fn gateway_objects(
    files: &[Arc<SourceFile>],
    names: &RevisionNames,
    options: &InjectorOptions,
    mesh: &MeshConfig,
) -> BTreeMap<ResourceName, Result<Vec<Value>, GatewayError>> {
    let mut objects = BTreeMap::new();
    for planned in plan::plan(files, names) {
        let made = parameters::of_gateway(&planned, files)
            .and_then(|parameters| manifests::manifests(&planned, &parameters, options, mesh));
        objects.insert(planned.name.clone(), made);
    }
    objects
}

//! Installation of the control plane: renders the chart, applies it, waits until the control plane is available, removes it,
//! and checks a cluster before and after. Commands call it. It decides nothing about the mesh.

mod apply;
mod chart;
mod checks;
mod kinds;
mod schema;
mod tags;
mod template;
#[cfg(test)]
mod tests;
mod uninstall;
mod upgrade;
mod values;
mod wait;
mod workloads;
mod yaml;

use kube::api::{Api, DynamicObject};
use kube::{Client, ResourceExt as _};

pub use apply::{ApplyMode, apply, cluster_facts};
pub use chart::{ClusterFacts, MANAGER, Manifest, Release};
pub use checks::{CheckResult, CheckStatus, Checks};
pub use tags::{RevisionTag, TagChange, list_tags, remove_tag, set_tag};
pub use template::TemplateError;
pub use uninstall::{Removal, uninstall};
pub use upgrade::{Remaining, Upgrade};
pub use values::Assignments;
pub use wait::wait;
pub use workloads::{Workload, restart};

use crate::error::ClusterError;
use kinds::InstalledKind;

/// Label with the name of the release that an object belongs to.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// Label with the program that installed an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Label of the GatewayClasses that a control plane makes.
pub(crate) const CLASS_LABEL: (&str, &str) = (MANAGED_BY, "voile-gateway-controller");

/// Takes lines about progress.
pub type Progress<'a> = &'a dyn Fn(&str);

/// Error of an installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A value cannot be used.
    #[error("{0}")]
    Values(String),
    /// The chart has an error: the program itself is wrong.
    #[error("the chart: {0}")]
    Chart(#[from] TemplateError),
    /// The API server refused or did not answer.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Objects of the same names belong to others.
    #[error("{0}")]
    Foreign(String),
    /// The control plane is not available in time, and why.
    #[error("{0}")]
    Unavailable(String),
}

/// The label selector of the objects of a release that this program installed.
fn release_selector(release: &str) -> String {
    format!("{INSTANCE}={release},{MANAGED_BY}={MANAGER}")
}

/// The objects of a kind: of a namespace, or of the cluster.
fn objects(client: &Client, kind: &InstalledKind, namespace: &str) -> Api<DynamicObject> {
    let resource = kind.resource();
    match kind.namespaced {
        true => Api::namespaced_with(client.clone(), namespace, &resource),
        false => Api::all_with(client.clone(), &resource),
    }
}

/// Returns true if this program installed the object for the release.
fn is_ours<K: kube::Resource>(object: &K, release: &str) -> bool {
    let labels = object.labels();
    let label = |name: &str| labels.get(name).map(String::as_str);
    label(INSTANCE) == Some(release) && label(MANAGED_BY) == Some(MANAGER)
}

/// The owner of a foreign object, in words.
fn owner<K: kube::Resource>(object: &K) -> String {
    let labels = object.labels();
    let label = |name: &str| labels.get(name).cloned();
    match (
        label(MANAGED_BY),
        label(INSTANCE).or_else(|| label("release")),
    ) {
        (Some(manager), Some(release)) => format!("{manager} (release {release})"),
        (Some(manager), None) => manager,
        (None, Some(release)) => format!("the release {release}"),
        (None, None) => "somebody else".to_owned(),
    }
}

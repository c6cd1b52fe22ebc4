//! The workloads whose pods have proxies of a revision, and their restart.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::wait::{rollout, until_done, workloads};
use super::{InstallError, Progress};
use crate::error::ClusterError;
use crate::inject::STATUS;
use crate::revision::REVISION;

/// Kinds that make their pods anew one after the other.
const RESTARTED: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];
/// Pods that have not ended.
const LIVING: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Annotation of a template by which `kubectl rollout restart` makes the pods anew.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// A workload, or a pod without one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    /// Its namespace.
    pub namespace: String,
    /// Its kind, such as `Deployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl Workload {
    /// Returns true if it can be restarted. Jobs and pods by themselves cannot.
    #[must_use]
    pub fn is_restartable(&self) -> bool {
        RESTARTED.contains(&&*self.kind)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.to_lowercase();
        write!(f, "{kind}/{} -n {}", self.name, self.namespace)
    }
}

/// The injector's record at a pod.
#[derive(Deserialize)]
struct InjectionRecord {
    revision: String,
}

/// The workloads with proxies of a revision, and the number of their pods. Pods that end are left out.
pub(super) async fn with_proxies_of(
    client: &Client,
    revision: &str,
) -> Result<BTreeMap<Workload, usize>, InstallError> {
    let pods: Api<Pod> = Api::all(client.clone());
    let injected = ListParams::default().labels(REVISION).fields(LIVING);
    let listed = pods.list_metadata(&injected).await;
    let listed = listed.map_err(|error| ClusterError::api("the list of pods", &error))?;
    let sets: Api<ReplicaSet> = Api::all(client.clone());
    let sets = sets.list_metadata(&ListParams::default()).await;
    let sets = sets.map_err(|error| ClusterError::api("the list of replicasets", &error))?;
    let sets: BTreeMap<(String, String), &ObjectMeta> = sets
        .iter()
        .map(|one| {
            let key = (one.namespace().unwrap_or_default(), one.name_any());
            (key, &one.metadata)
        })
        .collect();
    let mut found = BTreeMap::new();
    for pod in &listed {
        let record = pod.annotations().get(STATUS);
        let record = record.and_then(|text| serde_json::from_str::<InjectionRecord>(text).ok());
        let ends = pod.metadata.deletion_timestamp.is_some();
        if ends || record.is_none_or(|record| record.revision != revision) {
            continue;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let mut owner =
            controller(&pod.metadata).unwrap_or_else(|| ("Pod".to_owned(), pod.name_any()));
        if owner.0 == "ReplicaSet" {
            let set = sets.get(&(namespace.clone(), owner.1.clone()));
            owner = set.and_then(|set| controller(set)).unwrap_or(owner);
        }
        let workload = Workload {
            namespace,
            kind: owner.0,
            name: owner.1,
        };
        *found.entry(workload).or_insert(0) += 1;
    }
    Ok(found)
}

/// Kind and name of the controller that made an object.
fn controller(metadata: &ObjectMeta) -> Option<(String, String)> {
    let owners = metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|one| one.controller == Some(true));
    let owner = controllers.next()?;
    Some((owner.kind.clone(), owner.name.clone()))
}

/// Makes the pods of a workload anew, as `kubectl rollout restart` does, and waits until all are available.
///
/// # Errors
/// They are not available within `limit`, or the API server refuses or does not answer.
pub fn restart<'a>(
    client: &'a Client,
    workload: &'a Workload,
    limit: Duration,
    progress: Progress<'a>,
) -> LocalBoxFuture<'a, Result<(), InstallError>> {
    Box::pin(async move {
        let Workload {
            namespace,
            kind,
            name,
        } = workload;
        let what = workload.to_string();
        let now = format!("{:.0}", Timestamp::now());
        let patch =
            json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: now}}}}});
        let api = workloads(client, namespace, kind);
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.map_err(|error| ClusterError::api(&what, &error))?;
        let look = || rollout(client, namespace, kind, name);
        let done = until_done(&what, look, Instant::now() + limit, progress).await?;
        done.map_err(|last| {
        InstallError::Unavailable(format!(
            "{what} is not available after {limit:?}: {last}\ncure: kubectl describe {what}; the way back is the old revision: its control plane runs"
        ))
    })
    })
}

//! Waits until the control plane and the node agent are available, and says the cure when they are not.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, ResourceExt as _};
use tokio::time::Instant;

use super::chart::Release;
use super::{InstallError, Progress};
use crate::error::ClusterError;
use crate::revision::{label_of, of_revision};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(300);

/// Waits until all pods of the control plane, and of the node agent if there is one, are available.
///
/// # Errors
/// They are not available within `limit`: the error has the reason and the cure.
pub fn wait<'a>(
    client: &'a Client,
    release: &'a Release,
    limit: Duration,
    progress: Progress<'a>,
) -> LocalBoxFuture<'a, Result<(), InstallError>> {
    Box::pin(async move {
        let deadline = Instant::now() + limit;
        let (namespace, revision) = (&*release.namespace, release.revision());
        let name = deployment_name(revision);
        let what = format!("deployments.apps/{name}");
        let look = || rollout(client, namespace, "Deployment", &name);
        if let Err(last) = until_done(&what, look, deadline, progress).await? {
            let cause = explain(client, namespace, revision).await?;
            return Err(InstallError::Unavailable(format!(
                "{what} is not available after {limit:?}: {last}\n{cause}"
            )));
        }
        if !release.has_node_agent() {
            return Ok(());
        }
        let name = node_agent_name(revision);
        let what = format!("daemonsets.apps/{name}");
        let look = || rollout(client, namespace, "DaemonSet", &name);
        if let Err(last) = until_done(&what, look, deadline, progress).await? {
            return Err(InstallError::Unavailable(format!(
                "{what} is not available after {limit:?}: {last}\ncure: kubectl -n {namespace} describe pods -l app=voile-node"
            )));
        }
        Ok(())
    })
}

/// Looks until a rollout is done. Gives its last state if it is not until `deadline`.
pub(super) async fn until_done<L: Future<Output = Result<Rollout, InstallError>>>(
    what: &str,
    look: impl Fn() -> L,
    deadline: Instant,
    progress: Progress<'_>,
) -> Result<Result<(), String>, InstallError> {
    let mut last = String::new();
    loop {
        let rollout = look().await?;
        if rollout.is_done() {
            progress(&format!("{what} is available: {}", rollout.words()));
            return Ok(Ok(()));
        }
        if rollout.words() != last {
            last = rollout.words();
            progress(&format!("waiting for {what}: {last}"));
        }
        if Instant::now() >= deadline {
            return Ok(Err(last));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Name of the Deployment of a revision.
pub(super) fn deployment_name(revision: &str) -> String {
    of_revision("istiod", revision)
}

/// Name of the DaemonSet of the node agent of a revision.
pub(super) fn node_agent_name(revision: &str) -> String {
    of_revision("voile-node", revision)
}

/// The state of a Deployment, StatefulSet or DaemonSet.
#[derive(Debug)]
pub(super) struct Rollout {
    /// False until the controller has seen the latest change.
    observed: bool,
    wanted: i64,
    updated: i64,
    total: i64,
    available: i64,
}

impl Rollout {
    pub(super) fn new(kind: &str, found: &DynamicObject) -> Self {
        let (spec, status) = (&found.data["spec"], &found.data["status"]);
        let number = |field: &str| status[field].as_i64().unwrap_or_default();
        let [wanted, updated, total, available] = match kind {
            "DaemonSet" => [
                number("desiredNumberScheduled"),
                number("updatedNumberScheduled"),
                number("currentNumberScheduled"),
                number("numberAvailable"),
            ],
            _ => [
                spec["replicas"].as_i64().unwrap_or(1),
                number("updatedReplicas"),
                number("replicas"),
                number("availableReplicas"),
            ],
        };
        Self {
            observed: number("observedGeneration") >= found.metadata.generation.unwrap_or_default(),
            wanted,
            updated,
            total,
            available,
        }
    }

    /// Returns true if all pods are new and available.
    pub(super) fn is_done(&self) -> bool {
        let settled = self.updated == self.wanted && self.total == self.wanted;
        self.observed && settled && self.available == self.wanted
    }

    pub(super) fn words(&self) -> String {
        format!("{} of {} pods are available", self.available, self.wanted)
    }
}

/// Workloads of a kind.
pub(super) fn workloads(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps", "v1", kind);
    let resource = ApiResource::from_gvk(&kind);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// The state of a Deployment, StatefulSet or DaemonSet.
pub(super) async fn rollout(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<Rollout, InstallError> {
    let found = workloads(client, namespace, kind).get(name).await;
    let what = format!("{}s.apps/{name}", kind.to_lowercase());
    let found = found.map_err(|error| ClusterError::api(&what, &error))?;
    Ok(Rollout::new(kind, &found))
}

/// Says why the pods of a revision are not available, and the cure.
pub(super) async fn explain(
    client: &Client,
    namespace: &str,
    revision: &str,
) -> Result<String, InstallError> {
    let label = label_of(revision);
    let selector = ListParams::default().labels(&format!("app=istiod,istio.io/rev={label}"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&selector).await;
    let pods = pods
        .map_err(|error| ClusterError::api("the list of pods", &error))?
        .items;
    if let Some(reason) = pods.iter().find_map(|pod| pod_problem(pod, namespace)) {
        return Ok(reason);
    }
    let name = deployment_name(revision);
    if !pods.is_empty() {
        return Ok(format!(
            "cure: kubectl -n {namespace} describe pods -l app=istiod"
        ));
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deployment = deployments.get_opt(&name).await;
    let deployment = deployment.map_err(|error| ClusterError::api(&name, &error))?;
    let status = deployment.and_then(|one| one.status).unwrap_or_default();
    let mut conditions = status.conditions.unwrap_or_default().into_iter();
    let refused = conditions.find(|one| one.type_.as_deref() == Some("ReplicaFailure"));
    Ok(match refused.and_then(|one| one.message) {
        Some(message) => format!(
            "no pod can be created: {message}\ncure: allow such pods in the namespace {namespace}: see its quota and the label pod-security.kubernetes.io/enforce"
        ),
        None => {
            "no pod was created\ncure: see whether the cluster's controller manager runs".to_owned()
        }
    })
}

/// The first problem of a pod, with its cure.
fn pod_problem(pod: &Pod, namespace: &str) -> Option<String> {
    let name = pod.name_any();
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let unscheduled = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False");
    if let Some(condition) = unscheduled {
        let message = condition.message.clone().unwrap_or_default();
        return Some(format!(
            "pod {name}: {message}\ncure: add nodes, or change the values resources, tolerations, nodeSelector and affinity"
        ));
    }
    let mut containers = status.container_statuses.iter().flatten();
    containers.find_map(|container| container_problem(&name, container, namespace))
}

fn container_problem(pod: &str, container: &ContainerStatus, namespace: &str) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone().unwrap_or_default();
    let message = waiting.message.clone().unwrap_or_default();
    let cure = match &*reason {
        "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName" => format!(
            "push the image {} where the nodes can pull it, and name it: --set image.repository=…,image.tag=…",
            container.image
        ),
        "CrashLoopBackOff" => {
            format!("see why it ends: kubectl -n {namespace} logs {pod} --previous")
        }
        "ContainerCreating" | "PodInitializing" | "" => return None,
        _ => format!("kubectl -n {namespace} describe pod {pod}"),
    };
    Some(format!("pod {pod}: {reason}: {message}\ncure: {cure}"))
}

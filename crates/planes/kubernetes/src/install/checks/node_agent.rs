//! Check that the node agent runs on the nodes whose pods wait for it.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::{Checks, some_of};
use crate::error::ClusterError;
use crate::install::InstallError;
use crate::install::chart::Release;
use crate::install::wait::{Rollout, deployment_name, node_agent_name, workloads};
use crate::revision::label_of;

/// The argument of a control plane whose injected pods have no `istio-init`.
const CNI_ARGUMENT: &str = "--cni";

/// Returns true if sidecars are redirected by a CNI plugin: as the control plane says, or else as it would be installed.
pub(super) async fn has_cni_sidecars(
    client: &Client,
    release: &Release,
) -> Result<bool, InstallError> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &release.namespace);
    let name = deployment_name(release.revision());
    let deployment = deployments.get_opt(&name).await;
    let deployment = deployment.map_err(|error| ClusterError::api(&name, &error))?;
    let Some(pod) = deployment.and_then(|one| one.spec.template.spec) else {
        return Ok(release.has_cni_sidecars());
    };
    let mut arguments = pod
        .containers
        .iter()
        .flat_map(|one| one.args.iter().flatten());
    Ok(arguments.any(|argument| argument == CNI_ARGUMENT))
}

/// Checks the DaemonSet, and that each node has an agent where sidecars need it.
pub(super) async fn run(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "node agent";
    const KIND: &str = "DaemonSet";
    let name = node_agent_name(release.revision());
    let sets = workloads(client, &release.namespace, KIND);
    let set = sets.get_opt(&name).await;
    let set = set.map_err(|error| ClusterError::api(&name, &error))?;
    let has_sidecars = has_cni_sidecars(client, release).await?;
    let Some(set) = set else {
        if has_sidecars {
            checks.warning(
                NAME,
                "none is installed, and sidecars have no init container (pilot.cni.enabled): they are not ready unless another \
                 CNI plugin, such as Istio's, redirects their connections",
                "voile install --set pilot.cni.enabled=true,cni.enabled=true",
            );
        }
        return Ok(());
    };
    let rollout = Rollout::new(KIND, &set);
    let without = match has_sidecars {
        true => nodes_without(client, release).await?,
        false => Vec::new(),
    };
    if rollout.is_done() && without.is_empty() {
        checks.ok(NAME, rollout.words());
        return Ok(());
    }
    let effect = match without.is_empty() {
        true => String::new(),
        false => format!(
            "\npods with sidecars do not become ready on {}",
            some_of(&without)
        ),
    };
    checks.error(
        NAME,
        format!("{}{effect}", rollout.words()),
        format!(
            "kubectl -n {} describe pods -l app=voile-node; nodes that ambient.nodeSelector leaves out have no agent",
            release.namespace
        ),
    );
    Ok(())
}

/// Names of the nodes that have no ready agent.
async fn nodes_without(client: &Client, release: &Release) -> Result<Vec<String>, InstallError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list_metadata(&ListParams::default()).await;
    let nodes = nodes.map_err(|error| ClusterError::api("the list of nodes", &error))?;
    let label = label_of(release.revision());
    let selector = ListParams::default().labels(&format!("app=voile-node,istio.io/rev={label}"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), &release.namespace);
    let pods = pods.list(&selector).await;
    let pods = pods.map_err(|error| ClusterError::api("the list of pods", &error))?;
    let is_ready = |pod: &&Pod| {
        let status = pod.status.as_ref();
        let mut conditions = status
            .iter()
            .flat_map(|one| one.conditions.iter().flatten());
        conditions.any(|one| one.type_ == "Ready" && one.status == "True")
    };
    let ready = pods.iter().filter(is_ready);
    let with: BTreeSet<&str> = ready
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    let names = nodes.iter().map(ResourceExt::name_any);
    Ok(names.filter(|name| !with.contains(&**name)).collect())
}

//! The agent of a node: it watches the pods of its node, enters their networks, and writes the rules by which their connections go
//! through their sidecar or the node proxy. It tells the node proxy of ambient pods (ZDS). It decides nothing about traffic.
//!
//! ```text
//! API server ─ pods, namespaces ─▶ view ─┬▶ enrolment ─ rules ─▶ networks of ambient pods
//! CNI plugin ─ new pod, network ─▶ calls ─┤      └─ pods ─▶ node proxy
//!                                         └▶ sidecars ─ rules ─▶ networks of pods with a sidecar
//! ```

mod calls;
mod enrolment;
mod networks;
mod role;
mod sidecars;
mod view;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Client;
use kube::api::Api;
use tokio::sync::{mpsc, watch};
use voile_host::netns::rules::Tool;
use voile_zds::NodeAgent;

pub(crate) use role::PodRole;
pub(crate) use voile_model::check::DATAPLANE_MODE;

use crate::cni::{Installation, InstallationError};
use crate::connect::{ClusterAddress, connect};
use crate::error::{ClusterError, FORBIDDEN, NOT_FOUND, UNAUTHORIZED};
use enrolment::{Enrolment, NodeSnapshot};
use sidecars::SidecarCapture;
use view::NodeView;

/// Pause before what is left is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// Calls of plugins that wait for the enrolment.
const WAITING_CALLS: usize = 256;

/// Options of an agent.
#[derive(Debug, Clone)]
pub struct NodeAgentOptions {
    /// The cluster.
    pub address: ClusterAddress,
    /// The node's name.
    pub node: String,
    /// Namespace of the agent's own DaemonSet.
    pub namespace: String,
    /// Name of the agent's own DaemonSet, and of its ServiceAccount.
    pub daemon_set: String,
    /// The node's `/proc`.
    pub proc: PathBuf,
    /// The node proxy; without it no pod is ambient.
    pub ambient: Option<AmbientOptions>,
    /// The CNI plugin; without it pods are enrolled or captured once they run.
    pub cni: Option<CniOptions>,
}

/// The node proxy and what it does.
#[derive(Debug, Clone)]
pub struct AmbientOptions {
    /// Socket for the node proxy (ZDS).
    pub zds: PathBuf,
    /// True if the node proxy answers the pods' DNS questions.
    pub dns: bool,
}

/// Where the CNI plugin is installed. The folders are the node's, as the agent sees them.
#[derive(Debug, Clone)]
pub struct CniOptions {
    /// Folder of the runtime's plugins.
    pub programs: PathBuf,
    /// Folder of the runtime's configurations.
    pub configs: PathBuf,
    /// The latter as the runtime sees it.
    pub configs_on_node: PathBuf,
    /// Socket for the plugin. Agent and plugin see it at the same path.
    pub socket: PathBuf,
}

/// Why an agent ends.
#[derive(Debug, thiserror::Error)]
pub enum NodeAgentError {
    /// The cluster cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The CNI plugin cannot be installed.
    #[error(transparent)]
    Installation(#[from] InstallationError),
    /// A socket, a tool or a privilege.
    #[error("{what}: {error}")]
    Start {
        /// What cannot be used.
        what: String,
        /// Why not.
        error: io::Error,
    },
}

fn at(what: impl Into<String>) -> impl FnOnce(io::Error) -> NodeAgentError {
    let what = what.into();
    move |error| NodeAgentError::Start { what, error }
}

/// Runs an agent until `stop`. Pods stay enrolled, since the next agent finds them so. If the agent's DaemonSet is deleted, it takes
/// the CNI plugin off the node and the rules off the ambient pods. Pods with a sidecar keep their rules, or they would bypass it.
///
/// # Errors
/// It cannot start, or the plugin cannot be installed.
pub async fn run(
    options: NodeAgentOptions,
    stop: impl Future<Output = ()>,
) -> Result<(), NodeAgentError> {
    let client = connect(&options.address).await?;
    let tool = Tool::find().map_err(|error| at("redirect rules")(io::Error::other(error)))?;
    let sidecars = SidecarCapture::new(tool.clone(), options.proc.clone());
    let sidecars = Arc::new(sidecars);
    let mut enrolment = enrolment(&client, &options, tool)?;
    let (view, views) = watch::channel(NodeView::new(options.ambient.is_some()));
    let installation = installation(&options);
    let plugin = async {
        // A plugin must not find an agent that does not know the pods yet.
        let mut first = views.clone();
        let _ = first.wait_for(NodeView::is_complete).await;
        let (send, calls) = mpsc::channel(WAITING_CALLS);
        let serving = async {
            match &mut enrolment {
                Some(enrolment) => enrol(enrolment, views.clone(), calls).await,
                None => std::future::pending().await,
            }
        };
        let repairing = sidecars.repair(views.clone());
        let (Some(cni), Some(installation)) = (&options.cni, &installation) else {
            let _no_plugin = send;
            tokio::join!(serving, repairing);
            return Ok::<(), NodeAgentError>(());
        };
        let answering = calls::serve(&cni.socket, views.clone(), Arc::clone(&sidecars), send)
            .map_err(at(format!("the socket {}", cni.socket.display())))?;
        tokio::select! {
            () = serving => Ok(()),
            () = repairing => Ok(()),
            () = answering => Ok(()),
            kept = installation.keep(&client) => Ok(kept?),
        }
    };
    tokio::select! {
        () = view::follow(client.clone(), options.node.clone(), &view) => {}
        ended = plugin => ended?,
        () = stop => {}
    }
    if !is_uninstalled(&client, &options, installation.as_ref()).await {
        return Ok(());
    }
    if let Some(installation) = &installation {
        installation.remove()?;
        tracing::info!("the CNI plugin is removed");
    }
    if let Some(enrolment) = &mut enrolment {
        enrolment.dissolve().await;
    }
    Ok(())
}

/// The enrolment of ambient pods, on a node with a node proxy.
fn enrolment(
    client: &Client,
    options: &NodeAgentOptions,
    tool: Tool,
) -> Result<Option<Enrolment>, NodeAgentError> {
    let Some(ambient) = &options.ambient else {
        return Ok(None);
    };
    let runtime = tokio::runtime::Handle::current();
    let agent = NodeAgent::start(&ambient.zds, &runtime)
        .map_err(at(format!("the socket {}", ambient.zds.display())))?;
    let proc = options.proc.clone();
    let enrolment = Enrolment::new(client.clone(), proc, ambient.dns, tool, agent);
    Ok(Some(enrolment.map_err(at("the networks of this node"))?))
}

/// The place of the CNI plugin on the node.
fn installation(options: &NodeAgentOptions) -> Option<Installation> {
    let cni = options.cni.as_ref()?;
    Some(Installation {
        programs: cni.programs.clone(),
        configs: cni.configs.clone(),
        configs_on_node: cni.configs_on_node.clone(),
        socket: cni.socket.clone(),
        account: options.daemon_set.clone(),
        agent: (
            options.namespace.clone(),
            format!("{}-", options.daemon_set),
        ),
        has_node_proxy: options.ambient.is_some(),
    })
}

/// Follows the view and the plugins' calls, for ever.
async fn enrol(
    enrolment: &mut Enrolment,
    mut views: watch::Receiver<NodeView>,
    mut calls: mpsc::Receiver<calls::NewPod>,
) {
    loop {
        while let Ok(new) = calls.try_recv() {
            enrolment.take(new);
        }
        let snapshot = NodeSnapshot::of(&views.borrow_and_update(), enrolment);
        let complete = enrolment.reconcile(&snapshot).await;
        let retry = async {
            match complete {
                true => std::future::pending().await,
                false => tokio::time::sleep(RETRY).await,
            }
        };
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            Some(new) = calls.recv() => enrolment.take(new),
            () = retry => {}
        }
    }
}

/// Returns true if the agent's DaemonSet is gone or being deleted, as Istio's agent decides it: a pod that ends for an upgrade
/// leaves the plugin in place, so that no pod of the mesh starts unprotected meanwhile.
async fn is_uninstalled(
    client: &Client,
    options: &NodeAgentOptions,
    installation: Option<&Installation>,
) -> bool {
    let mut answer = daemon_set(client, options).await;
    if answer
        .as_ref()
        .is_err_and(|error| status_of(error) == UNAUTHORIZED)
    {
        // The agent's own token ends with its pod, which may be deleted by force. The plugin's ends with the account.
        let Some(installation) = installation else {
            return false;
        };
        answer = match connect(&installation.api_server()).await {
            Ok(client) => daemon_set(&client, options).await,
            Err(error) => {
                tracing::warn!(%error, "the CNI plugin stays");
                return false;
            }
        };
    }
    answer.unwrap_or_else(|error| {
        // Account and role go with the DaemonSet.
        let is_gone = matches!(status_of(&error), UNAUTHORIZED | FORBIDDEN | NOT_FOUND);
        if !is_gone {
            tracing::warn!(%error, "the CNI plugin stays: the API server does not answer");
        }
        is_gone
    })
}

/// Returns true if the agent's DaemonSet is being deleted.
async fn daemon_set(client: &Client, options: &NodeAgentOptions) -> kube::Result<bool> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), &options.namespace);
    let set = sets.get_metadata(&options.daemon_set).await?;
    Ok(set.metadata.deletion_timestamp.is_some())
}

fn status_of(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use voile_testkit::cluster::ApiServer;

    use super::*;

    const DAEMON_SET: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: voile-node, namespace: default}
spec:
  selector: {matchLabels: {app: voile-node}}
  template: {metadata: {labels: {app: voile-node}}, spec: {containers: [{name: app, image: voile}]}}
"#;

    /// The server's kubeconfig with a token that is not valid.
    fn expired(server: &ApiServer, folder: &Path) -> ClusterAddress {
        let text = std::fs::read_to_string(server.kubeconfig()).expect("a kubeconfig");
        let mut config: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
        for user in config["users"].as_array_mut().expect("users") {
            user["user"] = serde_json::json!({"token": "expired"});
        }
        let file = folder.join("expired");
        std::fs::write(&file, config.to_string()).expect("written");
        ClusterAddress {
            kubeconfig: Some(file),
            context: None,
        }
    }

    #[test]
    fn an_agent_whose_token_ended_with_its_pod_asks_with_the_plugins() {
        let Some(server) = ApiServer::start() else {
            return;
        };
        server.apply(DAEMON_SET).expect("applied");
        let folder = tempfile::tempdir().expect("a folder");
        let expired = expired(&server, folder.path());
        let options = NodeAgentOptions {
            address: expired.clone(),
            node: "node-1".to_owned(),
            namespace: "default".to_owned(),
            daemon_set: "voile-node".to_owned(),
            proc: PathBuf::new(),
            ambient: None,
            cni: None,
        };
        let installation = Installation::in_folder(folder.path());
        let plugins = installation.api_server().kubeconfig.expect("a file");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let is_gone = |installation: Option<&Installation>| {
            runtime.block_on(async {
                let client = connect(&expired).await.expect("a client");
                is_uninstalled(&client, &options, installation).await
            })
        };
        assert!(!is_gone(None), "nobody can tell");
        assert!(
            !is_gone(Some(&installation)),
            "the plugin has no kubeconfig"
        );
        std::fs::copy(server.kubeconfig(), &plugins).expect("copied");
        assert!(!is_gone(Some(&installation)), "the DaemonSet is there");
        let delete = ["-n", "default", "delete", "daemonset", "voile-node"];
        server.kubectl(&delete).expect("deleted");
        assert!(is_gone(Some(&installation)), "the DaemonSet is gone");
        std::fs::copy(
            options.address.kubeconfig.as_ref().expect("a file"),
            &plugins,
        )
        .expect("copied");
        assert!(is_gone(Some(&installation)), "the account is gone");
    }
}

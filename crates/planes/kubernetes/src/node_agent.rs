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
mod turn;
mod view;

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use http::StatusCode;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Client;
use kube::api::Api;
use tokio::sync::{mpsc, watch};
use voile_host::netns::rules::Tool;
use voile_memory::TextSettling;
use voile_telemetry::admin::{PageResponse, serve};
use voile_zds::NodeAgent;

pub(crate) use role::PodRole;
pub(crate) use voile_model::check::DATAPLANE_MODE;

use crate::cni::{Installation, InstallationError};
use crate::connect::{ClusterAddress, connect};
use crate::error::{ClusterError, FORBIDDEN, NOT_FOUND, UNAUTHORIZED};
use enrolment::{Enrolment, NodeSnapshot};
use sidecars::SidecarCapture;
use turn::{Manner, Turn};
use view::NodeView;

/// Pause before what is left is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// Calls of plugins that wait for the enrolment.
const WAITING_CALLS: usize = 256;
/// File beside the sockets that the agent that acts has locked.
const LOCK: &str = "node-agent.lock";

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
    /// Address of `/healthz/ready`, which answers 200 once this agent has acted.
    pub readiness: Option<SocketAddr>,
}

impl NodeAgentOptions {
    /// Folder of the sockets, which all agents of the node share.
    fn folder(&self) -> Option<&Path> {
        let zds = self.ambient.as_ref().map(|ambient| &ambient.zds);
        zds.or(self.cni.as_ref().map(|cni| &cni.socket))?.parent()
    }
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

/// Runs an agent until `stop`, inside a `LocalSet` of tokio. Pods stay enrolled, since the next agent finds them so. If the agent's
/// DaemonSet is deleted, it takes the CNI plugin off the node and the rules off the ambient pods. Pods with a sidecar keep their
/// rules, or they would bypass it.
///
/// # Errors
/// It cannot start, or the plugin cannot be installed.
pub fn run(
    options: NodeAgentOptions,
    stop: LocalBoxFuture<'static, ()>,
) -> LocalBoxFuture<'static, Result<(), NodeAgentError>> {
    Box::pin(async move {
        let client = connect(&options.address).await?;
        let tool = Tool::find().map_err(|error| at("redirect rules")(io::Error::other(error)))?;
        let (view, views) = watch::channel(NodeView::new(options.ambient.is_some()));
        let mut agent = ActingAgent {
            client: client.clone(),
            installation: installation(&options),
            tool,
            views,
            text: TextSettling::default(),
            acts: false,
            ready: Rc::default(),
            enrolment: None,
            options,
        };
        let pages = agent.pages()?;
        tokio::select! {
            () = view::follow(client, agent.options.node.clone(), &view) => {}
            ended = agent.take_turns() => ended?,
            () = pages => {}
            () = stop => {}
        }
        agent.end().await
    })
}

/// An agent, while it acts or waits for its turn.
struct ActingAgent {
    options: NodeAgentOptions,
    client: Client,
    tool: Tool,
    installation: Option<Installation>,
    views: watch::Receiver<NodeView>,
    enrolment: Option<Enrolment>,
    /// Lets go of the program's pages that only the start needed.
    text: TextSettling,
    acts: bool,
    /// True from the first turn on: an agent that waits for the end of another is well, and Kubernetes must not end it sooner.
    ready: Rc<Cell<bool>>,
}

impl ActingAgent {
    /// Answers probes, for ever.
    fn pages(&self) -> Result<impl Future<Output = ()> + use<>, NodeAgentError> {
        let listener = self.options.readiness.map(|address| {
            let bound = std::net::TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener)
            });
            bound.map_err(at(format!("--readiness {address}")))
        });
        let listener = listener.transpose()?;
        let ready = Rc::clone(&self.ready);
        Ok(async move {
            let Some(listener) = listener else {
                return std::future::pending().await;
            };
            let answer = move |path: &str| match (path, ready.get()) {
                ("/healthz/ready", true) => PageResponse::text(StatusCode::OK, "ready\n"),
                ("/healthz/ready", false) => PageResponse::text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the pods of this node are not known yet, or another agent still acts\n",
                ),
                (path, _) => PageResponse::not_found(path),
            };
            serve(listener, move |question| {
                std::future::ready(answer(&question.path))
            })
            .await;
        })
    }

    /// Acts whenever it is this agent's turn, for ever.
    async fn take_turns(&mut self) -> Result<(), NodeAgentError> {
        // A plugin must not find an agent that does not know the pods yet.
        let _ = self.views.wait_for(NodeView::is_complete).await;
        let lock = self.options.folder().map(|folder| folder.join(LOCK));
        let mut manner = Manner::Ask;
        loop {
            let turn = match &lock {
                Some(lock) => {
                    let taken = Turn::take(lock, manner).await;
                    Some(taken.map_err(at(lock.display().to_string()))?)
                }
                None => None,
            };
            let asked = async {
                match &turn {
                    Some(turn) => turn.asked().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = self.act() => return ended,
                () = asked => {}
            }
            tracing::info!("another agent of this node acts from now on; this one waits");
            self.acts = false;
            self.enrolment = None;
            manner = Manner::Wait;
        }
    }

    async fn act(&mut self) -> Result<(), NodeAgentError> {
        let sidecars = SidecarCapture::new(self.tool.clone(), self.options.proc.clone());
        let sidecars = Arc::new(sidecars);
        self.enrolment = enrolment(&self.client, &self.options, self.tool.clone())?;
        let (send, calls) = mpsc::channel(WAITING_CALLS);
        let answering = match &self.options.cni {
            Some(cni) => {
                let sidecars = Arc::clone(&sidecars);
                let answering = calls::serve(&cni.socket, self.views.clone(), sidecars, send);
                Some(answering.map_err(at(format!("the socket {}", cni.socket.display())))?)
            }
            None => None,
        };
        self.acts = true;
        self.ready.set(true);
        self.text.begun();
        let enrolling = async {
            match &mut self.enrolment {
                Some(enrolment) => enrol(enrolment, self.views.clone(), calls).await,
                None => std::future::pending().await,
            }
        };
        let plugin = async {
            match (answering, &self.installation) {
                (Some(answering), Some(installation)) => tokio::select! {
                    () = answering => Ok(()),
                    kept = installation.keep(&self.client) => Ok(kept?),
                },
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = enrolling => Ok(()),
            () = sidecars.repair(self.views.clone()) => Ok(()),
            () = settle(&self.text, self.views.clone()) => Ok(()),
            ended = plugin => ended,
        }
    }

    /// Cleans up if the mesh is uninstalled.
    async fn end(&mut self) -> Result<(), NodeAgentError> {
        let installation = self.installation.as_ref();
        if !self.acts || !is_uninstalled(&self.client, &self.options, installation).await {
            return Ok(());
        }
        if let Some(installation) = installation {
            installation.remove()?;
            tracing::info!("the CNI plugin is removed");
        }
        if let Some(enrolment) = &mut self.enrolment {
            enrolment.dissolve().await;
        }
        Ok(())
    }
}

/// Lets go of pages again after each change of the node's pods, for ever.
async fn settle(text: &TextSettling, mut views: watch::Receiver<NodeView>) {
    while views.changed().await.is_ok() {
        text.told();
    }
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
            readiness: None,
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

//! `voile node-agent`: redirects the connections of the mesh's pods of a Kubernetes node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use voile_kubernetes::node_agent::{self, AmbientOptions, CniOptions, NodeAgentOptions};

use super::cluster::KubeconfigArgs;

/// Redirect the connections of the mesh's pods of a Kubernetes node.
///
/// The agent watches the pods of its node. A pod with the label `istio.io/dataplane-mode: ambient`, or of a namespace with it, is
/// enrolled: the agent enters its network, redirects its connections, and hands it to the node proxy (`voile proxy --role node`).
/// The pod is not restarted. The annotation `ambient.istio.io/redirection: enabled` records it.
///
/// A pod with a sidecar and without the init container `istio-init` gets the rules of `voile redirect` from the agent.
///
/// With --cni the agent also installs the CNI plugin `voile-cni` behind the primary plugin of the node, and keeps it there. New pods
/// then start when they are enrolled or have their rules. The plugin is removed when the agent ends because its DaemonSet is deleted.
///
/// The agent needs the capabilities SYS_ADMIN (to enter networks), NET_ADMIN and NET_RAW (to write rules) and SYS_PTRACE (to find
/// the networks of running pods).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 after SIGTERM or SIGINT, 1 when the agent cannot start, 2 when the arguments are wrong."
)]
pub(crate) struct NodeAgentArgs {
    /// Name of the node.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// Namespace of the agent's DaemonSet.
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAMESPACE",
        default_value = "istio-system"
    )]
    namespace: String,
    /// Name of the agent's DaemonSet, and of its ServiceAccount.
    #[arg(long, value_name = "NAME", default_value = "voile-node")]
    daemon_set: String,
    /// Enrol ambient pods; there is a node proxy on the node.
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    ambient: bool,
    /// Socket for the node proxy (ztunnel's ZDS protocol). Its folder must belong to root.
    #[arg(long, value_name = "PATH", default_value = "/var/run/voile/zds.sock")]
    zds: PathBuf,
    /// The node's /proc.
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    proc: PathBuf,
    /// Redirect the pods' DNS questions to the node proxy.
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    dns: bool,
    /// Install the CNI plugin on the node.
    #[arg(long)]
    cni: bool,
    /// Folder of the runtime's plugins, as the agent sees it.
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_programs: PathBuf,
    /// Folder of the runtime's configurations, as the agent sees it.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_configs: PathBuf,
    /// The folder of --cni-configs as the runtime sees it.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_configs_on_node: PathBuf,
    /// Socket for the plugin. Agent and node see it at the same path.
    #[arg(long, value_name = "PATH", default_value = "/var/run/voile/cni.sock")]
    cni_socket: PathBuf,
    /// Address of readiness (/healthz/ready): 200 once this agent acts. While a DaemonSet is updated, the agent before it stops first.
    #[arg(long, value_name = "ADDRESS:PORT")]
    readiness: Option<SocketAddr>,
    #[command(flatten)]
    address: KubeconfigArgs,
    /// Level of the log on stderr: off, error, warn, info, debug, trace, or `target=level,…`.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

impl NodeAgentArgs {
    fn options(self) -> NodeAgentOptions {
        NodeAgentOptions {
            address: self.address.into(),
            node: self.node,
            namespace: self.namespace,
            daemon_set: self.daemon_set,
            proc: self.proc,
            ambient: self.ambient.then_some(AmbientOptions {
                zds: self.zds,
                dns: self.dns,
            }),
            cni: self.cni.then_some(CniOptions {
                programs: self.cni_programs,
                configs: self.cni_configs,
                configs_on_node: self.cni_configs_on_node,
                socket: self.cni_socket,
            }),
            readiness: self.readiness,
        }
    }
}

pub(crate) fn run(args: NodeAgentArgs) -> ExitCode {
    if let Err(error) = voile_telemetry::logging::install(&args.log_level) {
        eprintln!("voile node-agent: --log-level {error}");
        return ExitCode::from(2);
    }
    voile_memory::frugal();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => LocalSet::new().block_on(&runtime, serve(args)),
        Err(error) => Err(error.to_string()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile node-agent: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: NodeAgentArgs) -> Result<(), String> {
    let installed = |kind| signal(kind).map_err(|error| format!("signals: {error}"));
    let (mut terminate, mut interrupt) = (
        installed(SignalKind::terminate())?,
        installed(SignalKind::interrupt())?,
    );
    let stop = Box::pin(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    });
    let ended = node_agent::run(args.options(), stop).await;
    ended.map_err(|error| error.to_string())
}

//! The CNI plugin, which a node's container runtime runs for each new pod, and its installation on the node. The plugin decides
//! nothing: it hands the pod's network to the node agent and waits until the pod may start.
//!
//! ```text
//! runtime ─ADD─▶ primary plugin ─▶ voile-cni ─ pod, network (ZDS) ─▶ node agent
//! ```

mod conflist;
mod install;
mod plugin;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use install::{Installation, InstallationError, watch};
pub(crate) use plugin::is_uid_of;
pub use plugin::{PluginOutcome, run};

/// Type of the plugin in a configuration list, and name of its program in the runtime's folder.
pub const PLUGIN: &str = "voile-cni";

/// The plugin's own part of a configuration list, which the node agent writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PluginConfig {
    #[serde(rename = "type")]
    plugin: String,
    /// Socket of the node agent, on the node.
    socket: PathBuf,
    /// By it the plugin asks the API server about a pod while the agent is away.
    kubeconfig: PathBuf,
    /// Namespace of the agent's own pods.
    agent_namespace: String,
    /// Start of the names of the agent's own pods, which start without the agent.
    agent_pods: String,
    /// True if the node has a node proxy, so that its pods may be ambient.
    has_node_proxy: bool,
}

impl PluginConfig {
    pub(crate) fn new(
        socket: PathBuf,
        kubeconfig: PathBuf,
        agent: (&str, &str),
        has_node_proxy: bool,
    ) -> Self {
        Self {
            plugin: PLUGIN.to_owned(),
            socket,
            kubeconfig,
            agent_namespace: agent.0.to_owned(),
            agent_pods: agent.1.to_owned(),
            has_node_proxy,
        }
    }
}

//! The node proxy of a mesh on this machine: its names, and its agent.

use std::io;

use voile_host::netns::Namespace;

/// Namespace of the node proxy itself.
pub(crate) const NAMESPACE: &str = "istio-system";
/// Its pod, and its service account.
pub(crate) const NAME: &str = "node-proxy";
/// Both.
pub const NODE_PROXY: &str = "istio-system/node-proxy";
/// The one node there is.
pub(crate) const NODE: &str = "local";

/// Agent of the mesh's node proxy.
pub(crate) type NodeAgent = voile_zds::NodeAgent<Namespace>;

/// The name of a pod in this network.
pub(crate) fn uid(pod: &voile_model::ResourceName, inside: &Namespace) -> io::Result<String> {
    let (_, inode) = inside.id()?;
    Ok(format!("{pod}/{inode}"))
}

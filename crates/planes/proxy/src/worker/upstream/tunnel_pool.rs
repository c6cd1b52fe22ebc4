//! Connections to node proxies that tunnels share, by their keys.

use std::net::SocketAddr;

use voile_identity::Identity;

use crate::worker::upstream::endpoint::Unreachable;

/// Key of equal tunnels. All tunnels of a sidecar have one client, its own workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SidecarTunnelKey {
    pub(in crate::worker) expected: Vec<Identity>,
    pub(in crate::worker) to: SocketAddr,
}

/// The connections to node proxies.
pub(crate) type Pool = voile_hbone::Pool<SidecarTunnelKey, Unreachable>;

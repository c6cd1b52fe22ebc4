//! Running instances of programs, by role, and the hops between them.

use std::ffi::CStr;
use std::net::SocketAddr;

use voile_host::netns::Namespace;

pub(crate) const CLIENT: &str = "client-sidecar";
pub(crate) const SERVER: &str = "server-sidecar";
pub(crate) const CLIENT_NODE: &str = "client-node";
pub(crate) const SERVER_NODE: &str = "server-node";
pub(crate) const WAYPOINT: &str = "waypoint";
pub(crate) const INGRESS: &str = "gateway";
pub(crate) const CONTROL: &str = "control";

/// Returns true if the role is a proxy on the path of requests.
pub(crate) fn is_proxy(role: &str) -> bool {
    [CLIENT, SERVER, CLIENT_NODE, SERVER_NODE, WAYPOINT, INGRESS].contains(&role)
}

/// Port on which ztunnel and other node proxies accept HBONE tunnels.
pub(crate) const HBONE: u16 = 15008;

/// One instance of a program in the experiment; its processes count as one (a master and its workers, say).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    pub(crate) pids: Vec<u32>,
    /// The agent's numbers for its processes, when it runs at the agent's; none here.
    pub(crate) far: Vec<u32>,
}

impl Instance {
    /// An instance on this machine.
    pub(crate) fn here(name: String, role: &'static str, pids: Vec<u32>) -> Self {
        Self {
            name,
            role,
            pids,
            far: Vec::new(),
        }
    }

    /// Its processes, as far as this machine knows them.
    pub(crate) fn pids_here(&self) -> &[u32] {
        if self.far.is_empty() { &self.pids } else { &[] }
    }
}

/// Point at which a hop can be captured, if that is not the shared loopback device.
#[derive(Debug, Clone)]
pub(crate) struct WatchPoint {
    pub(crate) namespace: Namespace,
    pub(crate) device: &'static CStr,
    /// The listener's port, where the kernel redirects to it.
    pub(crate) listener: Option<u16>,
}

impl WatchPoint {
    pub(crate) const LOOPBACK: &'static CStr = c"lo";
    pub(crate) const ETHERNET: &'static CStr = c"eth0";
}

/// One connection of a path: its listener, and whether it carries mutual TLS.
#[derive(Debug, Clone)]
pub(crate) struct Hop {
    /// Role of the listener; `server` for the echo server.
    pub(crate) to: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) tls: bool,
    pub(crate) spot: Option<WatchPoint>,
}

impl Hop {
    /// Returns true if many connections share one connection on this hop.
    pub(crate) fn is_tunnel(&self) -> bool {
        self.tls && self.address.port() == HBONE
    }
}

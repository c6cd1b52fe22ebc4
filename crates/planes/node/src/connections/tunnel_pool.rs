//! Tunnels that connections of one worker share, by their keys, and why one cannot be opened.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use voile_identity::Identity;

/// Key by which tunnels share a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TunnelKey {
    /// The pod that calls: its sockets are its own.
    pub(super) place: (u64, u64),
    pub(super) identity: Identity,
    pub(super) expected: Vec<Identity>,
    pub(super) to: SocketAddr,
    pub(super) source: IpAddr,
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct OutboundError {
    /// ztunnel's word for it.
    pub(crate) flags: &'static str,
    pub(crate) reason: Arc<str>,
    /// The other proxy does not know the destination.
    pub(super) unknown_there: bool,
}

/// The connections to other proxies.
pub(crate) type Pool = voile_hbone::Pool<TunnelKey, OutboundError>;

//! HBONE, both ends: a TCP connection as a CONNECT stream of HTTP/2 inside mutual TLS, as ztunnel speaks it. Node
//! proxies, sidecars and waypoints use it. The user of the crate authorizes tunnels.
//!
//! ```text
//! Pool ─ lease ─► open(CONNECT) ─► Tunnel (bytes both ways) ═ Wire: HTTP/2 on TLS ═ serve ─► Request ─► Tunnel
//! ```

mod gateways;
mod heads;
mod http2_link;
mod keepalive;
mod open;
mod pool;
mod serve;
mod tunnel;

pub use gateways::{ATTEMPT, Gateways};
pub use heads::{NoTunnel, TunnelCaller, connect, named, target};
pub use http2_link::{CONFIG, MAX_STREAMS, Wire};
pub use open::{TunnelOpenError, open};
pub use pool::{Lease, Owner, Pool};
pub use serve::{TunnelRequest, serve};
pub use tunnel::Tunnel;

/// Port of HBONE tunnels.
pub const PORT: u16 = 15008;

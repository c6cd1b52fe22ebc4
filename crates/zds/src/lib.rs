//! Which pods a node proxy serves, told by whoever makes their networks: the protocol between Istio's CNI agent and ztunnel
//! ("ZDS"), both ends. The agent listens, the proxy connects and says hello; then the agent speaks, one message a packet, and
//! each is answered before the next.
//!
//! ```text
//! proxy ─ hello ─► agent ─ Add (with a namespace) … SnapshotSent ─► proxy ─ yes, or why not ─► agent ─ Add, Del …
//! ```

mod packets;
mod told;

pub use packets::{Agents, Channel};
pub use told::{Told, Who};

//! Pods of a node proxy, as the agent that makes their networks reports them: the protocol between Istio's CNI agent
//! and ztunnel ("ZDS"), both ends. The agent listens, the proxy connects and says hello. Then the agent sends one
//! message a packet, and the proxy answers each before the next.
//!
//! ```text
//! proxy ─ hello ─► agent ─ Add (with a namespace) … SnapshotSent ─► proxy ─ yes, or why not ─► agent ─ Add, Del …
//! ```

mod agent;
mod messages;
mod packets;

pub use agent::{NodeAgent, ServedPods};
pub use messages::{AgentMessage, PodIdentity};
pub use packets::{Agents, Channel};

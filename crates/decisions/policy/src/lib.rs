//! Decisions about connections and requests: peer authentication, `tokens`, `authorization` of requests, and `connections`,
//! the authorization of connections at a node proxy.
//!
//! Peer authentication has two halves. The control plane asks `effective` for the mode of a workload's port. The proxy
//! knows only that mode and asks `inbound` about each connection; forwarding requires the `Permit` it returns. Pure, no
//! I/O.

pub mod authorization;
mod callers;
pub mod claims;
pub mod connections;
mod effective;
mod inbound;
pub mod tokens;

pub use callers::{is_taken, speaks_mutual_tls};
pub use effective::{EffectiveMode, effective, effective_at, inherited, selecting};
pub use inbound::{ConnectionFacts, Denial, DenialReason, Mode, Permit, Trust, inbound};

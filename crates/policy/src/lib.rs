//! Decisions about who may talk to whom: peer authentication, `tokens`, and `authorization`.
//!
//! Peer authentication has two halves. The control plane asks `effective` which mode holds at a workload's port; the proxy, which knows only that
//! mode, asks `inbound` about each connection, and forwarding demands the `Permit` it gives. Pure, no I/O.

pub mod authorization;
mod callers;
pub mod claims;
mod effective;
mod inbound;
pub mod tokens;

pub use callers::{is_taken, speaks_mutual_tls};
pub use effective::{Effective, effective, effective_at, inherited, selecting};
pub use inbound::{ConnectionFacts, Denial, DenialReason, Mode, Permit, Trust, inbound};

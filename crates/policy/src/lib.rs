//! Decisions about who may talk to whom: peer authentication.
//!
//! Two halves. The control plane asks `effective` which mode holds at a workload's port; the proxy, which knows only that
//! mode, asks `inbound` about each connection, and forwarding demands the `Permit` it gives. Pure, no I/O.

mod effective;
mod inbound;

pub use effective::{Effective, effective, inherited};
pub use inbound::{ConnectionFacts, Denial, DenialReason, Mode, Permit, Trust, inbound};

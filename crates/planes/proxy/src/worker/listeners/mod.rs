//! Listeners of a worker: the sockets' settings, capture, detection of the protocol, and drain.

pub(in crate::worker) mod captured_listeners;
pub(in crate::worker) mod engine;
pub(in crate::worker) mod gateway_slot;
pub(in crate::worker) mod inbound_slot;
pub(in crate::worker) mod late_detection;
pub(in crate::worker) mod listener_set;
pub(in crate::worker) mod outbound_slot;
pub(in crate::worker) mod server_first;
pub(in crate::worker) mod termination;

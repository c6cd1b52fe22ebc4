//! Sockets: listening, connecting, handover to another process, and closing.

pub(crate) mod close;
pub(crate) mod connect;
pub mod handover;
pub(crate) mod listener;
pub(crate) mod packets;
pub(crate) mod redirected;

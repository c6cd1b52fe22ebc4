//! The protocol and the wire as tables: no sockets here; `voile-control` tests both ends over TLS.

#![expect(
    clippy::unwrap_used,
    reason = "a failed assumption fails the test that made it"
)]

mod client;
mod closed;
mod connection_policy;
mod conversation;
mod explored;
mod explorer;
mod gateway;
mod health_checks;
mod order;
mod policy;
mod preference;
mod server;
mod sotw;
mod wire;

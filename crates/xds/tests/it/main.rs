//! The protocol and the wire as tables: no sockets here; `voile-control` tests both ends over TLS.

mod client;
mod conversation;
mod server;
mod wire;

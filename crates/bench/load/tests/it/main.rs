//! The load tools against real sockets on loopback, and their pure parts as tables.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should panic where it stands"
)]

mod bulk;
mod datagrams;
mod echo;
mod grpc;
mod hostile;
mod load;
mod mixed;
mod multiplexed;
mod relay;
mod responses;
mod results;
mod server;
mod tls;
mod websocket;

//! The HTTP/1.1 engine between a client made of bytes and a server that plays a script.

mod allocations;
mod basics;
mod connect;
mod early;
mod failures;
mod flow;
mod framing;
mod races;
pub(crate) mod stage;
mod tls;

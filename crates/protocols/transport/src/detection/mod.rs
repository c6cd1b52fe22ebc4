//! First bytes of a connection: ClientHello, HTTP, and the balancer's header.

pub(crate) mod client_hello;
pub(crate) mod detect;
pub mod proxy_protocol;

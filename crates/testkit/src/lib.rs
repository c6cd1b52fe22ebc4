//! What tests of several crates need: an authority of their own, certificates that are wrong in every way worth
//! refusing, and a TLS handshake without sockets. Only ever a dev-dependency.

mod authority;
pub mod authorization;
pub mod generated;
mod handshake;
pub mod tokens;

pub use authority::{ShownCertificate, TestAuthority};
pub use handshake::{
    Handshake, HandshakeError, Side, handshake, hostile_client_config, hostile_server_config,
};

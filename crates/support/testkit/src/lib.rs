//! Tools for tests of several crates: an authority of their own, certificates that are wrong in every way worth
//! refusing, a TLS handshake without sockets, instructions counted, Kubernetes clusters, and prerequisites that a machine may lack.
//! Only ever a dev-dependency.

mod authority;
pub mod authorization;
pub mod cluster;
pub mod generated;
mod handshake;
pub mod instructions;
pub mod prerequisites;
pub mod tokens;

pub use authority::{ShownCertificate, TestAuthority};
pub use handshake::{
    Handshake, HandshakeError, Side, handshake, hostile_client_config, hostile_server_config,
};

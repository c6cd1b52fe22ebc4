//! Identity as its users meet it: certificates in real handshakes, requests and tokens from hostile hands, a
//! certificate service on a real socket, files that others must not read.

#![expect(
    clippy::unwrap_used,
    reason = "a failed assumption fails the test that made it"
)]

mod authority;
mod client;
mod forwarded;
mod istio_csr;
mod joins;
mod mesh_tls;
mod outside;
mod requests;
mod service;
mod speed;
mod state;
mod tokens;

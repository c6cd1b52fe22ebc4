//! Identity as its users meet it: certificates in real handshakes, requests and tokens from hostile hands, a
//! certificate service on a real socket, files that others must not read.

mod authority;
mod client;
mod joins;
mod mesh_tls;
mod requests;
mod service;
mod state;
mod tokens;

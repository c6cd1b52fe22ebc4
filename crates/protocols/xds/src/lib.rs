//! The subscription protocol (delta ADS), both ends, and model ⇄ wire.
//!
//! ```text
//! control:  model ──wire::encode──▶ Resources ──server::Stream──▶ tonic
//! proxy:                            tonic ──client::Subscriptions──▶ wire::*::decode ──▶ checked types
//! ```
//! `client::Subscriptions` and `server::Stream` take messages and give messages; the drivers beside them own the sockets.

pub mod client;
pub mod generated;
pub mod server;
pub mod wire;

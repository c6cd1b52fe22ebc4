//! The control plane from outside: real TLS on loopback, real folders, real edits.

#![expect(
    clippy::unwrap_used,
    reason = "a failed assumption fails the test that made it"
)]

mod asked;
mod budget;
mod convergence;
mod footprint;
mod grpc;
mod harness;
mod push;
mod refusal;
mod replicas;
mod revocation;
mod strangers;
mod streams;

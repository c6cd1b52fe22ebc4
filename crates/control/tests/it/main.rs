//! The control plane from outside: real TLS on loopback, real folders, real edits.

mod convergence;
mod harness;
mod push;
mod refusal;

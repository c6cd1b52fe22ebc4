//! Memory and instructions of requests and connections.

pub(crate) mod footprint;
mod instructions;

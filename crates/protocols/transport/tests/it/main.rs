//! The transport on real sockets: one binary, one module per behaviour.

mod ahead;
mod detection;
mod endings;
mod relaying;

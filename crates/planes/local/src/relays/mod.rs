//! Relays of `voile up`: TCP and UDP ports, and calls out of the mesh.

pub(crate) mod connection_limit;
pub(crate) mod datagrams;
pub(crate) mod egress;
pub mod relay;

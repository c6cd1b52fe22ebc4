//! The programs that are measured, each with its files and its start.

pub(super) mod baseline;
pub(super) mod command_output;
pub(super) mod envoy;
pub(super) mod haproxy;
pub(super) mod ingress;
pub(super) mod linkerd;
pub(super) mod nginx;
pub(crate) mod nodes;
pub(super) mod pipy;
pub(super) mod relay;
pub(super) mod voile;
pub(super) mod ztunnel;

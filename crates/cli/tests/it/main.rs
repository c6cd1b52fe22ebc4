//! The end-to-end tests of the one binary, and `tidy`, which keeps the house as ARCHITECTURE.md draws it.

mod bench;
mod captured;
mod commands;
mod control_plane;
mod envoy;
mod examples;
mod gateway;
mod gateway_api;
mod grpc_xds;
mod handover;
mod hostile;
mod kubernetes;
mod mesh;
mod node;
mod package;
mod policies;
mod telemetry;
mod tidy;
mod traffic;
mod up;
mod ztunnel;

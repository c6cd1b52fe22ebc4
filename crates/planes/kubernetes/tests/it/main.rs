//! The control plane on a real API server.

mod authority;
mod control_plane;
mod harness;

//! The mesh on Kubernetes: injection as data, and the control plane on a real API server.

mod authority;
mod control_plane;
mod harness;
mod injection;
mod webhooks;

//! The mesh on Kubernetes: injection and manifests as data, the control plane and its installation on a real API server.

mod control_plane;
mod definitions;
mod gateways;
mod harness;
mod health;
mod helm;
mod injection;
mod lifecycle;
mod stage;
mod status;
mod tags;
mod trust;
mod upgrade;
mod validation;
mod webhooks;

//! The mesh on Kubernetes: injection and manifests as data, the control plane and its installation on a real API server.

mod authority;
mod ca_elsewhere;
mod control_plane;
mod definitions;
mod external_ca;
mod gateways;
mod harness;
mod health;
mod helm;
mod injection;
mod lifecycle;
mod rotation;
mod stage;
mod status;
mod tags;
mod trust_bundle;
mod upgrade;
mod validation;
mod webhooks;

//! The mesh on Kubernetes.

pub mod inject;
pub mod webhooks;

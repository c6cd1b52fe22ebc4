//! The mesh on Kubernetes.

pub mod inject;

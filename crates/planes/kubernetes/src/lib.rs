//! The mesh on Kubernetes.

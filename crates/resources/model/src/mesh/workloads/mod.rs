//! Workloads, services and endpoints of a checked mesh.

pub mod capture;
pub mod endpoint_slice;
pub mod health_check;
pub mod network;
pub(in crate::mesh) mod probe;
pub(in crate::mesh) mod relations;
pub mod service;
pub mod workload;
pub mod workload_group;

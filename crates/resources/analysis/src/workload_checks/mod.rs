//! Checks of workloads, services and ports across resources.

pub(crate) mod attached;
pub(crate) mod endpoint_slices;
pub(crate) mod health_checks;
pub(crate) mod listeners;
pub(crate) mod pods;
pub(crate) mod ports;
pub(crate) mod services;
pub(crate) mod variables;
pub(crate) mod workloads;

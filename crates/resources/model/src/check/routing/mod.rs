//! Checks of routes, destinations and gateways.

pub(in crate::check) mod destination;
pub(in crate::check) mod gateway_api;
pub(in crate::check) mod health_check;
pub(in crate::check) mod intents;
pub(in crate::check) mod service_entry;
pub(in crate::check) mod sidecar;
pub(in crate::check) mod traffic_policy;
pub(in crate::check) mod virtual_service;
pub(in crate::check) mod workload_group;

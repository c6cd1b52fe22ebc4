//! Routes, destinations and gateways of a checked mesh.

pub mod action;
pub(in crate::mesh) mod delegate;
pub(in crate::mesh) mod destination;
pub mod gateway_api;
pub(in crate::mesh) mod gateway_ingress;
pub(in crate::mesh) mod route;
pub mod routing_intent;
pub mod sidecar;
pub mod traffic;
pub mod waypoint;

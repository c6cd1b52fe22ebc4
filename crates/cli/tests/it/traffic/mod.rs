//! Requests and connections through sidecars: protocols, routes, load balancing, limits, and access logs.

pub(crate) mod access_log;
mod balancing;
mod destination_rules;
pub(crate) mod early_answers;
mod forward_proxy;
mod health_checks;
pub(crate) mod http2;
mod protocols;
pub(crate) mod rate_limits;
mod routes;

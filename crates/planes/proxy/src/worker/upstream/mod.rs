//! Upstreams of a worker: endpoints, balancing, connections, tunnels, health and outliers.

pub(in crate::worker) mod balance;
pub(in crate::worker) mod dial;
pub(in crate::worker) mod dynamic_dns;
pub(in crate::worker) mod endpoint;
pub(in crate::worker) mod health_checks;
pub(in crate::worker) mod proxy_protocol;
pub(in crate::worker) mod server_certificates;
pub(in crate::worker) mod service_state;
pub(in crate::worker) mod tunnel_pool;
pub(in crate::worker) mod tunnels;
pub(in crate::worker) mod upstream_connection;
pub(in crate::worker) mod upstream_outcome;

//! Connections and requests by the listener that took them: inbound and outbound of a sidecar, gateway, waypoint.

pub(in crate::worker) mod captured;
pub(in crate::worker) mod forwarded_client_cert;
pub(in crate::worker) mod gateway;
pub(in crate::worker) mod gateway_http;
pub(in crate::worker) mod gateway_http3;
pub(in crate::worker) mod gateway_tcp;
pub(in crate::worker) mod inbound;
pub(in crate::worker) mod inbound_caller;
pub(in crate::worker) mod inbound_http;
pub(in crate::worker) mod outbound;
pub(in crate::worker) mod outbound_http;
pub(in crate::worker) mod tunnel_server;
pub(in crate::worker) mod untrusted_headers;
pub(in crate::worker) mod waypoint;
pub(in crate::worker) mod waypoint_metrics;

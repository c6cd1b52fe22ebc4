//! Routes of requests and connections: the choice of a destination, edits of heads, and mirrors.

pub(in crate::worker) mod mirror;
pub(in crate::worker) mod requested_host;
pub(in crate::worker) mod route_effects;
pub(crate) mod routes;

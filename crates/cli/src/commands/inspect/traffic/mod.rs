//! The traffic of a running mesh: sums of each pair and workload, and single requests.

pub(crate) mod edges;
pub(crate) mod proxy_watch;
mod route_documents;
pub(crate) mod routes;
pub(crate) mod shown;
pub(crate) mod tap;

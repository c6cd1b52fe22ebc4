//! The traffic of a running mesh: sums of each pair and workload, and single requests.

pub(crate) mod edges;
pub(crate) mod proxy_watch;
pub(crate) mod tap;

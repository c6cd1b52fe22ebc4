//! The laboratory: load, experiments, service graphs and single costs.

pub(crate) mod bench;
pub(crate) mod crowd;
pub(crate) mod decide;
pub(crate) mod fortio;
pub(crate) mod graph;
pub(crate) mod load;
pub(crate) mod plan;

//! Experiments beside the common runner: agreement, generators, control plane, sidecars, nodes, decisions, graphs.

pub(crate) mod agreement;
pub(crate) mod control_plane;
pub(crate) mod decisions;
pub(crate) mod generators;
pub(crate) mod graph;
pub(crate) mod node_crowd;
pub(crate) mod sidecars;

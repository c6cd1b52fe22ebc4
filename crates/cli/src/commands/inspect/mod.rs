//! Questions about a mesh: its resources before they are in force, and the state of what runs.

pub(crate) mod analyze;
pub(crate) mod config;
pub(crate) mod dashboard;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod explain_code;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod logs;
pub(crate) mod monitoring;
pub(crate) mod named_workloads;
pub(crate) mod running_mesh;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod traffic;
pub(crate) mod who_can;

//! Pods as processes of this machine.

pub mod application;
pub(crate) mod contained;
pub mod pod_network;
pub mod pod_run;
pub mod process;
pub mod variables;

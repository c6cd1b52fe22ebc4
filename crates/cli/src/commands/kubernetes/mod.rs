//! A mesh on a cluster: installation, checks, injection, the node agent, and the connection to a cluster.

pub(crate) mod bug_report;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod cni;
pub(crate) mod inject;
pub(crate) mod install;
pub(crate) mod node_agent;
pub(crate) mod tag;
pub(crate) mod uninstall;
pub(crate) mod upgrade;

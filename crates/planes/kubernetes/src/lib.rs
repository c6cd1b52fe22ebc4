//! The mesh on Kubernetes: the cluster's objects as a source of the control plane, identities of its service accounts, the
//! authority's key in a Secret, and the installation of the control plane. It decides nothing about traffic or policy: the
//! control plane does, as it does for a folder.
//!
//! Functions for the program return boxed futures: the body of an `async fn` is compiled by the crate that awaits it, which would be the
//! program, last and alone, with all that it uses of the Kubernetes client.

pub mod bug_report;
pub mod cni;
mod connect;
mod control_plane;
mod election;
mod error;
pub mod gateways;
pub mod inject;
mod injection;
pub mod install;
pub mod node_agent;
pub mod pods;
mod revision;
mod source;
mod status;
mod trust;
pub mod webhooks;

pub use connect::{ClusterAddress, connect};
pub use control_plane::{ClusterOptions, ControlPlane, StartError};
pub use error::ClusterError;
pub use kube::Client;
pub use revision::{DEFAULT_REVISION, RevisionNames};
pub use source::{ClusterObjects, namespace_of};

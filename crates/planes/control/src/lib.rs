//! The control plane.
//!
//! ```text
//! folders ─source─▶ texts ─voile_model::check─▶ Mesh ─translate─▶ MeshSnapshot ─voile_xds::server─▶ proxies
//!                     ▲ change                                        authority ─certificate service─▶ proxies
//! ```
//! `Control::start` runs all of it; a broken edit is reported and never reaches a proxy.

mod departed_workloads;
mod effective_policies;
mod error;
mod foreign_proxies;
mod groups;
mod keys;
mod loading;
mod options;
mod provenance;
mod resources;
mod revocations;
mod server;
mod shards;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
pub mod translate;
mod virtual_addresses;
mod workload_counts;
mod ztunnel;

pub use loading::source;
use loading::{deferred_work, last_good, reload, state_file, state_watch};

pub use deferred_work::{Report, Reporter, RestedConfiguration};
pub use error::ControlError;
pub use keys::{KeyOptions, REFRESH as KEY_REFRESH};
pub use options::{ControlOptions, FAREWELL, WORKLOAD_GRACE};
pub use server::{
    Addresses, Control, Credentials, RESTING_BYTES_OF_ALL, RESTING_BYTES_PER_CALLER, UNPROVEN_BYTES,
};
pub use snapshot::{MeshSnapshot, SnapshotCaller};
pub use status::gateway_api::documents as gateway_api_documents;
pub use ztunnel::NodeAccount;

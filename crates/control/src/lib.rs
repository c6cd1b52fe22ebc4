//! The control plane.
//!
//! ```text
//! folders ─source─▶ texts ─voile_model::check─▶ Mesh ─translate─▶ MeshSnapshot ─voile_xds::server─▶ proxies
//!                     ▲ change                                        authority ─certificate service─▶ proxies
//! ```
//! `Control::start` runs all of it; a broken edit is reported and never reaches a proxy.

mod departed_workloads;
mod error;
mod groups;
mod keys;
mod last_good;
mod effective_policies;
mod options;
mod reload;
mod quiet_work;
mod revocations;
mod server;
mod shards;
mod snapshot;
pub mod source;
mod state_file;
mod state_watch;
mod status;
mod foreign_proxies;
#[cfg(test)]
mod tests;
pub mod translate;
mod virtual_addresses;
mod provenance;
mod workload_counts;
mod ztunnel;

pub use error::ControlError;
pub use keys::{KeyOptions, REFRESH as KEY_REFRESH};
pub use options::{FAREWELL, ControlOptions, WORKLOAD_GRACE};
pub use quiet_work::{Report, Reporter};
pub use server::{
    Addresses, Control, RESTING_BYTES_OF_ALL, RESTING_BYTES_PER_CALLER, UNPROVEN_BYTES,
};
pub use snapshot::{SnapshotCaller, MeshSnapshot};
pub use ztunnel::NodeAccount;

//! Workloads that join by themselves. A proxy that says of which WorkloadGroup it is, and proves to be whom the group is for, gets a
//! WorkloadEntry: a document in a folder of the state directory, which every control plane on that directory reads beside the
//! configuration. So what joined is translated, analysed, shown and forgotten as if somebody had written it, and survives restarts.
//!
//! ```text
//! first request ─▶ claim: whose group? whose address? ─▶ roll (pure) ─▶ registrar (a thread) ─▶ entry: STATE/workloads/ADDRESS.json
//! health, end of a stream ───────────────────────────────▲                                          └▶ read as any configuration
//! ```

mod claim;
mod entry;
mod member_address;
mod members;
mod quota;
mod registrar;
mod replica_lock;

pub(crate) use registrar::Registrar;

/// The folder of entries, in the state directory.
pub(crate) const FOLDER: &str = "workloads";

#[cfg(test)]
mod tests;

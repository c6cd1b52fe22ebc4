//! The runner behind `voile up`: a folder of YAML becomes processes on this machine that are a mesh.
//!
//! ```text
//! folder ──model──▶ Mesh ──expand──▶ Plan ──documents──▶ what `voile control` reads beside the folder
//!                                     │
//!                                  runner ──▶ control, then per pod: sidecar, then its applications
//!                                     ▲
//!                     observer (readiness, metrics) ──▶ scrape ──▶ view
//!                     probing (a container's probes)
//! ```
//! The expansion, the documents, the variables, the figures and the view are pure; only the runner's modules touch
//! the world.

pub mod addresses;
pub mod application;
mod connection_limit;
mod contained;
pub mod control_page;
mod datagrams;
pub mod documents;
mod egress;
pub mod expand;
pub mod isolation;
pub mod loopback_block;
mod node;
pub mod observer;
pub mod pod_network;
pub mod pod_run;
pub mod probing;
pub mod process;
pub mod relay;
pub mod rollout;
pub mod run_folder;
pub mod runner;
pub mod scrape;
pub mod variables;
pub mod view;

pub use isolation::{WantedIsolation, start};
pub use loopback_block::MAX_CONTROL_PLANES;
pub use runner::{Dataplane, RunnerOptions, SignalMessages, TOKEN_TTL, UpError, serve_by_node};

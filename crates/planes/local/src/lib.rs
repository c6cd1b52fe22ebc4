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
mod control_socket;
pub mod documents;
pub mod expand;
mod host_capabilities;
pub mod isolation;
pub mod loopback_block;
mod node;
mod pods;
pub mod probing;
mod relays;
pub mod rollout;
pub mod run_folder;
pub mod runner;
mod watching;

pub use watching::{control_page, edges, observer, scrape, view};

pub use relays::relay;
use relays::{connection_limit, datagrams, egress};

use pods::contained;
pub use pods::{application, pod_network, pod_run, process, variables};

pub use node::NODE_PROXY;

pub use isolation::{WantedIsolation, start};
pub use loopback_block::MAX_CONTROL_PLANES;
pub use run_folder::{RunningMesh, running_meshes};
pub use runner::{Dataplane, RunnerOptions, SignalMessages, TOKEN_TTL, UpError, serve_by_node};

//! The laboratory: runs an experiment on contestants that it knows only by their command lines, and writes a record.
//!
//! ```text
//! definition (TOML) → plan (cells × rounds, shuffled) → contestants started → proof of path per cell
//!     → slices: load + samplers → validity gate → record folder → report (crate report)
//! ```

mod agent;
mod agreement;
mod bounds;
mod calibration;
mod contestants;
mod control_plane;
mod court;
mod decisions;
mod definition;
mod endpoints;
mod environment;
mod events;
mod experiment;
mod find;
mod folder;
mod gate;
mod generator;
mod generators;
mod graph;
mod halls;
mod hooks;
mod idle;
mod impostor;
mod ledger;
mod network;
mod node_crowd;
mod places;
mod plan;
mod preset;
mod process;
mod profile;
mod proof;
mod sidecars;
mod slice;
mod strays;
mod target;
mod wire;

pub use agent::{AgentAddress, AgentSettings, Token, any_frame, serve_agent};
pub use agreement::{AgreementSettings, agree, write_agreement};
pub use control_plane::{
    ControlPlaneSettings, MeshSize, measure_control_plane, write_control_plane,
};
pub use decisions::{DecisionSettings, decisions_json, measure_decisions, write_decisions};
pub use definition::{
    Action, CpuSet, Definition, DefinitionError, Event, Generated, Hook, Isolation, Limits, Only,
    Overrides, Variant, quick,
};
pub use environment::now;
pub use experiment::{Outcome, Settings, can_run, run};
pub use find::{Found, Nginx, Peer, fortio, peers, program_of};
pub use folder::{Format, Redrawn, default_folder, read, redraw, write_plots};
pub use generators::{GeneratorSettings, generators, measure_generators, write_generators};
pub use graph::{GraphSettings, measure_graph, write_graph};
pub use ledger::Keeping;
pub use node_crowd::{NodeCrowdSettings, measure_node_crowd, write_node_crowd};
pub use places::without as without_places;
pub use plan::{Cell, Plan};
pub use preset::{preset, presets};
pub use sidecars::{SidecarSettings, measure_sidecars, write_sidecars};

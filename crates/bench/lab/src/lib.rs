//! The laboratory: runs an experiment on contestants that it knows only by their command lines, and writes a record.
//!
//! ```text
//! definition (TOML) → plan (cells × rounds, shuffled) → contestants started → proof of path per cell
//!     → slices: load + samplers → validity gate → record folder → report (crate report)
//! ```

mod agent;
mod agent_server;
mod checks;
mod contestants;
mod definition;
mod gate;
mod generator;
mod machine;
mod origin_servers;
mod packet_capture;
mod plan;
mod preset;
mod proofs;
mod record_folder;
mod run;
mod scenes;
mod shared_processes;

use scenes::{agreement, control_plane, decisions, generators, graph, node_crowd, sidecars};

use run::{events, experiment, hooks, idle, record_writer, running_setup, slice};

use contestants::process;

use proofs::{identity_proof, proof, unrouted_proof};

use machine::{calibration, environment, find, network, path_privacy, process_bounds};

pub use agent::{AgentAddress, Token, any_frame};
pub use agent_server::{AgentSettings, serve_agent};
pub use agreement::{AgreementSettings, agree};
pub use control_plane::{ControlPlaneSettings, MeshSize, measure_control_plane};
pub use decisions::{DecisionSettings, measure_decisions};
pub use definition::{
    CpuSet, Definition, DefinitionError, EventAction, Generated, Hook, Isolation, Only, Overrides,
    ScheduledEvent, SidecarLimits, Variant, quick,
};
pub use environment::now;
pub use experiment::{Settings, can_run, run};
pub use find::{FoundPeers, Nginx, PeerProgram, fortio, peers, program_of};
pub use generators::{GeneratorSettings, generators, measure_generators};
pub use graph::{GraphSettings, measure_graph};
pub use node_crowd::{NodeCrowdSettings, measure_node_crowd};
pub use path_privacy::without as without_places;
pub use plan::SlicePlan;
pub use preset::{curves, preset, presets};
pub use record_folder::{
    ExperimentOutcome, Format, RECORD, default_folder, read, redraw, scene_json,
    write as write_file, write_plots, write_scene,
};
pub use record_writer::RecordKeeping;
pub use sidecars::{SidecarSettings, measure_sidecars};
/// A measured combination.
pub use voile_report::record::CellKey as Cell;

//! What a control plane costs, and how soon its proxies are told: `voile control` over a generated folder, `voile crowd` as its
//! proxies, and edits of the folder as an editor makes them (a new file renamed over the old one). Voile is met by command line only.
//!
//! ```text
//! generate mesh ─▶ control: start ─▶ crowd: all in sync ─▶ one endpoint ─▶ policy for all ─▶ churn ─▶ churn of what all use ─▶ killed
//! ```

mod crowd;
mod folder;
mod steps;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_report::control_plane::ControlPlaneRecord;

use crate::environment::{environment, head, warnings};
use crate::folder::write;
use steps::Measuring;

/// What to run.
#[derive(Debug, Clone)]
pub struct ControlPlaneSettings {
    /// The program.
    pub voile: PathBuf,
    /// The program whose control plane is measured.
    pub control: PathBuf,
    /// Services of the mesh.
    pub services: u32,
    /// Workloads.
    pub workloads: u32,
    /// Simulated proxies.
    pub proxies: u32,
    /// Services that each of them uses.
    pub used: u32,
    /// Single changes, one after the other.
    pub changes: u32,
    /// Changes of a policy that holds for all.
    pub policy_changes: u32,
    /// Changes a second while the folder churns.
    pub churn: f64,
    /// For how long it churns.
    pub churn_for: Duration,
    /// How the user called us, for the record.
    pub command: String,
}

/// Runs it. `say` receives lines for people; `stopped` is asked often.
///
/// # Errors
/// When something does not start or never comes into sync, or the user ends it.
pub fn measure_control_plane(
    settings: &ControlPlaneSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<ControlPlaneRecord, String> {
    let began = Instant::now();
    let environment = environment(&settings.control);
    let mut notes = warnings(&environment);
    notes.push(
        "The control plane and the simulated proxies share this machine; each has one thread that does its work.".to_owned(),
    );
    let mut record = ControlPlaneRecord {
        head: head(&settings.command, notes, environment),
        services: settings.services,
        workloads: settings.workloads,
        proxies: settings.proxies,
        used: settings.used,
        figures: Vec::new(),
    };
    let scratch = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    let mut measuring = Measuring::new(settings, scratch.path(), say, stopped)?;
    let measured = measuring.all(&mut record);
    say("\r");
    measuring.end();
    measured?;
    record.head.took_seconds = began.elapsed().as_secs_f64();
    Ok(record)
}

/// Writes the record folder: `control-plane.json`, `report.md`.
///
/// # Errors
/// When it cannot be written.
pub fn write_control_plane(record: &ControlPlaneRecord, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    write(&folder.join("control-plane.json"), &record.to_json())?;
    write(&folder.join("report.md"), &record.to_markdown())
}

//! Cost of a control plane, and delay until its proxies are updated: `voile control` over a generated folder, `voile crowd` as
//! its proxies, and edits of the folder as an editor makes them (a new file renamed over the old one). The lab runs Voile by
//! command line only.
//!
//! ```text
//! generate mesh ─▶ control: start ─▶ crowd: all in sync ─▶ one endpoint ─▶ policy for all ─▶ churn ─▶ churn of what all use ─▶ killed
//! ```

mod config_folder;
mod crowd;
mod phases;
mod progress;
mod steps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use voile_report::record::Record;
use voile_report::record::scene::SceneKind;

use crate::environment::{environment, scene_record, warnings};
use steps::MeasurementState;

pub(crate) use crowd::INTERRUPTED;
pub(crate) use progress::Progress;
pub(crate) use steps::generate;

/// Estimates for the remaining time only: objects that control plane and crowd read from a folder in a second, and proxies that
/// connect in a second.
const READ_A_SECOND: f64 = 5_000.0;
const CONNECT_A_SECOND: f64 = 500.0;
/// Descriptors that control plane and crowd need beside those of their connections.
const OTHER_DESCRIPTORS: u64 = 500;

/// Settings of the measurement.
#[derive(Debug, Clone)]
pub struct ControlPlaneSettings {
    /// The program.
    pub voile: PathBuf,
    /// The program whose control plane is measured.
    pub control: PathBuf,
    /// The mesh that the record is of.
    pub size: MeshSize,
    /// Others, measured after it in the same way, for growth.
    pub others: Vec<MeshSize>,
    /// Services that each proxy uses.
    pub used: u32,
    /// Single changes, one after the other.
    pub changes: u32,
    /// Changes of a policy that holds for all.
    pub policy_changes: u32,
    /// For how long it churns.
    pub churn_for: Duration,
    /// For how long certificates are asked for; zero: not at all.
    pub certify_for: Duration,
    /// Within what time every proxy renews its certificate; zero: not at all.
    pub rotate_for: Duration,
    /// The user's command line, for the record.
    pub command: String,
}

/// Meshes beside the record's own churn for a part of its time.
const OTHERS_CHURN: u32 = 3;

impl ControlPlaneSettings {
    fn churn_time(&self, own: bool) -> Duration {
        match own {
            true => self.churn_for,
            false => self.churn_for / OTHERS_CHURN,
        }
    }
}

/// A mesh.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeshSize {
    /// Services.
    pub services: u32,
    /// Workloads.
    pub workloads: u32,
    /// Simulated proxies, at most as many as workloads.
    pub proxies: u32,
    /// Changes a second while the folder churns.
    pub churn: f64,
}

impl MeshSize {
    /// Bounds are asked of a mesh of a thousand services and two thousand workloads and proxies; of a larger one figures are shown.
    pub(crate) fn asked(&self, bound: f64) -> Option<f64> {
        let within = self.services <= 1_000
            && self.workloads <= 2_000
            && self.proxies <= 2_000
            && self.churn <= 100.0;
        within.then_some(bound)
    }

    /// Expected length of each step; the record's `own` mesh has all steps.
    fn expected(&self, settings: &ControlPlaneSettings, own: bool) -> Vec<Duration> {
        let (proxies, changes) = (f64::from(self.proxies), f64::from(settings.changes));
        let objects = f64::from(self.services) + f64::from(self.workloads);
        let read = 1.0 + objects / READ_A_SECOND;
        let connect = 1.0 + (proxies + objects) / READ_A_SECOND + proxies / CONNECT_A_SECOND;
        let churn = settings.churn_time(own).as_secs_f64() + 1.0;
        let mut steps = vec![
            1.0 + objects / READ_A_SECOND / 4.0,
            read,
            connect,
            changes * (0.4 + proxies / 20_000.0),
            f64::from(settings.policy_changes) * (0.5 + proxies / 8_000.0),
            churn,
        ];
        if own {
            let first = match settings.rotate_for.is_zero() {
                true => 0.0,
                false => proxies / CONNECT_A_SECOND,
            };
            let asking = settings.certify_for + settings.rotate_for;
            steps.extend([churn, asking.as_secs_f64() + first]);
        }
        steps.push(read + proxies / CONNECT_A_SECOND);
        steps.into_iter().map(Duration::from_secs_f64).collect()
    }
}

/// Measures control planes. `say` receives lines for people; `stopped` is asked often. If the measurement fails or is ended, the
/// record keeps the figures so far and says so. The string beside it is the reason.
///
/// # Errors
/// If nothing could be measured at all.
pub fn measure_control_plane(
    settings: &ControlPlaneSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<(Record, Option<String>), String> {
    let began = Instant::now();
    let most = settings.others.iter().map(|size| size.proxies);
    let proxies = most.fold(settings.size.proxies, u32::max);
    make_room(
        u64::from(proxies) + OTHER_DESCRIPTORS,
        &format!("{proxies} proxies"),
    )?;
    let environment = environment(&settings.control);
    let mut notes = warnings(&environment);
    notes.push(
        "The control plane and the simulated proxies share this machine; each has one thread that does its work.".to_owned(),
    );
    let kind = SceneKind::ControlPlane;
    let mut record = scene_record(kind, &settings.command, notes, environment);
    let mut expected = settings.size.expected(settings, true);
    for other in &settings.others {
        expected.extend(other.expected(settings, false));
    }
    let progress = Progress::new(say, expected);
    let measured = all_sizes(settings, &mut record, &progress, stopped);
    progress.end();
    record.experiment.took_seconds = began.elapsed().as_secs_f64();
    conclude(record, measured)
}

/// A record that was measured to its end, or that says it was not and why; none where nothing was measured at all.
pub(crate) fn conclude(
    mut record: Record,
    measured: Result<(), String>,
) -> Result<(Record, Option<String>), String> {
    voile_report::scenes::conclude(&mut record);
    let Err(why) = measured else {
        return Ok((record, None));
    };
    if record
        .scene
        .as_ref()
        .is_none_or(|scene| scene.findings.is_empty())
    {
        return Err(why);
    }
    let note = format!("Not measured completely: {why}. Missing figures were not reached.");
    record.notes.push(note);
    Ok((record, Some(why)))
}

fn all_sizes<'a>(
    settings: &'a ControlPlaneSettings,
    record: &mut Record,
    progress: &'a Progress<'a>,
    stopped: &'a dyn Fn() -> bool,
) -> Result<(), String> {
    one_size(settings, settings.size, record, progress, stopped)?;
    for other in &settings.others {
        progress.next();
        one_size(settings, *other, record, progress, stopped)?;
    }
    Ok(())
}

fn one_size<'a>(
    settings: &'a ControlPlaneSettings,
    size: MeshSize,
    record: &mut Record,
    progress: &'a Progress<'a>,
    stopped: &'a dyn Fn() -> bool,
) -> Result<(), String> {
    let scratch = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    record.begin_mesh(&[
        ("services", f64::from(size.services)),
        ("workloads", f64::from(size.workloads)),
        ("proxies", f64::from(size.proxies)),
        ("used", f64::from(settings.used)),
        ("churn", size.churn),
    ]);
    let mut measuring = MeasurementState::new(settings, size, scratch.path(), progress, stopped)?;
    let measured = measuring.all(record);
    measuring.end();
    measured
}

/// Raises the limit of open descriptors as far as it takes.
pub(crate) fn make_room(descriptors: u64, what: &str) -> Result<(), String> {
    voile_host::machine::make_room_for_descriptors(descriptors).map_err(|limit| {
        format!(
            "{what} take {descriptors} descriptors in one process, and it may open {limit} here: raise the hard limit \
             (ulimit -Hn, LimitNOFILE), or ask for fewer"
        )
    })
}

//! Real sidecars by the thousand on one machine, and a sidecar's memory by the size of its mesh: `voile control` over a generated
//! folder, `voile proxy` as often as asked, one `voile echo` behind all of them. The lab runs Voile by command line only.
//!
//! ```text
//! many   a pod each: an address in 127.0.0.0/8, a sidecar, no application of its own ─▶ in sync ─▶ memory ─▶ idle ─▶ a policy ─▶ light load
//! reach  meshes of 10, 1,000, 10,000 services, ten of them used: first and second request, RSS      (network namespaces: root)
//! ```

pub(crate) mod control;
mod many;
mod mesh;
mod reach;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use voile_report::record::Record;
use voile_report::record::scene::SceneKind;

use crate::control_plane::{Progress, conclude};
use crate::environment::{environment, scene_record, warnings};

/// Settings of the measurement.
#[derive(Debug, Clone)]
pub struct SidecarSettings {
    /// The program.
    pub voile: PathBuf,
    /// Sidecars at once; none: that part is left out.
    pub sidecars: u32,
    /// Services that each uses.
    pub used: u32,
    /// Number of the sidecars that the load calls.
    pub sample: u32,
    /// Requests a second through all of these.
    pub rate: u32,
    /// For how long.
    pub load_for: Duration,
    /// For how long nothing happens.
    pub idle_for: Duration,
    /// Life of certificates; half of it is when they are renewed. None: the control plane's default.
    pub certificate_ttl: Option<Duration>,
    /// Services of meshes in which one sidecar uses ten; none: that part is left out.
    pub meshes: Vec<u32>,
    /// Number of starts of that sidecar in each mesh.
    pub rounds: u32,
    /// The user's command line, for the record.
    pub command: String,
}

impl SidecarSettings {
    /// Expected length of each step: of many sidecars the start, idling and load, then each mesh.
    fn expected(&self) -> Vec<Duration> {
        let mut steps = Vec::new();
        if self.sidecars > 0 {
            let number = f64::from(self.sidecars);
            steps.push(Duration::from_secs_f64(
                2.0 + number / many::STARTED_A_SECOND,
            ));
            steps.push(self.idle_for + Duration::from_secs_f64(3.0 + number / 500.0));
            steps.push(self.load_for + Duration::from_secs(5));
            steps.push(Duration::from_secs_f64(1.0 + number / 200.0));
        }
        let each = self.meshes.iter().map(|services| {
            let seconds = 4.0 + f64::from(*services) / 1_000.0 + 4.0 * f64::from(self.rounds);
            Duration::from_secs_f64(seconds)
        });
        steps.extend(each);
        steps
    }
}

/// Measures sidecars. `say` receives lines for people; `stopped` is asked often. If the measurement fails or is ended, the record
/// keeps the figures so far. The string beside it is the reason.
///
/// # Errors
/// If nothing could be measured at all.
pub fn measure_sidecars(
    settings: &SidecarSettings,
    say: &dyn Fn(&str),
    stopped: &dyn Fn() -> bool,
) -> Result<(Record, Option<String>), String> {
    let began = Instant::now();
    let environment = environment(&settings.voile);
    let notes = warnings(&environment);
    let kind = SceneKind::Sidecars;
    let mut record = scene_record(kind, &settings.command, notes, environment);
    let services = mesh::services(settings.sidecars, settings.used);
    record.begin_mesh(&[
        ("services", f64::from(services)),
        ("sidecars", f64::from(settings.sidecars)),
        ("used", f64::from(settings.used)),
    ]);
    let progress = Progress::new(say, settings.expected());
    let measured = both(settings, &mut record, &progress, stopped);
    progress.end();
    record.experiment.took_seconds = began.elapsed().as_secs_f64();
    conclude(record, measured)
}

fn both(
    settings: &SidecarSettings,
    record: &mut Record,
    progress: &Progress<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<(), String> {
    let scratch = tempfile::Builder::new()
        .prefix("voile-lab-")
        .tempdir()
        .map_err(|e| format!("a temporary folder: {e}"))?;
    if settings.sidecars > 0 {
        many::measure(settings, scratch.path(), record, (progress, stopped))?;
    }
    match settings.meshes.is_empty() {
        true => Ok(()),
        false => reach::measure(settings, scratch.path(), record, (progress, stopped)),
    }
}

/// In megabytes.
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Waits a little between two questions, unless the user asks to end.
#[expect(
    clippy::disallowed_methods,
    reason = "paces questions of loops with a deadline, and a while in which nothing is to happen"
)]
pub(crate) fn rest(time: Duration, stopped: &dyn Fn() -> bool) -> Result<(), String> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let until = Instant::now() + time;
    loop {
        if stopped() {
            return Err(crate::control_plane::INTERRUPTED.to_owned());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

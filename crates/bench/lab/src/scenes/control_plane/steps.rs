//! Parts of a running measurement that all phases use: control plane, crowd, edits, waiting.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use voile_host::child::{Output, Spec, SupervisedChild};
use voile_host::ports::free_port;
use voile_host::ready::{Probe, ask};
use voile_host::sampler::{ProcessResources, Usage};

use super::config_folder::Folder;
use super::crowd::{INTERRUPTED, ProxyCrowd, Synced};
use super::progress::Progress;
use super::{ControlPlaneSettings, MeshSize};

/// Deadline until all proxies know of a change, and an addition for each proxy.
const SETTLE_WITHIN: Duration = Duration::from_secs(120);
const SETTLE_EACH: Duration = Duration::from_millis(30);
/// Deadline until the control plane is ready.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// Interval at which the lab checks if all proxies were updated.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Interval at which the lab asks the control plane if it is ready.
const ASK_EVERY: Duration = Duration::from_millis(5);
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running measurement, with its processes and paths.
pub(super) struct MeasurementState<'a> {
    pub(super) settings: &'a ControlPlaneSettings,
    pub(super) size: MeshSize,
    /// True if the mesh is the record's own.
    pub(super) own: bool,
    pub(super) scratch: PathBuf,
    pub(super) folder: Folder,
    pub(super) tls: SocketAddr,
    monitoring: SocketAddr,
    control: Option<SupervisedChild>,
    pub(super) crowd: Option<ProxyCrowd<'a>>,
    pub(super) progress: &'a Progress<'a>,
    pub(super) stopped: &'a dyn Fn() -> bool,
}

impl<'a> MeasurementState<'a> {
    /// Generates the folder.
    pub(super) fn new(
        settings: &'a ControlPlaneSettings,
        size: MeshSize,
        scratch: &Path,
        progress: &'a Progress<'a>,
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, String> {
        progress.say(&format!(
            "generating a mesh of {} services and {} workloads",
            size.services, size.workloads
        ));
        let config = scratch.join("config");
        generate(
            &settings.voile,
            &config,
            size.services,
            size.workloads,
            stopped,
        )?;
        let port =
            || free_port(IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(|e| format!("a free port: {e}"));
        Ok(Self {
            settings,
            size,
            own: size == settings.size,
            folder: Folder::open(&config)?,
            scratch: scratch.to_owned(),
            tls: port()?,
            monitoring: port()?,
            control: None,
            crowd: None,
            progress,
            stopped,
        })
    }

    /// Ends everything.
    pub(super) fn end(&mut self) {
        if let Some(mut crowd) = self.crowd.take() {
            crowd.child.stop(STOP_WITHIN);
        }
        if let Some(mut control) = self.control.take() {
            control.stop(STOP_WITHIN);
        }
    }

    /// Starts the control plane; how long it took to be ready, in seconds.
    pub(super) fn start_control(&mut self) -> Result<f64, String> {
        let spec = Spec::new("voile control", &self.settings.control)
            .arg("control")
            .arg("--config")
            .arg(&self.folder.path)
            .arg("--state")
            .arg(self.scratch.join("state"))
            .args(["--listen", &self.tls.to_string()])
            .args(["--plaintext", "off", "--log-level", "warn"])
            .args(["--monitoring", &self.monitoring.to_string()])
            .stderr(Output::File(self.scratch.join("control.log")));
        let began = Instant::now();
        let mut child = spec.start().map_err(|e| e.to_string())?;
        let probe = Probe::Http(self.monitoring, "/ready".to_owned());
        while ask(&probe).is_err() {
            if let Some(exit) = child.wait(ASK_EVERY) {
                let log = std::fs::read_to_string(self.scratch.join("control.log"));
                let said = log.unwrap_or_default();
                return Err(format!("voile control {exit}: {}", said.trim_end()));
            }
            if began.elapsed() > READY_WITHIN {
                return Err(format!("voile control is not ready after {READY_WITHIN:?}"));
            }
            self.go_on()?;
        }
        let took = began.elapsed().as_secs_f64();
        self.control = Some(child);
        Ok(took)
    }

    /// Kills the control plane.
    pub(super) fn kill_control(&mut self) {
        if let Some(mut control) = self.control.take() {
            control.stop(Duration::ZERO);
        }
    }

    pub(super) fn change(&mut self, workload: usize) -> Result<(), String> {
        let mark = self.folder.mark();
        let draft = self.folder.draft(workload, mark)?;
        let uid = self.folder.uid(workload).to_owned();
        self.crowd()?.changed(mark, now_ns(), &uid)?;
        draft.publish()
    }

    /// Waits until every proxy that holds what was changed has heard of all changes.
    pub(super) fn until_reached(&mut self) -> Result<(), String> {
        let bound = self.settle_within();
        let deadline = Instant::now() + bound;
        loop {
            let report = self.crowd()?.report()?;
            if report.reached == report.expected {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "after {bound:?} only {} of {} have received it",
                    report.reached, report.expected
                ));
            }
            self.rest(LOOK_EVERY)?;
        }
    }

    pub(super) fn until_synced(&mut self, since: u64) -> Result<Synced, String> {
        let bound = self.settle_within();
        let deadline = Instant::now() + bound;
        loop {
            let synced = self.crowd()?.synced(since)?;
            if synced.synced == synced.proxies {
                return Ok(synced);
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "after {bound:?} only {} of {} proxies are in sync",
                    synced.synced, synced.proxies
                ));
            }
            self.rest(LOOK_EVERY)?;
        }
    }

    pub(super) fn crowd(&mut self) -> Result<&mut ProxyCrowd<'a>, String> {
        self.crowd
            .as_mut()
            .ok_or_else(|| "there are no simulated proxies".to_owned())
    }

    fn pid(&self) -> Result<u32, String> {
        let control = self.control.as_ref();
        control
            .map(SupervisedChild::pid)
            .ok_or_else(|| "the control plane does not run".to_owned())
    }

    pub(super) fn used(&self) -> Result<Usage, String> {
        Usage::of(self.pid()?).map_err(|e| format!("the control plane's CPU: {e}"))
    }

    pub(super) fn held(&self) -> Result<ProcessResources, String> {
        ProcessResources::of(self.pid()?).map_err(|e| format!("the control plane's memory: {e}"))
    }

    fn settle_within(&self) -> Duration {
        SETTLE_WITHIN + SETTLE_EACH * self.size.proxies
    }

    pub(super) fn go_on(&self) -> Result<(), String> {
        match (self.stopped)() {
            true => Err(INTERRUPTED.to_owned()),
            false => Ok(()),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "paces edits, and questions of loops with a deadline"
    )]
    pub(super) fn rest(&self, time: Duration) -> Result<(), String> {
        self.go_on()?;
        thread::sleep(time);
        Ok(())
    }
}

/// Generates a folder. A user who asks to end need not wait for all of it.
pub(crate) fn generate(
    voile: &Path,
    folder: &Path,
    services: u32,
    workloads: u32,
    stopped: &dyn Fn() -> bool,
) -> Result<(), String> {
    let log = folder.with_extension("log");
    let mut child = Spec::new("voile generate mesh", voile)
        .args(["generate", "mesh", "--out"])
        .arg(folder)
        .args(["--services", &services.to_string()])
        .args(["--workloads", &workloads.to_string()])
        .stderr(Output::File(log.clone()))
        .start()
        .map_err(|e| e.to_string())?;
    let exit = loop {
        if stopped() {
            return Err(INTERRUPTED.to_owned());
        }
        if let Some(exit) = child.wait(LOOK_EVERY) {
            break exit;
        }
    };
    match exit.is_success() {
        true => Ok(()),
        false => Err(std::fs::read_to_string(log)
            .unwrap_or_default()
            .trim_end()
            .to_owned()),
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
pub(super) fn now_ns() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    clock.tv_sec.unsigned_abs() * 1_000_000_000 + clock.tv_nsec.unsigned_abs()
}

//! The steps of the measurement, one figure or a few each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use voile_host::child::{Output, Spec, Supervised};
use voile_host::ports::free_port;
use voile_host::ready::{Probe, ask};
use voile_host::sampler::{Holdings, Usage};
use voile_report::control_plane::ControlPlaneRecord;

use super::ControlPlaneSettings;
use super::crowd::{Crowd, Report};
use super::folder::Folder;

/// How long anything may take until all proxies know.
const SETTLE_WITHIN: Duration = Duration::from_secs(120);
/// How long the control plane may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// How often we look whether all have heard.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the control plane is asked whether it is ready.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// Rest between single changes, so that each is the first after a quiet.
const REST: Duration = Duration::from_millis(300);
const STOP_WITHIN: Duration = Duration::from_secs(10);
const INTERRUPTED: &str = "interrupted";

/// What is running, and where.
pub(super) struct Measuring<'a> {
    settings: &'a ControlPlaneSettings,
    scratch: PathBuf,
    folder: Folder,
    tls: SocketAddr,
    monitoring: SocketAddr,
    control: Option<Supervised>,
    crowd: Option<Crowd>,
    say: &'a dyn Fn(&str),
    stopped: &'a dyn Fn() -> bool,
}

impl<'a> Measuring<'a> {
    /// Generates the folder.
    pub(super) fn new(
        settings: &'a ControlPlaneSettings,
        scratch: &Path,
        say: &'a dyn Fn(&str),
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, String> {
        say("\rgenerating a mesh");
        let config = scratch.join("config");
        let output = std::process::Command::new(&settings.voile)
            .args(["generate", "mesh", "--out"])
            .arg(&config)
            .args(["--services", &settings.services.to_string()])
            .args(["--workloads", &settings.workloads.to_string()])
            .output()
            .map_err(|e| format!("{}: {e}", settings.voile.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.trim_end().to_owned());
        }
        let port =
            || free_port(IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(|e| format!("a free port: {e}"));
        Ok(Self {
            settings,
            folder: Folder::open(&config)?,
            scratch: scratch.to_owned(),
            tls: port()?,
            monitoring: port()?,
            control: None,
            crowd: None,
            say,
            stopped,
        })
    }

    /// All steps.
    pub(super) fn all(&mut self, record: &mut ControlPlaneRecord) -> Result<(), String> {
        (self.say)("\rstarting the control plane");
        let took = self.start_control()?;
        record.add("start", "until ready", (took, "s"), Some(1.0));
        let held = self.held()?;
        record.add(
            "memory",
            "RSS, no proxies",
            (megabytes(held.rss_bytes), "MB"),
            None,
        );
        self.connect(record)?;
        self.one_endpoint(record)?;
        self.policy(record)?;
        self.churn(record, false)?;
        self.churn(record, true)?;
        let held = self.held()?;
        let what = format!("RSS, {} proxies, after all of it", self.settings.proxies);
        record.add(
            "memory",
            &what,
            (megabytes(held.rss_bytes), "MB"),
            Some(150.0),
        );
        self.killed(record)
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
    fn start_control(&mut self) -> Result<f64, String> {
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

    fn connect(&mut self, record: &mut ControlPlaneRecord) -> Result<(), String> {
        let proxies = self.settings.proxies;
        (self.say)(&format!("\rconnecting {proxies} simulated proxies"));
        let before = self.used()?;
        let spec = Spec::new("voile crowd", &self.settings.voile)
            .arg("crowd")
            .arg("--config")
            .arg(&self.folder.path)
            .arg("--state")
            .arg(self.scratch.join("state"))
            .args(["--control", &format!("https://{}", self.tls)])
            .args(["--proxies", &proxies.to_string()])
            .args(["--services", &self.settings.used.to_string()])
            .args(["--shared", "1"]);
        let since = now_ns();
        self.crowd = Some(Crowd::start(spec, &self.scratch)?);
        self.until_synced(since)?;
        let used = self.used()?.since(before).cpu_ns as f64 / f64::from(proxies);
        let held = self.held()?;
        record.add("connecting", "CPU of a proxy", (used / 1e3, "µs"), None);
        let what = format!("RSS, {proxies} proxies, in sync");
        record.add(
            "memory",
            &what,
            (megabytes(held.rss_bytes), "MB"),
            Some(150.0),
        );
        Ok(())
    }

    /// Single changes of a workload that stands behind the service that all use.
    fn one_endpoint(&mut self, record: &mut ControlPlaneRecord) -> Result<(), String> {
        let all = self.settings.changes;
        self.crowd()?.clear()?;
        let before = self.used()?;
        for change in 1..=all {
            (self.say)(&format!("\rone endpoint changes, {change}/{all}"));
            self.change(0)?;
            self.until_reached()?;
            self.rest(REST)?;
        }
        let used = self.used()?.since(before).cpu_ns as f64;
        let report = self.crowd()?.report()?;
        let what = "one endpoint changes that all use";
        told(record, what, &report, (Some(50.0), Some(100.0)));
        let pushes = report.updates.max(1) as f64;
        record.add(
            what,
            "CPU of a push, all included",
            (used / 1e3 / pushes, "µs"),
            Some(20.0),
        );
        record.add(
            what,
            "CPU of a change",
            (used / 1e6 / f64::from(all), "ms"),
            None,
        );
        Ok(())
    }

    fn policy(&mut self, record: &mut ControlPlaneRecord) -> Result<(), String> {
        let all = self.settings.policy_changes;
        self.crowd()?.clear()?;
        let before = self.used()?;
        for change in 1..=all {
            (self.say)(&format!("\ra policy changes that all obey, {change}/{all}"));
            let mark = self.folder.mark();
            let draft = self.folder.policy(mark)?;
            self.crowd()?.changed(mark, now_ns(), "*")?;
            draft.publish()?;
            self.until_reached()?;
            self.rest(REST)?;
        }
        let used = self.used()?.since(before).cpu_ns as f64;
        let report = self.crowd()?.report()?;
        let what = "a policy changes that all obey";
        told(record, what, &report, (None, Some(500.0)));
        record.add(
            what,
            "CPU of a change",
            (used / 1e6 / f64::from(all.max(1)), "ms"),
            None,
        );
        Ok(())
    }

    /// Changes on a schedule, of workloads that stand behind any service, or behind the one that all use.
    fn churn(&mut self, record: &mut ControlPlaneRecord, shared: bool) -> Result<(), String> {
        let (rate, time) = (self.settings.churn, self.settings.churn_for);
        let what = match shared {
            false => format!("{rate} changes a second for {} s", time.as_secs()),
            true => format!("{rate} changes a second of what all use"),
        };
        (self.say)(&format!("\r{what}"));
        self.crowd()?.clear()?;
        let (before, began) = (self.used()?, Instant::now());
        let number = (rate * time.as_secs_f64()) as u32;
        let mut late = Duration::ZERO;
        for change in 0..number {
            let due = began + Duration::from_secs_f64(f64::from(change) / rate);
            let wait = due.saturating_duration_since(Instant::now());
            match wait.is_zero() {
                true => late = late.max(Instant::now() - due),
                false => self.rest(wait)?,
            }
            self.go_on()?;
            let workload = match shared {
                true => 0,
                false => 1 + fastrand::usize(..self.folder.workloads() - 1),
            };
            self.change(workload)?;
        }
        let window = began.elapsed();
        let used = self.used()?.since(before).cpu_ns as f64 / window.as_nanos() as f64;
        let end = self.crowd()?.report()?;
        let drained = Instant::now();
        self.until_reached()?;
        let drained = drained.elapsed();
        let report = self.crowd()?.report()?;
        let asked = |bound: f64| (!shared).then_some(bound);
        record.add(&what, "CPU", (used, "cores"), asked(0.2));
        told(record, &what, &report, (None, asked(50.0)));
        let backlog = end.expected.saturating_sub(end.reached) as f64;
        let share = backlog / end.expected.max(1) as f64;
        record.add(
            &what,
            "not yet told when it ended",
            (share * 100.0, "%"),
            None,
        );
        record.add(
            &what,
            "until the last was told",
            (drained.as_secs_f64() * 1e3, "ms"),
            None,
        );
        record.add(&what, "responses", (report.updates as f64, ""), None);
        record.add(
            &what,
            "the latest edit was late by",
            (late.as_secs_f64() * 1e3, "ms"),
            None,
        );
        let held = self.held()?;
        record.add(&what, "RSS", (megabytes(held.rss_bytes), "MB"), None);
        Ok(())
    }

    /// The control plane is killed and started again.
    fn killed(&mut self, record: &mut ControlPlaneRecord) -> Result<(), String> {
        (self.say)("\rthe control plane is killed and started again");
        if let Some(mut control) = self.control.take() {
            control.stop(Duration::ZERO);
        }
        let since = now_ns();
        let ready = self.start_control()?;
        let synced = self.until_synced(since)?;
        let what = "killed, and started again";
        record.add(what, "until ready", (ready, "s"), None);
        record.add(
            what,
            "until half are in sync",
            (synced.p50_ms / 1e3, "s"),
            None,
        );
        record.add(
            what,
            "until all are in sync",
            (synced.last_ms / 1e3, "s"),
            Some(5.0),
        );
        Ok(())
    }

    fn change(&mut self, workload: usize) -> Result<(), String> {
        let mark = self.folder.mark();
        let draft = self.folder.draft(workload, mark)?;
        let uid = self.folder.uid(workload).to_owned();
        self.crowd()?.changed(mark, now_ns(), &uid)?;
        draft.publish()
    }

    /// Waits until every proxy that holds what was changed has heard of all changes.
    fn until_reached(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + SETTLE_WITHIN;
        loop {
            let report = self.crowd()?.report()?;
            if report.lost > 0 {
                return Err("more arrived than the crowd can remember".to_owned());
            }
            if report.reached == report.expected {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "after {SETTLE_WITHIN:?} only {} of {} were told",
                    report.reached, report.expected
                ));
            }
            self.rest(LOOK_EVERY)?;
        }
    }

    fn until_synced(&mut self, since: u64) -> Result<super::crowd::Synced, String> {
        let deadline = Instant::now() + SETTLE_WITHIN;
        loop {
            let synced = self.crowd()?.synced(since)?;
            if synced.synced == synced.proxies {
                return Ok(synced);
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "after {SETTLE_WITHIN:?} only {} of {} proxies are in sync",
                    synced.synced, synced.proxies
                ));
            }
            self.rest(LOOK_EVERY)?;
        }
    }

    fn crowd(&mut self) -> Result<&mut Crowd, String> {
        self.crowd
            .as_mut()
            .ok_or_else(|| "there are no simulated proxies".to_owned())
    }

    fn pid(&self) -> Result<u32, String> {
        let control = self.control.as_ref();
        control
            .map(Supervised::pid)
            .ok_or_else(|| "the control plane does not run".to_owned())
    }

    fn used(&self) -> Result<Usage, String> {
        Usage::of(self.pid()?).map_err(|e| format!("the control plane's CPU: {e}"))
    }

    fn held(&self) -> Result<Holdings, String> {
        Holdings::of(self.pid()?).map_err(|e| format!("the control plane's memory: {e}"))
    }

    fn go_on(&self) -> Result<(), String> {
        match (self.stopped)() {
            true => Err(INTERRUPTED.to_owned()),
            false => Ok(()),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "paces edits, and questions of loops with a deadline"
    )]
    fn rest(&self, time: Duration) -> Result<(), String> {
        self.go_on()?;
        thread::sleep(time);
        Ok(())
    }
}

/// How soon all were told.
fn told(
    record: &mut ControlPlaneRecord,
    what: &str,
    report: &Report,
    (p50, p99): (Option<f64>, Option<f64>),
) {
    record.add(what, "p50 until told", (report.p50_ms, "ms"), p50);
    record.add(what, "p99 until told", (report.p99_ms, "ms"), p99);
    record.add(what, "the last told", (report.max_ms, "ms"), None);
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
fn now_ns() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    clock.tv_sec.unsigned_abs() * 1_000_000_000 + clock.tv_nsec.unsigned_abs()
}

//! One side of the comparison: its processes, its called address, and the generator's run against it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use voile_host::child::{Output, Spec, SupervisedChild};

use super::family::GraphSide;
use super::{GraphSettings, INTERRUPTED};
use crate::definition::Isolation;

/// Deadline until a graph or a mesh is ready.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// Interval of the lab's checks while it waits.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time that a generator may take beyond its own plan.
const OVERTIME: Duration = Duration::from_secs(30);
/// A search for the most that is carried takes dozens of probes.
const SEARCH_WITHIN: Duration = Duration::from_secs(300);
/// Port by which a service is called through its sidecar: isotope's port.
const PORT: u16 = 8080;

/// One side.
pub(super) struct GraphSideRun {
    pub(super) child: SupervisedChild,
    pub(super) mesh: bool,
    pub(super) url: String,
    said: Arc<Mutex<String>>,
}

impl GraphSideRun {
    /// Starts the side: without a mesh as processes, or in namespaces as a folder whose pods have no sidecars.
    pub(super) fn start(
        settings: &GraphSettings,
        folder: &Path,
        mesh: bool,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self, String> {
        if stopped() {
            return Err(INTERRUPTED.to_owned());
        }
        let (name, log) = if mesh {
            ("voile up", "mesh.log")
        } else {
            ("the graph without a mesh", "baseline.log")
        };
        let up = |made: &str, isolation: &str| {
            Spec::new(name, &settings.voile)
                .arg("up")
                .arg(folder.join(made))
                .args(["--isolation", isolation, "--quiet"])
        };
        let spec = match (settings.isolation, mesh) {
            (Isolation::Loopback, true) => up("mesh", "loopback"),
            (Isolation::Netns, true) => up("mesh", "netns"),
            (Isolation::Netns, false) => up("open", "netns"),
            (Isolation::Loopback, false) => Spec::new(name, &settings.voile)
                .args(["graph", "run"])
                .arg(&settings.graph),
        };
        let said = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&said);
        let sink = move |line: &str| {
            if let Ok(mut said) = heard.lock() {
                said.push_str(line);
                said.push('\n');
            }
        };
        let child = spec
            .stdout(Output::Lines(Box::new(sink)))
            .stderr(Output::File(folder.join(log)))
            .start()
            .map_err(|e| e.to_string())?;
        Ok(Self {
            child,
            mesh,
            url: String::new(),
            said,
        })
    }

    /// Waits until the entry point is printed (the line's name ends with the service's), and finds out where it is called.
    pub(super) fn wait_ready(
        &mut self,
        settings: &GraphSettings,
        folder: &Path,
        entry: &str,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + READY_WITHIN;
        let published = loop {
            let said = self
                .said
                .lock()
                .map(|said| said.clone())
                .unwrap_or_default();
            let url = said.lines().find_map(|line| {
                let (name, url) = line.split_once('\t')?;
                (name.rsplit('/').next() == Some(entry))
                    .then(|| url.trim_end_matches('/').to_owned())
            });
            if let Some(url) = url {
                break url;
            }
            if stopped() {
                return Err(INTERRUPTED.to_owned());
            }
            if let Some(exit) = self.child.wait(LOOK_EVERY) {
                let log = if self.mesh {
                    "mesh.log"
                } else {
                    "baseline.log"
                };
                let said = std::fs::read_to_string(folder.join(log)).unwrap_or_default();
                let last = said.lines().rev().find(|line| !line.trim().is_empty());
                return Err(format!(
                    "{} {exit} before it was ready: {}",
                    self.child.name(),
                    last.unwrap_or("it printed nothing")
                ));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "{} is not ready after {READY_WITHIN:?}",
                    self.child.name()
                ));
            }
        };
        // On loopback the entry's sidecar is called itself, past the runner's published port: without a mesh the service is.
        let sidecar = match (settings.isolation, self.mesh) {
            (Isolation::Loopback, true) => self.sidecar(entry),
            _ => None,
        };
        self.url = sidecar.map_or(published, |address| format!("http://{address}"));
        Ok(())
    }

    /// Address at which the sidecar of the entry's first pod takes calls to the entry.
    fn sidecar(&self, entry: &str) -> Option<SocketAddr> {
        let family = self.family(Isolation::Loopback);
        let pods = family
            .of_kind("sidecar")
            .filter(|member| member.service == entry);
        let address = pods.filter_map(|member| member.address).min()?;
        Some(SocketAddr::new(address.ip(), PORT))
    }

    pub(super) fn family(&self, isolation: Isolation) -> GraphSide {
        GraphSide::of(self.child.pid(), isolation == Isolation::Netns)
    }

    /// Sends load, and returns what the generator says.
    pub(super) fn load(
        &self,
        settings: &GraphSettings,
        rate: f64,
        duration: Duration,
        folder: &Path,
        stopped: &dyn Fn() -> bool,
    ) -> Result<serde_json::Value, String> {
        let duration_ms = format!("{}ms", duration.as_millis());
        let words = ["--rate", &rate.to_string(), "--duration", &duration_ms];
        self.generate(settings, &words, duration + OVERTIME, folder, stopped)
    }

    /// Looks for the highest rate at which `bounds` hold, beginning at `from`.
    pub(super) fn carries(
        &self,
        settings: &GraphSettings,
        bounds: &str,
        from: f64,
        folder: &Path,
        stopped: &dyn Fn() -> bool,
    ) -> Result<f64, String> {
        let from = from.to_string();
        let words = [
            "--find-capacity",
            bounds,
            "--rate",
            &from,
            "--duration",
            "2s",
            "--precision",
            "10",
        ];
        let found = self.generate(settings, &words, SEARCH_WITHIN, folder, stopped)?;
        let capacity = found["capacity_rps"].as_f64().filter(|rate| *rate > 0.0);
        capacity.ok_or_else(|| {
            let why = found["limited_by"].as_str().unwrap_or("no reason given");
            format!("no rate was found at which {bounds}: {why}")
        })
    }

    fn generate(
        &self,
        settings: &GraphSettings,
        words: &[&str],
        within: Duration,
        folder: &Path,
        stopped: &dyn Fn() -> bool,
    ) -> Result<serde_json::Value, String> {
        let out = folder.join("load.json");
        let mut child = Spec::new("voile load", &settings.voile)
            .args(["load", "--json", "--connections"])
            .arg(settings.connections.to_string())
            .args(words)
            .arg(&self.url)
            .stdout(Output::File(out.clone()))
            .stderr(Output::File(folder.join("load.log")))
            .start()
            .map_err(|e| e.to_string())?;
        let deadline = Instant::now() + within;
        while child.wait(LOOK_EVERY).is_none() {
            if stopped() || Instant::now() > deadline {
                return Err("the generator did not end in time".to_owned());
            }
        }
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        serde_json::from_str(&text).map_err(|e| {
            let said = std::fs::read_to_string(folder.join("load.log")).unwrap_or_default();
            format!(
                "the generator's answer: {e}: {}",
                said.lines().last().unwrap_or_default()
            )
        })
    }
}

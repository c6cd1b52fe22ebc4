//! The control plane of many sidecars, and its report on each of them.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use voile_host::child::SupervisedChild;
use voile_host::isolation::ProcessIsolation;
use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get, wait_ready};

use crate::contestants::counted;
use crate::shared_processes::Lab;

/// Deadline until the control plane is ready: as long as a large folder takes on a slow disk.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// Lifetime of a token: longer than any measurement.
const TOKEN_TTL: &str = "24h";
/// Deadline for making a token.
const TOKEN_BOUND: Duration = Duration::from_secs(20);

pub(crate) struct Control {
    pub(crate) child: SupervisedChild,
    pub(crate) tls: SocketAddr,
    pub(crate) state: PathBuf,
    monitoring: SocketAddr,
}

/// State of one sidecar, as the control plane reports it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct SidecarReport {
    pub(super) stream: u64,
    pub(super) synced: bool,
    pub(super) propagation: Propagation,
}

/// Since when it is waited for, and how long the last change took.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Propagation {
    pub(super) changes: u64,
    pub(super) last_ms: Option<f64>,
}

#[derive(Deserialize)]
struct Status {
    proxies: Vec<SidecarReport>,
}

/// A port for a control plane.
pub(crate) fn port(address: IpAddr) -> Result<SocketAddr, String> {
    free_port(address).map_err(|e| format!("cannot get a port for a control plane: {e}"))
}

impl Control {
    /// Starts it there and waits until it is ready.
    pub(crate) fn start(
        lab: &Lab<'_>,
        name: &str,
        config: &Path,
        tls: SocketAddr,
        place: Option<ProcessIsolation>,
        more: &[String],
    ) -> Result<Self, String> {
        let monitoring = port(tls.ip())?;
        let state = lab.folder.join(format!("{name}-state"));
        let spec = lab
            .process("control", name, &lab.voile)?
            .args(["control", "--log-level", "warn", "--plaintext", "off"])
            .arg("--config")
            .arg(config)
            .arg("--state")
            .arg(&state)
            .args(["--listen", &tls.to_string()])
            .args(["--monitoring", &monitoring.to_string()])
            .args(more);
        let spec = match place {
            Some(place) => spec.place(place),
            None => spec,
        };
        let mut child = spec.start().map_err(|e| e.to_string())?;
        let probe = Probe::Http(monitoring, "/ready".to_owned());
        wait_ready(&mut child, &probe, READY_WITHIN, lab.stopped)
            .map_err(|e| format!("{e}{}", lab.log_end(name)))?;
        Ok(Self {
            child,
            tls,
            state,
            monitoring,
        })
    }

    /// A token of that account, in a file for its owner only.
    pub(super) fn token(&self, lab: &Lab<'_>, account: &str) -> Result<PathBuf, String> {
        self.token_of(lab, account, None)
    }

    /// The same, bound to a pod.
    pub(crate) fn token_of(
        &self,
        lab: &Lab<'_>,
        account: &str,
        pod: Option<&str>,
    ) -> Result<PathBuf, String> {
        let bound = pod.into_iter().flat_map(|pod| ["--pod", pod]);
        let spec = lab
            .process("control", "token", &lab.voile)?
            .args(["token", "create", "--ttl", TOKEN_TTL])
            .args(["--service-account", account])
            .args(bound)
            .arg("--state")
            .arg(&self.state);
        let token = crate::contestants::output(lab, spec, TOKEN_BOUND)?;
        let path = self.state.join(format!(
            "{}.token",
            pod.unwrap_or(account).replace('/', "-")
        ));
        crate::record_folder::write(&path, token.trim())?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// Every sidecar that is connected.
    pub(super) fn sidecars(&self) -> Result<Vec<SidecarReport>, String> {
        let text = self.page("/debug/status")?;
        let status: Status = serde_json::from_str(&text)
            .map_err(|e| format!("the control plane's status is not as expected: {e}"))?;
        Ok(status.proxies)
    }

    /// Number of connected sidecars.
    pub(super) fn connected(&self) -> Result<u64, String> {
        self.counter("voile_control_connected_proxies")
    }

    /// A counter or gauge of its metrics.
    pub(super) fn counter(&self, name: &str) -> Result<u64, String> {
        Ok(counted(&self.page("/metrics")?, name, ""))
    }

    fn page(&self, path: &str) -> Result<String, String> {
        let page = http_get(self.monitoring, path);
        let (status, body) = page.map_err(|e| format!("the control plane does not answer: {e}"))?;
        match status {
            200 => Ok(String::from_utf8_lossy(&body).into_owned()),
            status => Err(format!("the control plane's {path} answers {status}")),
        }
    }
}

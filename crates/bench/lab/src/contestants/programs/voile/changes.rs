//! Events of an experiment at Voile, made by the means that its users have: files of the mesh, signals, new processes.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use voile_host::child::SupervisedChild;
use voile_host::ready::Probe;

use super::{CLIENT, RunningVoile, SERVER, Voile, VoileSidecar};
use crate::agent::AgentProgram;
use crate::contestants::effect_evidence::{
    CertificateListener, EffectEvidence, ListenerOwners, Page, Renewal, SIDECARS_ALPN,
};
use crate::contestants::generations::Generations;
use crate::contestants::served_process::SECOND;
use crate::definition::EventAction;
use crate::network::Echo;
use crate::network::INBOUND;
use crate::plan::RequestPath;
use crate::process::Process;
use crate::shared_processes::{HTTP, Lab, STOP_GRACE, TCP, start_echo_bound};

/// Text of the mesh's policy before the settings of ports.
const PORTS_OF_POLICY: &str = "  portLevelMtls:\n";

/// Target of the changed policies.
const BINDING: &str = "selector: {matchLabels: {app: server}}";

/// A second pair of servers, where the first one is.
pub(crate) fn second(lab: &Lab<'_>, folder: &Path) -> Result<(Echo, Vec<Process>), String> {
    if let Some(far) = lab.far {
        let what = AgentProgram::Echo {
            sink: false,
            second: true,
        };
        let (process, addresses) = lab.start_there(far, what)?;
        let [http, tcp] = addresses[..] else {
            return Err("the agent's second server has no listen address".to_owned());
        };
        return Ok((Echo { http, tcp }, vec![Process::There(process)]));
    }
    let start = |serves, arguments: &[&str]| {
        start_echo_bound(
            &lab.voile,
            folder,
            serves,
            arguments,
            &lab.bounds,
            lab.stopped,
        )
    };
    let (http, http_at) = start(HTTP, &["--name", SECOND])?;
    let (tcp, tcp_at) = start(TCP, &[])?;
    let echo = Echo {
        http: http_at,
        tcp: tcp_at,
    };
    Ok((echo, vec![http.into(), tcp.into()]))
}

/// Changes since the contestant was started.
#[derive(Debug)]
pub(super) struct SidecarChanges {
    /// True if the server's mutual port accepts plaintext, too.
    permissive: bool,
    /// The second pair of servers, once there is one, and whether the service leads there.
    second: Option<(Echo, Vec<Process>)>,
    moved: bool,
    /// Authorization policies.
    policies: Generations,
    /// Processes that a new one took over from, and that finish what they have.
    retired: Vec<Process>,
}

impl SidecarChanges {
    pub(super) fn none() -> Self {
        Self {
            permissive: false,
            second: None,
            moved: false,
            policies: Generations::bound(BINDING),
            retired: Vec::new(),
        }
    }
}

/// Kills a control plane without warning.
pub(crate) fn kill(control: &mut SupervisedChild) -> Result<EffectEvidence, String> {
    control.signal(Signal::KILL);
    match control.wait(STOP_GRACE) {
        Some(_) => Ok(EffectEvidence::AtOnce(
            "the control plane's end by SIGKILL".to_owned(),
        )),
        None => Err("the control plane did not end after SIGKILL".to_owned()),
    }
}

impl Voile {
    fn config(&self, lab: &Lab<'_>, file: &str) -> PathBuf {
        lab.folder
            .join(&self.variant.name)
            .join("config")
            .join(file)
    }

    fn running(&mut self) -> Result<&mut RunningVoile, String> {
        self.running
            .as_mut()
            .ok_or_else(|| "Voile does not run".to_owned())
    }

    pub(super) fn change(
        &mut self,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        let server = way.mode != "clientonly";
        match action {
            EventAction::PushPolicy if !server => {
                Err("its effect is observed at the server's sidecar only".to_owned())
            }
            EventAction::ChangePolicies(_) if way.protocol != "http1" || !server => {
                Err("its effect is observed over HTTP/1.1, at the server's sidecar only".to_owned())
            }
            EventAction::MoveEndpoints if way.protocol != "http1" || !server => {
                Err("its effect is observed over HTTP/1.1, behind the server's sidecar only".to_owned())
            }
            EventAction::RestartProxy | EventAction::UpgradeProxy if !server => {
                Err("this path has no sidecar at the server".to_owned())
            }
            EventAction::UpgradeProxy | EventAction::RotateCertificates if self.stock.is_some() => {
                let name = &self.variant.name;
                Err(format!("the lab does not support {} for {name}: it keeps the processes and certificates that it was started with", action.word()))
            }
            EventAction::PushPolicy => self.push_policy(lab),
            EventAction::ChangePolicies(count) => {
                let config = self.config(lab, "");
                self.running()?.changes.policies.change(&config, *count)
            }
            EventAction::UpgradeProxy if lab.far.is_some() => {
                Err("the handover needs one folder for the old and the new process, and an agent gives each its own".to_owned())
            }
            // Inside, the server is in the sidecar's own pod, as in Kubernetes: there is no other to lead to.
            EventAction::MoveEndpoints if lab.network.is_some() => {
                Err("the sidecar's server can be moved in isolation \"loopback\" only".to_owned())
            }
            EventAction::MoveEndpoints => self.move_endpoints(lab),
            EventAction::RestartProxy => self.restart(lab),
            EventAction::UpgradeProxy => self.upgrade(lab),
            EventAction::KillControlPlane => kill(&mut self.running()?.control),
            EventAction::RotateCertificates => self.rotate(way),
            EventAction::Hook(_) => Err("a hook is run by the lab itself".to_owned()),
        }
    }

    /// The server's mutual port takes plaintext, too, or no longer: the load, which is sealed or goes elsewhere, need not
    /// notice.
    fn push_policy(&mut self, lab: &Lab<'_>) -> Result<EffectEvidence, String> {
        let running = self.running()?;
        running.changes.permissive = !running.changes.permissive;
        let open = running.changes.permissive;
        let address = (running.ports.server, running.ports.services["MUTUAL_PORT"]).into();
        self.write_mesh(lab)?;
        Ok(EffectEvidence::Plaintext(address, open))
    }

    /// Every sidecar on the way fetches another certificate for another key.
    fn rotate(&mut self, way: &RequestPath) -> Result<EffectEvidence, String> {
        let running = self.running()?;
        let door = CertificateListener {
            address: (running.ports.server, running.ports.services["MUTUAL_PORT"]).into(),
            protocols: SIDECARS_ALPN,
            whose: "the server's sidecar",
        };
        let on_path = running.sidecars.iter().filter(|sidecar| {
            !(way.mode == "clientonly" && sidecar.role == SERVER
                || way.mode == "serveronly" && sidecar.role == CLIENT)
        });
        let page = |sidecar: &VoileSidecar| match &sidecar.process {
            Process::Here(_) => Page::Here(sidecar.admin),
            Process::There(process) => Page::There(process.asked()),
        };
        let sidecars = on_path.map(|one| (page(one), (one.role == SERVER).then_some(door)));
        Renewal::ask(sidecars.collect())
    }

    fn move_endpoints(&mut self, lab: &Lab<'_>) -> Result<EffectEvidence, String> {
        let folder = lab.folder.join(&self.variant.name);
        let running = self.running()?;
        if running.changes.second.is_none() {
            running.changes.second = Some(second(lab, &folder)?);
        }
        running.changes.moved = !running.changes.moved;
        let moved = running.changes.moved;
        self.write_mesh(lab)?;
        Ok(EffectEvidence::From(moved.then(|| SECOND.to_owned())))
    }

    /// The mesh as it is to be now.
    fn write_mesh(&self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_ref().ok_or("Voile does not run")?;
        let changes = &running.changes;
        let second = changes.second.as_ref().filter(|_| changes.moved);
        let echo = second.map_or(lab.echo, |(echo, _)| *echo);
        let folder = lab.folder.join(&self.variant.name);
        let mut text = running.ports.resources(&echo, &self.variant, &folder)?;
        if changes.permissive {
            let port = running.ports.services["MUTUAL_PORT"];
            let more = format!("{PORTS_OF_POLICY}    {port}:\n      mode: PERMISSIVE\n");
            text = text.replacen(PORTS_OF_POLICY, &more, 1);
        }
        crate::record_folder::write(&self.config(lab, "mesh.yaml"), &text)
    }

    /// By what a sidecar that was just started is seen to be ready.
    fn sign(new: &VoileSidecar) -> EffectEvidence {
        match &new.process {
            Process::Here(_) => EffectEvidence::Ready(new.readiness, new.ready_path.to_owned()),
            Process::There(process) => EffectEvidence::ReadyThere(process.asked()),
        }
    }

    fn restart(&mut self, lab: &Lab<'_>) -> Result<EffectEvidence, String> {
        let at = self.server_sidecar()?;
        let ports = {
            let running = self.running()?;
            running.sidecars[at].process.stop(STOP_GRACE);
            running.ports.clone()
        };
        let state = lab.folder.join(&self.variant.name).join("state");
        let new = self.start_sidecar(lab, &state, &ports, "server", SERVER)?;
        let sign = Self::sign(&new);
        self.running()?.sidecars[at] = new;
        Ok(sign)
    }

    fn upgrade(&mut self, lab: &Lab<'_>) -> Result<EffectEvidence, String> {
        let at = self.server_sidecar()?;
        let ports = self.running()?.ports.clone();
        let state = lab.folder.join(&self.variant.name).join("state");
        let new = self.start_sidecar(lab, &state, &ports, "server", SERVER)?;
        let readiness = new.readiness;
        let running = self.running()?;
        let old = std::mem::replace(&mut running.sidecars[at], new);
        // Old and new process may share the readiness page, so the new one must also hold the port.
        let port = match running.captured {
            Some(_) => INBOUND,
            None => running.ports.services["MUTUAL_PORT"],
        };
        let held = ListenerOwners {
            inside: None,
            port,
            by: old.process.instance(SERVER).pids,
        };
        running.changes.retired.push(old.process);
        Ok(EffectEvidence::TakenOver(readiness, held))
    }

    fn server_sidecar(&mut self) -> Result<usize, String> {
        let mut sidecars = self.running()?.sidecars.iter();
        let at = sidecars.position(|sidecar| sidecar.role == SERVER);
        at.ok_or_else(|| "the server has no sidecar".to_owned())
    }

    /// Starts again what was killed, and lets the mesh be what it was.
    pub(super) fn make_good(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let (folder, config) = (lab.folder.join(&self.variant.name), self.config(lab, ""));
        let changes = &mut self.running()?.changes;
        changes.policies.forget(&config)?;
        if changes.moved || changes.permissive {
            (changes.moved, changes.permissive) = (false, false);
            self.write_mesh(lab)?;
        }
        let running = self.running()?;
        for mut retired in running.changes.retired.drain(..) {
            retired.stop(STOP_GRACE);
        }
        if running.control.try_exit().is_some() {
            let ports = running.ports.clone();
            let mut control =
                self.start_control(lab, &config, &folder.join("state"), &ports, None)?;
            lab.wait_ready(
                &mut control,
                &Probe::Http(ports.monitoring, "/ready".to_owned()),
            )?;
            self.running()?.control = control;
        }
        for sidecar in &mut self.running()?.sidecars {
            let probe = sidecar.probe();
            sidecar.process.wait_ready(lab, &probe)?;
        }
        Ok(())
    }
}

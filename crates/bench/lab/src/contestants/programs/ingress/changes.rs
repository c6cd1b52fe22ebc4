//! Events of an experiment at Voile's gateway, made by the means that its users have.

use voile_host::child::SupervisedChild;
use voile_host::ready::Probe;

use super::{HTTP, Ingress, RunningIngress};
use crate::contestants::effect_evidence::{
    EffectEvidence, ListenerOwners, Page, READY_PATH, Renewal,
};
use crate::contestants::generations::Generations;
use crate::contestants::programs::voile::{kill, second};
use crate::contestants::retired_processes::RetiredProcesses;
use crate::contestants::served_process::SECOND;
use crate::definition::EventAction;
use crate::machine::instance::INGRESS;
use crate::network::Echo;
use crate::plan::RequestPath;
use crate::process::Process;
use crate::shared_processes::{Lab, STOP_GRACE};

/// Target of the changed policies.
const BINDING: &str = "selector: {matchLabels: {app: gateway}}";

/// Changes since the gateway was started.
#[derive(Debug)]
pub(super) struct IngressChanges {
    /// Another pair of servers, where events lead to one, and whether it is led to.
    second: Option<(Echo, Vec<Process>)>,
    moved: bool,
    policies: Generations,
    /// Processes that a new one took over from, and that finish what they have.
    retired: RetiredProcesses,
}

impl IngressChanges {
    pub(super) fn none(second: Option<(Echo, Vec<Process>)>) -> Self {
        Self {
            second,
            moved: false,
            policies: Generations::bound(BINDING),
            retired: RetiredProcesses::default(),
        }
    }

    /// The servers that it leads to now.
    fn echo(&self, lab: &Lab<'_>) -> Echo {
        let second = self.second.as_ref().filter(|_| self.moved);
        second.map_or(lab.echo, |(echo, _)| *echo)
    }

    pub(super) fn stop(&mut self) {
        self.retired.end();
        if let Some((_, servers)) = &mut self.second {
            servers
                .iter_mut()
                .for_each(|server| server.stop(STOP_GRACE));
        }
    }
}

impl Ingress {
    pub(super) fn change(
        &self,
        running: &mut RunningIngress,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        let config = running.folder.join("config");
        let seen = way.protocol == "http1";
        match action {
            EventAction::Hook(_) => Err("a hook is run by the lab itself".to_owned()),
            EventAction::PushPolicy
            | EventAction::ChangePolicies(_)
            | EventAction::MoveEndpoints
                if !seen =>
            {
                Err("its effect is observed over HTTP/1.1 only".to_owned())
            }
            EventAction::PushPolicy => running.changes.policies.push(&config),
            EventAction::ChangePolicies(count) => running.changes.policies.change(&config, *count),
            EventAction::MoveEndpoints => {
                let changes = &mut running.changes;
                if changes.second.is_none() {
                    changes.second = Some(second(lab, &running.folder)?);
                }
                changes.moved = !changes.moved;
                let moved = changes.moved;
                running.write_mesh(lab)?;
                Ok(EffectEvidence::From(moved.then(|| SECOND.to_owned())))
            }
            // Traffic from outside is plaintext here, so no peer sees the certificate.
            EventAction::RotateCertificates => {
                Renewal::ask(vec![(Page::Here(running.admin), None)])
            }
            EventAction::KillControlPlane => kill(&mut running.control),
            EventAction::RestartProxy | EventAction::UpgradeProxy => {
                let ended = *action == EventAction::RestartProxy;
                let held = (!ended).then(|| ListenerOwners {
                    inside: None,
                    port: running.ports.get(HTTP).copied().unwrap_or_default(),
                    by: running.gateway.group_pids(),
                });
                if ended {
                    running.changes.retired.end_with(&mut running.gateway);
                }
                let before = self.launch(running, lab)?;
                let page = (running.readiness, READY_PATH);
                Ok(running.changes.retired.replaced(before, held, page))
            }
        }
    }

    /// Starts a process in the gateway's place; gives the one before it.
    fn launch(
        &self,
        running: &mut RunningIngress,
        lab: &Lab<'_>,
    ) -> Result<SupervisedChild, String> {
        let (gateway, pages) =
            self.start_gateway(lab, &running.folder, running.told_by.control())?;
        running.tells_at(pages);
        Ok(std::mem::replace(&mut running.gateway, gateway))
    }

    /// Starts again what was killed, and lets the mesh be what it was.
    pub(super) fn make_good(
        &self,
        running: &mut RunningIngress,
        lab: &Lab<'_>,
    ) -> Result<(), String> {
        let (config, state) = (running.folder.join("config"), running.folder.join("state"));
        running.changes.policies.forget(&config)?;
        if std::mem::take(&mut running.changes.moved) {
            running.write_mesh(lab)?;
        }
        running.changes.retired.end();
        if running.control.try_exit().is_some() {
            let told_by = &running.told_by;
            running.control = self
                .mesh
                .start_control(lab, &config, &state, told_by, None)?;
            let ready = Probe::Http(told_by.monitoring(), "/ready".to_owned());
            lab.wait_ready(&mut running.control, &ready)?;
        }
        let ready = Probe::Http(running.readiness, READY_PATH.to_owned());
        lab.wait_ready(&mut running.gateway, &ready)
            .map_err(|why| format!("{INGRESS}: {why}"))
    }
}

impl RunningIngress {
    /// The mesh as it is to be now.
    pub(super) fn write_mesh(&self, lab: &Lab<'_>) -> Result<(), String> {
        let text = Ingress::resources(&self.changes.echo(lab), &self.ports)?;
        crate::record_folder::write(&self.folder.join("config/mesh.yaml"), &text)
    }
}

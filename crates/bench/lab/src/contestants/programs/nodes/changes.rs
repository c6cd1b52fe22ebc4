//! Events of an experiment at node proxies and at the waypoint between them: files of the mesh, signals, new processes, and
//! orders on their admin pages.

use std::net::SocketAddr;

use voile_host::child::SupervisedChild;
use voile_host::netns::rules::{NodeCapture, Rules};
use voile_host::ready::Probe;

use super::waypoint::WaypointProgram;
use super::{ADMIN, NODE_ACCOUNT, NodePlan, Nodes, Program, RunningNodes, StartedNode};
use crate::contestants::effect_evidence::{
    CertificateListener, EffectEvidence, ListenerOwners, Page, Renewal, TUNNELS_ALPN,
};
use crate::contestants::generations::Generations;
use crate::contestants::programs::voile::kill;
use crate::contestants::retired_processes::RetiredProcesses;
use crate::contestants::served_process::SECOND;
use crate::definition::EventAction;
use crate::machine::instance::{HBONE, WAYPOINT};
use crate::network::{HTTP_PORT, Network, Pod, TCP_PORT};
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

/// Target of the changed policies: the waypoint.
const BINDING: &str = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gate}]";
/// Index of the node that serves the server.
const OF_SERVER: usize = 1;

/// Mesh resource of another server: a pod of the second node. It is in no service until an event moves the service to it.
pub(super) const SECOND_POD: &str = "\
---
apiVersion: v1
kind: Pod
metadata:
  name: second
  namespace: lab
  labels:
    app: second
spec:
  serviceAccountName: server
  nodeName: two
  containers:
  - name: app
status:
  phase: Running
  podIP: ${SECOND_ADDRESS}
";

/// Another server, in a pod of its own.
pub(super) struct SecondServer {
    pub(super) pod: Pod,
    pub(super) echo: SupervisedChild,
}

impl SecondServer {
    pub(super) fn start(lab: &Lab<'_>, network: &Network, prefix: &str) -> Result<Self, String> {
        let rules = Rules {
            node: Some(NodeCapture::default()),
            ..Rules::default()
        };
        let pod = network.add_pod(&rules)?;
        let (name, ports) = (
            format!("{prefix}-second"),
            (&[HTTP_PORT][..], &[TCP_PORT][..]),
        );
        let echo = lab.start_pod_echo(network, &pod, &name, ports, &["--name", SECOND])?;
        Ok(Self { pod, echo })
    }
}

/// Changes since the proxies were started.
#[derive(Debug)]
pub(super) struct NodeChanges {
    /// True if the server's pod accepts plaintext, too.
    permissive: bool,
    /// True if the service leads to the second server.
    moved: bool,
    /// Policies of the waypoint.
    policies: Generations,
    /// Processes that a new one took over from, and that finish what they have.
    retired: RetiredProcesses,
}

impl NodeChanges {
    pub(super) fn none() -> Self {
        Self {
            permissive: false,
            moved: false,
            policies: Generations::bound(BINDING),
            retired: RetiredProcesses::default(),
        }
    }

    /// Template values of the changes.
    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let served = if self.moved { SECOND } else { "server" };
        let mode = if self.permissive {
            "PERMISSIVE"
        } else {
            "STRICT"
        };
        [("SERVED", served), ("SERVER_MTLS", mode)].into_iter()
    }
}

impl Nodes {
    /// Reason why the event cannot be made with these programs, or cannot be observed on that path.
    fn impossible(&self, action: &EventAction, way: &RequestPath) -> Option<String> {
        let word = action.word();
        let is_ours = matches!(self.program, Program::Voile(_));
        match (action, &self.before) {
            (EventAction::Hook(_), _) => Some("a hook is run by the lab itself".to_owned()),
            (EventAction::KillControlPlane | EventAction::RestartProxy, _) => None,
            (_, Some(WaypointProgram::Envoy(_))) => Some(format!(
                "the lab does not support {word} for {}'s waypoint, which is configured by files",
                self.name
            )),
            (EventAction::ChangePolicies(_), None) => Some(
                "node proxies do not read paths, which distinguish the new policies from the old ones"
                    .to_owned(),
            ),
            (EventAction::MoveEndpoints, _)
            | (EventAction::PushPolicy | EventAction::ChangePolicies(_), Some(_))
                if way.protocol != "http1" =>
            {
                Some("its effect is observed over HTTP/1.1 only".to_owned())
            }
            (EventAction::UpgradeProxy, _) if !is_ours => {
                Some("the lab cannot start a second ztunnel beside a running one".to_owned())
            }
            (EventAction::RotateCertificates, _) if !is_ours => {
                Some("ztunnel renews its certificates by itself, and has no command for it".to_owned())
            }
            _ => None,
        }
    }

    pub(super) fn change(
        &self,
        running: &mut RunningNodes,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        if let Some(why) = self.impossible(action, way) {
            return Err(why);
        }
        let config = running.ground.config();
        let policies = &mut running.changes.policies;
        match action {
            EventAction::ChangePolicies(count) => policies.change(&config, *count),
            EventAction::PushPolicy if self.before.is_some() => policies.push(&config),
            // The load, which is sealed, need not notice.
            EventAction::PushPolicy => {
                running.changes.permissive = !running.changes.permissive;
                running.ground.write_mesh(&running.changes)?;
                let server = SocketAddr::new(running.pods.server(), HTTP_PORT);
                Ok(EffectEvidence::Plaintext(
                    server,
                    running.changes.permissive,
                ))
            }
            EventAction::MoveEndpoints => {
                running.changes.moved = !running.changes.moved;
                running.ground.write_mesh(&running.changes)?;
                let moved = running.changes.moved;
                Ok(EffectEvidence::From(moved.then(|| SECOND.to_owned())))
            }
            EventAction::RotateCertificates => Self::rotate(running),
            EventAction::KillControlPlane => kill(&mut running.control),
            EventAction::RestartProxy if running.waypoint.is_some() => {
                self.replace_waypoint(running, lab, true)
            }
            EventAction::UpgradeProxy if running.waypoint.is_some() => {
                self.replace_waypoint(running, lab, false)
            }
            EventAction::RestartProxy => self.replace_node(running, lab, true),
            _ => self.replace_node(running, lab, false),
        }
    }

    /// Each proxy on the way fetches other certificates for other keys.
    fn rotate(running: &RunningNodes) -> Result<EffectEvidence, String> {
        let tunnels = |address, whose| CertificateListener {
            address: SocketAddr::new(address, HBONE),
            protocols: TUNNELS_ALPN,
            whose,
        };
        let server = tunnels(running.pods.server(), "the server's node's proxy");
        let nodes = running.nodes.iter().enumerate().map(|(at, node)| {
            let page = Page::Here(SocketAddr::new(node.address, ADMIN));
            (page, (at == OF_SERVER).then_some(server))
        });
        let waypoint = running.waypoint.iter().map(|one| {
            let door = tunnels(one.pod.address, "the waypoint");
            (Page::Here(one.admin), Some(door))
        });
        Renewal::ask(nodes.chain(waypoint).collect())
    }

    /// Ends the proxy of the server's node and starts it again, or starts another process that takes over from it. Open
    /// connections stay with the old process, so restarting ends processes that were taken over from, too.
    fn replace_node(
        &self,
        running: &mut RunningNodes,
        lab: &Lab<'_>,
        ended: bool,
    ) -> Result<EffectEvidence, String> {
        let inside = running.ground.inside(&running.pods, lab);
        let control = running.ports.control();
        let RunningNodes {
            ground,
            nodes,
            pods,
            changes,
            ..
        } = running;
        let node = nodes.get_mut(OF_SERVER).ok_or("there is no such node")?;
        let old = node.process.group_pids();
        let launch = |plan: &NodePlan<'_>| {
            if ended {
                changes.retired.end_with(&mut node.process);
            }
            let new = StartedNode::launch(&inside, &self.program, plan)?;
            Ok(std::mem::replace(&mut node.process, new))
        };
        let before = self.planned(&inside, ground, (OF_SERVER, control), launch)?;
        let held = (!ended).then(|| ListenerOwners {
            inside: Some(pods.networks().1),
            port: HBONE,
            by: old,
        });
        let page = (node.readiness(), super::READY_PATH);
        Ok(changes.retired.replaced(before, held, page))
    }

    /// The same of the waypoint.
    fn replace_waypoint(
        &self,
        running: &mut RunningNodes,
        lab: &Lab<'_>,
        ended: bool,
    ) -> Result<EffectEvidence, String> {
        let inside = running.ground.inside(&running.pods, lab);
        let (server, control) = (running.pods.server(), running.ports.control());
        let not = || format!("there is no {WAYPOINT}");
        let old = running.waypoint.as_mut().ok_or_else(not)?;
        let held = (!ended).then(|| ListenerOwners {
            inside: None,
            port: HBONE,
            by: old.process.group_pids(),
        });
        if ended {
            running.changes.retired.end_with(&mut old.process);
        }
        let new = self.start_between(&inside, &running.ground, server, control)?;
        let new = new.ok_or_else(not)?;
        let Probe::Http(page, path) = new.ready.clone() else {
            return Err(format!("the {WAYPOINT} has no readiness page"));
        };
        let before = running.waypoint.replace(new).ok_or_else(not)?;
        let retired = &mut running.changes.retired;
        Ok(retired.replaced(before.process, held, (page, &path)))
    }

    /// Starts again what was killed, and lets the mesh be what it was.
    pub(super) fn make_good(
        &self,
        running: &mut RunningNodes,
        lab: &Lab<'_>,
    ) -> Result<(), String> {
        let (config, state) = (running.ground.config(), running.ground.state());
        let changes = &mut running.changes;
        changes.policies.forget(&config)?;
        if changes.moved || changes.permissive {
            (changes.moved, changes.permissive) = (false, false);
            running.ground.write_mesh(changes)?;
        }
        changes.retired.end();
        if running.control.try_exit().is_some() {
            let inside = running.pods.lab(lab);
            let (ports, nodes) = (&running.ports, Some(NODE_ACCOUNT));
            let control = self
                .mesh
                .start_control(&inside, &config, &state, ports, nodes)?;
            running.control = control;
            let ready = Probe::Http(running.ports.monitoring(), "/ready".to_owned());
            lab.wait_ready(&mut running.control, &ready)?;
        }
        Ok(())
    }
}

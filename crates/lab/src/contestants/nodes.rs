//! Two node proxies, the client's node's and the server's, Voile's or ztunnel: what the field calls the sidecar-free or ambient
//! way. Pods have no proxy of their own; their networks are redirected as Istio's CNI agent does it, and each node's proxy is
//! told of them by the lab, which is that agent. Who is who comes from a live `voile control`, for both programs alike.
//!
//! ```text
//! client's pod: load ─▶ 15001 ═ node one's proxy ═ HBONE over mutual TLS ═▶ 15008 ═ node two's proxy ─▶ echo :server's pod
//! ```

pub(crate) mod agent;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use voile_host::child::{Spec, Supervised, stop_all};
use voile_host::netns::rules::Rules;
use voile_host::place::{Place, Privileges};
use voile_host::ready::{Probe, http_get};

use self::agent::{Agent, NodePod};
use super::captured::{Calls, Captured, Redirection};
use super::listeners::fill;
use super::voile::{CONNECTIONS, Ports, Voile, counted};
use super::{
    CLIENT_NODE, CONTROL, Contestant, Counts, HBONE, Instance, Route, SERVER_NODE, Stage,
    peers_folder,
};
use crate::definition::Variant;
use crate::find;
use crate::network::{GATEWAY, HTTP_PORT, OUTBOUND, Pod, TCP_PORT};
use crate::plan::Way;
use crate::proof::pace;
use crate::target::{Lab, READY_BOUND, STOP_GRACE};

const MESH: &str = include_str!("../../../../benchmarks/voile/mesh-node.yaml");
/// The namespace of client and server, in the cluster's sense.
const NAMESPACE: &str = "lab";
/// Whose tokens may ask for certificates in their pods' names.
pub(crate) const NODE_ACCOUNT: &str = "istio-system/node-proxy";
/// Virtual addresses of the services.
const SERVER_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 1));
const STAGE_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 3));
/// Where a node proxy tells of itself, in a network of its own.
const ADMIN: u16 = 15000;
const METRICS: u16 = 15020;
const READINESS: u16 = 15021;

/// Whose program it is.
pub(crate) enum Program {
    Voile(Variant),
    Ztunnel(find::Peer),
}

impl Program {
    /// Its name in records.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Voile(variant) => &variant.name,
            Self::Ztunnel(_) => "ztunnel",
        }
    }

    /// What its processes' names begin with: those of its sidecars have others.
    pub(crate) fn prefix(&self) -> String {
        format!("{}-node", self.name())
    }
}

/// A node: who its proxy is, where, and what it needs to start.
pub(crate) struct NodePlan<'a> {
    pub(crate) role: &'static str,
    /// `one`; its proxy is the pod `node-one`.
    pub(crate) node: &'a str,
    pub(crate) address: IpAddr,
    pub(crate) control: SocketAddr,
    pub(crate) state: &'a Path,
    pub(crate) token: &'a Path,
    pub(crate) socket: &'a Path,
}

/// A node proxy that was started, with its agent.
pub(crate) struct Node {
    pub(crate) process: Supervised,
    pub(crate) role: &'static str,
    /// In the fabric, by which the lab asks it.
    pub(crate) address: IpAddr,
    pub(crate) agent: Agent,
    /// How many pods it must serve to be ready.
    pods: usize,
}

impl Node {
    /// Starts one, with an agent that tells of these pods.
    pub(crate) fn start(
        lab: &Lab<'_>,
        program: &Program,
        plan: &NodePlan<'_>,
        pods: Vec<NodePod>,
    ) -> Result<Self, String> {
        let count = pods.len();
        let agent = Agent::start(plan.socket, pods)
            .map_err(|e| format!("an agent at {}: {e}", plan.socket.display()))?;
        let name = format!("{}-{}", program.prefix(), plan.node);
        let spec = match program {
            Program::Voile(variant) => {
                let path = variant.program.as_deref().unwrap_or(&lab.voile);
                voile(lab.process(plan.role, &name, path)?, plan, lab.workers)
            }
            Program::Ztunnel(found) => ztunnel(
                lab.process(plan.role, &name, &found.path)?,
                plan,
                lab.workers,
            ),
        };
        Ok(Self {
            process: spec.start().map_err(|e| e.to_string())?,
            role: plan.role,
            address: plan.address,
            agent,
            pods: count,
        })
    }

    /// Waits until it serves its pods.
    pub(crate) fn wait_ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let deadline = Instant::now() + READY_BOUND;
        loop {
            let name = self.process.name();
            match self.agent.serves(self.pods) {
                Ok(true) => break,
                Ok(false) if Instant::now() < deadline && !(lab.stopped)() => pace(),
                Ok(false) => {
                    let log = lab.log_end(name);
                    return Err(format!("{name} does not serve its pods{log}"));
                }
                Err(why) => return Err(format!("{name}: {why}{}", lab.log_end(name))),
            }
            if let Some(exit) = self.process.try_exit() {
                let name = self.process.name();
                return Err(format!("{name} {exit}{}", lab.log_end(name)));
            }
        }
        let ready = SocketAddr::new(self.address, READINESS);
        lab.wait_ready(
            &mut self.process,
            &Probe::Http(ready, "/healthz/ready".to_owned()),
        )
    }

    /// Connections that it says it has carried.
    pub(crate) fn connections(&self) -> Result<u64, String> {
        let name = self.process.name();
        let (status, body) = http_get(SocketAddr::new(self.address, METRICS), "/metrics")
            .map_err(|e| format!("{name}'s metrics: {e}"))?;
        if status != 200 {
            return Err(format!("{name}'s metrics answer {status}"));
        }
        Ok(counted(&String::from_utf8_lossy(&body), CONNECTIONS, ""))
    }

    pub(crate) fn instance(&self) -> Instance {
        let name = self.process.name().to_owned();
        Instance::here(name, self.role, self.process.group_pids())
    }
}

/// Voile's, as `voile up --dataplane node` starts it.
fn voile(spec: Spec, plan: &NodePlan<'_>, workers: u32) -> Spec {
    let page = |port: u16| SocketAddr::new(plan.address, port).to_string();
    spec.args(["proxy", "--role", "node", "--node", plan.node])
        .args(["--workload", &format!("istio-system/node-{}", plan.node)])
        .args(["--control", &format!("https://{}", plan.control)])
        .arg("--root-cert")
        .arg(plan.state.join("root-cert.pem"))
        .arg("--token-file")
        .arg(plan.token)
        .arg("--agent")
        .arg(plan.socket)
        .args(["--keep-source", "--workers", &workers.to_string()])
        .args(["--admin", &page(ADMIN), "--metrics", &page(METRICS)])
        .args(["--readiness", &page(READINESS)])
}

/// ztunnel in its shared mode, as Istio's chart starts it; its log is quiet as all peers' are.
fn ztunnel(spec: Spec, plan: &NodePlan<'_>, workers: u32) -> Spec {
    let control = format!("https://{}", plan.control);
    let root = plan.state.join("root-cert.pem");
    spec.arg("proxy")
        .env("PROXY_MODE", "shared")
        .env("INPOD_UDS", plan.socket)
        .env("NODE_NAME", plan.node)
        .env("XDS_ADDRESS", &control)
        .env("CA_ADDRESS", &control)
        .env("XDS_ROOT_CA", &root)
        .env("CA_ROOT_CA", &root)
        .env("AUTH_TOKEN", plan.token)
        .env("ISTIO_META_DNS_CAPTURE", "false")
        .env("ZTUNNEL_WORKER_THREADS", workers.to_string())
        .env("RUST_LOG", "warn")
}

/// See the module.
pub(super) struct Nodes {
    program: Program,
    /// Who tells and certifies both.
    mesh: Voile,
    running: Option<Running>,
}

struct Running {
    pods: Captured,
    control: Supervised,
    /// The client's and the server's.
    nodes: Vec<Node>,
}

impl Nodes {
    pub(super) fn new(program: Program) -> Self {
        let build = match &program {
            Program::Voile(variant) => variant.program.clone(),
            Program::Ztunnel(_) => None,
        };
        let mesh = Voile::variant(Variant {
            program: build,
            ..Variant::plain(&program.prefix())
        });
        Self {
            program,
            mesh,
            running: None,
        }
    }

    fn running(&self) -> Result<&Running, String> {
        let running = self.running.as_ref();
        running.ok_or_else(|| format!("{}'s node proxies do not run", self.program.name()))
    }

    fn resources(pods: &Captured, nodes: &[Pod; 2]) -> Result<String, String> {
        let values = [
            ("CLIENT_ADDRESS", pods.client().to_string()),
            ("SERVER_ADDRESS", pods.server().to_string()),
            ("CLIENT_NODE_ADDRESS", nodes[0].address.to_string()),
            ("SERVER_NODE_ADDRESS", nodes[1].address.to_string()),
            ("STAGE_ADDRESS", GATEWAY.to_string()),
            ("HTTP_PORT", HTTP_PORT.to_string()),
            ("TCP_PORT", TCP_PORT.to_string()),
            ("SERVER_VIRTUAL", SERVER_VIRTUAL.to_string()),
            ("STAGE_VIRTUAL", STAGE_VIRTUAL.to_string()),
        ];
        fill(MESH, &values.map(|(name, value)| (name.to_owned(), value)))
    }
}

impl Contestant for Nodes {
    fn name(&self) -> &str {
        self.program.name()
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(network) = lab.network else {
            return Err(
                "node proxies enter their pods' networks: measured in isolation \"netns\" only"
                    .to_owned(),
            );
        };
        let prefix = self.program.prefix();
        let folder = peers_folder(lab, &prefix)?;
        let (config, state) = (folder.join("config"), folder.join("state"));
        std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        let ports = Ports::captured()?;
        let echo = (&[HTTP_PORT][..], &[TCP_PORT][..]);
        let pods = Captured::prepare(lab, network, &prefix, Redirection::Node, echo)?;
        // A proxy's own network is its node's.
        let own = || network.add_pod(&Rules::default());
        let networks = [own()?, own()?];
        crate::folder::write(
            &config.join("mesh.yaml"),
            &Self::resources(&pods, &networks)?,
        )?;
        let place = |pod: &Pod| Place::new(pod.namespace.clone(), Privileges::NodeProxy);
        let inside = pods.lab(lab).with_places([
            (CLIENT_NODE, place(&networks[0])),
            (SERVER_NODE, place(&networks[1])),
        ]);
        let control =
            self.mesh
                .start_control(&inside, &config, &state, &ports, Some(NODE_ACCOUNT))?;
        // What is in here is ended with it, also when something below fails.
        let mut running = Running {
            pods,
            control,
            nodes: Vec::new(),
        };
        let ready = Probe::Http(ports.monitoring(), "/ready".to_owned());
        lab.wait_ready(&mut running.control, &ready)?;
        let (client, server) = running.pods.networks();
        let sides = [
            ("one", CLIENT_NODE, "client", client),
            ("two", SERVER_NODE, "server", server),
        ];
        for ((node, role, pod, namespace), own) in sides.into_iter().zip(&networks) {
            let proxy = format!("node-{node}");
            let token = self.mesh.token(&inside, &state, NODE_ACCOUNT, &proxy)?;
            let plan = NodePlan {
                role,
                node,
                address: own.address,
                control: ports.control(),
                state: &state,
                token: &token,
                socket: &folder.join(format!("{node}.zds")),
            };
            let pods = vec![NodePod {
                name: pod.to_owned(),
                account: pod.to_owned(),
                inside: namespace,
            }];
            let node = Node::start(&inside, &self.program, &plan, pods)?;
            running.nodes.push(node);
        }
        self.running = Some(running);
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it was not started")?;
        running
            .nodes
            .iter_mut()
            .try_for_each(|node| node.wait_ready(lab))
    }

    fn captures(&self) -> bool {
        true
    }

    fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route> {
        let running = self.running.as_ref().filter(|_| way.tls)?;
        let port = match way.protocol.as_str() {
            "tcp" => TCP_PORT,
            _ => HTTP_PORT,
        };
        let service = (SERVER_VIRTUAL, port).into();
        let calls = Calls {
            service,
            direct: service,
            pod_port: HBONE,
            echo_port: port,
            direct_port: lab.server_hop(&way.protocol).address.port(),
            client_listener: OUTBOUND,
            server_listener: HBONE,
        };
        running.pods.route(way, &calls)
    }

    fn server(&self, way: &Way) -> Option<Instance> {
        self.running.as_ref()?.pods.instance(way)
    }

    fn instances(&self, _way: &Way) -> Vec<Instance> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let control = &running.control;
        let control = Instance::here(control.name().to_owned(), CONTROL, control.group_pids());
        let nodes = running.nodes.iter().map(Node::instance);
        nodes.chain([control]).collect()
    }

    fn counts_requests(&self, _way: &Way) -> bool {
        false
    }

    fn counts(&self, _protocol: &str) -> Counts {
        let mut counts = BTreeMap::new();
        for node in &self.running()?.nodes {
            counts.insert(node.role, node.connections()?);
        }
        Ok(Some(counts))
    }

    /// The lab's server stands beside the lab, where a third pod is said to be; of a tunnel it gets the opening.
    fn stage(&self, lab: &Lab<'_>, _way: &Way) -> Result<Option<Stage>, String> {
        let running = self.running()?;
        let folder = lab.folder.join(self.program.prefix());
        let (client, _) = running.pods.networks();
        Stage::of_tunnel(&folder, (STAGE_VIRTUAL, HTTP_PORT).into(), client)
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it does not run")?;
        running.pods.alive(lab)?;
        let nodes = running.nodes.iter_mut().map(|node| &mut node.process);
        for child in nodes.chain([&mut running.control]) {
            if let Some(exit) = child.try_exit() {
                let name = child.name();
                return Err(format!("{name} {exit}{}", lab.log_end(name)));
            }
        }
        Ok(())
    }

    fn version(&self) -> String {
        match &self.program {
            Program::Voile(_) => self.mesh.version(),
            Program::Ztunnel(found) => found.version.clone(),
        }
    }

    fn commands(&self) -> Vec<String> {
        let running = self.running.iter();
        let all = running.flat_map(|running| {
            let nodes = running.nodes.iter().map(|node| &node.process);
            nodes.chain([&running.control])
        });
        all.map(|child| child.command_line().to_owned()).collect()
    }

    fn terms(&self) -> Vec<String> {
        let who = match &self.program {
            Program::Voile(_) => {
                "node proxies: access log on standard output, callers' addresses kept"
            }
            Program::Ztunnel(_) => "node proxies: access log off, callers' addresses kept",
        };
        vec![
            "node proxies move bytes and read no HTTP, so connections are counted, not requests; one process a node, \
             configured and certified by a live voile control, its agent the lab"
                .to_owned(),
            who.to_owned(),
        ]
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let nodes = running.nodes.iter_mut().map(|node| &mut node.process);
            stop_all(nodes.chain([&mut running.control]), STOP_GRACE);
            running.pods.stop();
        }
    }
}

//! Two node proxies, the client's node's and the server's, of Voile or ztunnel: the sidecar-free mode, also called ambient. Pods
//! have no proxy of their own. Their networks are redirected as Istio's CNI agent does it, and the lab acts as that agent: it
//! tells each node's proxy about the pods. A live `voile control` serves workloads to both programs alike. A waypoint may stand
//! between the two.
//!
//! ```text
//! client's pod: load ─▶ 15001 ═ node one's proxy ═ HBONE over mutual TLS ═▶ 15008 ═ node two's proxy ─▶ echo :server's pod
//!                                             ╚═ HBONE ═▶ 15008 waypoint ═ HBONE ═╝
//! ```

pub(crate) mod agent;
mod changes;
pub(crate) mod waypoint;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use voile_host::child::{Spec, SupervisedChild, stop_all};
use voile_host::isolation::{Privileges, ProcessIsolation};
use voile_host::netns::rules::Rules;
use voile_host::ready::{Probe, http_get};

use self::agent::{Agent, NodePod};
use self::changes::{NodeChanges, SecondServer};
use self::waypoint::{GRPC_PORT, Waypoint, WaypointProgram};
use super::voile::{CONNECTIONS, Ports, Voile, counted};
use crate::checks::pace;
use crate::contestants::captured::{Calls, CapturedPods, Redirection};
use crate::contestants::contestant::{
    CellRoute, Contestant, Counts, GeneratorTraffic, IdentityProbe, changed, peers_folder,
};
use crate::contestants::effect_evidence::{EffectEvidence, READY_PATH};
use crate::contestants::listeners::fill;
use crate::contestants::served_process::SECOND;
use crate::definition::{EventAction, Variant};
use crate::find;
use crate::machine::instance::{CLIENT_NODE, CONTROL, HBONE, Instance, SERVER_NODE, WAYPOINT};
use crate::network::{GATEWAY, HTTP_PORT, OUTBOUND, Pod, TCP_PORT};
use crate::plan::RequestPath;
use crate::shared_processes::{Lab, READY_BOUND, STOP_GRACE};

const MESH: &str = include_str!("../../../../../../benchmarks/voile/mesh-node.yaml");
/// The namespace of client and server, in the cluster's sense.
const NAMESPACE: &str = "lab";
/// Service account whose tokens may request certificates in the names of its pods.
pub(crate) const NODE_ACCOUNT: &str = "istio-system/node-proxy";
/// Virtual addresses of the services.
const SERVER_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 1));
const STAGE_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 3));
/// Ports of a node proxy's own pages, in a network of its own.
const ADMIN: u16 = 15000;
const METRICS: u16 = 15020;
const READINESS: u16 = 15021;

/// Program of the node proxies.
pub(crate) enum Program {
    Voile(Variant),
    Ztunnel(find::PeerProgram),
}

impl Program {
    /// Its name in records.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Voile(variant) => &variant.name,
            Self::Ztunnel(_) => "ztunnel",
        }
    }

    /// Prefix of the process names. Sidecars of the same program have another prefix.
    pub(crate) fn prefix(&self) -> String {
        format!("{}-node", self.name())
    }
}

/// Plan of a node: its proxy's name, address, and input for the start.
pub(crate) struct NodePlan<'a> {
    /// Prefix of the process's name.
    pub(crate) prefix: &'a str,
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
pub(crate) struct StartedNode {
    pub(crate) process: SupervisedChild,
    pub(crate) role: &'static str,
    /// In the fabric, by which the lab asks it.
    pub(crate) address: IpAddr,
    pub(crate) agent: Agent,
    /// Number of pods that the proxy must serve to be ready.
    pods: usize,
}

impl StartedNode {
    /// Starts a node proxy, with an agent that announces these pods.
    pub(crate) fn start(
        lab: &Lab<'_>,
        program: &Program,
        plan: &NodePlan<'_>,
        pods: Vec<NodePod>,
    ) -> Result<Self, String> {
        let count = pods.len();
        let agent = Agent::start(plan.socket, pods).map_err(|e| {
            format!(
                "cannot listen for an agent at {}: {e}",
                plan.socket.display()
            )
        })?;
        Ok(Self {
            process: Self::launch(lab, program, plan)?,
            role: plan.role,
            address: plan.address,
            agent,
            pods: count,
        })
    }

    /// Starts the program alone: there is an agent already.
    fn launch(
        lab: &Lab<'_>,
        program: &Program,
        plan: &NodePlan<'_>,
    ) -> Result<SupervisedChild, String> {
        let name = format!("{}-{}", plan.prefix, plan.node);
        let spec = match program {
            Program::Voile(variant) => {
                let path = variant.program.as_deref().unwrap_or(&lab.voile);
                voile(lab.process(plan.role, &name, path)?, plan, lab)
            }
            Program::Ztunnel(found) => ztunnel(
                lab.process(plan.role, &name, &found.path)?,
                plan,
                lab.workers,
            ),
        };
        spec.start().map_err(|e| e.to_string())
    }

    /// Address of the readiness page.
    fn readiness(&self) -> SocketAddr {
        SocketAddr::new(self.address, READINESS)
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
        let ready = Probe::Http(self.readiness(), READY_PATH.to_owned());
        lab.wait_ready(&mut self.process, &ready)
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
fn voile(spec: Spec, plan: &NodePlan<'_>, lab: &Lab<'_>) -> Spec {
    let handover = lab.upgradable.then(|| {
        let path = plan.socket.with_extension("handover");
        ["--handover".into(), path.into_os_string()]
    });
    let page = |port: u16| SocketAddr::new(plan.address, port).to_string();
    spec.args(["proxy", "--role", "node", "--node", plan.node])
        .args(["--workload", &format!("istio-system/node-{}", plan.node)])
        .args(["--control", &format!("https://{}", plan.control)])
        .args(["--subscribe", "on-demand"])
        .arg("--root-cert")
        .arg(plan.state.join("root-cert.pem"))
        .arg("--token-file")
        .arg(plan.token)
        .arg("--agent")
        .arg(plan.socket)
        .args(handover.into_iter().flatten())
        .args(["--keep-source", "--workers", &lab.workers.to_string()])
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
pub(crate) struct Nodes {
    /// The contestant's.
    name: String,
    program: Program,
    /// Program of the waypoint between the two, if there is one.
    before: Option<WaypointProgram>,
    /// Control plane of all proxies.
    mesh: Voile,
    running: Option<RunningNodes>,
}

struct RunningNodes {
    pods: CapturedPods,
    control: SupervisedChild,
    ports: Ports,
    /// The client's and the server's.
    nodes: Vec<StartedNode>,
    waypoint: Option<Waypoint>,
    /// Another server, where events lead to one.
    second: Option<SecondServer>,
    ground: NodeInputs,
    changes: NodeChanges,
}

/// Environment in which the processes start, and start again.
struct NodeInputs {
    /// Networks of the two nodes, and of the waypoint between them.
    networks: [Pod; 2],
    middle: Option<Pod>,
    folder: PathBuf,
    /// The mesh's template, and its values except those that events change.
    mesh: String,
    values: Vec<(String, String)>,
}

impl NodeInputs {
    fn config(&self) -> PathBuf {
        self.folder.join("config")
    }

    fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// The mesh as it is to be now.
    fn write_mesh(&self, changes: &NodeChanges) -> Result<(), String> {
        let mut values = self.values.clone();
        let changing = changes.values();
        values.extend(changing.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let text = fill(&self.mesh, &values)?;
        crate::record_folder::write(&self.config().join("mesh.yaml"), &text)
    }

    /// The lab with the places of all that are started.
    fn inside<'a>(&self, pods: &CapturedPods, lab: &Lab<'a>) -> Lab<'a> {
        let place = |pod: &Pod| ProcessIsolation::new(pod.namespace.clone(), Privileges::NodeProxy);
        let [one, two] = &self.networks;
        let inside = pods.lab(lab);
        let inside = inside.with_places([(CLIENT_NODE, place(one)), (SERVER_NODE, place(two))]);
        match &self.middle {
            Some(pod) => inside.with_places([(WAYPOINT, pod.for_sidecar())]),
            None => inside,
        }
    }
}

impl RunningNodes {
    fn processes(&mut self) -> impl Iterator<Item = &mut SupervisedChild> {
        let nodes = self.nodes.iter_mut().map(|node| &mut node.process);
        let waypoint = self.waypoint.as_mut().map(|one| &mut one.process);
        let second = self.second.as_mut().map(|one| &mut one.echo);
        let first = nodes.chain(waypoint).chain(second);
        first.chain([&mut self.control])
    }
}

impl Nodes {
    pub(crate) fn new(program: Program) -> Self {
        let (name, prefix) = (program.name().to_owned(), program.prefix());
        Self::of(program, None, name, &prefix)
    }

    /// Voile's, with that waypoint between them: so waypoints differ and nothing else.
    pub(crate) fn around(before: WaypointProgram, name: &str) -> Self {
        let variant = match &before {
            WaypointProgram::Voile(variant) => variant.clone(),
            WaypointProgram::Envoy(_) => Variant::plain("voile"),
        };
        let prefix = format!("{name}-waypoint");
        let program = Program::Voile(variant);
        Self::of(program, Some(before), name.to_owned(), &prefix)
    }

    fn of(program: Program, before: Option<WaypointProgram>, name: String, prefix: &str) -> Self {
        let build = match &program {
            Program::Voile(variant) => variant.program.clone(),
            Program::Ztunnel(_) => None,
        };
        let mesh = Voile::variant(Variant {
            program: build,
            ..Variant::plain(prefix)
        });
        Self {
            name,
            program,
            before,
            mesh,
            running: None,
        }
    }

    /// Prefix of the process names, and name of the folder. Sidecars of the same program have another prefix.
    fn prefix(&self) -> String {
        match self.before {
            Some(_) => format!("{}-waypoint", self.name),
            None => self.program.prefix(),
        }
    }

    fn running(&self) -> Result<&RunningNodes, String> {
        let running = self.running.as_ref();
        running.ok_or_else(|| format!("{}'s node proxies do not run", self.name))
    }

    /// The mesh's template with its values.
    fn mesh(
        pods: &CapturedPods,
        nodes: &[Pod; 2],
        waypoint: Option<&Pod>,
        second: Option<&SecondServer>,
    ) -> (String, Vec<(String, String)>) {
        let mut values = vec![
            ("CLIENT_ADDRESS", pods.client().to_string()),
            ("SERVER_ADDRESS", pods.server().to_string()),
            ("CLIENT_NODE_ADDRESS", nodes[0].address.to_string()),
            ("SERVER_NODE_ADDRESS", nodes[1].address.to_string()),
            ("STAGE_ADDRESS", GATEWAY.to_string()),
            ("HTTP_PORT", HTTP_PORT.to_string()),
            ("GRPC_PORT", GRPC_PORT.to_string()),
            ("TCP_PORT", TCP_PORT.to_string()),
            ("SERVER_VIRTUAL", SERVER_VIRTUAL.to_string()),
            ("STAGE_VIRTUAL", STAGE_VIRTUAL.to_string()),
        ];
        let mut text = match waypoint {
            Some(pod) => {
                values.push(("WAYPOINT_ADDRESS", pod.address.to_string()));
                waypoint::mesh(MESH)
            }
            None => MESH.to_owned(),
        };
        if let Some(second) = second {
            values.push(("SECOND_ADDRESS", second.pod.address.to_string()));
            text = format!("{}\n{}", text.trim_end(), changes::SECOND_POD);
        }
        let values = values.into_iter();
        let values = values.map(|(name, value)| (name.to_owned(), value));
        (text, values.collect())
    }

    /// Starts the proxy of the client's node (the first) or of the server's node with its plan.
    fn planned<T>(
        &self,
        lab: &Lab<'_>,
        ground: &NodeInputs,
        (at, control): (usize, SocketAddr),
        start: impl FnOnce(&NodePlan<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let (node, role) = match at {
            0 => ("one", CLIENT_NODE),
            _ => ("two", SERVER_NODE),
        };
        let state = ground.state();
        let proxy = format!("node-{node}");
        let token = self.mesh.token(lab, &state, NODE_ACCOUNT, &proxy)?;
        let prefix = match self.before {
            Some(_) => format!("{}-node", self.prefix()),
            None => self.prefix(),
        };
        start(&NodePlan {
            prefix: &prefix,
            role,
            node,
            address: ground.networks[at].address,
            control,
            state: &state,
            token: &token,
            socket: &ground.folder.join(format!("{node}.zds")),
        })
    }

    /// Starts the waypoint, where there is one.
    fn start_between(
        &self,
        lab: &Lab<'_>,
        ground: &NodeInputs,
        server: IpAddr,
        control: SocketAddr,
    ) -> Result<Option<Waypoint>, String> {
        let (Some(before), Some(pod)) = (&self.before, &ground.middle) else {
            return Ok(None);
        };
        let told = waypoint::WaypointSettings {
            pod,
            control,
            state: &ground.state(),
            folder: &ground.folder,
            servers: [server, GATEWAY.into()],
            services: [SERVER_VIRTUAL, STAGE_VIRTUAL],
        };
        self.start_waypoint(lab, before, &told).map(Some)
    }

    /// Starts the waypoint between them, in its own pod.
    fn start_waypoint(
        &self,
        lab: &Lab<'_>,
        before: &WaypointProgram,
        told: &waypoint::WaypointSettings<'_>,
    ) -> Result<Waypoint, String> {
        let token = match before {
            WaypointProgram::Voile(_) => {
                let (account, pod) = (waypoint::ACCOUNT, waypoint::NAME);
                Some(self.mesh.token(lab, told.state, account, pod)?)
            }
            WaypointProgram::Envoy(_) => None,
        };
        before.start(lab, &self.prefix(), told, token.as_deref())
    }
}

impl Contestant for Nodes {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(network) = lab.network else {
            return Err(
                "node proxies enter their pods' network namespaces: measured in isolation \"netns\" only"
                    .to_owned(),
            );
        };
        let prefix = self.prefix();
        let folder = peers_folder(lab, &prefix)?;
        let config = folder.join("config");
        std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        let ports = Ports::captured()?;
        let echo = (&[HTTP_PORT][..], &[TCP_PORT][..]);
        let pods = CapturedPods::prepare(lab, network, &prefix, Redirection::Node, echo)?;
        // A proxy's own network is its node's.
        let own = || network.add_pod(&Rules::default());
        let networks = [own()?, own()?];
        let middle = self.before.as_ref().map(|_| own()).transpose()?;
        let second = lab
            .moves
            .then(|| SecondServer::start(lab, network, &prefix));
        let second = second.transpose()?;
        let (mesh, values) = Self::mesh(&pods, &networks, middle.as_ref(), second.as_ref());
        let ground = NodeInputs {
            networks,
            middle,
            folder,
            mesh,
            values,
        };
        let changes = NodeChanges::none();
        ground.write_mesh(&changes)?;
        let inside = ground.inside(&pods, lab);
        let (state, nodes) = (ground.state(), Some(NODE_ACCOUNT));
        let control = self
            .mesh
            .start_control(&inside, &config, &state, &ports, nodes)?;
        // `running` owns the processes from here on, so they end with it even if a later step fails.
        let mut running = RunningNodes {
            pods,
            control,
            ports,
            nodes: Vec::new(),
            waypoint: None,
            second,
            ground,
            changes,
        };
        let ready = Probe::Http(running.ports.monitoring(), "/ready".to_owned());
        lab.wait_ready(&mut running.control, &ready)?;
        let (client, server) = running.pods.networks();
        let of_node = |name: &str, inside| NodePod {
            name: name.to_owned(),
            account: if name == "client" { name } else { "server" }.to_owned(),
            inside,
        };
        let mut servers = vec![of_node("server", server)];
        let second = running.second.iter();
        servers.extend(second.map(|one| of_node(SECOND, one.pod.namespace.clone())));
        let control = running.ports.control();
        for (at, pods) in [vec![of_node("client", client)], servers]
            .into_iter()
            .enumerate()
        {
            let start =
                |plan: &NodePlan<'_>| StartedNode::start(&inside, &self.program, plan, pods);
            let node = self.planned(&inside, &running.ground, (at, control), start)?;
            running.nodes.push(node);
        }
        let server = running.pods.server();
        running.waypoint = self.start_between(&inside, &running.ground, server, control)?;
        self.running = Some(running);
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it was not started")?;
        let mut nodes = running.nodes.iter_mut();
        nodes.try_for_each(|node| node.wait_ready(lab))?;
        match &mut running.waypoint {
            Some(waypoint) => lab.wait_ready(&mut waypoint.process, &waypoint.ready),
            None => Ok(()),
        }
    }

    fn captures(&self) -> bool {
        true
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let running = self.running.as_ref().filter(|_| way.tls)?;
        let port = match way.protocol.as_str() {
            "tcp" => TCP_PORT,
            _ => HTTP_PORT,
        };
        // A port is declared to carry one protocol, and the waypoint obeys that declaration.
        let called = match (&running.waypoint, way.ports()) {
            (Some(_), "grpc") => GRPC_PORT,
            _ => port,
        };
        let service = (SERVER_VIRTUAL, called).into();
        let calls = Calls {
            service,
            direct: service,
            pod_port: HBONE,
            echo_port: port,
            direct_port: lab.server_hop(&way.protocol).address.port(),
            client_listener: OUTBOUND,
            server_listener: HBONE,
        };
        let mut route = running.pods.route(way, &calls)?;
        if let Some(waypoint) = &running.waypoint {
            route.hops.insert(1, waypoint.hop());
        }
        Some(route)
    }

    fn server(&self, way: &RequestPath) -> Option<Instance> {
        self.running.as_ref()?.pods.instance(way)
    }

    fn instances(&self, _way: &RequestPath) -> Vec<Instance> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let control = &running.control;
        let control = Instance::here(control.name().to_owned(), CONTROL, control.group_pids());
        let nodes = running.nodes.iter().map(StartedNode::instance);
        let waypoint = running.waypoint.as_ref().map(Waypoint::instance);
        nodes.chain(waypoint).chain([control]).collect()
    }

    fn counts_requests(&self, way: &RequestPath) -> bool {
        self.before.is_some() && way.protocol != "tcp"
    }

    /// A waypoint keeps connections of its own to the server's node, as many as its requests need at once.
    fn expected_of(&self, way: &RequestPath, role: &str, carried: GeneratorTraffic) -> Option<u64> {
        match role {
            WAYPOINT if self.counts_requests(way) => Some(carried.requests),
            SERVER_NODE if self.counts_requests(way) => None,
            _ => Some(carried.connections),
        }
    }

    fn counts(&self, way: &RequestPath) -> Counts {
        let running = self.running()?;
        let mut counts = BTreeMap::new();
        for node in &running.nodes {
            counts.insert(node.role, node.connections()?);
        }
        if let Some(waypoint) = &running.waypoint {
            counts.insert(WAYPOINT, waypoint.count(&way.protocol)?);
        }
        Ok(Some(counts))
    }

    /// The lab's server stands beside the lab, at the address of a declared third pod. It gets the opening of a tunnel.
    fn stage(&self, lab: &Lab<'_>, _way: &RequestPath) -> Result<Option<IdentityProbe>, String> {
        let running = self.running()?;
        let folder = lab.folder.join(self.prefix());
        let (client, _) = running.pods.networks();
        IdentityProbe::of_tunnel(&folder, (STAGE_VIRTUAL, HTTP_PORT).into(), client)
    }

    fn act(
        &mut self,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        changed(
            self,
            |one| &mut one.running,
            |one, running| one.change(running, lab, action, way),
        )
    }

    fn settle(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        changed(
            self,
            |one| &mut one.running,
            |one, running| one.make_good(running, lab),
        )?;
        self.ready(lab)
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it does not run")?;
        running.pods.alive(lab)?;
        for child in running.processes() {
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
            let waypoint = running.waypoint.as_ref().map(|one| &one.process);
            nodes.chain(waypoint).chain([&running.control])
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
        let mut terms = vec![
            "node proxies move bytes and read no HTTP, so connections are counted, not requests; one process per node, configured and certified by a live voile control; the lab is its agent (ZDS)"
                .to_owned(),
            who.to_owned(),
        ];
        terms.extend(self.before.as_ref().map(|before| before.terms().to_owned()));
        terms
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            stop_all(running.processes(), STOP_GRACE);
            running.pods.stop();
        }
    }
}

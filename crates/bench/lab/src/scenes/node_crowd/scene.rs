//! A crowd of pods on one node, a server on another, and the figures of the proxies between them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use voile_host::child::{SupervisedChild, stop_all};
use voile_host::isolation::{Privileges, ProcessIsolation};
use voile_host::netns::Namespace;
use voile_host::netns::rules::{NodeCapture, Rules};
use voile_host::sampler::{ProcessResources, Usage};
use voile_report::record::Record;

use super::NodeCrowdSettings;
use super::calls::{call, open, percentile, schedule};
use crate::checks::pace;
use crate::contestants::programs::nodes::agent::NodePod;
use crate::contestants::programs::nodes::{NODE_ACCOUNT, NodePlan, Program, StartedNode};
use crate::control_plane::Progress;
use crate::machine::instance::{CLIENT_NODE, SERVER_NODE};
use crate::network::Echo;
use crate::network::{GATEWAY, Network, Pod, TCP_PORT};
use crate::shared_processes::{Lab, STOP_GRACE, TCP};
use crate::sidecars::control::{Control, port};
use crate::sidecars::{megabytes, rest};

/// Virtual address of the server.
const VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 1));
/// After that a process has put away what it needed only for a moment: ours does it at most every five seconds.
const SETTLE: Duration = Duration::from_secs(8);
/// Deadline until a new pod is served.
const JOIN_BOUND: Duration = Duration::from_secs(10);
/// Figures that were asked for, of Voile's: a proxy's memory with its workloads, and how soon a new one is served.
const ASKED_MB: f64 = 12.0;
const ASKED_JOIN_MS: f64 = 50.0;

/// See the module.
pub(super) struct NodeCrowdScene<'a> {
    settings: &'a NodeCrowdSettings,
    lab: &'a Lab<'a>,
    name: &'a str,
    clients: Vec<NodePod>,
    /// Pods that no proxy knows yet.
    later: Vec<NodePod>,
    one: StartedNode,
    two: StartedNode,
}

/// The rules of a pod that a node's proxy serves.
fn served() -> Rules {
    Rules {
        node: Some(NodeCapture::default()),
        ..Rules::default()
    }
}

impl NodeCrowdScene<'_> {
    /// Sets it up, measures, and ends it, also where something fails.
    pub(super) fn run(
        settings: &NodeCrowdSettings,
        program: &Program,
        scratch: &Path,
        stopped: &dyn Fn() -> bool,
        measure: impl FnOnce(&mut NodeCrowdScene<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let network = Network::create(TCP)?;
        let _visit = network.visit()?;
        let lab = Lab {
            workers: settings.workers,
            network: Some(&network),
            ..Lab::on_loopback(&settings.voile, scratch, Echo::NOWHERE, stopped)
        };
        let in_pod = || network.add_pod(&served());
        let number = settings.workloads + settings.joins;
        let clients: Vec<Pod> = (0..number).map(|_| in_pod()).collect::<Result<_, _>>()?;
        let server = in_pod()?;
        let own = || network.add_pod(&Rules::default());
        let nodes = [own()?, own()?];
        let config = scratch.join("config");
        std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        let text = resources(&clients, &server, &nodes);
        crate::record_folder::write(&config.join("mesh.yaml"), &text)?;
        let tls = port(GATEWAY.into())?;
        let node_account = ["--node-account", NODE_ACCOUNT].map(str::to_owned);
        let place = Some(network.for_control());
        let mut control = Control::start(&lab, "control", &config, tls, place, &node_account)?;
        let mut echo = lab.start_pod_echo(&network, &server, "echo", (&[], &[TCP_PORT]), &[])?;
        let place = |pod: &Pod| ProcessIsolation::new(pod.namespace.clone(), Privileges::NodeProxy);
        let inside = lab.with_places([
            (CLIENT_NODE, place(&nodes[0])),
            (SERVER_NODE, place(&nodes[1])),
        ]);
        let mut told: Vec<NodePod> = clients.iter().enumerate().map(client).collect();
        let later = told.split_off(settings.workloads as usize);
        let server = NodePod {
            name: "server".to_owned(),
            account: "server".to_owned(),
            inside: server.namespace,
        };
        let start = |role, node: &str, own: &Pod, pods: Vec<NodePod>| {
            let proxy = format!("node-{node}");
            let token = control.token_of(&lab, NODE_ACCOUNT, Some(&proxy))?;
            let plan = NodePlan {
                prefix: &program.prefix(),
                role,
                node,
                address: own.address,
                control: control.tls,
                state: &control.state,
                token: &token,
                socket: &scratch.join(format!("{node}.zds")),
            };
            StartedNode::start(&inside, program, &plan, pods)
        };
        let measured = start(CLIENT_NODE, "one", &nodes[0], told.clone()).and_then(|one| {
            let two = start(SERVER_NODE, "two", &nodes[1], vec![server])?;
            let mut scene = NodeCrowdScene {
                settings,
                lab: &lab,
                name: program.name(),
                clients: told,
                later,
                one,
                two,
            };
            let measured = scene.ready().and_then(|()| measure(&mut scene));
            let nodes = [&mut scene.one.process, &mut scene.two.process];
            stop_all(nodes, STOP_GRACE);
            measured
        });
        stop_all([&mut echo, &mut control.child], STOP_GRACE);
        measured
    }

    fn ready(&mut self) -> Result<(), String> {
        self.one.wait_ready(self.lab)?;
        self.two.wait_ready(self.lab)
    }

    fn service() -> SocketAddr {
        SocketAddr::new(VIRTUAL, TCP_PORT)
    }

    fn namespaces(&self) -> Vec<Namespace> {
        self.clients.iter().map(|pod| pod.inside.clone()).collect()
    }

    fn what(&self, what: &str) -> String {
        format!("{}, {what}", self.name)
    }

    /// Required bounds apply to Voile only.
    fn asked(&self, bound: f64) -> Option<f64> {
        (self.name == "voile").then_some(bound)
    }

    fn held(child: &SupervisedChild) -> ProcessResources {
        ProcessResources::of_all(&child.group_pids())
    }

    /// Memory with all pods, and with a few connections of each.
    pub(super) fn memory(
        &mut self,
        record: &mut Record,
        progress: &Progress<'_>,
    ) -> Result<(), String> {
        progress.say(&self.what("memory"));
        let workloads = self.settings.workloads;
        let each = self.settings.each;
        rest(SETTLE, self.lab.stopped)?;
        let before = Self::held(&self.one.process);
        let open = open(&self.namespaces(), each, Self::service())?;
        rest(SETTLE, self.lab.stopped)?;
        let (one, two) = (Self::held(&self.one.process), Self::held(&self.two.process));
        let what = self.what(&format!("{workloads} workloads"));
        let rss = megabytes(before.rss_bytes);
        record.add(
            &what,
            "RSS of their proxy, no connection",
            (rss, "MB"),
            None,
        );
        let what = format!("{what}, {each} connections each");
        let rss = (megabytes(one.rss_bytes), "MB");
        let asked = self
            .asked(ASKED_MB)
            .filter(|_| workloads <= 100 && each <= 10);
        record.add(&what, "RSS of their proxy", rss, asked);
        let rss = (megabytes(two.rss_bytes), "MB");
        record.add(&what, "RSS of the server's node's proxy", rss, None);
        let grown = one.pss_bytes.saturating_sub(before.pss_bytes);
        let bytes = grown as f64 / 1e3 / open.len().max(1) as f64;
        record.add(
            &what,
            "PSS for each, first ones included",
            (bytes, "kB"),
            None,
        );
        Ok(())
    }

    /// As many connections through one proxy as descriptors allow.
    pub(super) fn many(
        &mut self,
        record: &mut Record,
        connections: u32,
        progress: &Progress<'_>,
    ) -> Result<(), String> {
        let each = connections / self.settings.workloads.max(1);
        if each == 0 {
            return Ok(());
        }
        progress.say(&self.what("many connections"));
        rest(SETTLE, self.lab.stopped)?;
        let before = Self::held(&self.one.process);
        let began = Instant::now();
        let open = open(&self.namespaces(), each, Self::service())?;
        let took = began.elapsed().as_secs_f64();
        rest(SETTLE, self.lab.stopped)?;
        let (one, two) = (Self::held(&self.one.process), Self::held(&self.two.process));
        let what = self.what("connections at once");
        let number = open.len() as f64;
        record.add(&what, "open, each answered once", (number, ""), None);
        record.add(&what, "until all were open", (took, "s"), None);
        for (held, whose) in [(&one, "their proxy"), (&two, "the server's node's proxy")] {
            let rss = (megabytes(held.rss_bytes), "MB");
            record.add(&what, &format!("RSS of {whose}"), rss, None);
        }
        let grown = one.pss_bytes.saturating_sub(before.pss_bytes) as f64;
        record.add(&what, "PSS for each", (grown / 1e3 / number, "kB"), None);
        Ok(())
    }

    /// New connections by the thousand a second, from all pods' addresses.
    pub(super) fn new_ones(
        &mut self,
        record: &mut Record,
        progress: &Progress<'_>,
    ) -> Result<(), String> {
        let (rate, time) = (self.settings.rate, self.settings.rate_for);
        if time.is_zero() {
            return Ok(());
        }
        progress.say(&self.what("new connections"));
        rest(SETTLE, self.lab.stopped)?;
        let nodes = [&self.one, &self.two];
        let usage = || nodes.map(|node| Usage::of_all(&node.process.group_pids()));
        let before = usage();
        let came = schedule(&self.namespaces(), rate, time, Self::service());
        let after = usage();
        let pods = self.clients.len();
        let what = self.what(&format!(
            "{rate} new connections a second from {pods} addresses"
        ));
        let lost = (came.failed + came.undone) as f64;
        record.add(&what, "failed or never begun", (lost, ""), self.asked(0.0));
        for (share, word) in [(0.5, "p50"), (0.99, "p99")] {
            if let Some(ms) = percentile(&came.ms, share) {
                let measure = format!("from due to the first answer, {word}");
                record.add(&what, &measure, (ms, "ms"), None);
            }
        }
        let number = came.ms.len().max(1) as f64;
        for ((before, after), whose) in before
            .into_iter()
            .zip(after)
            .zip(["their proxy", "the server's node's proxy"])
        {
            let each = after.since(before).cpu_ns as f64 / 1e3 / number;
            let measure = format!("CPU of {whose} for each");
            record.add(&what, &measure, (each, "µs"), None);
        }
        Ok(())
    }

    /// Pods that come one after the other: from the agent's word to the first byte back over mutual TLS by their identity.
    pub(super) fn joins(
        &mut self,
        record: &mut Record,
        progress: &Progress<'_>,
    ) -> Result<(), String> {
        let mut ms = Vec::new();
        for pod in std::mem::take(&mut self.later) {
            progress.say(&self.what("new workloads"));
            if (self.lab.stopped)() {
                return Err(crate::control_plane::INTERRUPTED.to_owned());
            }
            let (inside, began) = (pod.inside.clone(), Instant::now());
            self.one.agent.add(pod);
            let answered = || loop {
                match call(Self::service()) {
                    Ok(_) => return Ok(began.elapsed().as_secs_f64() * 1e3),
                    Err(why) if began.elapsed() > JOIN_BOUND => return Err(why.to_string()),
                    Err(_) => pace(),
                }
            };
            let entered = inside.run(answered).map_err(|e| e.to_string())?;
            ms.push(entered.map_err(|why| format!("a new pod is not served: {why}"))?);
        }
        ms.sort_by(f64::total_cmp);
        let what = self.what(&format!("{} new workloads, one after the other", ms.len()));
        for (share, word) in [(0.5, "p50"), (0.9, "p90")] {
            if let Some(ms) = percentile(&ms, share) {
                let measure = format!("to the first byte with its identity, {word}");
                record.add(&what, &measure, (ms, "ms"), None);
            }
        }
        if let Some(slowest) = ms.last() {
            let measure = "to the first byte with its identity, the slowest";
            record.add(&what, measure, (*slowest, "ms"), self.asked(ASKED_JOIN_MS));
        }
        Ok(())
    }
}

fn client((number, pod): (usize, &Pod)) -> NodePod {
    let name = format!("client-{number}");
    NodePod {
        account: name.clone(),
        name,
        inside: pod.namespace.clone(),
    }
}

/// The mesh: every client has an account, and so a certificate, of its own.
fn resources(clients: &[Pod], server: &Pod, nodes: &[Pod; 2]) -> String {
    let pod = |namespace: &str, name: &str, account: &str, node: &str, address: IpAddr| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}\n\
             spec: {{serviceAccountName: {account}, nodeName: {node}, containers: [{{name: app, image: none}}]}}\n\
             status: {{phase: Running, podIP: {address}}}\n"
        )
    };
    let account = |namespace: &str, name: &str| {
        format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
        )
    };
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: lab, labels: {{istio.io/dataplane-mode: ambient}}}}\n\
         ---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: all, namespace: lab}}\n\
         spec: {{mtls: {{mode: STRICT}}}}\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {{name: server, namespace: lab}}\n\
         spec: {{clusterIP: {VIRTUAL}, selector: {{app: server}}, ports: [{{name: tcp, port: {TCP_PORT}, targetPort: {TCP_PORT}}}]}}\n"
    );
    for (number, client) in clients.iter().enumerate() {
        let name = format!("client-{number}");
        text += &account("lab", &name);
        text += &pod("lab", &name, &name, "one", client.address);
    }
    text += &account("lab", "server");
    text += &account("istio-system", "node-proxy");
    text += &pod("lab", "server", "server", "two", server.address);
    for (node, own) in ["one", "two"].into_iter().zip(nodes) {
        let name = format!("node-{node}");
        text += &pod("istio-system", &name, "node-proxy", node, own.address);
    }
    text
}

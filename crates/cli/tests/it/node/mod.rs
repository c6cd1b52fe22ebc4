//! Node proxies in networks of their own: handed their pods by an agent's socket as Istio's CNI agent does it, certificates in
//! the pods' names, tunnels of mutual TLS between them. Without namespaces tests say so and are skipped.

mod early_answers;
mod ending;
mod everything;
mod handover;
mod hostile;
mod introduced;
mod migration;
mod mixed;
mod named;
mod names;
mod nearby;
mod networks;
mod once_more;
mod peers;
mod revoked;
mod scenarios;
mod up;
mod waypoint;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use voile_host::netns::Namespace;
use voile_host::netns::rules::{NodeCapture, Rules};

use crate::captured::{listen, local};
use crate::mesh::{Process, get, memory, wait_until};
use crate::ztunnel::node::{Agent, ZTUNNEL};
use crate::ztunnel::{
    APPLICATION, CLIENT, DENIED, FIRST, Mesh, Pod, SECOND, STRICT, VIP, WORLD, XDS, answers, name,
    resources, serve,
};

/// The proxy of one node, and its agent.
pub(crate) struct Node {
    pub(crate) agent: Agent,
    pub(crate) process: &'static str,
    /// Its pages are at 15000, 15020 and 15021, so much higher.
    higher: u16,
}

/// A mesh with node proxies; the socket's folder is its own.
pub(crate) fn mesh(text: &str) -> Option<Mesh> {
    mesh_of(text, &[])
}

/// Service account of node proxies, for the control plane.
const NODE_ACCOUNT: [&str; 2] = ["--node-account", "istio-system/ztunnel"];

/// The same of a control plane with these options.
fn mesh_of(text: &str, more: &[&str]) -> Option<Mesh> {
    let options = [&NODE_ACCOUNT, more].concat();
    Mesh::start_with(PathBuf::from(env!("CARGO_BIN_EXE_voile")), text, &options)
}

/// The same under the authority of another mesh.
pub(crate) fn mesh_trusting(text: &str, other: &Mesh) -> Option<Mesh> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_voile"));
    Mesh::start_trusting(program, text, &NODE_ACCOUNT, Some(other))
}

/// The same words for node `two`.
fn second_ztunnel() -> String {
    ZTUNNEL
        .replace("ztunnel-one", "ztunnel-two")
        .replace("nodeName: one", "nodeName: two")
}

/// Socket of this proxy's agent.
fn socket(mesh: &Mesh, process: &str) -> PathBuf {
    mesh.folder.path().join(format!("{process}.zds"))
}

/// These servers, the first of them on node `two`, and a proxy for each node.
fn on_two_nodes(servers: &[(&str, Ipv4Addr)]) -> String {
    let text = resources(servers) + ZTUNNEL + &second_ztunnel();
    let server = format!("name: {}", servers[0].0);
    let (before, after) = text.split_once(&server).expect("the server's pod");
    let after = after.replacen("nodeName: one", "nodeName: two", 1);
    format!("{before}{server}{after}")
}

pub(crate) fn pod(mesh: &Mesh, name: &'static str, address: Ipv4Addr) -> Pod {
    let rules = Rules {
        node: Some(NodeCapture::default()),
        ..Rules::default()
    };
    mesh.pod_with(name, address, rules)
}

/// The pod that a Gateway of this name is, at this address, and its account of the same name.
fn gate_pod(namespace: &str, name: &str, address: Ipv4Addr) -> String {
    format!(
        r#"---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: {namespace}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  labels: {{gateway.networking.k8s.io/gateway-name: {name}, sidecar.istio.io/inject: "true"}}
  annotations: {{inject.istio.io/templates: waypoint}}
spec:
  serviceAccountName: {name}
  nodeName: one
  containers: [{{name: istio-proxy, image: auto}}]
status: {{phase: Running, podIP: {address}}}
"#
    )
}

/// A waypoint of the shop, and its pod.
fn waypoint_pod(name: &str, address: Ipv4Addr) -> String {
    let gateway = format!(
        r#"---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: shop}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]
"#
    );
    gateway + &gate_pod("shop", name, address)
}

impl Node {
    /// Starts it in the world, and tells it of these pods.
    pub(crate) fn start(
        mesh: &mut Mesh,
        process: &'static str,
        higher: u16,
        pods: &[(&Pod, &str)],
        more: &[&str],
    ) -> Self {
        let agent = Agent::listen(&socket(mesh, process));
        let started = Self::launch(mesh, &mesh.world, (process, higher), more);
        mesh.processes.push(started);
        let mut node = Self {
            agent,
            process,
            higher,
        };
        node.tell(pods);
        wait_until("the node proxy is ready", || node.is_ready(mesh));
        node
    }

    /// Takes the greeting of one that was started, and tells it of these pods.
    pub(crate) fn tell(&mut self, pods: &[(&Pod, &str)]) {
        self.agent.greet();
        for (pod, account) in pods {
            self.agent.add(pod, account);
        }
        self.agent.complete();
    }

    /// A process, in this network. By default it subscribes on demand.
    pub(crate) fn launch(
        mesh: &Mesh,
        network: &Namespace,
        (process, higher): (&'static str, u16),
        more: &[&str],
    ) -> Process {
        let token = mesh.token("istio-system/ztunnel", process);
        let root = mesh.folder.path().join("state/root-cert.pem");
        let node = process
            .strip_prefix("ztunnel-")
            .expect("so they are called");
        let start = || {
            Process::start(process, |voile| {
                voile.args(["proxy", "--role", "node", "--node", node]);
                voile.args(["--workload", &format!("istio-system/{process}")]);
                voile.arg("--agent").arg(socket(mesh, process));
                voile.args(["--control", &format!("https://{WORLD}:{}", mesh.asked)]);
                if !more.contains(&"--subscribe") {
                    voile.args(["--subscribe", "on-demand"]);
                }
                voile.arg("--root-cert").arg(&root);
                voile.arg("--token-file").arg(&token);
                let pages = [
                    ("--admin", 15000, Ipv4Addr::LOCALHOST),
                    ("--metrics", 15020, Ipv4Addr::UNSPECIFIED),
                    ("--readiness", 15021, Ipv4Addr::LOCALHOST),
                ];
                for (option, port, at) in pages {
                    let at = SocketAddr::from((at, port + higher));
                    voile.args([option, &at.to_string()]);
                }
                voile.args(more);
            })
        };
        network.run(start).expect("entered")
    }

    pub(crate) fn is_ready(&self, mesh: &Mesh) -> bool {
        let page = || get(local(15021 + self.higher), "/healthz/ready");
        matches!(mesh.world.run(page), Ok(Ok(answer)) if answer.status == 200)
    }

    pub(crate) fn metrics(&self, mesh: &Mesh) -> String {
        let page = || get(local(15020 + self.higher), "/metrics");
        let answer = mesh.world.run(page).expect("entered").expect("metrics");
        String::from_utf8(answer.body).expect("text")
    }

    /// The value of the first series that begins so.
    pub(crate) fn counter(&self, mesh: &Mesh, series: &str) -> u64 {
        let page = self.metrics(mesh);
        let line = page.lines().find(|line| line.starts_with(series));
        let value = line.and_then(|line| line.rsplit(' ').next());
        value
            .and_then(|value| value.parse::<f64>().ok())
            .unwrap_or(0.0) as u64
    }

    fn running<'a>(&self, mesh: &'a Mesh) -> &'a Process {
        let mut all = mesh.processes.iter();
        let found = all.find(|process| process.name() == self.process);
        found.expect("it was started")
    }

    pub(crate) fn log(&self, mesh: &Mesh) -> String {
        self.running(mesh).log()
    }
}

/// Both identities, as the receiving proxy tells of one connection.
fn is_told(log: &str, direction: &str) -> bool {
    log.lines().any(|line| {
        line.contains("connection complete")
            && line.contains(&format!("direction=\"{direction}\""))
            && line.contains("spiffe://cluster.local/ns/shop/sa/client")
            && line.contains("spiffe://cluster.local/ns/shop/sa/server")
    })
}

/// Returns true if the server's side counts connections to `first` by the client's identity.
fn is_counted(metrics: &str) -> bool {
    metrics.lines().any(|line| {
        line.starts_with("istio_tcp_connections_opened_total{")
            && line.contains("reporter=\"destination\"")
            && line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"")
            && line.contains("destination_workload=\"first\"")
            && line.contains("connection_security_policy=\"mutual_tls\"")
    })
}

/// Checks that must hold for pods of one node and of two.
fn carries(mesh: &Mesh, (client, calling): (&Pod, &Node), called: &Node) {
    let service = SocketAddr::from((VIP, 80));
    let direct = SocketAddr::from((FIRST, APPLICATION));
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
    assert_eq!(name(&client.inside, direct).as_deref(), Some("first"));
    wait_until(
        "the server's side counts it by its client's identity",
        || is_counted(&called.metrics(mesh)),
    );
    wait_until("both sides tell of both identities", || {
        is_told(&calling.log(mesh), "outbound") && is_told(&called.log(mesh), "inbound")
    });

    // Plaintext, until it is refused: by a PeerAuthentication alone.
    assert_eq!(name(&mesh.world, direct).as_deref(), Some("first"));
    mesh.write("strict.yaml", STRICT);
    wait_until("plaintext is refused", || {
        name(&mesh.world, direct).is_none()
    });
    let (said, mut open) = answers(&client.inside, service).expect("who has an identity may");
    assert_eq!(said, "first");
    open.write_all(b"hello\n").expect("open");
    let mut echo = [0; 6];
    open.read_exact(&mut echo).expect("repeated");
    assert_eq!(&echo, b"hello\n");

    // A policy takes hold of new connections and of those that are open.
    mesh.write("deny.yaml", DENIED);
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    let cut = open.read(&mut [0; 16]);
    let reset = cut.expect_err("the open connection is cut, and does not look finished");
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(
        name(&client.inside, service),
        None,
        "nor is there a new one"
    );
    mesh.remove("deny.yaml");
    wait_until("what was cut and what was refused are told alike", || {
        let log = called.log(mesh);
        let denied = log.lines().filter(|line| {
            line.contains("connection complete")
                && line.contains("direction=\"inbound\"")
                && line.contains("response_flags=\"DENY\"")
        });
        denied.count() >= 2
    });
    wait_until("the policy is gone", || {
        name(&client.inside, service).as_deref() == Some("first")
    });
    assert!(called.counter(mesh, "voile_node_cut_total") >= 1);
}

#[test]
fn two_pods_of_one_node_speak_by_their_own_identities_under_policy() {
    let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL)) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    carries(&mesh, (&client, &node), &node);
    let pooled = node.counter(&mesh, "voile_node_pooled_tunnels");
    assert_eq!(pooled, 0, "what stays on the node takes the short way");
    let control = mesh.processes[0].log();
    for account in ["client", "server"] {
        let identity = format!("spiffe://cluster.local/ns/shop/sa/{account}");
        let issued = control.lines().filter(|line| {
            line.contains("certificate issued")
                && line.contains(&identity)
                && line.contains("ns/istio-system/sa/ztunnel")
        });
        assert_eq!(issued.count(), 1, "{control}");
    }
}

#[test]
fn a_pod_of_the_node_whose_certificate_is_late_is_waited_for_and_called_the_short_way() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let pods = [(&client, "client")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    node.agent.add(&first, "server");
    wait_until("its certificate is refused", || {
        node.log(&mesh)
            .contains("no workload of spiffe://cluster.local/ns/shop/sa/server is declared")
    });
    std::thread::scope(|scope| {
        let called = scope.spawn(|| name(&client.inside, (VIP, 80)));
        mesh.write("mesh.yaml", &(resources(&[("first", FIRST)]) + ZTUNNEL));
        assert_eq!(called.join().expect("called").as_deref(), Some("first"));
    });
    let pooled = node.counter(&mesh, "voile_node_pooled_tunnels");
    assert_eq!(pooled, 0, "what stays on the node takes the short way");
}

#[test]
fn pods_of_two_nodes_speak_through_both_node_proxies() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    carries(&mesh, (&client, &one), &two);
    assert!(one.counter(&mesh, "voile_node_pooled_tunnels") > 0);
    // A node's token is good for its own node's pods alone.
    let elsewhere = pod(&mesh, "second", SECOND);
    one.agent.add(&elsewhere, "server");
    wait_until("the certificate is refused", || {
        one.log(&mesh)
            .contains("no workload of spiffe://cluster.local/ns/shop/sa/server is declared")
    });
}

#[test]
fn much_at_a_time_comes_whole_and_in_order_through_a_tunnel() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let _one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let _two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    // More than all windows and buffers on the way hold, and no whole number of records.
    let all: Vec<u8> = (0..24_000_007_u32)
        .map(|index| (index / 251) as u8)
        .collect();
    let sent = all.clone();
    let listener = listen(&first.inside, (FIRST, APPLICATION));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).expect("all of it");
        stream.write_all(&heard).expect("as much back");
    });
    let connected = client.inside.run(|| TcpStream::connect((VIP, 80)));
    let mut stream = connected.expect("entered").expect("a server");
    let mut answers = stream.try_clone().expect("the same");
    let reading = std::thread::spawn(move || {
        let mut heard = Vec::new();
        answers.read_to_end(&mut heard).map(|_| heard)
    });
    stream.write_all(&sent).expect("taken");
    stream.shutdown(Shutdown::Write).expect("open");
    let heard = reading.join().expect("read").expect("all of it");
    assert!(heard == all, "{} bytes of {}", heard.len(), all.len());
    server.join().expect("served");
}

#[test]
fn what_a_node_proxy_needed_only_to_begin_goes_back_to_the_kernel() {
    let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL)) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    let pid = node.running(&mesh).pid();
    let is_small = || memory(pid, "VmRSS:") * 2 < memory(pid, "VmHWM:");
    wait_until("most of the program is let go", is_small);
    assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), Some("first"));
    wait_until("and what the connection needed of it", is_small);
}

#[test]
fn an_application_sees_its_clients_address_where_that_is_wished() {
    let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL)) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let listener = listen(&first.inside, (FIRST, APPLICATION));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let from = stream.peer_addr().expect("a peer").ip();
            // The client may have left.
            let _ = stream.write_all(format!("{from}\n").as_bytes());
        }
    });
    let pods = [(&client, "client"), (&first, "server")];
    let _node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &["--keep-source"]);
    let seen = name(&client.inside, (VIP, 80));
    assert_eq!(seen, Some(CLIENT.to_string()), "through a tunnel");
    let seen = name(&mesh.world, (FIRST, APPLICATION));
    assert_eq!(seen, Some(WORLD.to_string()), "in plaintext");
}

#[test]
fn a_node_proxy_says_what_it_may_not_and_what_means_nothing_to_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "x").expect("a token");
    for (words, wanted) in [
        (
            &["--dns", "127.0.0.1:0"][..],
            "--dns has no effect with --role node",
        ),
        (
            &["--capture", "redirect"],
            "--capture has no effect with --role node",
        ),
        (
            &["--max-requests", "5"],
            "--max-requests has no effect with --role node",
        ),
        (&["--workers", "0"], "0 workers"),
    ] {
        let output = Process::output(|voile| {
            voile.args([
                "proxy",
                "--role",
                "node",
                "--workload",
                "a/b",
                "--root-cert",
                "x",
            ]);
            voile.arg("--token-file").arg(&token).args(words);
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}

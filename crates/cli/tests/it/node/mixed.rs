//! Pods without a proxy, with a sidecar, and served by a node proxy, in one mesh. Each calls each; between proxies mutual
//! TLS carries both identities, for any two kinds of proxy. docs/reference/node.md promises the same table.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use voile_host::netns::Namespace;
use voile_host::netns::rules::{PodCapture, Rules};

use super::{Node, mesh, pod};
use crate::captured::{listen, local};
use crate::mesh::{Process, get, wait_until};
use crate::ztunnel::node::ZTUNNEL;
use crate::ztunnel::{APPLICATION, Mesh, Pod, STRICT, WORLD, XDS, answers, name, serve};

/// Port of the applications' HTTP.
const HTTP: u16 = 8081;

/// Capture of a pod's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    None,
    Sidecar,
    Node,
}

const KINDS: [Kind; 3] = [Kind::None, Kind::Sidecar, Kind::Node];

impl Kind {
    /// Its client and its server.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::None => ["none-client", "none-server"],
            Self::Sidecar => ["side-client", "side-server"],
            Self::Node => ["node-client", "node-server"],
        }
    }

    fn labels(self) -> &'static str {
        match self {
            Self::None => "sidecar.istio.io/inject: \"false\"",
            Self::Sidecar => {
                "sidecar.istio.io/inject: \"true\"\n    networking.istio.io/tunnel: http"
            }
            Self::Node => "istio.io/dataplane-mode: ambient",
        }
    }

    fn address(self, server: bool) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, 1, 2 * self as u8 + u8::from(server))
    }

    fn service(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96, 1, self as u8)
    }

    /// Address at which a client of the other kind calls its server. Without a proxy nothing translates a service's
    /// address.
    fn called_by(self, client: Kind, port: u16) -> SocketAddr {
        match client {
            Self::None => (self.address(true), port).into(),
            _ => (self.service(), port).into(),
        }
    }
}

fn identity(name: &str) -> String {
    format!("spiffe://cluster.local/ns/shop/sa/{name}")
}

fn words() -> String {
    let mut text = String::from("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n");
    for kind in KINDS {
        for (name, server) in kind.names().into_iter().zip([false, true]) {
            text += &format!(
                "---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {name}\n  namespace: shop\n\
                 ---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: shop\n  labels:\n    app: {name}\n    {}\n\
                 spec:\n  serviceAccountName: {name}\n  nodeName: one\n  containers:\n  - name: app\nstatus:\n  phase: Running\n  \
                 podIP: {}\n",
                kind.labels(),
                kind.address(server),
            );
        }
        let [_, name] = kind.names();
        text += &format!(
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: shop\nspec:\n  clusterIP: {}\n  \
             selector:\n    app: {name}\n  ports:\n  - name: tcp\n    port: {APPLICATION}\n  - name: http\n    port: {HTTP}\n",
            kind.service()
        );
    }
    text + ZTUNNEL
}

/// An application that answers requests by its name.
fn answer(pod: &Pod, address: Ipv4Addr) {
    let listener = listen(&pod.inside, (address, HTTP));
    let name = pod.name;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(1..) = stream.read(&mut bytes) {
                    let length = name.len();
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{name}");
                    if stream.write_all(head.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// Status and body.
pub(super) fn asked(from: &Namespace, to: SocketAddr) -> (u16, String) {
    match from.run(|| get(to, "/")).expect("entered") {
        Ok(answer) => (
            answer.status,
            String::from_utf8_lossy(&answer.body).into_owned(),
        ),
        Err(_) => (0, String::new()),
    }
}

/// A running mesh of all kinds.
struct Stage {
    mesh: Mesh,
    node: Node,
    clients: Vec<Pod>,
    servers: Vec<Pod>,
}

/// Starts a sidecar in its pod, whose account has its name.
pub(super) fn sidecar(mesh: &mut Mesh, pod: &Pod) {
    sidecar_of(mesh, pod, pod.name);
}

/// The same of a pod with this account.
pub(super) fn sidecar_of(mesh: &mut Mesh, pod: &Pod, account: &str) {
    let who = format!("shop/{}", pod.name);
    let token = mesh.token(&format!("shop/{account}"), pod.name);
    let root = mesh.folder.path().join("state/root-cert.pem");
    let start = || {
        Process::start(pod.name, |voile| {
            voile.args(["proxy", "--workload", &who, "--capture", "redirect"]);
            voile.args(["--control", &format!("https://{WORLD}:{XDS}")]);
            voile.arg("--root-cert").arg(&root);
            voile.arg("--token-file").arg(&token);
            voile.args(["--log-level", "voile_proxy=debug"]);
        })
    };
    let process = pod.inside.run(start).expect("entered");
    mesh.processes.push(process);
    wait_until("a sidecar is ready", || {
        let ready = pod.inside.run(|| get(local(15021), "/healthz/ready"));
        matches!(ready, Ok(Ok(answer)) if answer.status == 200)
    });
}

impl Stage {
    fn start() -> Option<Self> {
        let mut mesh = mesh(&words())?;
        let [mut clients, mut servers] = [Vec::new(), Vec::new()];
        for kind in KINDS {
            for (name, server) in kind.names().into_iter().zip([false, true]) {
                let address = kind.address(server);
                let made = match kind {
                    Kind::Node => pod(&mesh, name, address),
                    Kind::None => mesh.pod_with(name, address, Rules::default()),
                    Kind::Sidecar => {
                        let rules = Rules {
                            capture: Some(PodCapture {
                                control: vec![(WORLD, XDS).into()],
                                ..PodCapture::default()
                            }),
                            ..Rules::default()
                        };
                        let made = mesh.pod_with(name, address, rules);
                        sidecar(&mut mesh, &made);
                        made
                    }
                };
                match server {
                    true => {
                        serve(&made, address);
                        answer(&made, address);
                        servers.push(made);
                    }
                    false => clients.push(made),
                }
            }
        }
        let both = [&clients[2], &servers[2]];
        let pods = both.map(|pod| (pod, pod.name));
        let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
        Some(Self {
            mesh,
            node,
            clients,
            servers,
        })
    }

    fn client(&self, kind: Kind) -> &Namespace {
        &self.clients[kind as usize].inside
    }

    /// Reports if the server answers by bytes, and in HTTP.
    fn reaches(&self, from: Kind, to: Kind) -> (bool, bool) {
        let [_, server] = to.names();
        let said = name(self.client(from), to.called_by(from, APPLICATION));
        let (status, body) = asked(self.client(from), to.called_by(from, HTTP));
        let answered = (status, body.as_str()) == (200, server);
        (said.as_deref() == Some(server), answered)
    }

    /// Metrics of the proxy that accepts the server's connections.
    fn counted(&self, server: Kind) -> String {
        match server {
            Kind::Node => self.node.metrics(&self.mesh),
            _ => {
                let inside = &self.servers[server as usize].inside;
                let answer = inside.run(|| get(local(15020), "/metrics"));
                let answer = answer.expect("entered").expect("metrics");
                String::from_utf8(answer.body).expect("text")
            }
        }
    }
}

/// Returns true if a connection may pass while all workloads require mutual TLS. A client without a proxy has no identity, and
/// a server without a proxy demands none.
fn may(from: Kind, to: Kind) -> bool {
    to == Kind::None || from != Kind::None
}

#[test]
fn pods_with_a_sidecar_with_a_node_proxy_and_without_call_each_other_in_all_directions() {
    let Some(stage) = Stage::start() else {
        return;
    };
    let table = || {
        KINDS
            .into_iter()
            .flat_map(|from| KINDS.map(|to| (from, to)))
    };
    for (from, to) in table() {
        assert_eq!(
            stage.reaches(from, to),
            (true, true),
            "{from:?} to {to:?}, permissive"
        );
    }
    stage.mesh.write("strict.yaml", STRICT);
    for to in [Kind::Sidecar, Kind::Node] {
        wait_until("plaintext is refused", || {
            stage.reaches(Kind::None, to) == (false, false)
        });
    }
    for (from, to) in table() {
        let expected = may(from, to);
        assert_eq!(
            stage.reaches(from, to),
            (expected, expected),
            "{from:?} to {to:?}, strict"
        );
    }
    // The proxy of the server knows the caller's identity by mutual TLS.
    for (from, to) in table().filter(|(from, to)| may(*from, *to) && *to != Kind::None) {
        let ([client, _], [_, server]) = (from.names(), to.names());
        let words = [
            format!("source_principal=\"{}\"", identity(client)),
            format!("destination_principal=\"{}\"", identity(server)),
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            "reporter=\"destination\"".to_owned(),
        ];
        let is_told = |line: &str| words.iter().all(|word| line.contains(word.as_str()));
        wait_until(&format!("{from:?} to {to:?} is counted"), || {
            stage.counted(to).lines().any(is_told)
        });
    }
}

#[test]
fn policies_hold_between_a_sidecar_and_a_node_proxy_and_cut_what_is_open() {
    let Some(stage) = Stage::start() else {
        return;
    };
    for (from, to) in [(Kind::Sidecar, Kind::Node), (Kind::Node, Kind::Sidecar)] {
        let ([client, _], [_, server]) = (from.names(), to.names());
        let at = to.called_by(from, APPLICATION);
        let (said, mut open) = answers(stage.client(from), at).expect("it may");
        assert_eq!(said, server);
        stage.mesh.write(
            "deny.yaml",
            &format!(
                "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n  name: not-it\n  namespace: shop\nspec:\n  \
                 selector:\n    matchLabels:\n      app: {server}\n  action: DENY\n  rules:\n  - from:\n    - source:\n        \
                 principals: [cluster.local/ns/shop/sa/{client}]\n"
            ),
        );
        let cut = open.read(&mut [0; 16]);
        let reset = cut.expect_err("it is cut, and does not look finished");
        let kind = reset.kind();
        assert_eq!(
            kind,
            std::io::ErrorKind::ConnectionReset,
            "{from:?} to {to:?}"
        );
        assert_eq!(name(stage.client(from), at), None, "nor is there a new one");
        let (status, _) = asked(stage.client(from), to.called_by(from, HTTP));
        assert_ne!(status, 200, "{from:?} to {to:?}");
        // Others of its kind are not meant.
        assert_eq!(stage.reaches(to, to), (true, true));
        stage.mesh.remove("deny.yaml");
        wait_until("the policy is gone", || {
            stage.reaches(from, to) == (true, true)
        });
    }
}

/// TLS mode of clients towards the server of a node proxy, and the server's mode.
fn spoken(mode: &str, taken: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: spoken, namespace: shop}}\n\
         spec: {{host: node-server, trafficPolicy: {{tls: {{mode: {mode}}}}}}}\n---\n\
         apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: taken, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: node-server}}}}, mtls: {{mode: {taken}}}}}\n"
    )
}

/// Returns true if `voile analyze` reports that the two modes contradict each other.
fn is_faulted(mesh: &Mesh) -> bool {
    let output = Process::output(|voile| {
        voile.arg("analyze").arg(mesh.folder.path().join("config"));
    });
    let said = String::from_utf8_lossy(&output.stdout);
    said.contains("error[V0412]")
}

#[test]
fn what_analysis_says_of_tls_towards_a_node_proxys_pods_is_what_happens() {
    let Some(stage) = Stage::start() else {
        return;
    };
    // Each working pair follows a failing one, so that the change can be seen.
    for (mode, taken, works) in [
        ("DISABLE", "STRICT", false),
        ("ISTIO_MUTUAL", "STRICT", true),
        ("DISABLE", "STRICT", false),
        ("ISTIO_MUTUAL", "DISABLE", true),
        ("DISABLE", "STRICT", false),
        ("DISABLE", "PERMISSIVE", true),
    ] {
        stage.mesh.write("spoken.yaml", &spoken(mode, taken));
        let what = format!("{mode} to {taken}");
        wait_until(&what, || {
            stage.reaches(Kind::Sidecar, Kind::Node) == (works, works)
        });
        assert_eq!(is_faulted(&stage.mesh), !works, "{what}");
        let by_node = stage.reaches(Kind::Node, Kind::Node);
        assert_eq!(by_node, (true, true), "a node proxy obeys no such rule");
    }
}

//! Unmodified ztunnels on our control plane, in networks of their own: where everybody is, who may connect and certificates
//! all come over xDS and Istio's certificate call, and traffic goes over HBONE. The program is taken from `ZTUNNEL` or the
//! PATH; without it, or without namespaces, tests say so and are skipped.

pub(crate) mod node;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use voile_host::netns::Namespace;
use voile_host::netns::link::{Bridge, Prefixed};
use voile_host::netns::rules::{MARK_INWARD, MARK_OUTWARD, PodCapture, Rules, Tool, apply};
use voile_testkit::prerequisites::{Prerequisite, peer, require};

use crate::captured::{connect, listen, local};
use crate::mesh::{Process, get, wait_until};

pub(crate) const WORLD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 2);
pub(crate) const FIRST: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 3);
pub(crate) const SECOND: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 4);
/// The service's virtual address.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
pub(crate) const XDS: u16 = 15012;
pub(crate) const APPLICATION: u16 = 8080;

/// A pod: its network, and where it is.
pub(crate) struct Pod {
    pub(crate) name: &'static str,
    pub(crate) inside: Namespace,
}

/// The running mesh; dropping it ends every process, and the namespaces with the last of them.
pub(crate) struct Mesh {
    pub(crate) folder: tempfile::TempDir,
    program: PathBuf,
    pub(crate) world: Namespace,
    bridge: Bridge,
    tool: Tool,
    pub(crate) processes: Vec<Process>,
    /// The port in the world at which proxies ask for everything: the control plane's, unless somebody stands before it.
    pub(crate) asked: u16,
}

/// The program, if it is here.
pub(crate) fn program() -> Option<PathBuf> {
    peer(Prerequisite::Ztunnel, "ZTUNNEL", "ztunnel")
}

impl Mesh {
    /// The control plane of this folder; `None`, with the reason printed, where something is missing.
    fn start(resources: &str, arguments: &[&str]) -> Option<Self> {
        Self::start_with(program()?, resources, arguments)
    }

    /// The same where pods are served by this program.
    pub(crate) fn start_with(
        program: PathBuf,
        resources: &str,
        arguments: &[&str],
    ) -> Option<Self> {
        Self::start_trusting(program, resources, arguments, None)
    }

    /// The same with the authority of another mesh, which is on a network of its own.
    pub(crate) fn start_trusting(
        program: PathBuf,
        resources: &str,
        arguments: &[&str],
        other: Option<&Self>,
    ) -> Option<Self> {
        let world = require(Prerequisite::Netns, Namespace::create())?;
        let tool = require(Prerequisite::Nft, Tool::find())?;
        let bridge = world.run(|| Bridge::create(&[Prefixed::v4(WORLD, 16)]));
        let bridge = bridge.expect("entered").expect("a bridge");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("config")).expect("the config folder");
        if let Some(other) = other {
            let state = folder.path().join("state");
            let mut copy = std::process::Command::new("cp");
            let copied = copy
                .arg("-r")
                .arg(other.folder.path().join("state"))
                .arg(state);
            assert!(copied.status().expect("run").success());
        }
        let mut mesh = Self {
            folder,
            program,
            world,
            bridge,
            tool,
            processes: Vec::new(),
            asked: XDS,
        };
        mesh.write("mesh.yaml", resources);
        mesh.start_control(arguments);
        Some(mesh)
    }

    pub(crate) fn start_control(&mut self, arguments: &[&str]) {
        let folder = self.folder.path();
        let start = || {
            Process::start("control", |voile| {
                voile
                    .arg("control")
                    .arg("--config")
                    .arg(folder.join("config"));
                voile
                    .arg("--state")
                    .arg(folder.join("state"))
                    .args(arguments);
                voile.args(["--listen", &SocketAddr::from((WORLD, XDS)).to_string()]);
                voile.args(["--plaintext", "off", "--monitoring", "127.0.0.1:15014"]);
            })
        };
        let control = self.world.run(start).expect("entered");
        self.processes.push(control);
        wait_until("the control plane is ready", || {
            let ready = self.world.run(|| get(local(15014), "/ready"));
            matches!(ready, Ok(Ok(answer)) if answer.status == 200)
        });
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let draft = self
            .folder
            .path()
            .join("config")
            .join(format!(".{name}.swp"));
        std::fs::write(&draft, text).expect("a draft");
        let path = self.folder.path().join("config").join(name);
        std::fs::rename(draft, path).expect("a resource");
    }

    pub(crate) fn remove(&self, name: &str) {
        let path = self.folder.path().join("config").join(name);
        std::fs::remove_file(path).expect("was there");
    }

    /// A network whose connections are turned to a proxy's ports.
    pub(crate) fn pod(&self, name: &'static str, address: Ipv4Addr) -> Pod {
        let rules = Rules {
            capture: Some(PodCapture {
                control: vec![(WORLD, XDS).into()],
                ..PodCapture::default()
            }),
            ..Rules::default()
        };
        self.pod_with(name, address, rules)
    }

    /// A network with these rules.
    pub(crate) fn pod_with(&self, name: &'static str, address: Ipv4Addr, rules: Rules) -> Pod {
        let gateway: [IpAddr; 1] = [WORLD.into()];
        let inside = self.bridge.add_pod(&[Prefixed::v4(address, 16)], &gateway);
        let inside = inside.expect("a pod");
        apply(&self.tool, &inside, &rules, self.bridge.has_v6()).expect("rules");
        Pod { name, inside }
    }

    /// A network without rules, from which everything far leaves through another pod.
    pub(crate) fn pod_behind(&self, name: &'static str, address: Ipv4Addr, by: Ipv4Addr) -> Pod {
        let inside = self
            .bridge
            .add_pod(&[Prefixed::v4(address, 16)], &[by.into()]);
        let inside = inside.expect("a pod");
        Pod { name, inside }
    }

    pub(crate) fn token(&self, account: &str, pod: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{pod}.token"));
        let printed = Process::output(|voile| {
            voile.args(["token", "create", "--service-account", account]);
            voile.args(["--pod", pod, "--state"]);
            voile.arg(self.folder.path().join("state"));
        });
        assert!(printed.status.success(), "{printed:?}");
        let token = String::from_utf8(printed.stdout).expect("text");
        std::fs::write(&path, token.trim()).expect("the token file");
        path
    }

    /// Starts a ztunnel that serves one pod, inside it, and waits until it is ready.
    fn ztunnel(&mut self, pod: &Pod, account: &str, mark: u32, more: &[(&str, &str)]) {
        let token = self.token(&format!("shop/{account}"), pod.name);
        let root = self.folder.path().join("state/root-cert.pem");
        let start = || {
            Process::start_other(pod.name, &self.program, |ztunnel| {
                let control = format!("https://{WORLD}:{}", self.asked);
                ztunnel
                    .arg("proxy")
                    .env_clear()
                    .env("PROXY_MODE", "dedicated");
                let who = format!("shop/{}/{account}", pod.name);
                ztunnel
                    .env("PROXY_WORKLOAD_INFO", who)
                    .env("NODE_NAME", "one");
                ztunnel
                    .env("XDS_ADDRESS", &control)
                    .env("CA_ADDRESS", &control);
                ztunnel.env("XDS_ROOT_CA", &root).env("CA_ROOT_CA", &root);
                ztunnel.env("AUTH_TOKEN", &token);
                ztunnel.env("PACKET_MARK", mark.to_string());
                ztunnel.env("ENABLE_ORIG_SRC", "false");
                ztunnel.env("ISTIO_META_DNS_CAPTURE", "false");
                ztunnel.env("RUST_LOG", "info");
                ztunnel.envs(more.iter().copied());
            })
        };
        let process = pod.inside.run(start).expect("entered");
        self.processes.push(process);
        wait_until("a ztunnel is ready", || {
            let ready = pod.inside.run(|| get(local(15021), "/healthz/ready"));
            matches!(ready, Ok(Ok(answer)) if answer.status == 200)
        });
    }

    pub(crate) fn log(&self, pod: &Pod) -> String {
        let mut named = self.processes.iter();
        let found = named.find(|process| process.name() == pod.name);
        found.expect("it was started").log()
    }
}

fn metrics(pod: &Pod) -> String {
    let answer = pod.inside.run(|| get(local(15020), "/metrics"));
    let answer = answer.expect("entered").expect("metrics");
    String::from_utf8(answer.body).expect("text")
}

/// An application that says its name to whoever connects and then repeats what it hears.
pub(crate) fn serve(pod: &Pod, address: Ipv4Addr) {
    let listener = listen(&pod.inside, (address, APPLICATION));
    let name = pod.name;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                // The client may have left.
                let _ = stream.write_all(format!("{name}\n").as_bytes());
                let mut bytes = [0; 1024];
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..read]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// Name of the server that answers; `None` when the connection ends before a word.
pub(crate) fn answers(from: &Namespace, to: impl Into<SocketAddr>) -> Option<(String, TcpStream)> {
    let mut stream = connect(from, to);
    let mut said = Vec::new();
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(1) if byte == *b"\n" => break,
            Ok(1) => said.push(byte[0]),
            _ => return None,
        }
    }
    Some((String::from_utf8(said).expect("text"), stream))
}

pub(crate) fn name(from: &Namespace, to: impl Into<SocketAddr>) -> Option<String> {
    answers(from, to).map(|(name, _)| name)
}

/// A namespace of ambient workloads: a client, and servers of one account at these addresses.
pub(crate) fn resources(servers: &[(&str, Ipv4Addr)]) -> String {
    let mut text = String::from(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels:\n    istio.io/dataplane-mode: ambient\n",
    );
    for account in ["client", "server"] {
        text += &format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {account}\n  namespace: shop\n"
        );
    }
    let pods = [("client", "client", CLIENT)].into_iter();
    let servers = servers
        .iter()
        .map(|(name, address)| (*name, "server", *address));
    for (pod, account, address) in pods.chain(servers) {
        text += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n  namespace: shop\n  labels:\n    app: {account}\n\
             spec:\n  serviceAccountName: {account}\n  nodeName: one\n  containers:\n  - name: app\nstatus:\n  \
             phase: Running\n  podIP: {address}\n"
        );
    }
    text + &format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: server\n  namespace: shop\nspec:\n  clusterIP: {VIP}\n  \
         selector:\n    app: server\n  ports:\n  - name: tcp\n    port: 80\n    targetPort: {APPLICATION}\n"
    )
}

pub(crate) const DENIED: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n  name: no-client\n  \
    namespace: shop\nspec:\n  selector:\n    matchLabels:\n      app: server\n  action: DENY\n  rules:\n  - from:\n    \
    - source:\n        principals: [cluster.local/ns/shop/sa/client]\n";

pub(crate) const STRICT: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n  name: default\n  \
    namespace: shop\nspec:\n  mtls:\n    mode: STRICT\n";

/// A ztunnel refuses a workload with a sidecar's own mutual TLS, so the control plane must not send
/// that to it.
const NEIGHBOUR: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: sided\n  namespace: shop\n  labels:\n    \
    sidecar.istio.io/inject: \"true\"\nspec:\n  serviceAccountName: sided\n  containers:\n  - name: app\nstatus:\n  \
    phase: Running\n  podIP: 10.244.0.9\n";

fn carries_traffic(more: &[(&str, &str)]) {
    let Some(mut mesh) = Mesh::start(&resources(&[("first", FIRST)]), &[]) else {
        return;
    };
    mesh.write("neighbour.yaml", NEIGHBOUR);
    let client = mesh.pod("client", CLIENT);
    let (first, second) = (mesh.pod("first", FIRST), mesh.pod("second", SECOND));
    serve(&first, FIRST);
    serve(&second, SECOND);
    mesh.ztunnel(&client, "client", MARK_OUTWARD, more);
    mesh.ztunnel(&first, "server", MARK_INWARD, more);
    let service = SocketAddr::from((VIP, 80));
    let direct = SocketAddr::from((FIRST, APPLICATION));

    // The kernel's and the proxies' own words for what carried it.
    assert_eq!(name(&client.inside, service).as_deref(), Some("first"));
    wait_until(
        "the server's ztunnel counts a connection by its client's identity",
        || {
            metrics(&first).lines().any(|line| {
                line.starts_with("istio_tcp_connections_opened_total{")
                    && line
                        .contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"")
                    && line.contains("connection_security_policy=\"mutual_tls\"")
            })
        },
    );
    wait_until("its log names both identities", || {
        let log = mesh.log(&first);
        log.contains("spiffe://cluster.local/ns/shop/sa/client")
            && log.contains("spiffe://cluster.local/ns/shop/sa/server")
    });

    // Plaintext, until it is refused: by a PeerAuthentication alone.
    assert_eq!(name(&mesh.world, direct).as_deref(), Some("first"));
    mesh.write("strict.yaml", STRICT);
    wait_until("plaintext is refused", || {
        name(&mesh.world, direct).is_none()
    });
    let (said, mut open) = answers(&client.inside, service).expect("who has an identity may");
    assert_eq!(said, "first");

    // A policy takes hold of new connections and of those that are open.
    mesh.write("deny.yaml", DENIED);
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    let cut = open.read(&mut [0; 16]);
    assert!(
        !matches!(cut, Ok(1..)),
        "the open connection is cut: {cut:?}"
    );
    assert_eq!(
        name(&client.inside, service),
        None,
        "nor is there a new one"
    );
    mesh.remove("deny.yaml");
    wait_until("the policy is gone", || {
        name(&client.inside, service).as_deref() == Some("first")
    });

    // The service moves.
    mesh.write(
        "mesh.yaml",
        &resources(&[("first", FIRST), ("second", SECOND)]),
    );
    mesh.ztunnel(&second, "server", MARK_INWARD, more);
    mesh.write("mesh.yaml", &resources(&[("second", SECOND)]));
    wait_until("only the new pod is called", || {
        (0..8).all(|_| name(&client.inside, service).as_deref() == Some("second"))
    });
    let refused =
        mesh.log(&client).contains("sending response\" ") || mesh.log(&client).contains("Nack");
    assert!(!refused, "nothing is refused: {}", mesh.log(&client));
}

#[test]
fn a_stock_ztunnel_carries_traffic_obeys_policies_and_follows_endpoints() {
    carries_traffic(&[]);
}

#[test]
fn a_stock_ztunnel_that_asks_on_demand_does_the_same() {
    carries_traffic(&[("XDS_ON_DEMAND", "true")]);
}

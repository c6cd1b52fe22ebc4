//! A real mesh for end-to-end tests: one `voile control`, two `voile proxy`, all as processes on loopback addresses that
//! belong to this test alone. The client pod's sidecar listens for the services; the server pod's application is the test.

pub(crate) mod application;
pub(crate) mod certificates;
pub(crate) mod issuer;
pub(crate) mod load;
pub(crate) mod page_commands;
mod process;
pub(crate) mod resolver;
mod wire;

pub(crate) use process::{
    Process, free_port, is_at_rest, memory, memory_before_attack, wait_until,
};
pub(crate) use wire::{Answer, exchange, get, read_answer, read_to_end};

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

/// Meshes made by this test process, so that each gets addresses of its own.
static MADE: AtomicU16 = AtomicU16::new(0);

/// Port that the HTTP service, its inbound listener and its outbound listener share.
pub(crate) const HTTP_PORT: u16 = 8080;
/// The same for the opaque TCP service.
pub(crate) const TCP_PORT: u16 = 9000;
/// The same for the gRPC service.
pub(crate) const GRPC_PORT: u16 = 7070;
const HTTP_APP_PORT: u16 = 18080;
const GRPC_APP_PORT: u16 = 17070;
const TCP_APP_PORT: u16 = 19000;

/// Options of a sidecar and its mesh, for tests in which they matter.
#[derive(Default)]
pub(crate) struct Client {
    /// `--drain-timeout`.
    pub(crate) drain_timeout: Option<&'static str>,
    /// The most descriptors it may ever open.
    pub(crate) descriptors: Option<u32>,
    /// A state folder that the control plane finds when it starts: the mesh's root is then known to the test.
    pub(crate) state: Option<PathBuf>,
    /// The control plane's `--certificate-ttl`.
    pub(crate) certificate_ttl: Option<&'static str>,
    /// Both sidecars are started with `--handover`.
    pub(crate) handover: bool,
    /// Anything else, for both sidecars.
    pub(crate) everywhere: Vec<String>,
    /// Anything else, for the client's.
    pub(crate) arguments: Vec<String>,
    /// Anything else, for the control plane's.
    pub(crate) control: Vec<String>,
}

/// The running mesh. Dropping it ends every process.
pub(crate) struct Mesh {
    folder: tempfile::TempDir,
    net: [u8; 3],
    pub(crate) control: Process,
    pub(crate) client: Process,
    pub(crate) server: Process,
    control_arguments: Vec<String>,
    control_ports: [u16; 3],
    client_ports: [u16; 3],
    server_ports: [u16; 3],
}

impl Mesh {
    /// Starts a mesh whose PeerAuthentication has the given mode, and waits until both sidecars are ready.
    pub(crate) fn start(mode: &str) -> Mesh {
        Self::start_as(mode, &Client::default())
    }

    /// The same, with a client's sidecar that is started differently.
    pub(crate) fn start_as(mode: &str, how: &Client) -> Mesh {
        let folder = tempfile::tempdir().expect("a folder");
        let net = own_net();
        let config = folder.path().join("config");
        std::fs::create_dir(&config).expect("the config folder");
        std::fs::write(config.join("mesh.yaml"), resources(net, None)).expect("resources");
        std::fs::write(config.join("policy.yaml"), peer_authentication(mode)).expect("the policy");
        let control_ports = [free_port(), free_port(), free_port()];
        if let Some(state) = &how.state {
            copy_private(state, &folder.path().join("state"));
        }
        let control = start_control(
            folder.path(),
            control_ports,
            how.certificate_ttl,
            &how.control,
        );
        let client_ports = [free_port(), free_port(), free_port()];
        let server_ports = [free_port(), free_port(), free_port()];
        let xds = control_ports[0];
        let client = start_proxy(folder.path(), xds, "client", client_ports, how);
        let usual = Client {
            handover: how.handover,
            everywhere: how.everywhere.clone(),
            ..Client::default()
        };
        let server = start_proxy(folder.path(), xds, "server", server_ports, &usual);
        let mesh = Mesh {
            folder,
            net,
            control,
            client,
            server,
            control_arguments: how.control.clone(),
            control_ports,
            client_ports,
            server_ports,
        };
        mesh.wait_ready();
        mesh
    }

    /// Starts the proxy of one more pod of which the configuration speaks (`NAME`, or `NAMESPACE/NAME`); gives it with its ports (admin,
    /// metrics, readiness).
    pub(crate) fn start_beside(&self, pod: &str, how: &Client) -> (Process, [u16; 3]) {
        let ports = [free_port(), free_port(), free_port()];
        (self.start_at(pod, how, ports), ports)
    }

    /// The same at these ports.
    pub(crate) fn start_at(&self, pod: &str, how: &Client, ports: [u16; 3]) -> Process {
        start_proxy(self.folder.path(), self.control_ports[0], pod, ports, how)
    }

    /// Starts another process in the place of a sidecar that was started with `--handover`; gives the old one.
    pub(crate) fn replace(&mut self, pod: &str, how: &Client) -> Process {
        let (ports, process) = match pod {
            "client" => (self.client_ports, &mut self.client),
            _ => (self.server_ports, &mut self.server),
        };
        let new = start_proxy(self.folder.path(), self.control_ports[0], pod, ports, how);
        std::mem::replace(process, new)
    }

    /// The socket of a sidecar started with `--handover`.
    pub(crate) fn handover_socket(&self, pod: &str) -> PathBuf {
        self.folder.path().join(format!("{pod}.handover"))
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn set_peer_authentication(&self, mode: &str) {
        put(
            &self.config().join("policy.yaml"),
            &peer_authentication(mode),
        );
    }

    /// Gives the client one more listener, for the HTTP service: (port, protocol).
    pub(crate) fn set_extra_egress(&self, extra: Option<(u16, &str)>) {
        put(
            &self.config().join("mesh.yaml"),
            &resources(self.net, extra),
        );
    }

    pub(crate) fn wait_ready(&self) {
        for (name, port) in [
            ("client", self.client_ports[2]),
            ("server", self.server_ports[2]),
        ] {
            wait_until(&format!("{name} sidecar ready"), || {
                get(local(port), "/healthz/ready").is_ok_and(|answer| answer.status == 200)
            });
        }
    }

    /// One of the addresses that are this mesh's alone.
    pub(crate) fn address(&self, last: u8, port: u16) -> SocketAddr {
        SocketAddr::new(
            IpAddr::V4(Ipv4Addr::new(self.net[0], self.net[1], self.net[2], last)),
            port,
        )
    }

    /// Address at which the client's application calls the HTTP service.
    pub(crate) fn http(&self) -> SocketAddr {
        self.address(100, HTTP_PORT)
    }

    /// Address at which the client's application calls the TCP service.
    pub(crate) fn tcp(&self) -> SocketAddr {
        self.address(100, TCP_PORT)
    }

    /// Address at which the client's application calls the gRPC service.
    pub(crate) fn grpc(&self) -> SocketAddr {
        self.address(100, GRPC_PORT)
    }

    /// Address at which the server pod's application listens for its gRPC service.
    pub(crate) fn grpc_app(&self) -> SocketAddr {
        self.address(2, GRPC_APP_PORT)
    }

    /// Address at which the server pod's application listens for its HTTP service.
    pub(crate) fn http_app_address(&self) -> SocketAddr {
        self.address(2, HTTP_APP_PORT)
    }

    /// Address of the client's pod.
    pub(crate) fn client_pod(&self) -> IpAddr {
        self.address(1, 0).ip()
    }

    /// The server sidecar's inbound listener, which a stranger may call directly.
    pub(crate) fn inbound(&self, port: u16) -> SocketAddr {
        self.address(2, port)
    }

    /// Address at which the server pod's application listens for its TCP service.
    pub(crate) fn tcp_app_address(&self) -> SocketAddr {
        self.address(2, TCP_APP_PORT)
    }

    /// The server pod's application, listening for its HTTP service.
    pub(crate) fn http_app(&self) -> TcpListener {
        TcpListener::bind(self.address(2, HTTP_APP_PORT)).expect("the application's address")
    }

    /// The server pod's application, listening for its TCP service.
    pub(crate) fn tcp_app(&self) -> TcpListener {
        TcpListener::bind(self.address(2, TCP_APP_PORT)).expect("the application's address")
    }

    /// Every management address: control's xDS, plaintext xDS and monitoring, and both proxies' admin, metrics, readiness.
    pub(crate) fn management(&self) -> Vec<SocketAddr> {
        [self.control_ports, self.client_ports, self.server_ports]
            .concat()
            .into_iter()
            .map(local)
            .collect()
    }

    pub(crate) fn server_admin(&self) -> SocketAddr {
        local(self.server_ports[0])
    }

    /// URL of the control plane, for proxies and strangers.
    pub(crate) fn control_url(&self) -> String {
        format!("https://{}", local(self.control_ports[0]))
    }

    /// The control plane's monitoring pages.
    pub(crate) fn monitoring(&self) -> SocketAddr {
        local(self.control_ports[2])
    }

    pub(crate) fn client_admin(&self) -> SocketAddr {
        local(self.client_ports[0])
    }

    pub(crate) fn client_metrics(&self) -> String {
        metrics(local(self.client_ports[1]))
    }

    pub(crate) fn server_metrics(&self) -> String {
        metrics(local(self.server_ports[1]))
    }

    /// Ends the control plane without a chance to say goodbye.
    pub(crate) fn kill_control(&mut self) {
        self.control.kill();
    }

    pub(crate) fn restart_control(&mut self) {
        let arguments = &self.control_arguments;
        self.control = start_control(self.folder.path(), self.control_ports, None, arguments);
    }
}

fn metrics(address: SocketAddr) -> String {
    let answer = get(address, "/metrics").expect("metrics");
    assert_eq!(answer.status, 200);
    String::from_utf8(answer.body).expect("metrics are text")
}

/// The value of the first series of `name` whose labels contain all of `labels`.
pub(crate) fn series(exposition: &str, name: &str, labels: &[&str]) -> Option<f64> {
    exposition
        .lines()
        .find(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        })
        .and_then(|line| line.rsplit(' ').next())
        .and_then(|value| value.parse().ok())
}

pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Copies the files of a folder, keeping their modes, into one that is for its owner only.
fn copy_private(from: &Path, to: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().mode(0o700).create(to);
    made.expect("the state folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    }
}

/// Puts a file in the place of another at once, as editors do: one that is empty for a moment takes along what it said.
pub(crate) fn put(path: &Path, text: &str) {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, path).expect("in place");
}

/// Writes a file for its owner only.
pub(crate) fn write_private(path: &Path, text: &[u8]) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.open(path).expect("the file");
    std::io::Write::write_all(&mut file, text).expect("written");
}

/// Loopback addresses, but for the last byte, that no other test of this process uses, nor one of another at this time. An application
/// that is a thread of ours listens until the process ends, so none may come twice.
pub(crate) fn own_net() -> [u8; 3] {
    const LAST: u16 = 250;
    let count = MADE.fetch_add(1, Ordering::Relaxed);
    let block = count / LAST;
    assert!(block < 4, "more nets than there are addresses for");
    let process = (std::process::id() % 32) as u8;
    let second = 64 + process * 4 + block as u8;
    [127, second, (count % LAST) as u8 + 1]
}

pub(crate) fn start_control(
    folder: &Path,
    [xds, plaintext, monitoring]: [u16; 3],
    certificate_ttl: Option<&str>,
    arguments: &[String],
) -> Process {
    let config = folder.join("config");
    let state = folder.join("state");
    let process = Process::start("control", |voile| {
        voile
            .arg("control")
            .arg("--config")
            .arg(config)
            .arg("--state")
            .arg(state);
        voile.args([
            "--listen",
            &local(xds).to_string(),
            "--plaintext",
            &local(plaintext).to_string(),
        ]);
        voile.args(["--monitoring", &local(monitoring).to_string()]);
        if let Some(ttl) = certificate_ttl {
            voile.args(["--certificate-ttl", ttl]);
        }
        let asks = |word: &String| word.starts_with("--jwks-loopback");
        if !arguments.iter().any(asks) {
            voile.args(["--jwks-loopback", "allow"]);
        }
        voile.args(arguments);
    });
    wait_until("control plane ready", || {
        get(local(monitoring), "/ready").is_ok_and(|answer| answer.status == 200)
    });
    process
}

pub(crate) fn start_proxy(
    folder: &Path,
    xds: u16,
    pod: &str,
    [admin, metrics, readiness]: [u16; 3],
    how: &Client,
) -> Process {
    let (namespace, pod) = pod.split_once('/').unwrap_or(("shop", pod));
    let state = folder.join("state");
    let token = folder.join(format!("{pod}.token"));
    let printed = Process::output(|voile| {
        voile
            .args([
                "token",
                "create",
                "--service-account",
                &format!("{namespace}/{pod}"),
                "--pod",
                pod,
            ])
            .arg("--state")
            .arg(&state);
    });
    assert!(
        printed.status.success(),
        "{}",
        String::from_utf8_lossy(&printed.stderr)
    );
    write_private(&token, &printed.stdout);
    Process::start_limited(pod, how.descriptors, |voile| {
        voile.args([
            "proxy",
            "--workload",
            &format!("{namespace}/{pod}"),
            "--control",
            &format!("https://127.0.0.1:{xds}"),
        ]);
        voile
            .arg("--root-cert")
            .arg(state.join("root-cert.pem"))
            .arg("--token-file")
            .arg(token);
        voile.args([
            "--admin",
            &local(admin).to_string(),
            "--metrics",
            &local(metrics).to_string(),
        ]);
        voile.args(["--readiness", &local(readiness).to_string()]);
        if let Some(drain_timeout) = how.drain_timeout {
            voile.args(["--drain-timeout", drain_timeout]);
        }
        if how.handover {
            voile
                .arg("--handover")
                .arg(folder.join(format!("{pod}.handover")));
        }
        voile.args(&how.everywhere).args(&how.arguments);
    })
}

pub(crate) fn peer_authentication(mode: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n  name: default\n  namespace: shop\nspec:\n  mtls:\n    mode: {mode}\n"
    )
}

fn resources(net: [u8; 3], extra: Option<(u16, &str)>) -> String {
    let base = format!("{}.{}.{}", net[0], net[1], net[2]);
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels:\n    istio-injection: enabled\n".to_owned();
    for (last, pod) in [(1, "client"), (2, "server")] {
        text += &format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {pod}\n  namespace: shop\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n  namespace: shop\n  labels:\n    app: {pod}\n    version: v1\n\
             spec:\n  serviceAccountName: {pod}\n  containers:\n  - name: app\nstatus:\n  phase: Running\n  podIP: {base}.{last}\n"
        );
    }
    text += &format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: server\n  namespace: shop\nspec:\n  selector:\n    app: server\n  ports:\n\
         \x20 - name: http\n    port: {HTTP_PORT}\n    targetPort: {HTTP_PORT}\n  - name: tcp\n    port: {TCP_PORT}\n    targetPort: {TCP_PORT}\n\
         \x20 - name: grpc\n    port: {GRPC_PORT}\n    targetPort: {GRPC_PORT}\n"
    );
    if let Some((port, _)) = extra {
        text += &format!("  - name: http-extra\n    port: {port}\n    targetPort: {HTTP_PORT}\n");
    }
    text += "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata:\n  name: server\n  namespace: shop\nspec:\n  workloadSelector:\n    labels:\n      app: server\n  ingress:\n";
    for (port, protocol, app) in [
        (HTTP_PORT, "HTTP", HTTP_APP_PORT),
        (TCP_PORT, "TCP", TCP_APP_PORT),
        (GRPC_PORT, "GRPC", GRPC_APP_PORT),
    ] {
        text += &format!(
            "  - port:\n      number: {port}\n      protocol: {protocol}\n      name: {}-in\n    captureMode: NONE\n    defaultEndpoint: 0.0.0.0:{app}\n",
            protocol.to_lowercase()
        );
    }
    text += "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata:\n  name: client\n  namespace: shop\nspec:\n  workloadSelector:\n    labels:\n      app: client\n  egress:\n";
    let always = [(HTTP_PORT, "HTTP"), (TCP_PORT, "TCP"), (GRPC_PORT, "GRPC")];
    for (port, protocol) in always.into_iter().chain(extra) {
        text += &format!(
            "  - port:\n      number: {port}\n      protocol: {protocol}\n      name: {}-out-{port}\n    bind: {base}.100\n    captureMode: NONE\n    hosts:\n    - shop/server.shop.svc.cluster.local\n",
            protocol.to_lowercase()
        );
    }
    text
}

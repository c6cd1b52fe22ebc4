//! A mesh with traffic that the kernel redirects: three namespaces on one bridge (client pod, server pod, and the world
//! with the control plane), real rules, real sidecars. Applications and clients are threads of the test with sockets
//! inside. On a kernel that does not allow it, tests are skipped.

mod asked;
mod by_user;
mod let_go;
mod lockdown;
mod named;
mod on_demand;
mod reach;
mod server_first;
mod shared_target;
mod slices;
mod source;
mod strangers;

use std::fs::Permissions;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use voile_host::netns::Namespace;
use voile_host::netns::link::{Bridge, Prefixed};
use voile_host::netns::rules::{PodCapture, Rules, Tool, apply};
use voile_testkit::prerequisites::{Prerequisite, require, skip};

use crate::mesh::{Process, get, peer_authentication, put, wait_until};

/// The world's own address, where the control plane is too.
pub(crate) const WORLD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// Another, far from any pod's.
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 2);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 3);
/// The service's virtual address.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// `--capture` of proxies that run without capabilities, as [`PROXY_USER`].
pub(crate) const BY_USER: &str = "redirect-by-user";
/// User of such proxies, as in Istio's pods.
pub(crate) const PROXY_USER: u32 = 1337;
/// Probes of the applications beside them.
const PROBERS: &str = r#"{"/app-health/app/readyz":{"httpGet":{"path":"/who","port":8080}}}"#;
const XDS: u16 = 15012;
/// Port for a test's relay between a proxy and the control plane.
const BETWEEN: u16 = 15013;

/// No read or write of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The IPv6 address beside an IPv4 one.
pub(crate) fn beside(address: Ipv4Addr) -> Ipv6Addr {
    let last = address.octets()[3];
    Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, last.into())
}

/// Runs `voile redirect` in a namespace.
fn redirect(inside: &Namespace, arguments: &[&str]) {
    let run = || {
        Process::output(|voile| {
            voile.arg("redirect").args(arguments);
        })
    };
    let output = inside.run(run).expect("entered");
    assert!(output.status.success(), "{output:?}");
}

/// The running mesh; dropping it ends every process, and the namespaces with the last of them.
pub(crate) struct Captured {
    folder: tempfile::TempDir,
    pub(crate) control: Option<Process>,
    _sidecars: Vec<Process>,
    /// The port at which proxies that are started ask the control plane.
    asks: u16,
    pub(crate) world: Namespace,
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
    pub(crate) v6: bool,
}

impl Captured {
    /// Starts it; `None`, with the reason printed, where namespaces or rules are not to be had.
    pub(crate) fn start(mode: &str, mesh_config: &str) -> Option<Self> {
        Self::start_as("redirect", mode, mesh_config)
    }

    /// The same with this `--capture`.
    pub(crate) fn start_as(capture: &str, mode: &str, mesh_config: &str) -> Option<Self> {
        Self::start_with((capture, "none"), mode, mesh_config)
    }

    /// The same with this `--resolver` besides.
    pub(crate) fn start_with(
        (capture, resolver): (&str, &str),
        mode: &str,
        mesh_config: &str,
    ) -> Option<Self> {
        let keeps_source = capture == "tproxy";
        let world = require(Prerequisite::Netns, Namespace::create())?;
        let tool = require(Prerequisite::Nft, Tool::find())?;
        let both = |address| [Prefixed::v4(address, 16), Prefixed::v6(beside(address), 64)];
        let mut addresses = both(WORLD).to_vec();
        addresses.push(Prefixed::v4(FAR, 32));
        let bridge = world.run(|| Bridge::create(&addresses));
        let bridge = bridge.expect("entered").expect("a bridge");
        if !bridge.has_v6() {
            skip(Prerequisite::Ipv6, "connections are of IPv4 alone");
        }
        let pod = |address| {
            let gateways: [IpAddr; 2] = [WORLD.into(), beside(WORLD).into()];
            let made = bridge.add_pod(&both(address), &gateways).expect("a pod");
            if capture == BY_USER {
                // Twice: the second run replaces the rules of the first.
                for _ in 0..2 {
                    redirect(&made, &["--dns-port", "15053"]);
                }
                return made;
            }
            let rules = Rules {
                capture: Some(PodCapture {
                    control: vec![(WORLD, XDS).into(), (WORLD, BETWEEN).into()],
                    // Servers of strangers ask who their clients are, and would wait for this machine's own resolver.
                    dns: Some(15053),
                    keeps_source,
                    ..PodCapture::default()
                }),
                services: Vec::new(),
                ..Rules::default()
            };
            apply(&tool, &made, &rules, bridge.has_v6()).expect("rules");
            made
        };
        let (client, server) = (pod(CLIENT), pod(SERVER));
        let folder = tempfile::tempdir().expect("a folder");
        let everyone = Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), everyone).expect("our folder");
        std::fs::create_dir(folder.path().join("config")).expect("the config folder");
        let mut mesh = Self {
            folder,
            control: None,
            _sidecars: Vec::new(),
            asks: XDS,
            world,
            client,
            server,
            v6: bridge.has_v6(),
        };
        mesh.write("mesh.yaml", &resources(mesh_config));
        mesh.write("policy.yaml", &peer_authentication(mode));
        mesh.start_control();
        let sidecars = [("client", &mesh.client), ("server", &mesh.server)];
        mesh._sidecars = sidecars
            .map(|(pod, inside)| mesh.sidecar(pod, inside, (capture, resolver)))
            .into();
        wait_until_ready(&mesh.client);
        wait_until_ready(&mesh.server);
        Some(mesh)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        put(&self.folder.path().join("config").join(name), text);
    }

    pub(crate) fn start_control(&mut self) {
        let folder = self.folder.path();
        let start = || {
            Process::start("control", |voile| {
                voile
                    .args(["control", "--jwks-loopback", "allow"])
                    .arg("--config")
                    .arg(folder.join("config"));
                voile.arg("--state").arg(folder.join("state"));
                voile.args(["--listen", &SocketAddr::from((WORLD, XDS)).to_string()]);
                voile.args(["--plaintext", "off", "--monitoring", "127.0.0.1:15014"]);
            })
        };
        self.control = Some(self.world.run(start).expect("entered"));
        wait_until("the control plane is ready", || {
            let ready = self.world.run(|| get(local(15014), "/ready"));
            matches!(ready, Ok(Ok(answer)) if answer.status == 200)
        });
    }

    fn sidecar(&self, pod: &str, inside: &Namespace, how: (&str, &str)) -> Process {
        let (capture, resolver) = how;
        let own = ["--capture", capture, "--dns", "127.0.0.1:15053"];
        self.proxy(pod, inside, &[&own[..], &["--resolver", resolver]].concat())
    }

    /// Starts a proxy with these arguments.
    fn proxy(&self, pod: &str, inside: &Namespace, arguments: &[&str]) -> Process {
        let state = self.folder.path().join("state");
        let token = self.folder.path().join(format!("{pod}.token"));
        let account = format!("shop/{pod}");
        let printed = Process::output(|voile| {
            voile.args(["token", "create", "--service-account", &account]);
            voile.args(["--pod", pod, "--state"]).arg(&state);
        });
        assert!(printed.status.success(), "{printed:?}");
        std::fs::write(&token, &printed.stdout).expect("the token file");
        // The state folder is its owner's alone.
        let root = self.folder.path().join("root-cert.pem");
        std::fs::copy(state.join("root-cert.pem"), &root).expect("the root certificate");
        let start = || {
            Process::start(pod, |voile| {
                voile.args(["proxy", "--workload", &account]);
                voile.args(arguments);
                if arguments.contains(&BY_USER) {
                    // The kernel takes all capabilities of root from a process that becomes another user.
                    voile.uid(PROXY_USER).gid(PROXY_USER);
                    voile.env("ISTIO_KUBE_APP_PROBERS", PROBERS);
                    voile.args(["--metrics", "0.0.0.0:15020"]);
                }
                voile.args(["--control", &format!("https://{WORLD}:{}", self.asks)]);
                voile.arg("--root-cert").arg(&root);
                voile.arg("--token-file").arg(&token);
                voile.args(["--log-level", "voile_proxy=debug"]);
            })
        };
        inside.run(start).expect("entered")
    }

    /// Changes PeerAuthentication and waits until both sidecars have heard of it.
    pub(crate) fn set_mode(&self, mode: &str) {
        self.write("policy.yaml", &peer_authentication(mode));
        let said = format!("\"mutual_tls\": \"{}\"", title(mode));
        for inside in [&self.client, &self.server] {
            wait_until("the new mode is in force", || {
                config_dump(inside).contains(&said)
            });
        }
    }

    pub(crate) fn metrics(&self, inside: &Namespace) -> String {
        let answer = inside.run(|| get(local(15020), "/metrics"));
        let answer = answer.expect("entered").expect("metrics");
        String::from_utf8(answer.body).expect("text")
    }

    /// Log of the client's sidecar.
    pub(crate) fn client_log(&self) -> String {
        self._sidecars[0].log()
    }
}

pub(crate) fn config_dump(inside: &Namespace) -> String {
    let answer = inside.run(|| get(local(15000), "/config_dump"));
    let answer = answer.expect("entered").expect("a dump");
    String::from_utf8(answer.body).expect("text")
}

fn wait_until_ready(inside: &Namespace) {
    wait_until("a sidecar is ready", || {
        let ready = inside.run(|| get(local(15021), "/healthz/ready"));
        matches!(ready, Ok(Ok(answer)) if answer.status == 200)
    });
}

fn title(mode: &str) -> String {
    let (first, rest) = mode.split_at(1);
    format!("{first}{}", rest.to_lowercase())
}

pub(crate) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Listens inside a namespace.
pub(crate) fn listen(inside: &Namespace, at: impl Into<SocketAddr>) -> TcpListener {
    let at = at.into();
    let bound = inside.run(|| TcpListener::bind(at)).expect("entered");
    bound.unwrap_or_else(|error| panic!("{at}: {error}"))
}

/// Connects from inside a namespace, never to wait for ever.
pub(crate) fn connect(inside: &Namespace, to: impl Into<SocketAddr>) -> TcpStream {
    let to = to.into();
    let stream = inside.run(|| TcpStream::connect(to)).expect("entered");
    let stream = stream.unwrap_or_else(|error| panic!("{to}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).expect("open");
    stream.set_write_timeout(Some(PATIENCE)).expect("open");
    stream.set_nodelay(true).expect("open");
    stream
}

/// Reads exactly these bytes, or fails with the bytes read.
pub(crate) fn hear(stream: &mut TcpStream, expected: &[u8], what: &str) {
    let mut got = vec![0; expected.len()];
    let read = stream.read_exact(&mut got);
    assert!(
        read.is_ok() && got == expected,
        "{what}: {:?} instead of {:?} ({read:?})",
        String::from_utf8_lossy(&got),
        String::from_utf8_lossy(expected),
    );
}

fn resources(mesh_config: &str) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels:\n    istio-injection: enabled\n\
         ---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  mesh: |\n\
         \x20   accessLogFile: /dev/stdout\n    {mesh_config}\n"
    );
    for (address, pod) in [(CLIENT, "client"), (SERVER, "server")] {
        text += &format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {pod}\n  namespace: shop\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n  namespace: shop\n  labels:\n    app: {pod}\n\
             spec:\n  serviceAccountName: {pod}\n  containers:\n  - name: app\nstatus:\n  phase: Running\n  podIP: {address}\n  \
             podIPs:\n  - ip: {address}\n  - ip: {}\n",
            beside(address)
        );
    }
    text + &format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: server\n  namespace: shop\nspec:\n  clusterIP: {VIP}\n  \
         selector:\n    app: server\n  ports:\n  - name: http\n    port: 80\n    targetPort: 8080\n  - name: raw\n    \
         port: 9000\n    targetPort: 9000\n"
    )
}

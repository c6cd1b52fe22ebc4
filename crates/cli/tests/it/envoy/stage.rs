//! A mesh of two pods that call each other: `ours` with a sidecar of Voile, `theirs` with a stock Envoy. Both applications are the
//! test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use voile_identity::{Authority, Keys};
use voile_model::{Identity, Namespace, TrustDomain};

use super::process::Envoy;
use crate::mesh::{
    Answer, Client, Process, exchange, free_port, get, local, own_net, peer_authentication,
    start_control, start_proxy, wait_until,
};

pub(crate) const HTTP: u16 = 8080;
pub(crate) const H2: u16 = 7070;
pub(crate) const TCP: u16 = 9000;
pub(crate) const AUTO: u16 = 7000;
/// Ports of each service, and their protocols.
const PORTS: [(u16, &str, &str); 4] = [
    (HTTP, "http", "HTTP"),
    (H2, "grpc", "GRPC"),
    (TCP, "tcp", "TCP"),
    (AUTO, "", ""),
];
/// Base of application ports: an application listens on this number plus its service port.
const APPLICATION: u16 = 10_000;

/// The two pods, by the last byte of their addresses.
pub(crate) const OURS: u8 = 1;
pub(crate) const THEIRS: u8 = 2;
const PODS: [(u8, &str); 2] = [(OURS, "ours"), (THEIRS, "theirs")];

/// The running mesh.
pub(crate) struct Stage {
    pub(crate) folder: tempfile::TempDir,
    net: [u8; 3],
    ports: [u16; 3],
    control: Option<Process>,
    arguments: Vec<String>,
    _ours: Process,
    ours_ports: [u16; 3],
    pub(crate) admin: SocketAddr,
}

impl Stage {
    /// Control plane and our sidecar run; Envoy has its certificates.
    pub(crate) fn new(mode: &str) -> Self {
        Self::controlled(mode, &[])
    }

    /// The same, by a control plane with further arguments.
    pub(crate) fn controlled(mode: &str, arguments: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let net = own_net();
        std::fs::create_dir(folder.path().join("config")).expect("a folder");
        write(folder.path(), "mesh.yaml", &resources(net));
        write(folder.path(), "peers.yaml", &peer_authentication(mode));
        let ports = [free_port(), free_port(), free_port()];
        let control = start_control(folder.path(), ports, None, arguments);
        let ours_ports = [free_port(), free_port(), free_port()];
        let ours = start_proxy(
            folder.path(),
            ports[0],
            "ours",
            ours_ports,
            &Client::default(),
        );
        wait_until("our sidecar is ready", || {
            get(local(ours_ports[2]), "/healthz/ready").is_ok_and(|answer| answer.status == 200)
        });
        let admin = local(free_port());
        let stage = Self {
            folder,
            net,
            ports,
            control: Some(control),
            arguments: arguments.to_vec(),
            _ours: ours,
            ours_ports,
            admin,
        };
        certify(
            &stage.certificates(),
            &stage.folder.path().join("state"),
            "theirs",
        );
        stage
    }

    /// Stops the control plane.
    pub(crate) fn stop_control(&mut self) {
        drop(self.control.take());
    }

    /// There is a control plane again, at the same place.
    pub(crate) fn start_control(&mut self) {
        let folder = self.folder.path();
        self.control = Some(start_control(folder, self.ports, None, &self.arguments));
    }

    /// Puts resources in a file of their own into force.
    pub(crate) fn set(&self, file: &str, text: &str) {
        write(self.folder.path(), file, text);
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.config().join(file)).expect("removed");
    }

    pub(crate) fn control_url(&self) -> String {
        format!("https://{}", local(self.ports[0]))
    }

    pub(crate) fn monitoring(&self) -> SocketAddr {
        local(self.ports[2])
    }

    /// The mesh as it was at first.
    pub(crate) fn resources(&self) -> String {
        resources(self.net)
    }

    /// The same, where our pod does not run.
    pub(crate) fn resources_without_ours(&self) -> String {
        resources(self.net).replacen("phase: Running", "phase: Pending", 1)
    }

    /// The folder of Envoy's certificates.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.folder.path().join("certificates")
    }

    pub(crate) fn our_metrics(&self) -> String {
        let answer = get(local(self.ours_ports[1]), "/metrics").expect("metrics");
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// `voile export envoy` for the pod with Envoy; with more arguments.
    pub(crate) fn export(&self, more: &[&str]) -> (Option<i32>, String, String) {
        let output = Process::output(|voile| {
            voile.args(["export", "envoy"]).arg(self.config());
            voile.args([
                "--workload",
                "shop/theirs",
                "--admin",
                &self.admin.to_string(),
            ]);
            voile
                .arg("--certificates")
                .arg(self.certificates())
                .args(more);
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }

    /// The same, in a file.
    pub(crate) fn exported(&self, more: &[&str]) -> PathBuf {
        let (code, text, said) = self.export(more);
        assert_eq!(code, Some(0), "{said}");
        let file = self.folder.path().join("envoy.json");
        std::fs::write(&file, text).expect("written");
        file
    }

    pub(crate) fn envoy(&self, program: &Path, bootstrap: &Path) -> Envoy {
        Envoy::start(program, bootstrap, self.admin)
    }

    fn at(&self, last: u8, port: u16) -> SocketAddr {
        SocketAddr::new(
            Ipv4Addr::new(self.net[0], self.net[1], self.net[2], last).into(),
            port,
        )
    }

    /// Address at which an application of a pod calls the other pod's service.
    pub(crate) fn calls(&self, pod: u8, port: u16) -> SocketAddr {
        self.at(100 + pod, port)
    }

    /// Inbound address of a pod, for calls from others.
    pub(crate) fn inbound(&self, pod: u8, port: u16) -> SocketAddr {
        self.at(pod, port)
    }

    /// A pod's application.
    pub(crate) fn application(&self, pod: u8, port: u16) -> TcpListener {
        TcpListener::bind(self.at(pod, APPLICATION + port)).expect("the application's address")
    }

    /// The answer to a request from a pod's application to the other pod.
    pub(crate) fn request(&self, pod: u8, port: u16, line: &str) -> Option<Answer> {
        let head = format!("{line} HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n");
        exchange(self.calls(pod, port), head.as_bytes()).ok()
    }

    pub(crate) fn status(&self, pod: u8, port: u16, line: &str) -> u16 {
        self.request(pod, port, line)
            .map_or(0, |answer| answer.status)
    }
}

/// Does the work of `voile agent` for a service account of the namespace: writes a key, a certificate,
/// and the root.
pub(crate) fn certify(folder: &Path, state: &Path, account: &str) {
    std::fs::create_dir(folder).expect("a folder");
    let domain = TrustDomain::new("cluster.local").expect("a name");
    let identity = Identity {
        trust_domain: domain.clone(),
        namespace: Namespace::new("shop").expect("a name"),
        service_account: account.into(),
    };
    let now = SystemTime::now();
    let authority = Authority::open(state, &domain, now).expect("the authority");
    let keys = Keys::generate().expect("keys");
    let request = keys.request(Some(&identity)).expect("a request");
    let issued = authority
        .issue(&request, &identity, None, now)
        .expect("a certificate");
    let own = keys.certify(&issued.chain).expect("a certificate");
    for (name, text) in [
        ("cert-chain.pem", own.chain_pem()),
        ("key.pem", own.private_key_pem()),
        ("root-cert.pem", authority.root_pem()),
    ] {
        std::fs::write(folder.join(name), text).expect("written");
    }
    let output = Process::output(|voile| {
        voile.args(["export", "envoy-secrets"]).arg(folder);
    });
    assert!(output.status.success(), "{output:?}");
}

fn write(folder: &Path, file: &str, text: &str) {
    let config = folder.join("config");
    let new = config.join(format!(".{file}.new"));
    std::fs::write(&new, text).expect("written");
    std::fs::rename(new, config.join(file)).expect("in place");
}

fn resources(net: [u8; 3]) -> String {
    let base = format!("{}.{}.{}", net[0], net[1], net[2]);
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n".to_owned();
    for (last, pod) in PODS {
        let other = PODS
            .iter()
            .find(|(other, _)| *other != last)
            .expect("the other")
            .1;
        text += &format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {pod}, namespace: shop}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: shop, labels: {{app: {pod}, voile.dev/pod: {pod}}}}}\n\
             spec: {{serviceAccountName: {pod}, containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: {base}.{last}}}\n\
             ---\napiVersion: v1\nkind: Service\nmetadata: {{name: {pod}, namespace: shop}}\nspec:\n  clusterIP: 10.96.{}.{last}\n  selector: {{app: {pod}}}\n  ports:\n",
            net[2]
        );
        for (port, name, _) in PORTS {
            let name = if name.is_empty() {
                format!("raw-{port}")
            } else {
                name.to_owned()
            };
            text += &format!("  - {{name: {name}, port: {port}, targetPort: {port}}}\n");
        }
        text += &format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {pod}, namespace: shop}}\nspec:\n  workloadSelector: {{labels: {{app: {pod}}}}}\n  ingress:\n"
        );
        let protocol = |port: u16, protocol: &str| match protocol {
            "" => format!("{{number: {port}, name: raw-{port}}}"),
            said => format!("{{number: {port}, protocol: {said}, name: p-{port}}}"),
        };
        for (port, _, said) in PORTS {
            let application = APPLICATION + port;
            text += &format!(
                "  - {{port: {}, captureMode: NONE, defaultEndpoint: \"0.0.0.0:{application}\"}}\n",
                protocol(port, said)
            );
        }
        text += "  egress:\n";
        for (port, _, said) in PORTS {
            text += &format!(
                "  - {{port: {}, bind: {base}.{}, captureMode: NONE, hosts: [\"shop/{other}.shop.svc.cluster.local\"]}}\n",
                protocol(port, said),
                100 + last
            );
        }
    }
    text
}

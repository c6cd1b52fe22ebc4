//! Memory of a sidecar by the size of its mesh, and cost of the first request to a service. Runs in network namespaces, where
//! traffic is captured as in any mesh, and the sidecar learns of a service at the first call to it.
//!
//! ```text
//! client pod: requests ─▶ sidecar (started anew each round) ─▶ server pod: sidecar ─▶ echo        fabric: control plane
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use voile_host::child::{Spec, SupervisedChild};
use voile_host::netns::Namespace;
use voile_host::netns::rules::{PodCapture, PortScope, Rules};
use voile_host::ready::Probe;
use voile_host::sampler::ProcessResources;
use voile_report::record::Record;

use super::control::{Control, port};
use super::{SidecarSettings, megabytes, rest};
use crate::control_plane::{Progress, generate};
use crate::network::Echo;
use crate::network::{GATEWAY, HTTP_PORT, Network, Pod};
use crate::shared_processes::{Lab, STOP_GRACE};

/// Services that the sidecar uses, for any size of the mesh.
const USED: u32 = 10;
/// Workloads behind each unused service.
const WORKLOADS_EACH: u32 = 2;
/// Virtual addresses of those that are used: 10.212.0.1 and on.
const VIRTUAL: [u8; 3] = [10, 212, 0];
const PORT: u16 = 80;
/// Ports of a sidecar's own pages, on the address of its pod: Istio's ports.
const ADMIN: u16 = 15000;
const METRICS: u16 = 15020;
const READINESS: u16 = 15021;
const NAMESPACE: &str = "reach";
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// After the last request, until memory is read.
const SETTLE: Duration = Duration::from_secs(2);
/// Most that a first request may take more than a second one, in milliseconds; most that a sidecar may hold more, in megabytes.
const FIRST_MS: f64 = 5.0;
const MORE_MB: f64 = 1.0;

/// Figures of one mesh.
struct ReachedMesh {
    rss: Vec<f64>,
    first_ms: Vec<f64>,
    second_ms: Vec<f64>,
}

pub(super) fn measure(
    settings: &SidecarSettings,
    scratch: &Path,
    record: &mut Record,
    (progress, stopped): (&Progress<'_>, &dyn Fn() -> bool),
) -> Result<(), String> {
    let network = match Network::create("--tcp") {
        Ok(network) => network,
        Err(why) => {
            let note =
                format!("The memory of a sidecar by the size of its mesh was not measured: {why}");
            record.notes.push(note);
            return Ok(());
        }
    };
    let _visit = network.visit()?;
    let lab = Lab::on_loopback(&settings.voile, scratch, Echo::NOWHERE, stopped);
    let mut smallest = None;
    for (number, services) in settings.meshes.iter().enumerate() {
        if number > 0 {
            progress.next();
        }
        let mut mesh = Mesh::start(&lab, &network, *services, progress)?;
        let seen = mesh.rounds(settings.rounds, progress);
        mesh.end();
        let seen = seen?;
        add(record, *services, &seen, &mut smallest);
    }
    Ok(())
}

/// Adds a mesh's figures; the first mesh is the reference for the others.
fn add(record: &mut Record, services: u32, seen: &ReachedMesh, smallest: &mut Option<f64>) {
    let what = format!("a sidecar that uses {USED} of {services} services");
    let rss = middle(&seen.rss);
    record.add(&what, "RSS, median of its starts", (rss, "MB"), None);
    match *smallest {
        None => *smallest = Some(rss),
        Some(least) => {
            let more = rss - least;
            record.add(
                &what,
                "RSS more than in the first mesh",
                (more, "MB"),
                Some(MORE_MB),
            );
        }
    }
    let mut more: Vec<f64> = seen
        .first_ms
        .iter()
        .zip(&seen.second_ms)
        .map(|(first, second)| first - second)
        .collect();
    more.sort_by(f64::total_cmp);
    record.add(
        &what,
        "a second request, median",
        (middle(&seen.second_ms), "ms"),
        None,
    );
    record.add(
        &what,
        "a first request, more than the second, median",
        (middle(&more), "ms"),
        Some(FIRST_MS),
    );
    let slowest = more.last().copied().unwrap_or(0.0);
    record.add(
        &what,
        "a first request, more than the second, at most",
        (slowest, "ms"),
        None,
    );
    record.add(&what, "first requests", (more.len() as f64, ""), None);
}

fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

struct Mesh<'a> {
    lab: &'a Lab<'a>,
    services: u32,
    control: Control,
    token: std::path::PathBuf,
    client: Pod,
    server: SupervisedChild,
    echo: SupervisedChild,
}

impl<'a> Mesh<'a> {
    fn start(
        lab: &'a Lab<'a>,
        network: &Network,
        services: u32,
        progress: &Progress<'_>,
    ) -> Result<Self, String> {
        progress.say(&format!("a mesh of {services} services"));
        let config = lab.folder.join(format!("reach-{services}"));
        std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        let others = services.saturating_sub(USED);
        if others > 0 {
            let folder = config.join("others");
            generate(
                &lab.voile,
                &folder,
                others,
                others * WORKLOADS_EACH,
                lab.stopped,
            )?;
        }
        let name = format!("reach-{services}-control");
        let place = Some(network.for_control());
        // Pods leave calls to the control plane alone, and its folder has their addresses: its port comes first, it itself last.
        let tls = port(GATEWAY.into())?;
        let captured = |inbound: Vec<u16>| Rules {
            capture: Some(PodCapture {
                control: vec![tls],
                inbound_ports: PortScope::Only(inbound),
                ..PodCapture::default()
            }),
            ..Rules::default()
        };
        let client = network.add_pod(&captured(Vec::new()))?;
        let server = network.add_pod(&captured(vec![HTTP_PORT]))?;
        crate::record_folder::write(
            &config.join("reach.yaml"),
            &resources(client.address, server.address),
        )?;
        let control = Control::start(lab, &name, &config, tls, place, &[])?;
        let token = control.token(lab, &format!("{NAMESPACE}/client"))?;
        let of_server = control.token(lab, &format!("{NAMESPACE}/server"))?;
        let echo = lab.start_pod_echo(
            network,
            &server,
            &format!("reach-{services}-echo"),
            (&[HTTP_PORT], &[]),
            &[],
        )?;
        let mut mesh = Self {
            lab,
            services,
            token,
            server: sidecar(lab, &control, &of_server, &server, "server")?,
            control,
            client,
            echo,
        };
        lab.wait_ready(&mut mesh.server, &ready(server.address))?;
        Ok(mesh)
    }

    fn rounds(&mut self, rounds: u32, progress: &Progress<'_>) -> Result<ReachedMesh, String> {
        let mut seen = ReachedMesh {
            rss: Vec::new(),
            first_ms: Vec::new(),
            second_ms: Vec::new(),
        };
        for round in 1..=rounds.max(1) {
            let services = self.services;
            progress.say(&format!(
                "a mesh of {services} services, start {round} of {rounds}"
            ));
            let mut client = sidecar(self.lab, &self.control, &self.token, &self.client, "client")?;
            self.lab
                .wait_ready(&mut client, &ready(self.client.address))?;
            for service in 0..USED {
                let to = virtual_address(service);
                for times in [&mut seen.first_ms, &mut seen.second_ms] {
                    let took = request(&self.client.namespace, to).map_err(|why| {
                        format!("a request to {to}: {why}{}", self.lab.log_end("client"))
                    })?;
                    times.push(took);
                }
            }
            rest(SETTLE, self.lab.stopped)?;
            let held = ProcessResources::of(client.pid())
                .map_err(|e| format!("a sidecar's memory: {e}"))?;
            seen.rss.push(megabytes(held.rss_bytes));
            client.stop(STOP_GRACE);
        }
        Ok(seen)
    }

    fn end(&mut self) {
        for child in [&mut self.server, &mut self.echo, &mut self.control.child] {
            child.stop(STOP_GRACE);
        }
    }
}

fn ready(pod: IpAddr) -> Probe {
    Probe::Http(SocketAddr::new(pod, READINESS), "/healthz/ready".to_owned())
}

fn sidecar(
    lab: &Lab<'_>,
    control: &Control,
    token: &Path,
    pod: &Pod,
    name: &str,
) -> Result<SupervisedChild, String> {
    let spec: Spec = lab
        .process(name, name, &lab.voile)?
        .args(["proxy", "--capture", "redirect", "--log-level", "warn"])
        .args(["--workload", &format!("{NAMESPACE}/{name}")])
        .args(["--control", &format!("https://{}", control.tls)])
        .arg("--root-cert")
        .arg(control.state.join("root-cert.pem"))
        .arg("--token-file")
        .arg(token)
        .args(["--admin", &format!("{}:{ADMIN}", pod.address)])
        .args(["--metrics", &format!("{}:{METRICS}", pod.address)])
        .args(["--readiness", &format!("{}:{READINESS}", pod.address)]);
    let spec = spec.place(pod.for_sidecar());
    spec.start().map_err(|e| e.to_string())
}

fn virtual_address(service: u32) -> SocketAddr {
    let [a, b, c] = VIRTUAL;
    let last = 1 + u8::try_from(service).unwrap_or(0);
    SocketAddr::new(Ipv4Addr::new(a, b, c, last).into(), PORT)
}

/// One request over a connection of its own, as an application in that pod makes it: time from its connect to the last byte, in
/// milliseconds.
fn request(inside: &Namespace, to: SocketAddr) -> Result<f64, String> {
    let asked = || -> std::io::Result<(f64, Vec<u8>)> {
        let began = Instant::now();
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!("GET /?size=10 HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok((began.elapsed().as_secs_f64() * 1e3, answer))
    };
    let (took, answer) = inside
        .run(asked)
        .and_then(|asked| asked)
        .map_err(|e| e.to_string())?;
    match answer.starts_with(b"HTTP/1.1 200 ") {
        true => Ok(took),
        false => {
            let head = String::from_utf8_lossy(&answer);
            Err(format!(
                "answered {:?}",
                head.lines().next().unwrap_or_default()
            ))
        }
    }
}

/// Client, server, and the services that lead to the server.
fn resources(client: IpAddr, server: IpAddr) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, labels: {{istio-injection: enabled}}}}\n\
         ---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: all, namespace: {NAMESPACE}}}\n\
         spec: {{mtls: {{mode: STRICT}}}}\n"
    );
    for (name, address) in [("client", client), ("server", server)] {
        text += &format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: {name}}}}}\n\
             spec: {{serviceAccountName: {name}, containers: [{{name: app, image: none}}]}}\nstatus: {{phase: Running, podIP: {address}}}\n"
        );
    }
    for service in 0..USED {
        text += &format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: used-{service}, namespace: {NAMESPACE}}}\n\
             spec: {{clusterIP: {}, selector: {{app: server}}, ports: [{{name: http, port: {PORT}, targetPort: {HTTP_PORT}}}]}}\n",
            virtual_address(service).ip()
        );
    }
    text
}

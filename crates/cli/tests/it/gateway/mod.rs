//! A gateway: what comes from outside, by plain sockets, through it into the mesh.

mod automatic;
mod files;
mod forwarded;
pub(crate) mod http3;
mod origination;
mod outward;
mod plain;
pub(crate) mod proxied;
mod revoked;
pub(crate) mod streams;
pub(crate) mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::mesh::{Answer, Client, HTTP_PORT, Mesh, Process, exchange, get, local, wait_until};

/// A mesh with a gateway in front. Its client's sidecar has no part in these tests.
pub(crate) struct Edge {
    pub(crate) mesh: Mesh,
    gateway: Process,
    ports: [u16; 3],
}

/// The last byte of the gateway's address.
pub(crate) const POD: u8 = 4;

/// The head of a resource of Istio's networking group.
pub(crate) const NETWORKING: &str = "apiVersion: networking.istio.io/v1\nkind: ";

/// The gateway's Pod, with further annotations.
pub(crate) fn pod(mesh: &Mesh, annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: gateway, namespace: shop}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata:\n  name: gateway\n  namespace: shop\n\
         \x20 labels: {{app: gateway, istio: ingress}}\n\
         \x20 annotations: {{inject.istio.io/templates: gateway{annotations}}}\n\
         spec:\n  serviceAccountName: gateway\n  containers: [{{name: istio-proxy, image: auto}}]\n\
         status: {{phase: Running, podIP: {}}}\n---\n",
        mesh.address(POD, 0).ip()
    )
}

/// A Gateway with these servers, in flow style.
pub(crate) fn servers(list: &str) -> String {
    format!(
        "{NETWORKING}Gateway\nmetadata: {{name: edge, namespace: shop}}\nspec:\n  selector: {{istio: ingress}}\n  servers: [{list}]\n---\n"
    )
}

/// A VirtualService at the gateway for these hosts, with these routes.
pub(crate) fn routes(hosts: &str, http: &str) -> String {
    format!(
        "{NETWORKING}VirtualService\nmetadata: {{name: shop, namespace: shop}}\nspec:\n  hosts: [{hosts}]\n  gateways: [edge]\n  http: [{http}]\n---\n"
    )
}

/// Everything to the mesh's one service.
pub(crate) const TO_SERVER: &str = "{route: [{destination: {host: server, port: {number: 8080}}}]}";

/// One server of HTTP.
pub(crate) fn http_server(hosts: &str) -> String {
    format!("{{port: {{number: {HTTP_PORT}, name: http, protocol: HTTP}}, hosts: [{hosts}]}}")
}

fn as_gateway(mut how: Client) -> Client {
    how.arguments
        .extend(["--role", "gateway"].map(ToOwned::to_owned));
    how
}

impl Edge {
    /// Starts a STRICT mesh with a gateway whose Pod has these annotations too, and these resources beside.
    pub(crate) fn start(annotations: &str, resources: &str) -> Self {
        Self::start_as(Client::default(), annotations, resources)
    }

    /// The same, with a gateway that is started so.
    pub(crate) fn start_as(how: Client, annotations: &str, resources: &str) -> Self {
        Self::start_on(Mesh::start("STRICT"), how, annotations, resources)
    }

    /// The same in front of a mesh that runs.
    pub(crate) fn start_on(mesh: Mesh, how: Client, annotations: &str, resources: &str) -> Self {
        say(&mesh, "gateway.yaml", &pod(&mesh, annotations));
        say(&mesh, "edge.yaml", resources);
        let (gateway, ports) = mesh.start_beside("gateway", &as_gateway(how));
        let edge = Self {
            mesh,
            gateway,
            ports,
        };
        wait_until("the gateway to be ready", || edge.ready().is_ok());
        edge
    }

    /// Starts another process in the gateway's place, if it was started with `--handover`; gives the old one.
    pub(crate) fn replace(&mut self, how: Client) -> Process {
        let new = self.mesh.start_at("gateway", &as_gateway(how), self.ports);
        std::mem::replace(&mut self.gateway, new)
    }

    /// Ok if the gateway is ready; else the text of its readiness page.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match get(local(self.ports[2]), "/healthz/ready") {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(body(&answer)),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn gateway_pid(&self) -> u32 {
        self.gateway.pid()
    }

    /// Address of the gateway's listener.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        self.mesh.address(POD, port)
    }

    /// The gateway's config dump.
    pub(crate) fn dump(&self) -> String {
        body(&get(local(self.ports[0]), "/config_dump").expect("a dump"))
    }

    pub(crate) fn metrics(&self) -> String {
        let answer = get(local(self.ports[1]), "/metrics").expect("metrics");
        String::from_utf8(answer.body).expect("text")
    }

    /// Asks in plaintext; `fields` are complete lines.
    pub(crate) fn ask(&self, method: &str, host: &str, path: &str, fields: &str) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        exchange(self.at(HTTP_PORT), request.as_bytes()).expect("an answer")
    }

    pub(crate) fn status(&self, host: &str, path: &str) -> u16 {
        self.ask("GET", host, path, "").status
    }
}

/// Puts a file in the place of another at once, as editors do.
pub(crate) fn say(mesh: &Mesh, name: &str, text: &str) {
    let new = mesh.config().join(format!("{name}.new"));
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, mesh.config().join(name)).expect("renamed");
}

pub(crate) fn body(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// A client that sends requests without a pause.
struct Asking {
    end: Arc<AtomicBool>,
    /// Answers that were right, and that were not.
    counts: Arc<[AtomicU64; 2]>,
    thread: std::thread::JoinHandle<()>,
}

impl Asking {
    fn start(edge: &Arc<Edge>, is_good: impl Fn(&Edge) -> bool + Send + 'static) -> Self {
        let edge = Arc::clone(edge);
        Self::over(move || is_good(&edge))
    }

    fn over(is_good: impl Fn() -> bool + Send + 'static) -> Self {
        let (end, counts): (_, Arc<[AtomicU64; 2]>) =
            (Arc::new(AtomicBool::new(false)), Arc::default());
        let (ending, counting) = (Arc::clone(&end), Arc::clone(&counts));
        let thread = std::thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                counting[usize::from(!is_good())].fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            end,
            counts,
            thread,
        }
    }

    /// Nothing was lost of as many as tell something.
    fn lost_nothing(self) {
        let count = |index: usize| self.counts[index].load(Ordering::Relaxed);
        wait_until("enough to be asked", || count(0) + count(1) > 10);
        self.end.store(true, Ordering::Relaxed);
        self.thread.join().expect("a thread");
        let [good, bad] = [0, 1].map(|index| self.counts[index].load(Ordering::Relaxed));
        assert_eq!(bad, 0, "of {good}");
    }
}

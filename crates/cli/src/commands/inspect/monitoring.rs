//! Shared by `voile status`, `config`, `events` and `edges`: the servers of pages (an address, the control socket of a run, or a
//! port of a pod that only a cluster reaches), and the requests for a page.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;
use voile_kubernetes::pods::{self, PodPort, PodReference};
use voile_kubernetes::{Client, ClusterError};
use voile_model::Mesh;
use voile_pages::Answer;

use crate::commands::inspect::running_mesh::{FoundMesh, MeshArgs};
use crate::commands::kubernetes::cluster::{ClusterArgs, ReadResources};

/// Beyond what a page may wait for by itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than a control plane waits for a stream.
const STREAM_WAIT: Duration = Duration::from_secs(5);
/// Pages that are asked for at a time.
const AT_ONCE: usize = 16;
/// Where a control plane serves its pages by default.
const DEFAULT_MONITORING: &str = "127.0.0.1:15014";
/// Largest page that is read, in bytes: ten thousand proxies with all their types.
const MAX_PAGE_BYTES: usize = 256 * 1024 * 1024;

/// The mesh whose proxies are asked: one on this machine, or that of a cluster.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WatchedMesh {
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Control planes of one mesh: of a `voile up` that runs here, by the addresses of their pages, or as the pods of a cluster.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AllMonitoring {
    #[command(flatten)]
    watched: WatchedMesh,
    /// The control plane's `--monitoring` address; repeat the option for several control planes. Without it, --mesh and
    /// --kubernetes: the mesh of `voile up` that runs on this machine, or 127.0.0.1:15014 if none does.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["kubernetes", "mesh"])]
    monitoring: Vec<SocketAddr>,
}

/// What a command asks.
#[derive(Debug)]
pub(crate) struct AskedControlPlanes {
    pub(crate) each: Vec<PageServer>,
    /// The mesh of `voile up` that they belong to.
    pub(crate) mesh: Option<FoundMesh>,
}

impl AllMonitoring {
    /// Returns true if a cluster is asked.
    pub(crate) fn kubernetes(&self) -> bool {
        self.watched.cluster.kubernetes
    }

    /// The pages of each control plane, once.
    pub(crate) fn each(&self) -> Result<Vec<PageServer>, String> {
        self.find().map(|asked| asked.each)
    }

    /// The pages of each control plane, once, and the running mesh that they belong to.
    pub(crate) fn find(&self) -> Result<AskedControlPlanes, String> {
        let runtime = runtime()?;
        if self.kubernetes() {
            let (each, _) = self.watched.control_planes()?;
            return Ok(AskedControlPlanes { each, mesh: None });
        }
        let mesh = match self.monitoring.is_empty() {
            true => self.watched.mesh.find(&runtime)?,
            false => None,
        };
        if let Some(mesh) = mesh {
            return Ok(AskedControlPlanes {
                each: mesh.control_planes(),
                mesh: Some(mesh),
            });
        }
        let mut once = BTreeSet::new();
        let default = DEFAULT_MONITORING.parse().ok();
        let default = default.filter(|_| self.monitoring.is_empty());
        let each = self.monitoring.iter().copied().chain(default);
        let each = each.filter(|address| once.insert(*address));
        let each = each.map(|address| match self.monitoring.is_empty() {
            true => PagePlace::Default(address),
            false => PagePlace::Address(address),
        });
        Ok(AskedControlPlanes {
            each: each.map(|place| PageServer::new(place, &runtime)).collect(),
            mesh: None,
        })
    }

    /// The pages of a pod's proxy. `namespace` is that of a name without one; without it, that of the cluster's context.
    pub(crate) fn proxy(&self, name: &str, namespace: Option<&str>) -> Result<PageServer, String> {
        let reference: PodReference = name.parse()?;
        let runtime = runtime()?;
        let port = runtime.block_on(async {
            let client = self.watched.cluster.connect().await?;
            let namespace = namespace.unwrap_or(client.default_namespace());
            let port = pods::proxy(&client, &reference, namespace).await;
            port.map_err(|error| error.to_string())
        })?;
        Ok(PageServer::new(PagePlace::Pod(port), &runtime))
    }
}

impl WatchedMesh {
    /// The mesh of the `voile up` with this process number.
    pub(crate) fn of_process(pid: u32) -> Self {
        Self {
            mesh: MeshArgs::of_process(pid),
            cluster: ClusterArgs::default(),
        }
    }

    /// The mesh of `voile up`; a cluster is refused.
    pub(crate) fn of_this_machine(&self) -> Result<FoundMesh, String> {
        if self.cluster.kubernetes {
            return Err(
                "a Prometheus in the cluster reads the metrics of its pods itself".to_owned(),
            );
        }
        self.mesh.need(&runtime()?)
    }

    /// Whether it is that of a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.cluster.kubernetes
    }

    /// The pages of every proxy of the mesh.
    pub(crate) fn proxies(&self) -> Result<Vec<PageServer>, String> {
        let runtime = runtime()?;
        if !self.cluster.kubernetes {
            return Ok(self.mesh.need(&runtime)?.proxies());
        }
        let found = self.of_cluster(&runtime, async |client| pods::proxies(client).await)?;
        let places = found.into_iter().map(PagePlace::Pod);
        Ok(places
            .map(|place| PageServer::new(place, &runtime))
            .collect())
    }

    /// The pages of every control plane; and the state of a mesh on this machine.
    pub(crate) fn control_planes(&self) -> Result<(Vec<PageServer>, Option<Value>), String> {
        let runtime = runtime()?;
        if !self.cluster.kubernetes {
            let mesh = self.mesh.need(&runtime)?;
            return Ok((mesh.control_planes(), Some(mesh.state)));
        }
        let (namespace, revision) = (&self.cluster.istio_namespace, &self.cluster.revision);
        let found = self.of_cluster(&runtime, async |client| {
            pods::control_planes(client, namespace, revision.as_deref()).await
        })?;
        let places = found.into_iter().map(PagePlace::Pod);
        let servers = places.map(|place| PageServer::new(place, &runtime));
        Ok((servers.collect(), None))
    }

    /// The resources of the mesh; a folder is read anew.
    pub(crate) fn mesh(&self) -> Result<Mesh, String> {
        let (mut paths, mut by_node) = (Vec::new(), false);
        if let Some(found) = self.on_this_machine()? {
            by_node = found.state["by_node"] == true;
            paths.push(found.folder().to_owned());
        }
        let read = ReadResources::read(&paths, &self.cluster)?;
        Ok(read.mesh(by_node).0)
    }

    /// The mesh of `voile up`; none if a cluster is meant.
    pub(crate) fn on_this_machine(&self) -> Result<Option<FoundMesh>, String> {
        match self.cluster.kubernetes {
            true => self.mesh.refuse_for_cluster().map(|()| None),
            false => self.mesh.need(&runtime()?).map(Some),
        }
    }

    /// What a proxy holds, with the documents, by the first control plane that serves it.
    pub(crate) fn held_by(&self, proxy: &str) -> Result<Vec<Value>, String> {
        let (servers, _) = self.control_planes()?;
        let path = format!("/debug/config?proxy={proxy}");
        let mut last = format!("no control plane knows {proxy}");
        for server in servers {
            match server.page(&path, STREAM_WAIT) {
                Ok(page) => {
                    let proxies = page.as_array().into_iter().flatten();
                    let held = proxies.flat_map(|one| one["resources"].as_array());
                    return Ok(held.flatten().cloned().collect());
                }
                Err(reason) => last = reason,
            }
        }
        Err(last)
    }

    fn of_cluster(
        &self,
        runtime: &Runtime,
        find: impl AsyncFnOnce(&Client) -> Result<Vec<PodPort>, ClusterError>,
    ) -> Result<Vec<PodPort>, String> {
        self.mesh.refuse_for_cluster()?;
        runtime.block_on(async {
            let client = self.cluster.connect().await?;
            let found = find(&client).await;
            found.map_err(|error| error.to_string())
        })
    }
}

/// A runtime that several threads may use: one of those that wait drives it.
pub(crate) fn runtime() -> Result<Arc<Runtime>, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    runtime.map(Arc::new).map_err(|error| error.to_string())
}

/// A server of pages, named by its address or NAMESPACE/POD.
#[derive(Debug, Clone)]
pub(crate) struct PageServer {
    place: PagePlace,
    runtime: Arc<Runtime>,
}

#[derive(Debug, Clone)]
pub(crate) enum PagePlace {
    Address(SocketAddr),
    /// The default address, because nothing was named and no mesh runs.
    Default(SocketAddr),
    /// Pages below a prefix of a control socket.
    Socket {
        path: PathBuf,
        prefix: String,
        name: String,
    },
    Pod(PodPort),
}

impl fmt::Display for PageServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            PagePlace::Address(address) | PagePlace::Default(address) => address.fmt(f),
            PagePlace::Socket { name, .. } => f.write_str(name),
            PagePlace::Pod(port) => port.fmt(f),
        }
    }
}

impl PageServer {
    pub(crate) fn new(place: PagePlace, runtime: &Arc<Runtime>) -> Self {
        Self {
            place,
            runtime: Arc::clone(runtime),
        }
    }

    /// Pages at a port of a pod.
    pub(crate) fn on_pod(port: PodPort, runtime: &Arc<Runtime>) -> Self {
        Self::new(PagePlace::Pod(port), runtime)
    }

    /// Returns true if it is a node proxy, which serves many pods.
    pub(crate) fn is_node_proxy(&self) -> bool {
        match &self.place {
            PagePlace::Address(_) | PagePlace::Default(_) => false,
            PagePlace::Socket { name, .. } => name == voile_local::NODE_PROXY,
            PagePlace::Pod(port) => port.is_node_proxy(),
        }
    }

    /// An order without a body.
    pub(crate) fn post(&self, path: &str) -> Result<(), String> {
        let answer = self
            .runtime
            .block_on(self.ask("POST", path, Duration::ZERO))?;
        match (200..300).contains(&answer.status()) {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(answer.body()).trim().to_owned()),
        }
    }

    /// A page of text.
    pub(crate) fn text(&self, path: &str) -> Result<String, String> {
        let answer = self
            .runtime
            .block_on(self.ask("GET", path, Duration::ZERO))?;
        let text = String::from_utf8_lossy(answer.body());
        match answer.status() {
            200 => Ok(text.into_owned()),
            _ => Err(format!("{self}: {}", text.trim())),
        }
    }

    /// A page of JSON, that may take so long to begin.
    pub(crate) fn page(&self, path: &str, wait: Duration) -> Result<Value, String> {
        self.json("GET", path, wait)
    }

    /// The same, of an order.
    pub(crate) fn json(&self, method: &str, path: &str, wait: Duration) -> Result<Value, String> {
        let answer = self.runtime.block_on(self.ask(method, path, wait))?;
        let body = answer.body();
        if answer.status() != 200 {
            return Err(String::from_utf8_lossy(body).trim().to_owned());
        }
        let mut page = serde_json::from_slice(body)
            .map_err(|error| format!("{self}: {path} is no page of Voile: {error}"))?;
        make_printable(&mut page);
        Ok(page)
    }

    async fn ask(&self, method: &str, path: &str, wait: Duration) -> Result<Answer, String> {
        let failed = |error: io::Error| format!("{self}: {path}: {error}");
        match &self.place {
            PagePlace::Address(address) => {
                let stream = within(PATIENCE, TcpStream::connect(address)).await;
                let mut stream = stream.map_err(failed)?;
                let answer = within(wait + PATIENCE, exchange(&mut stream, method, path)).await;
                answer.map_err(failed)
            }
            PagePlace::Default(address) => {
                let connected = within(PATIENCE, TcpStream::connect(address)).await;
                let nobody = |error| {
                    format!(
                        "no mesh of `voile up` runs on this machine for this user, and no control plane answers at {address} \
                         ({error}); cure: voile up FOLDER, or --monitoring ADDRESS, or --kubernetes"
                    )
                };
                let mut stream = connected.map_err(nobody)?;
                let answer = within(wait + PATIENCE, exchange(&mut stream, method, path)).await;
                answer.map_err(failed)
            }
            PagePlace::Socket {
                path: socket,
                prefix,
                ..
            } => {
                let connected = within(PATIENCE, UnixStream::connect(socket)).await;
                let mut stream = connected.map_err(failed)?;
                let path = format!("{prefix}{path}");
                let answer = within(wait + PATIENCE, exchange(&mut stream, method, &path)).await;
                answer.map_err(failed)
            }
            PagePlace::Pod(port) => {
                let opened = tokio::time::timeout(PATIENCE, port.open()).await;
                let opened = opened
                    .map_err(|_| format!("{port}: the port was not forwarded in {PATIENCE:?}"))?;
                let mut opened = opened.map_err(|error| error.to_string())?;
                let answer =
                    within(wait + PATIENCE, exchange(&mut opened.stream, method, path)).await;
                match answer {
                    Ok(answer) => Ok(answer),
                    Err(error) => {
                        let failure = tokio::time::timeout(PATIENCE, opened.failure()).await;
                        let failure = failure.ok().flatten();
                        Err(failure.map_or_else(|| failed(error), |failure| failure.to_string()))
                    }
                }
            }
        }
    }
}

/// Asks again and again on a thread of its own, with a pause after each answer: until there is none, or nobody takes it.
pub(crate) fn ask_again<T: Send + 'static>(
    tell: SyncSender<T>,
    mut ask: impl FnMut() -> Option<(T, Duration)> + Send + 'static,
) {
    std::thread::spawn(move || {
        while let Some((answer, pause)) = ask() {
            if tell.send(answer).is_err() {
                return;
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "who is asked again and again is not asked without a pause"
            )]
            std::thread::sleep(pause);
        }
    });
}

/// A page of each of these, several at a time, in their order.
pub(crate) fn texts(servers: &[PageServer], path: &str) -> Vec<Result<String, String>> {
    let mut texts = Vec::with_capacity(servers.len());
    for some in servers.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let asked = some.iter().map(|server| scope.spawn(|| server.text(path)));
            let asked: Vec<_> = asked.collect();
            let panicked = |_| Err("the thread that asked has panicked".to_owned());
            texts.extend(
                asked
                    .into_iter()
                    .map(|one| one.join().unwrap_or_else(panicked)),
            );
        });
    }
    texts
}

/// Replaces what would command the terminal: proxies choose their names, and root reads what other users' processes say.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(|c: char| c.is_control() && c != '\n') => {
            let printable = |c: char| match c.is_control() && c != '\n' {
                true => char::REPLACEMENT_CHARACTER,
                false => c,
            };
            *text = text.chars().map(printable).collect();
        }
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        _ => {}
    }
}

async fn within<T>(time: Duration, done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(time, done).await;
    done.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {time:?}")))?
}

/// Asks for a page, by a name that pages of the machine itself accept.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    path: &str,
) -> io::Result<Answer> {
    let question =
        format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).await?;
    stream.flush().await?;
    // A forwarded port does not always end when its server closes, so the answer's own end counts.
    let mut answer = Answer::default();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = stream.read(&mut bytes).await?;
        if answer.push(&bytes[..read])? {
            return Ok(answer);
        }
        if answer.body().len() > MAX_PAGE_BYTES {
            let error = format!("the page is larger than {MAX_PAGE_BYTES} bytes");
            return Err(io::Error::other(error));
        }
    }
}

/// Columns under their heads, each as wide as it must be, the last one open.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let cells = cells.map(|cell| cell.chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let printable = |cell: &str| cell.replace(char::is_control, "\u{fffd}");
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths);
        let padded: Vec<String> = padded
            .map(|(cell, width)| format!("{:<width$}", printable(cell)))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(heads.to_vec());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// Text of a field, or a dash.
pub(crate) fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field]
        .as_str()
        .filter(|text| !text.is_empty())
        .unwrap_or("-")
}

/// A type by its last word.
pub(crate) fn short(type_url: &str) -> &str {
    type_url.rsplit('.').next().unwrap_or(type_url)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "long cell", "x"], ["bcd", "", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&["ONE", "TWO", "THREE"], &rows),
            "ONE  TWO        THREE\na    long cell  x\nbcd\n"
        );
        let hostile = [vec!["a\u{1b}[2J".to_owned()]];
        assert_eq!(table(&["ONE"], &hostile), "ONE\na\u{fffd}[2J\n");
        assert_eq!(
            short("type.googleapis.com/istio.workload.Address"),
            "Address"
        );
    }

    #[test]
    fn what_pages_say_does_not_command_the_terminal() {
        let mut state =
            json!({"folder": "/a\u{1b}[2Jb", "problems": ["one\ntwo\r"], "ready": true});
        make_printable(&mut state);
        let expected =
            json!({"folder": "/a\u{fffd}[2Jb", "problems": ["one\ntwo\u{fffd}"], "ready": true});
        assert_eq!(state, expected);
    }
}

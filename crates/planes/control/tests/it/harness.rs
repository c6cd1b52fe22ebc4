//! A control plane over a temporary folder, and clients of it that remember what they were told. Every wait is for a
//! condition, with a deadline far beyond what a loaded machine needs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::sync::watch;
use voile_control::{Addresses, Control, ControlOptions, Report};
use voile_identity::{StateDir, TOKEN_AUDIENCE, TokenKey, TokenSubject};
use voile_proto::discovery::Node;
use voile_xds::client::{ClientConfig, Credential, CredentialSource, Rejection, Update, XdsClient};

const DEADLINE: Duration = Duration::from_secs(20);
/// Between two looks at what nobody tells of.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The folder that a control plane of a process of its own serves.
const SERVED_FOLDER: &str = "VOILE_TEST_SERVED_FOLDER";
/// Before the addresses that it listens at.
const LISTENS: &str = "control listens: ";

/// Two workloads with sidecars, one service.
pub(crate) const SHOP: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: echo-1, namespace: shop, labels: {app: echo, sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: echo, containers: [{name: app, image: none}]}
status: {podIP: 127.1.0.3}
---
apiVersion: v1
kind: Pod
metadata: {name: client-1, namespace: shop, labels: {app: client, sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: client, containers: [{name: app, image: none}]}
status: {podIP: 127.1.0.4}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  egress:
  - port: {number: 80, protocol: HTTP, name: http}
    bind: 127.1.0.4
    captureMode: NONE
    hosts: ["./*"]
"#;

/// Another pod of the same service.
pub(crate) const SECOND_ECHO: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: echo-2, namespace: shop, labels: {app: echo, sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: echo, containers: [{name: app, image: none}]}
status: {podIP: 127.1.0.5}
"#;

pub(crate) struct Mesh {
    pub(crate) folder: Arc<TempDir>,
    control: Option<Control>,
    pub(crate) addresses: Addresses,
    reports: watch::Receiver<Vec<Seen>>,
}

/// The part of a report that tests look at.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) text: String,
    pub(crate) version: String,
    pub(crate) changed: bool,
}

impl Mesh {
    pub(crate) async fn start(text: &str) -> Self {
        Self::start_with(text, |_| ()).await
    }

    /// With other options than usual.
    pub(crate) async fn start_with(text: &str, choose: impl FnOnce(&mut ControlOptions)) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.path().join("config")).unwrap();
        std::fs::write(folder.path().join("config/mesh.yaml"), text).unwrap();
        Self::of(folder, choose).await
    }

    /// Another control plane on the same folder and the same state.
    pub(crate) async fn beside(&self, choose: impl FnOnce(&mut ControlOptions)) -> Self {
        Self::of(self.folder.clone(), choose).await
    }

    async fn of(folder: Arc<TempDir>, choose: impl FnOnce(&mut ControlOptions)) -> Self {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (control, reports) = run(folder.path(), any, choose).await;
        Self {
            addresses: control.addresses(),
            folder,
            control: Some(control),
            reports,
        }
    }

    /// One whose control plane is another process: this test's program again, which runs `subject` to call [`Mesh::serve`].
    pub(crate) fn in_a_process(text: &str, subject: &str) -> (Self, Child) {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.path().join("config")).unwrap();
        std::fs::write(folder.path().join("config/mesh.yaml"), text).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([subject, "--exact", "--nocapture"])
            .env(SERVED_FOLDER, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = said.map(Result::unwrap);
        let marked = |line: String| line.split_once(LISTENS).map(|(_, all)| all.to_owned());
        let all = said.into_iter().find_map(marked).expect("it listens");
        let all: Vec<SocketAddr> = all.split(' ').map(|one| one.parse().unwrap()).collect();
        let (_, reports) = watch::channel(Vec::new());
        let mesh = Self {
            folder,
            control: None,
            addresses: Addresses {
                tls: all[0],
                plaintext: Some(all[1]),
                monitoring: all[2],
            },
            reports,
        };
        (mesh, child)
    }

    /// Serves the folder that another process named, until its standard input ends; nothing where none did.
    pub(crate) fn serve() {
        let Some(folder) = std::env::var_os(SERVED_FOLDER) else {
            return;
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (_control, _reports) = runtime.block_on(async {
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let (control, reports) = run(Path::new(&folder), any, |_| ()).await;
            let at = control.addresses();
            let plaintext = at.plaintext.unwrap();
            println!("{LISTENS}{} {plaintext} {}", at.tls, at.monitoring);
            let ended = || std::io::stdin().read_to_end(&mut Vec::new());
            tokio::task::spawn_blocking(ended).await.unwrap().unwrap();
            (control, reports)
        });
    }

    pub(crate) async fn stop(&mut self) {
        self.control.take().unwrap().stop().await;
    }

    /// Again on the same address, as after a crash.
    pub(crate) async fn restart(&mut self) {
        let (control, reports) = run(self.folder.path(), self.addresses.tls, |_| ()).await;
        self.addresses = control.addresses();
        self.control = Some(control);
        self.reports = reports;
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// Replaces a file as editors do, by renaming.
    pub(crate) fn edit(&self, name: &str, text: &str) {
        let draft = self.config().join(format!(".{name}.swp"));
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, self.config().join(name)).unwrap();
    }

    pub(crate) fn token(&self, account: &str, pod: Option<&str>) -> Credential {
        self.token_for(account, pod, Duration::from_secs(3600))
    }

    pub(crate) fn token_for(&self, account: &str, pod: Option<&str>, ttl: Duration) -> Credential {
        let state = StateDir::open(&self.folder.path().join("state")).unwrap();
        let subject = TokenSubject {
            namespace: "shop".to_owned(),
            service_account: account.to_owned(),
            pod: pod.map(ToOwned::to_owned),
        };
        let key = TokenKey::open(&state).unwrap();
        Credential::Token(
            key.mint(&subject, TOKEN_AUDIENCE, SystemTime::now(), ttl)
                .unwrap(),
        )
    }

    /// Waits for a reading of the folder that fits.
    pub(crate) async fn report(&mut self, fits: impl Fn(&Seen) -> bool) -> Seen {
        let wait = self.reports.wait_for(|seen| seen.iter().any(&fits));
        let seen = tokio::time::timeout(DEADLINE, wait)
            .await
            .expect("a report in time")
            .unwrap();
        seen.iter().rfind(|seen| fits(seen)).unwrap().clone()
    }

    /// Waits for what nobody tells of.
    pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < DEADLINE, "not in time: {what}");
            tokio::task::yield_now().await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The same, of what is said from now on.
    pub(crate) async fn next_report(&mut self, fits: impl Fn(&Seen) -> bool) -> Seen {
        let before = self.reports.borrow().len();
        let new = |seen: &Vec<Seen>| seen.iter().skip(before).find(|seen| fits(seen)).cloned();
        let wait = self.reports.wait_for(|seen| new(seen).is_some());
        let seen = tokio::time::timeout(DEADLINE, wait)
            .await
            .expect("a report in time")
            .unwrap();
        new(&seen).expect("it was waited for")
    }

    pub(crate) fn client(&self, credential: Credential) -> Client {
        self.client_that_rejects(credential, |_| None)
    }

    /// A client that refuses resources for which `reject` gives a reason.
    pub(crate) fn client_that_rejects(
        &self,
        credential: Credential,
        reject: impl Fn(&str) -> Option<String> + Send + 'static,
    ) -> Client {
        Client::start(self.client_config(), credential, reject)
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        ClientConfig {
            addresses: vec![format!("https://{}", self.addresses.tls)],
            root_certificate: Some(self.folder.path().join("state/root-cert.pem")),
            node: Node {
                id: "sidecar~test".to_owned(),
                ..Node::default()
            },
        }
    }

    /// GET from the monitoring address; the whole answer as text.
    pub(crate) async fn get(&self, path: &str) -> String {
        self.get_by(path, "127.0.0.1").await
    }

    /// The same by a name.
    pub(crate) async fn get_by(&self, path: &str, host: &str) -> String {
        let (address, path, host) = (self.addresses.monitoring, path.to_owned(), host.to_owned());
        let ask = move || {
            let mut stream = std::net::TcpStream::connect(address)?;
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            )?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        tokio::task::spawn_blocking(ask).await.unwrap().unwrap()
    }
}

async fn run(
    folder: &Path,
    listen: SocketAddr,
    choose: impl FnOnce(&mut ControlOptions),
) -> (Control, watch::Receiver<Vec<Seen>>) {
    let mut options = ControlOptions::new(vec![folder.join("config")], folder.join("state"));
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    options.listen = listen;
    options.plaintext = Some(any);
    options.monitoring = any;
    choose(&mut options);
    let (publish, reports) = watch::channel(Vec::new());
    let reporter = Box::new(move |report: &Report| {
        let mut lines: Vec<String> = report.diagnostics.iter().map(ToString::to_string).collect();
        lines.extend(report.problems.iter().cloned());
        publish.send_modify(|all: &mut Vec<Seen>| {
            all.push(Seen {
                text: format!("{}{:?}", lines.join("\n"), report.unreadable),
                version: report.version.clone(),
                changed: report.changed,
            });
        });
    });
    (Control::start(options, reporter).await.unwrap(), reports)
}

struct Fixed(Credential);

impl CredentialSource for Fixed {
    fn credential(&self) -> std::io::Result<Credential> {
        Ok(self.0.clone())
    }
}

/// Answers that a client got.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// Bodies in force, by type and name.
    pub(crate) held: BTreeMap<(String, String), Vec<u8>>,
    /// Every name that was ever told as removed.
    pub(crate) removed: Vec<String>,
    /// Responses.
    pub(crate) updates: usize,
    /// Resources that arrived, over all responses.
    pub(crate) arrived: usize,
}

pub(crate) struct Client {
    pub(crate) xds: XdsClient,
    pub(crate) told: watch::Receiver<Told>,
}

impl Client {
    pub(crate) fn start(
        config: ClientConfig,
        credential: Credential,
        reject: impl Fn(&str) -> Option<String> + Send + 'static,
    ) -> Self {
        Self::start_from(config, Arc::new(Fixed(credential)), reject)
    }

    /// That takes all it is given.
    pub(crate) fn start_with(config: ClientConfig, credential: Credential) -> Self {
        Self::start(config, credential, |_| None)
    }

    /// The control plane that it asks, or asked last.
    pub(crate) fn address(&self) -> String {
        self.xds
            .state()
            .borrow()
            .address
            .clone()
            .unwrap_or_default()
    }

    /// Waits until it is answered there.
    pub(crate) async fn until_connected_to(&self, part: &str) {
        let mut state = self.xds.state();
        let fits = |s: &voile_xds::client::ClientState| {
            s.connected && s.address.as_ref().is_some_and(|at| at.contains(part))
        };
        let waited = tokio::time::timeout(DEADLINE, state.wait_for(fits)).await;
        assert!(
            waited.is_ok(),
            "not with {part}: {:?}",
            *self.xds.state().borrow()
        );
    }

    /// Asks for its credential anew each time.
    pub(crate) fn start_from(
        config: ClientConfig,
        credentials: Arc<dyn CredentialSource>,
        reject: impl Fn(&str) -> Option<String> + Send + 'static,
    ) -> Self {
        let (publish, told) = watch::channel(Told::default());
        let handler = Box::new(move |update: &Update| {
            let mut rejections = Vec::new();
            publish.send_modify(|told| {
                told.updates += 1;
                told.arrived += update.added.len();
                for name in &update.removed {
                    told.removed.push(name.to_string());
                    told.held
                        .remove(&(update.type_url.to_string(), name.to_string()));
                }
                for resource in &update.added {
                    if let Some(reason) = reject(&resource.name) {
                        let name = resource.name.clone();
                        rejections.push(Rejection { name, reason });
                        continue;
                    }
                    let key = (update.type_url.to_string(), resource.name.to_string());
                    told.held.insert(key, resource.body.clone());
                }
            });
            rejections
        });
        let runtime = tokio::runtime::Handle::current();
        let xds = XdsClient::start(config, credentials, handler, &runtime);
        Self { xds, told }
    }

    pub(crate) fn ask(&self, type_url: &str, names: &[&str]) {
        self.xds.subscribe(type_url, names.iter().copied()).unwrap();
    }

    /// Waits until what was told fits.
    pub(crate) async fn until(&mut self, fits: impl Fn(&Told) -> bool) -> Told {
        let waited = tokio::time::timeout(DEADLINE, self.told.wait_for(&fits)).await;
        let found = waited.ok().map(|told| told.unwrap().clone());
        found.unwrap_or_else(|| panic!("not told in time: {:?}", *self.told.borrow()))
    }

    /// Waits until the connection's last error fits.
    pub(crate) async fn until_error(&self, part: &str) {
        let mut state = self.xds.state();
        let fits = |s: &voile_xds::client::ClientState| {
            s.last_error
                .as_ref()
                .is_some_and(|error| error.contains(part))
        };
        if tokio::time::timeout(DEADLINE, state.wait_for(fits))
            .await
            .is_err()
        {
            panic!("no error with {part:?}: {:?}", *self.xds.state().borrow());
        }
    }
}

impl Told {
    pub(crate) fn body(&self, type_url: &str, name: &str) -> Option<&[u8]> {
        let key = (type_url.to_owned(), name.to_owned());
        self.held.get(&key).map(Vec::as_slice)
    }

    pub(crate) fn names(&self, type_url: &str) -> Vec<&str> {
        self.held
            .keys()
            .filter(|(of, _)| of == type_url)
            .map(|(_, name)| name.as_str())
            .collect()
    }
}

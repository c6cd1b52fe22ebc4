//! A control plane in this process, of a cluster that the test has to itself.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use voile_control::{Addresses, ControlOptions, Report, Reporter};
use voile_identity::WorkloadCertificate;
use voile_identity::client::{Credential, control_endpoint, new_certificate};
use voile_kubernetes::{ClusterAddress, ClusterOptions, ControlPlane, DEFAULT_REVISION};
use voile_testkit::cluster::{ApiServer, wait_for};

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which new roots are trusted before a key below them signs.
pub(crate) const OVERLAP: Duration = Duration::from_secs(2);
/// Namespace of the control plane.
pub(crate) const SYSTEM: &str = "istio-system";

/// A cluster with the namespace of the control plane.
pub(crate) fn cluster() -> Option<ApiServer> {
    let server = ApiServer::start()?;
    server
        .kubectl(&["create", "namespace", SYSTEM])
        .expect("a namespace");
    Some(server)
}

/// A running replica, on a thread of its own.
pub(crate) struct Replica {
    pub(crate) addresses: Addresses,
    /// What it reported last.
    reported: Arc<Mutex<Vec<String>>>,
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Replica {
    pub(crate) fn start(server: &ApiServer, name: &str) -> Self {
        Self::over(server.kubeconfig(), name)
    }

    /// One that deploys Gateways: it knows the image of proxies.
    pub(crate) fn deploying(server: &ApiServer, name: &str) -> Self {
        let any = "127.0.0.1:0".parse().expect("an address");
        let injection = Some((any, "proxy".to_owned()));
        Self::with(ClusterOptions {
            injection,
            ..options(server.kubeconfig(), (name, DEFAULT_REVISION))
        })
    }

    /// One of another revision.
    pub(crate) fn of_revision(server: &ApiServer, revision: &str) -> Self {
        Self::with(options(server.kubeconfig(), (revision, revision)))
    }

    /// As `start`, by another kubeconfig.
    pub(crate) fn over(kubeconfig: PathBuf, name: &str) -> Self {
        Self::with(options(kubeconfig, (name, DEFAULT_REVISION)))
    }

    /// One that has the certificates of workloads signed by a signer of CertificateSigningRequests.
    pub(crate) fn signed_by(server: &ApiServer, name: &str, signer: &str) -> Self {
        Self::with(ClusterOptions {
            external_signer: Some(signer.to_owned()),
            ..options(server.kubeconfig(), (name, DEFAULT_REVISION))
        })
    }

    /// One that keeps the roots in a ClusterTrustBundle.
    pub(crate) fn with_trust_bundle(server: &ApiServer, name: &str) -> Self {
        Self::with(ClusterOptions {
            trust_bundle: true,
            ..options(server.kubeconfig(), (name, DEFAULT_REVISION))
        })
    }

    /// One that signs nothing.
    pub(crate) fn signing_nothing(server: &ApiServer, name: &str) -> Self {
        Self::with(ClusterOptions {
            ca_address: Some("cert-manager-istio-csr.cert-manager.svc:443".to_owned()),
            signs_nothing: true,
            ..options(server.kubeconfig(), (name, DEFAULT_REVISION))
        })
    }

    fn with(cluster: ClusterOptions) -> Self {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let reports = reported.clone();
        let reporter: Reporter = Box::new(move |report: &Report| {
            let lines = report.diagnostics.iter().map(ToString::to_string);
            *reports.lock().expect("the reports") = lines.collect();
        });
        let (end, ended) = oneshot::channel();
        let (started, addresses) = mpsc::channel();
        let serve = async move {
            let state = tempfile::tempdir().expect("a folder");
            let any = "127.0.0.1:0".parse().expect("an address");
            let options = ControlOptions {
                listen: any,
                monitoring: any,
                ..ControlOptions::new(Vec::new(), state.path().join("state"))
            };
            let control = ControlPlane::start(cluster, options, reporter).await;
            let control = control.expect("a control plane");
            started.send(control.addresses()).expect("the test waits");
            let _ = ended.await;
            control.stop().await;
        };
        let thread = std::thread::spawn(move || runtime().block_on(serve));
        Self {
            addresses: addresses.recv().expect("it starts"),
            reported,
            end,
            thread,
        }
    }

    /// Stops it as SIGTERM does.
    pub(crate) fn stop(self) {
        let _ = self.end.send(());
        self.thread.join().expect("a clean end");
    }

    /// Waits until it reports a line with these words.
    pub(crate) fn until_reported(&self, words: &str) {
        wait_for(words, PATIENCE, || {
            let lines = self.reported.lock().expect("the reports").join("\n");
            lines.contains(words).then_some(()).ok_or(lines)
        });
    }

    /// Waits until it reports nothing with these words.
    pub(crate) fn until_not_reported(&self, words: &str) {
        wait_for(words, PATIENCE, || {
            let lines = self.reported.lock().expect("the reports").join("\n");
            (!lines.contains(words)).then_some(()).ok_or(lines)
        });
    }

    /// Workloads that it knows, by `NAMESPACE/NAME`, and whether they take traffic.
    pub(crate) fn workloads(&self) -> Vec<(String, bool)> {
        let answer = get(self.addresses.monitoring, "/debug/workloads");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let of = |one: &Value| {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            (
                format!("{}/{}", text("namespace"), text("name")),
                one["healthy"] == true,
            )
        };
        answer["workloads"]
            .as_array()
            .into_iter()
            .flatten()
            .map(of)
            .collect()
    }

    /// Waits until it knows exactly these workloads.
    pub(crate) fn until_workloads(&self, wanted: &[(&str, bool)]) {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(name, healthy)| ((*name).to_owned(), *healthy))
            .collect();
        wait_for("workloads", PATIENCE, || {
            let known = self.workloads();
            (known == wanted).then_some(()).ok_or(format!("{known:?}"))
        });
    }

    /// Asks for a certificate with a token, as a proxy does. Returns the identity.
    pub(crate) fn certify(&self, root: &str, token: &str) -> Result<String, String> {
        Ok(self.certificate(root, token)?.identity().to_string())
    }

    /// Asks for a certificate with a token, as a proxy does.
    pub(crate) fn certificate(
        &self,
        root: &str,
        token: &str,
    ) -> Result<WorkloadCertificate, String> {
        self.ask(root, &Credential::Bearer(token.trim().to_owned()), None)
    }

    /// Asks for a certificate with one that is held.
    pub(crate) fn renew(
        &self,
        root: &str,
        held: &WorkloadCertificate,
    ) -> Result<WorkloadCertificate, String> {
        self.ask(root, &Credential::Certificate, Some(held))
    }

    fn ask(
        &self,
        root: &str,
        credential: &Credential,
        held: Option<&WorkloadCertificate>,
    ) -> Result<WorkloadCertificate, String> {
        let address = format!("https://{}", self.addresses.tls);
        let endpoint = control_endpoint(&address, root, held).map_err(|error| error.to_string())?;
        runtime().block_on(async {
            let channel = endpoint.connect().await;
            let channel = channel.map_err(|error| format!("{error:?}"))?;
            let certificate = new_certificate(channel, credential, None).await;
            certificate.map_err(|error| error.to_string())
        })
    }
}

fn options(kubeconfig: PathBuf, (name, revision): (&str, &str)) -> ClusterOptions {
    ClusterOptions {
        address: ClusterAddress {
            kubeconfig: Some(kubeconfig),
            context: None,
        },
        namespace: SYSTEM.to_owned(),
        revision: revision.to_owned(),
        replica: name.to_owned(),
        injection: None,
        image_pull_policy: None,
        cni: false,
        root_overlap: OVERLAP,
        external_signer: None,
        ca_address: None,
        signs_nothing: false,
        trust_bundle: false,
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// The root of a namespace's ConfigMap, once it is there.
pub(crate) fn root_of(server: &ApiServer, namespace: &str) -> String {
    let path = r"jsonpath={.data.root-cert\.pem}";
    wait_for("the root of a namespace", PATIENCE, || {
        server.kubectl(&[
            "-n",
            namespace,
            "get",
            "configmap",
            "istio-ca-root-cert",
            "-o",
            path,
        ])
    })
}

/// A token of a service account.
pub(crate) fn token(server: &ApiServer, namespace: &str, account: &str, more: &[&str]) -> String {
    let basic = ["-n", namespace, "create", "token", account];
    server.kubectl(&[&basic, more].concat()).expect("a token")
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    )
    .expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    body.to_owned()
}

/// Runs openssl in a folder.
pub(crate) fn openssl(folder: &Path, arguments: &str) {
    let output = std::process::Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .output()
        .expect("openssl");
    assert!(
        output.status.success(),
        "{arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A way to the API server that can be cut.
pub(crate) struct Way {
    /// A kubeconfig that leads over it.
    pub(crate) kubeconfig: PathBuf,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
    _folder: TempDir,
}

impl Way {
    pub(crate) fn to(server: &ApiServer) -> Self {
        let config = std::fs::read_to_string(server.kubeconfig()).expect("a kubeconfig");
        let (_, after) = config.split_once("https://").expect("an address");
        let end = after.find(|c: char| !c.is_ascii_digit() && !".:".contains(c));
        let target: SocketAddr = after[..end.unwrap_or(after.len())]
            .parse()
            .expect("an address");
        // The certificate is for the address, whatever the port.
        let listener = TcpListener::bind((target.ip(), 0)).expect("it listens");
        let own = listener.local_addr().expect("an address");
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let config = config.replace(&target.to_string(), &own.to_string());
        std::fs::write(&kubeconfig, config).expect("written");
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let streams = open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a connection");
                // Cut, or an API server that does not listen: the connection ends at once.
                if let Some(open) = &mut *streams.lock().expect("the streams")
                    && let Ok(server) = TcpStream::connect(target)
                {
                    for (mut from, mut to) in [
                        (clone(&client), clone(&server)),
                        (clone(&server), clone(&client)),
                    ] {
                        std::thread::spawn(move || {
                            let _ = std::io::copy(&mut from, &mut to);
                            let _ = to.shutdown(Shutdown::Both);
                        });
                    }
                    open.extend([client, server]);
                }
            }
        });
        Self {
            kubeconfig,
            open,
            _folder: folder,
        }
    }

    /// Ends every connection, and those that come.
    pub(crate) fn cut(&self) {
        for stream in self
            .open
            .lock()
            .expect("the streams")
            .take()
            .into_iter()
            .flatten()
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn restore(&self) {
        *self.open.lock().expect("the streams") = Some(Vec::new());
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a second handle")
}

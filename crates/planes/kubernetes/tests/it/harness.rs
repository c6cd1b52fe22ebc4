//! A control plane in this process, of a cluster that the test has to itself.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use voile_control::{ControlOptions, Report, Reporter};
use voile_identity::client::{Credential, control_endpoint, new_certificate};
use voile_kubernetes::{ClusterAddress, ClusterOptions, ControlPlane, DEFAULT_REVISION};
use voile_testkit::cluster::{ApiServer, wait_for};

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
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

/// A running replica.
pub(crate) struct Replica {
    pub(crate) control: ControlPlane,
    /// What it reported last.
    reported: Arc<Mutex<Vec<String>>>,
    _state: TempDir,
}

impl Replica {
    pub(crate) async fn start(server: &ApiServer, name: &str) -> Self {
        let state = tempfile::tempdir().expect("a folder");
        let cluster = ClusterOptions {
            address: ClusterAddress {
                kubeconfig: Some(server.kubeconfig()),
                context: None,
            },
            namespace: SYSTEM.to_owned(),
            revision: DEFAULT_REVISION.to_owned(),
            replica: name.to_owned(),
            injection: None,
        };
        let any = "127.0.0.1:0".parse().expect("an address");
        let options = ControlOptions {
            listen: any,
            monitoring: any,
            ..ControlOptions::new(Vec::new(), state.path().join("state"))
        };
        let reported = Arc::new(Mutex::new(Vec::new()));
        let reports = reported.clone();
        let reporter: Reporter = Box::new(move |report: &Report| {
            let lines = report.diagnostics.iter().map(ToString::to_string);
            *reports.lock().expect("the reports") = lines.collect();
        });
        let control = ControlPlane::start(cluster, options, reporter)
            .await
            .expect("a control plane");
        Self {
            control,
            reported,
            _state: state,
        }
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
        let answer = get(self.control.addresses().monitoring, "/debug/workloads");
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
    pub(crate) async fn certify(&self, root: &str, token: &str) -> Result<String, String> {
        let address = format!("https://{}", self.control.addresses().tls);
        let endpoint = control_endpoint(&address, root, None).map_err(|error| error.to_string())?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| format!("{error:?}"))?;
        let credential = Credential::Bearer(token.trim().to_owned());
        let certificate = new_certificate(channel, &credential, None).await;
        let certificate = certificate.map_err(|error| error.to_string())?;
        Ok(certificate.identity().to_string())
    }
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

fn get(address: std::net::SocketAddr, path: &str) -> String {
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

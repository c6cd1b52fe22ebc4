//! Kubernetes for tests: an API server alone ([`ApiServer`]), or a cluster with nodes ([`Cluster`]). The scripts in
//! `tests/cluster` do the work. A cluster ends when its value is dropped or the test's process dies.

mod nodes;
mod process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

pub use nodes::Cluster;
use process::ClusterProcess;

use crate::prerequisites::{Prerequisite, require};

/// Pause between two looks of [`wait_for`].
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// etcd and a Kubernetes API server on a loopback address of their own. Needs no root. Objects are stored, admitted and
/// watched; no controller, scheduler or kubelet acts on them.
///
/// Without controllers, a namespace has no service account. A test that creates Pods creates the ServiceAccount `default` first.
#[derive(Debug)]
pub struct ApiServer {
    process: ClusterProcess,
}

impl ApiServer {
    /// Starts one without controllers. Returns none, and the test is skipped, if a prerequisite is missing.
    ///
    /// # Panics
    /// If it is not ready in time.
    #[must_use]
    #[track_caller]
    pub fn start() -> Option<Self> {
        Self::with_controllers("")
    }

    /// Starts one with controllers: a list as `kube-controller-manager --controllers` takes it, `*` for all.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    #[track_caller]
    pub fn with_controllers(controllers: &str) -> Option<Self> {
        require(Prerequisite::ApiServer, Self::attempt(controllers))
    }

    /// The one without controllers that all tests of this process share, each with a namespace of its own. It ends with the
    /// process. Prefer it: a start costs 3 s and 0.4 GB.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    #[track_caller]
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Result<ApiServer, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::attempt("")).as_ref();
        require(Prerequisite::ApiServer, shared)
    }

    fn attempt(controllers: &str) -> Result<Self, String> {
        let process = ClusterProcess::start(&["--controllers", controllers])?;
        Ok(Self { process })
    }

    /// The kubeconfig of a user who may do everything.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.process.kubeconfig()
    }

    /// The folder of the kubeconfig, keys (`pki`) and logs (`log`).
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
    }

    /// Removes the history of the objects from etcd.
    ///
    /// # Panics
    /// If etcd refuses it.
    #[track_caller]
    pub fn compact_history(&self) {
        self.process.command("compact");
    }

    /// Kills the API server and starts it again. It knows no history then: a watch that would resume from an earlier version is
    /// answered 410 (Gone).
    ///
    /// # Panics
    /// If it is not ready in time.
    #[track_caller]
    pub fn restart(&self) {
        self.process.command("restart");
    }

    /// Runs kubectl as that user and returns its output. The error is the text of its stderr.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.process.kubectl(Command::new("env"), arguments, "")
    }

    /// Creates or changes the objects of a manifest (YAML or JSON).
    pub fn apply(&self, manifest: &str) -> Result<String, String> {
        let arguments = ["apply", "-f", "-"];
        self.process
            .kubectl(Command::new("env"), &arguments, manifest)
    }
}

/// The path of kubectl. Tests use the one that `tests/cluster/build` makes, because it has the version of the API server.
#[must_use]
pub fn kubectl() -> PathBuf {
    process::cache().join("bin/kubectl")
}

/// The folder of Istio's images (`pilot.tar`, `proxyv2.tar`) and of `bin/istioctl`, which `tests/cluster/istio` makes. Returns none,
/// and the test is skipped, if it has not run.
#[must_use]
#[track_caller]
pub fn istio() -> Option<PathBuf> {
    let folder = process::cache().join("istio");
    let missing = || format!("{} is missing", folder.display());
    let built = folder.join("built").is_file().then(|| folder.clone());
    require(Prerequisite::Istio, built.ok_or_else(missing))
}

/// A definition of a kind of Gateway API, version v1, that accepts every field.
#[must_use]
pub fn gateway_api_definition(kind: &str, plural: &str, scope: &str) -> String {
    format!(
        "---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {plural}.gateway.networking.k8s.io
  annotations: {{api-approved.kubernetes.io: \"unapproved, a test\", gateway.networking.k8s.io/bundle-version: v1.6.3}}
spec:
  group: gateway.networking.k8s.io
  names: {{kind: {kind}, plural: {plural}}}
  scope: {scope}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {{status: {{}}}}
    schema:
      openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}
"
    )
}

/// Looks until `look` returns a value, which this function returns.
///
/// # Panics
/// If there is none after `bound`. The message has the last error.
#[track_caller]
#[expect(
    clippy::disallowed_methods,
    reason = "paces a loop that waits for a condition, with a deadline"
)]
pub fn wait_for<T>(what: &str, bound: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + bound;
    loop {
        match look() {
            Ok(value) => return value,
            Err(error) if Instant::now() > deadline => panic!("not in {bound:?}: {what}: {error}"),
            Err(_) => thread::sleep(LOOK_INTERVAL),
        }
    }
}

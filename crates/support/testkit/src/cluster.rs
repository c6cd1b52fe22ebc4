//! Kubernetes for tests: an API server with etcd ([`ApiServer`]). The scripts in `tests/cluster` do
//! the work. Each test has its own cluster, which ends when the value is dropped or the test's process dies.

mod process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use process::ClusterProcess;

use crate::prerequisites::Prerequisite;

/// Limit of one kubectl command. A command that waits by itself (`wait`, `rollout status`) has its own, shorter `--timeout`.
const KUBECTL_SECONDS: u32 = 120;

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
        let arguments = ["--controllers", controllers];
        let process = ClusterProcess::start(Prerequisite::ApiServer, &arguments)?;
        Some(Self { process })
    }

    /// The kubeconfig of a user who may do everything.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.process.folder().join("kubeconfig")
    }

    /// The folder of the kubeconfig, keys (`pki`) and logs (`log`).
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
    }

    /// Runs kubectl as that user and returns its output. The error is the text of its stderr.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        run(self.kubectl_command().args(arguments), "")
    }

    /// Creates or changes the objects of a manifest (YAML or JSON).
    pub fn apply(&self, manifest: &str) -> Result<String, String> {
        let command = &mut self.kubectl_command();
        run(command.args(["apply", "-f", "-"]), manifest)
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.arg(KUBECTL_SECONDS.to_string());
        command.arg(kubectl()).env("KUBECONFIG", self.kubeconfig());
        command
    }
}

/// The path of kubectl. Tests use the one that `tests/cluster/build` makes, because it has the version of the API server.
#[must_use]
pub fn kubectl() -> PathBuf {
    process::cache().join("bin/kubectl")
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

/// Runs a command with this input to its end. Returns its stdout, or its stderr as the error.
fn run(command: &mut Command, input: &str) -> Result<String, String> {
    let output =
        process::output(command, input).map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

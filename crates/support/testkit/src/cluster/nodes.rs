//! A whole cluster: a control plane, and nodes with kubelet, containerd and kube-proxy, in namespaces of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::{fs, thread};

use super::process::{ClusterProcess, run};
use crate::prerequisites::{Prerequisite, require};

/// The script that makes an image of a program voile.
const IMAGE_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/image/build");

/// A Kubernetes cluster with nodes. Only processes inside its network reach the API server and the pods: kubectl,
/// [`Self::node_command`] and [`Self::control_plane_command`].
///
/// The nodes are named `node-1`, `node-2`, … They have the images `localhost/tools:1` (busybox and curl; it waits if it has no
/// command) and those that a test imports. Pods use them with `imagePullPolicy: Never`, because there is no registry.
#[derive(Debug)]
pub struct Cluster {
    process: ClusterProcess,
    nodes: usize,
    _turn: Option<Turn>,
}

/// Most clusters of a process at a time, besides the shared one: more of them slow each other until kubelets restart pods that do not answer in time.
const MAX_AT_ONCE: usize = 2;

/// One of the clusters that may run.
#[derive(Debug)]
struct Turn;

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Turn {
    /// Waits until another may run. No test starts two clusters, so none waits for itself.
    fn wait() -> Self {
        let (running, ended) = &RUNNING;
        let running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = ended.wait_while(running, |running| *running >= MAX_AT_ONCE);
        *running.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (running, ended) = &RUNNING;
        *running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

impl Cluster {
    /// Starts one, when few enough others run, and waits until its nodes and its DNS are ready. Returns none, and the test is skipped,
    /// if a prerequisite is missing.
    ///
    /// # Panics
    /// If it is not ready in time.
    #[must_use]
    #[track_caller]
    pub fn start(nodes: usize) -> Option<Self> {
        require(
            Prerequisite::Cluster,
            Self::attempt(nodes, Some(Turn::wait())),
        )
    }

    /// The one with two nodes that all tests of this process share, each with a namespace of its own. It ends with the process.
    /// Prefer it: a start costs 6 s and 1 GB.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    #[track_caller]
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::attempt(2, None)).as_ref();
        require(Prerequisite::Cluster, shared)
    }

    fn attempt(nodes: usize, turn: Option<Turn>) -> Result<Self, String> {
        let process = ClusterProcess::start(&["--nodes", &nodes.to_string()])?;
        Ok(Self {
            process,
            nodes,
            _turn: turn,
        })
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

    /// Runs kubectl as that user and returns its output. The error is the text of its stderr.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.process.kubectl(self.enter_network(), arguments, "")
    }

    /// Creates or changes the objects of a manifest (YAML or JSON).
    pub fn apply(&self, manifest: &str) -> Result<String, String> {
        let arguments = ["apply", "-f", "-"];
        self.process
            .kubectl(self.enter_network(), &arguments, manifest)
    }

    /// Runs a command in a container of a pod (its first one if `container` is none) and returns its output.
    pub fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[&str],
    ) -> Result<String, String> {
        let mut arguments = vec!["--namespace", namespace, "exec", pod];
        arguments.extend(container.into_iter().flat_map(|name| ["--container", name]));
        arguments.push("--");
        arguments.extend(command);
        self.kubectl(&arguments)
    }

    /// A command in the network of the control plane, which reaches the API server, nodes and pods, but no Service.
    #[must_use]
    pub fn control_plane_command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.enter_network();
        command.arg(program.as_ref());
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// A command in the namespaces of a node (1 is the first): its network, files, processes and control groups.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn node_command(&self, node: usize, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.process.read(&format!("node-{node}.pid"));
        command.args(["--target", target.trim(), "--net", "--mount", "--uts"]);
        command
            .args(["--pid", "--cgroup", "--"])
            .arg(program.as_ref());
        command
    }

    /// Imports an OCI archive into every node. The path must not be below `/run`.
    ///
    /// # Panics
    /// If a node refuses it.
    #[track_caller]
    pub fn import_image(&self, archive: &Path) {
        let import = |node| {
            let mut command = self.node_command(node, "ctr");
            command.args(["--namespace", "k8s.io", "images", "import"]);
            run(command.arg(archive), "")
        };
        let imported: Vec<_> = thread::scope(|scope| {
            let threads = (1..=self.nodes).map(|node| scope.spawn(move || import(node)));
            let threads: Vec<_> = threads.collect();
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            joined.map(|node| node.expect("no panic")).collect()
        });
        let failed: Vec<_> = imported.into_iter().filter_map(Result::err).collect();
        assert!(failed.is_empty(), "{}: {failed:?}", archive.display());
    }

    /// Makes the product's image from a program voile and imports it into every node under this name (`REPOSITORY:TAG`).
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    pub fn import_voile(&self, program: &Path, name: &str) {
        let archive = self.folder().join("voile.tar");
        let mut command = Command::new(IMAGE_SCRIPT);
        command.args(["--level", "1", "--tag", name]);
        command.arg("--binary").arg(program);
        let made = run(command.arg("--output").arg(&archive), "");
        made.unwrap_or_else(|error| panic!("{IMAGE_SCRIPT}: {error}"));
        self.import_image(&archive);
        fs::remove_file(&archive).expect("the archive can be removed");
    }

    /// Kills the API server. Nodes and pods go on.
    ///
    /// # Panics
    /// If it does not end.
    #[track_caller]
    pub fn stop_api_server(&self) {
        self.process.command("away");
    }

    /// Starts the API server that [`Self::stop_api_server`] killed.
    ///
    /// # Panics
    /// If it is not ready in time.
    #[track_caller]
    pub fn start_api_server(&self) {
        self.process.command("back");
    }

    fn enter_network(&self) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.process.read("pid");
        command.args(["--target", target.trim(), "--net", "--"]);
        command
    }
}

//! The process of `tests/cluster/run`: it runs while its standard input is open, and so ends even when the test is killed.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The script, from this crate's folder.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/cluster/run");

/// Limit of the start. The script has its own limit of 90 s, and reports more than this one can.
const START_BOUND: Duration = Duration::from_secs(120);

/// Limit of the end: processes are killed at once; namespaces of pods take a few seconds on a busy machine.
const END_BOUND: Duration = Duration::from_secs(30);

/// Limit of one kubectl command. A command that waits by itself (`wait`, `rollout status`) has its own, shorter `--timeout`.
const KUBECTL_SECONDS: &str = "120";

/// A running cluster and the folder of its files.
#[derive(Debug)]
pub(super) struct ClusterProcess {
    child: Child,
    /// Takes commands; the cluster ends with it.
    input: Option<Mutex<ChildStdin>>,
    answers: Mutex<mpsc::Receiver<String>>,
    folder: tempfile::TempDir,
}

impl ClusterProcess {
    /// Runs the script until the cluster is ready. The error is the prerequisite that this machine lacks.
    ///
    /// # Panics
    /// If the cluster is not ready in time.
    pub(super) fn start(arguments: &[&str]) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("voile-cluster-").tempdir();
        let folder = folder.expect("a temporary folder");
        let errors = folder.path().join("run.log");
        let child = Command::new(SCRIPT)
            .args(arguments)
            .arg("--remove")
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).expect("the log can be created"))
            .spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{SCRIPT}: {error}"));
        let output = child.stdout.take().expect("a pipe");
        let input = child.stdin.take().map(Mutex::new);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let process = Self {
            child,
            input,
            answers: Mutex::new(lines),
            folder,
        };
        match process.answer() {
            Ok(line) if line == "ready" => Ok(process),
            Ok(line) if line.starts_with("missing: ") => {
                Err(line.trim_start_matches("missing: ").to_owned())
            }
            answer => {
                let said = fs::read_to_string(errors).unwrap_or_default();
                panic!("the cluster is not ready: {answer:?}\n{said}")
            }
        }
    }

    fn answer(&self) -> Result<String, mpsc::RecvTimeoutError> {
        let answers = self.answers.lock().expect("the answers");
        answers.recv_timeout(START_BOUND)
    }

    /// Has the script obey a command.
    ///
    /// # Panics
    /// If it does not succeed in time.
    #[track_caller]
    pub(super) fn command(&self, command: &str) {
        let input = self.input.as_ref().expect("it runs").lock();
        let sent = writeln!(input.expect("the input"), "{command}");
        sent.unwrap_or_else(|error| panic!("{command}: {error}"));
        let answer = self.answer();
        let said = || fs::read_to_string(self.folder().join("run.log")).unwrap_or_default();
        assert_eq!(answer.as_deref(), Ok("ready"), "{command}: {}", said());
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.folder().join("kubeconfig")
    }

    /// The text of a file that the script wrote.
    #[track_caller]
    pub(super) fn read(&self, name: &str) -> String {
        let path = self.folder().join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Runs kubectl behind a command that takes another as its arguments (`env`, `nsenter`).
    pub(super) fn kubectl(
        &self,
        mut prefix: Command,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, String> {
        let command = prefix.args(["timeout", KUBECTL_SECONDS]);
        let command = command.arg(super::kubectl()).arg("--kubeconfig");
        run(command.arg(self.kubeconfig()).args(arguments), input)
    }
}

impl Drop for ClusterProcess {
    #[expect(
        clippy::disallowed_methods,
        reason = "paces a loop with a deadline; std has no bounded wait for a child"
    )]
    fn drop(&mut self) {
        drop(self.input.take());
        let deadline = Instant::now() + END_BOUND;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The folder in which `tests/cluster/build` keeps programs and images; `tests/cluster/settings.sh` says the same.
pub(super) fn cache() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let caches = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| {
        let home = PathBuf::from(set("HOME")?);
        Some(home.join(".cache"))
    });
    caches.unwrap_or_default().join("voile-kubernetes")
}

/// Runs a command with this input to its end. Returns its stdout, or its stderr as the error.
pub(super) fn run(command: &mut Command, input: &str) -> Result<String, String> {
    let output = output(command, input).map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{}: {}", output.status, text(&output.stderr))),
    }
}

fn output(command: &mut Command, input: &str) -> io::Result<Output> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut pipe = child.stdin.take().expect("a pipe");
    // A thread of its own, so that a large input and a large output cannot wait for each other.
    thread::scope(|scope| {
        scope.spawn(move || {
            // A command that does not read its input closes the pipe.
            let _ = pipe.write_all(input.as_bytes());
        });
        child.wait_with_output()
    })
}

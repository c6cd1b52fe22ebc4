//! The commands of a page of `docs/tutorials` or `docs/guides`, run on a cluster or on this machine, as they stand and in their order. A
//! test names each one with its result, so that a command which no test knows fails it.

use std::collections::VecDeque;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use voile_testkit::cluster::{Cluster, kubectl, wait_for};

use crate::kubernetes::kit::{PATIENCE, VOILE};

/// The result of a command, with a text of its output.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Success(&'static str),
    Failure(&'static str),
    /// The command asks for what comes a moment later. It is run until it succeeds with this text.
    Eventually(&'static str),
    /// It is not run, for this reason.
    NotHere(&'static str),
}

/// A page, and where its commands run.
pub(crate) struct Page<'a> {
    name: &'static str,
    /// None is this machine.
    cluster: Option<&'a Cluster>,
    folder: PathBuf,
    commands: VecDeque<String>,
    node_ports: &'static [(u16, &'static str)],
}

impl<'a> Page<'a> {
    /// Reads a page by its path from the repository's root. Its commands run where the page expects it: in the network of the
    /// control plane.
    pub(crate) fn open(name: &'static str, cluster: &'a Cluster) -> Self {
        let folder = cluster.folder().join("pages").join(name.replace('/', "-"));
        Self::read(name, Some(cluster), folder)
    }

    /// Reads a page whose commands run on this machine, in this folder.
    pub(crate) fn open_here(name: &'static str, folder: PathBuf) -> Self {
        Self::read(name, None, folder)
    }

    fn read(name: &'static str, cluster: Option<&'a Cluster>, folder: PathBuf) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = root.canonicalize().expect("the root");
        let text = std::fs::read_to_string(root.join(name)).expect("the page");
        // Commands run in a folder of their own, because they write files.
        std::fs::create_dir_all(&folder).expect("a folder");
        for part in ["benchmarks", "docs", "deploy", "examples"] {
            symlink(root.join(part), folder.join(part)).expect("a link");
        }
        Self {
            name,
            cluster,
            folder,
            commands: commands(&text),
            node_ports: &[],
        }
    }

    /// Commands call these ports of services, whose addresses `voile up` wrote to `up.txt`: a port that another mesh of this machine
    /// has is replaced.
    pub(crate) fn with_node_ports(mut self, ports: &'static [(u16, &'static str)]) -> Self {
        self.node_ports = ports;
        self
    }

    /// Runs the next commands of the page. Each entry has the begin of the command and its result.
    #[track_caller]
    pub(crate) fn run(&mut self, expected: &[(&str, End)]) {
        for (begin, end) in expected {
            let command = self.commands.pop_front();
            let command = command.unwrap_or_else(|| panic!("{}: no `{begin}`", self.name));
            assert!(
                command.starts_with(begin),
                "{}: `{command}` stands where the test has `{begin}`",
                self.name
            );
            match *end {
                End::NotHere(reason) => println!("{}: not run, {reason}: {command}", self.name),
                End::Success(text) => self.check(&command, true, text),
                End::Failure(text) => self.check(&command, false, text),
                End::Eventually(text) => wait_for(&command, PATIENCE, || {
                    let (succeeds, output) = self.execute(&command);
                    let is_right = succeeds && output.contains(text);
                    is_right.then_some(()).ok_or(output)
                }),
            }
        }
    }

    #[track_caller]
    fn check(&self, command: &str, succeeds: bool, text: &str) {
        let (succeeded, output) = self.execute(command);
        let name = self.name;
        assert_eq!(succeeded, succeeds, "{name}: {command}: {output}");
        assert!(output.contains(text), "{name}: {command}: {text}: {output}");
    }

    /// Ends the page: it has no further command.
    #[track_caller]
    pub(crate) fn ends(&self) {
        assert!(
            self.commands.is_empty(),
            "{}: {:#?}",
            self.name,
            self.commands
        );
    }

    /// Runs a command with our programs on the path.
    fn execute(&self, command: &str) -> (bool, String) {
        let folder = |program: &Path| program.parent().expect("a folder").display().to_string();
        let mut programs = vec![folder(Path::new(VOILE))];
        programs.extend(self.cluster.map(|_| folder(&kubectl())));
        programs.push(std::env::var("PATH").expect("a search path"));
        // A release build takes half an hour; the bytes of the archive are not the subject here.
        let command = command.replace("target/release/voile", VOILE);
        let command = command.replace("--output voile.tar", "--level 1 --output voile.tar");
        // Runs of the laboratory take minutes; their figures are not the subject here.
        let command = command.replace("voile bench quick", "voile bench quick --smoke");
        let command = command.replace("voile bench run", "voile bench run --smoke");
        let command = command.replace("--duration, 5s", "--duration, 1s");
        // Another test may have the usual port.
        let mut command = command.replace("--web ", "--web=127.0.0.1:0 ");
        let published = std::fs::read_to_string(self.folder.join("up.txt")).unwrap_or_default();
        for (port, service) in self.node_ports {
            let address = published
                .lines()
                .find_map(|line| line.strip_prefix(service)?.strip_prefix("\thttp://"));
            if let Some(address) = address {
                command = command.replace(&format!("127.0.0.1:{port}"), address);
            }
        }
        // A command that waits for ever fails.
        let limit = ["-k", "5", "120", "sh", "-c"];
        let mut shell = match self.cluster {
            Some(cluster) => cluster.control_plane_command("timeout"),
            None => Command::new("timeout"),
        };
        if self.cluster.is_none() {
            // Commands find the mesh of this page, and no other.
            shell.env("TMPDIR", &self.folder);
        }
        let shell = shell.args(limit).arg(format!("exec 2>&1\n{command}"));
        let shell = shell
            .current_dir(&self.folder)
            .env("PATH", programs.join(":"));
        let output = shell.output().expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text)
    }

    /// A file that a command has written.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Page<'_> {
    /// A page that failed half way leaves no mesh on this machine.
    fn drop(&mut self) {
        if self.cluster.is_none() {
            self.execute("voile stop");
        }
    }
}

/// The commands in the `console` blocks of a page, each with its input.
fn commands(page: &str) -> VecDeque<String> {
    let blocks = page.split("```console\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let mut commands: VecDeque<String> = VecDeque::new();
    for line in blocks.flat_map(str::lines) {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push_back(command.to_owned()),
            None => {
                let last = commands.back_mut().expect("a command before its input");
                *last += &format!("\n{line}");
            }
        }
    }
    commands
}

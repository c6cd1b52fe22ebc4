//! Processes of the binary under test: started with their log in a file, ended by pid, never left behind. Waiting is for
//! a condition, with a deadline.

use std::io::Read;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Above the ports that the kernel hands out by itself (32768 to 60999), and far from those that a Voile program takes at its
/// start (10000 to 32767): a test that runs beside a measurement looks for free ports at the same time.
const PORTS: Range<u16> = 61_000..65_500;

/// Longest wait for any condition, on a loaded machine of two cores.
const DEADLINE: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A running `voile`.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Process {
    pub(crate) fn start(name: &str, arguments: impl FnOnce(&mut Command)) -> Process {
        Self::start_limited(name, None, arguments)
    }

    /// Starts it with at most so many descriptors, for good.
    pub(crate) fn start_limited(
        name: &str,
        descriptors: Option<u32>,
        arguments: impl FnOnce(&mut Command),
    ) -> Process {
        let command = match descriptors {
            None => Command::new(env!("CARGO_BIN_EXE_voile")),
            Some(limit) => {
                let mut shell = Command::new("sh");
                let script = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
                shell.args(["-c", &script, env!("CARGO_BIN_EXE_voile")]);
                shell
            }
        };
        Self::spawn(name, command, arguments)
    }

    /// Starts another program, kept and ended as ours are.
    pub(crate) fn start_other(
        name: &str,
        program: &Path,
        arguments: impl FnOnce(&mut Command),
    ) -> Process {
        Self::spawn(name, Command::new(program), arguments)
    }

    fn spawn(name: &str, mut command: Command, arguments: impl FnOnce(&mut Command)) -> Process {
        let log = tempfile::NamedTempFile::new().expect("a log file");
        arguments(&mut command);
        // One open file for both, so that they do not write over each other.
        let output = log.reopen().expect("the log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("the log file"))
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Process {
            name: name.to_owned(),
            child,
            log,
        }
    }

    /// Runs to the end and returns what was printed.
    pub(crate) fn output(arguments: impl FnOnce(&mut Command)) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_voile"));
        arguments(&mut command);
        command.stdin(Stdio::null()).output().expect("voile starts")
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = self.log.reopen() {
            // A log that cannot be read is reported as an empty one: it only decorates failures.
            let _ = file.read_to_string(&mut text);
        }
        text
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the signal is sent");
    }

    /// Returns true if all its threads wait for input, and none for a processor: it has done all that it was woken for.
    pub(crate) fn is_at_rest(&self) -> bool {
        is_at_rest(self.pid())
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until(&format!("{} ends", self.name), || {
            ended = self
                .child
                .try_wait()
                .expect("the process can be waited for");
            ended.is_some()
        });
        ended.expect("the wait ended with a status")
    }

    pub(crate) fn kill(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.name, self.log());
        }
    }
}

/// A port of 127.0.0.1 that is free and that neither another test of this process nor the kernel's choice of ephemeral
/// ports will take before it is used.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() as u16;
    let mut tries = (0..PORTS.len()).map(|_| NEXT.fetch_add(1, Ordering::Relaxed));
    tries
        .find_map(|step| {
            let port = PORTS.start + start.wrapping_mul(37).wrapping_add(step) % PORTS.len() as u16;
            TcpListener::bind(("127.0.0.1", port))
                .is_ok()
                .then_some(port)
        })
        .expect("a free port")
}

/// Returns once `condition` holds; panics with `what` when it does not within the deadline.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < DEADLINE,
            "still waiting after {DEADLINE:?}: {what}"
        );
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the pause between two looks at a condition that has a deadline"
)]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}

/// Returns true if all threads of a process wait for input, and none for a processor.
pub(crate) fn is_at_rest(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // Behind the name, which may have any letters.
        let state = stat.rsplit_once(") ");
        state.is_none_or(|(_, state)| state.starts_with('S'))
    })
}

/// The kernel's figure of this name for a process's memory, in bytes.
pub(crate) fn memory(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.expect("so much memory") * 1024
}

/// A process's resident memory, in bytes. Its peak (`VmHWM`) counts from now: a program that was built for tests may need as much
/// for its start as an attack takes.
pub(crate) fn memory_before_attack(pid: u32) -> u64 {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the peak is forgotten");
    memory(pid, "VmRSS:")
}

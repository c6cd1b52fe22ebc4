//! Child processes that cannot outlive us.
//!
//! Each child leads its own process group (so that what it starts can be ended with it, and a Ctrl-C in the terminal is
//! ours to handle), and the kernel kills it when we die (`PR_SET_PDEATHSIG`). That signal is tied to the *thread* that
//! forked, so every child is forked from one thread that lives as long as the process.
//!
//! ```text
//! start ── pid() ── try_exit() / wait(bound) ── stop(grace): TERM → grace → KILL the whole group
//!    └── dropped: stop(DROP_GRACE)
//! ```

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};

/// How long a dropped child may take to end by itself before its group is killed. Short: a drop is often part of unwinding.
pub const DROP_GRACE: Duration = Duration::from_millis(500);

/// The longest line that is handed to a line sink; a longer one is cut into pieces of this many bytes, so that a child
/// that never ends its line cannot fill our memory.
pub const LINE_LIMIT_BYTES: usize = 64 * 1024;

/// What receives a child's output, line by line, without the line's end. Called from a thread of its own.
pub type LineSink = Box<dyn FnMut(&str) + Send>;

/// Where one of a child's output streams goes.
pub enum Output {
    /// Nowhere.
    Null,
    /// Where ours goes.
    Inherit,
    /// Into this file, made anew (its folder must exist).
    File(PathBuf),
    /// At the end of this file.
    Append(PathBuf),
    /// Line by line into this function.
    Lines(LineSink),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Inherit => f.write_str("Inherit"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Append(path) => write!(f, "Append({})", path.display()),
            Self::Lines(_) => f.write_str("Lines"),
        }
    }
}

/// What to start, and how.
#[derive(Debug)]
pub struct Spec {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    clear_env: bool,
    folder: Option<PathBuf>,
    stdout: Output,
    stderr: Output,
}

impl Spec {
    /// `name` is what we call it when we speak of it; its output goes nowhere until told otherwise.
    #[must_use]
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            clear_env: false,
            folder: None,
            stdout: Output::Null,
            stderr: Output::Null,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets one environment variable on top of those inherited.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Inherits no environment variable: the child sees only those set by [`Spec::env`].
    #[must_use]
    pub fn clear_env(mut self) -> Self {
        self.clear_env = true;
        self
    }

    /// Starts it in this folder.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Where its standard output goes.
    #[must_use]
    pub fn stdout(mut self, output: Output) -> Self {
        self.stdout = output;
        self
    }

    /// Where its standard error goes.
    #[must_use]
    pub fn stderr(mut self, output: Output) -> Self {
        self.stderr = output;
        self
    }

    /// The command line, as one would type it (for messages and records).
    #[must_use]
    pub fn command_line(&self) -> String {
        let mut line = self.program.display().to_string();
        for arg in &self.args {
            let arg = arg.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
            line.push(' ');
            if !arg.is_empty() && arg.chars().all(plain) {
                line.push_str(&arg);
            } else {
                line.push('\'');
                line.push_str(&arg.replace('\'', r"'\''"));
                line.push('\'');
            }
        }
        line
    }

    /// Starts it.
    ///
    /// # Errors
    /// When the program cannot be run or an output file cannot be made; the message names both.
    pub fn start(self) -> Result<Supervised, StartError> {
        let command_line = self.command_line();
        let Self {
            name,
            program,
            args,
            env,
            clear_env,
            folder,
            stdout,
            stderr,
        } = self;
        let failed = |doing: &'static str, path: &Path, source| StartError {
            name: name.clone(),
            doing,
            path: path.to_owned(),
            source,
        };
        let mut command = Command::new(&program);
        command.args(args).stdin(Stdio::null()).process_group(0);
        if clear_env {
            command.env_clear();
        }
        command.envs(env);
        if let Some(folder) = &folder {
            command.current_dir(folder);
        }
        let (out, out_sink) =
            stdio(stdout).map_err(|(path, e)| failed("open the output file", &path, e))?;
        let (err, err_sink) =
            stdio(stderr).map_err(|(path, e)| failed("open the output file", &path, e))?;
        command.stdout(out).stderr(err);
        die_with_parent(&mut command);
        let mut child =
            spawn_from_lasting_thread(command).map_err(|e| failed("run", &program, e))?;
        let mut readers = Vec::new();
        if let (Some(pipe), Some(sink)) = (child.stdout.take(), out_sink) {
            readers.push(read_lines(pipe, sink));
        }
        if let (Some(pipe), Some(sink)) = (child.stderr.take(), err_sink) {
            readers.push(read_lines(pipe, sink));
        }
        Ok(Supervised {
            name,
            command_line,
            child,
            exit: None,
            readers,
        })
    }
}

/// A child could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {name}: cannot {doing} {}: {source}", path.display())]
pub struct StartError {
    name: String,
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StartError {
    /// Whether the program itself does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// Whether it ended by itself with code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

/// A running child and the group it leads. Dropping it stops it.
#[derive(Debug)]
pub struct Supervised {
    name: String,
    command_line: String,
    child: Child,
    exit: Option<Exit>,
    readers: Vec<JoinHandle<()>>,
}

impl Supervised {
    /// What we call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The command line it was started with.
    #[must_use]
    pub fn command_line(&self) -> &str {
        &self.command_line
    }

    /// Its process id, which is also the id of its group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes of its group that run now: itself and what it started (unless that made a group of its own).
    #[must_use]
    pub fn group_pids(&self) -> Vec<u32> {
        if self.exit.is_some() {
            Vec::new()
        } else {
            pids_of_group(self.pid())
        }
    }

    /// Asks once whether it has ended; if so, what is left of its group is killed.
    pub fn try_exit(&mut self) -> Option<Exit> {
        if self.exit.is_none() {
            // WNOWAIT leaves the zombie, which keeps the id from being given to a stranger while we kill the group.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            match waitid(WaitId::Pid(self.rustix_pid()), options) {
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Ok(Some(_)) | Err(_) => self.reap(),
            }
        }
        self.exit
    }

    /// Waits until it ends, at most this long.
    pub fn wait(&mut self, bound: Duration) -> Option<Exit> {
        let deadline = Instant::now() + bound;
        loop {
            if let Some(exit) = self.try_exit() {
                return Some(exit);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.sleep_until_exit(left);
        }
    }

    /// Sends a signal to the child alone (SIGHUP, SIGUSR1, …); nothing happens when it has ended.
    pub fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            let _ = kill_process(self.rustix_pid(), signal);
        }
    }

    /// Sends SIGTERM without waiting, so that many children can be told before the first is waited for.
    pub fn begin_stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it: SIGTERM, then after `grace` SIGKILL to its whole group. Returns how it ended.
    pub fn stop(&mut self, grace: Duration) -> Exit {
        if let Some(exit) = self.try_exit() {
            return exit;
        }
        self.begin_stop();
        if let Some(exit) = self.wait(grace) {
            return exit;
        }
        let _ = kill_process_group(self.rustix_pid(), Signal::KILL);
        self.reap();
        self.exit.unwrap_or(Exit::Signal(libc::SIGKILL))
    }

    fn rustix_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "paces a loop that waits for an exit, on kernels without pidfd"
    )]
    fn sleep_until_exit(&self, bound: Duration) {
        match pidfd_open(self.rustix_pid(), PidfdFlags::empty()) {
            Ok(fd) => {
                let bound = Timespec {
                    tv_sec: bound.as_secs().cast_signed(),
                    tv_nsec: bound.subsec_nanos().into(),
                };
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&bound));
            }
            Err(_) => thread::sleep(bound.min(Duration::from_millis(5))), // kernels before 5.3
        }
    }

    /// Kills what is left of the group, then collects the child. The order matters: see `try_exit`.
    #[expect(
        clippy::disallowed_methods,
        reason = "paces a loop with a deadline; a thread cannot be waited for with one"
    )]
    fn reap(&mut self) {
        let _ = kill_process_group(self.rustix_pid(), Signal::KILL);
        self.exit = Some(self.child.wait().map_or(Exit::Signal(0), Exit::from));
        for reader in self.readers.drain(..) {
            // A process that left the group may still hold the pipe; its lines are not worth hanging for.
            let deadline = Instant::now() + Duration::from_millis(200);
            while !reader.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            if reader.is_finished() {
                let _ = reader.join();
            }
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.stop(DROP_GRACE);
    }
}

/// Ends many at once: all are told, then each is waited for; the grace is shared, not added up.
pub fn stop_all<'a>(children: impl IntoIterator<Item = &'a mut Supervised>, grace: Duration) {
    let mut children: Vec<_> = children.into_iter().collect();
    for child in &children {
        child.begin_stop();
    }
    let deadline = Instant::now() + grace;
    for child in &mut children {
        if child
            .wait(deadline.saturating_duration_since(Instant::now()))
            .is_none()
        {
            child.stop(Duration::ZERO);
        }
    }
}

/// The running processes of a group, by asking `/proc`.
#[must_use]
pub fn pids_of_group(group: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| running_in_group(*pid, group).unwrap_or(false))
        .collect();
    pids.sort_unstable();
    pids
}

fn running_in_group(pid: u32, group: u32) -> Option<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold spaces and parentheses itself.
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?;
    let in_group = fields.nth(1)?.parse() == Ok(group);
    Some(in_group && state != "Z")
}

fn stdio(output: Output) -> Result<(Stdio, Option<LineSink>), (PathBuf, io::Error)> {
    Ok(match output {
        Output::Null => (Stdio::null(), None),
        Output::Inherit => (Stdio::inherit(), None),
        Output::File(path) => (File::create(&path).map_err(|e| (path, e))?.into(), None),
        Output::Append(path) => (
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(|e| (path, e))?
                .into(),
            None,
        ),
        Output::Lines(sink) => (Stdio::piped(), Some(sink)),
    })
}

fn read_lines(pipe: impl Read + Send + 'static, mut sink: LineSink) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match pipe
                .by_ref()
                .take(LINE_LIMIT_BYTES as u64)
                .read_until(b'\n', &mut line)
            {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    while line
                        .last()
                        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
                    {
                        line.pop();
                    }
                    sink(&String::from_utf8_lossy(&line));
                }
            }
        }
    })
}

#[expect(
    unsafe_code,
    reason = "prctl between fork and exec is the only way to be killed with the parent"
)]
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: both calls are async-signal-safe system calls that touch no memory of ours.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // Had the parent died between fork and prctl, nobody would send the signal.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

type Spawn = (Command, mpsc::SyncSender<io::Result<Child>>);

/// `PR_SET_PDEATHSIG` fires when the forking *thread* ends, so one thread that never ends forks them all.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Spawn>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, commands) = mpsc::channel::<Spawn>();
        thread::spawn(move || {
            for (mut command, answer) in commands {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (answer, child) = mpsc::sync_channel(1);
    spawner
        .lock()
        .map_err(|_| gone())?
        .send((command, answer))
        .map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

//! Child processes that cannot outlive this one.
//!
//! Each child leads its own process group, so that its children can be ended with it, and this process handles a
//! Ctrl-C in the terminal. The kernel kills the child when this process dies (`PR_SET_PDEATHSIG`). That signal is
//! tied to the *thread* that forked, so every child is forked from one thread that lives as long as the process.
//!
//! ```text
//! start ── pid() ── try_exit() / wait(bound) ── stop(grace): TERM → grace → KILL the whole group
//!    └── dropped: stop(DROP_GRACE)
//! ```

mod spawn;
mod spec;

use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};

pub use spec::{LINE_LIMIT_BYTES, LineSink, Output, Spec, StartError};

/// Time that a dropped child gets to end by itself before its group is killed. Short: a drop is often part of
/// unwinding.
pub const DROP_GRACE: Duration = Duration::from_millis(500);

/// End of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildExit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl ChildExit {
    /// Returns true if it ended by itself with code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

impl From<ExitStatus> for ChildExit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

/// A running child and the group it leads. Dropping it stops it.
#[derive(Debug)]
pub struct SupervisedChild {
    name: String,
    command_line: String,
    child: Child,
    exit: Option<ChildExit>,
    readers: Vec<JoinHandle<()>>,
}

impl SupervisedChild {
    /// Returns its name in messages.
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

    /// Returns the running processes of its group: itself and its children (unless they made a group of their own).
    #[must_use]
    pub fn group_pids(&self) -> Vec<u32> {
        if self.exit.is_some() {
            Vec::new()
        } else {
            pids_of_group(self.pid())
        }
    }

    /// Checks once if it has ended; if so, kills the rest of its group.
    pub fn try_exit(&mut self) -> Option<ChildExit> {
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
    pub fn wait(&mut self, bound: Duration) -> Option<ChildExit> {
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
    pub fn stop(&mut self, grace: Duration) -> ChildExit {
        if let Some(exit) = self.try_exit() {
            return exit;
        }
        self.begin_stop();
        if let Some(exit) = self.wait(grace) {
            return exit;
        }
        let _ = kill_process_group(self.rustix_pid(), Signal::KILL);
        self.reap();
        self.exit.unwrap_or(ChildExit::Signal(libc::SIGKILL))
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

    /// Kills the rest of the group, then collects the child. The order matters: see `try_exit`.
    #[expect(
        clippy::disallowed_methods,
        reason = "paces a loop with a deadline; a thread cannot be waited for with one"
    )]
    fn reap(&mut self) {
        let _ = kill_process_group(self.rustix_pid(), Signal::KILL);
        self.exit = Some(
            self.child
                .wait()
                .map_or(ChildExit::Signal(0), ChildExit::from),
        );
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

impl Drop for SupervisedChild {
    fn drop(&mut self) {
        self.stop(DROP_GRACE);
    }
}

/// Ends many at once: all are told, then each is waited for; the grace is shared, not added up.
pub fn stop_all<'a>(children: impl IntoIterator<Item = &'a mut SupervisedChild>, grace: Duration) {
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

//! The program that the agent starts. It gets the agent's signals, and the agent ends when it ends. If the agent is killed, the
//! program gets a signal to end, too. Otherwise its certificates would expire some hours later, without a visible cause.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tokio::signal::unix::SignalKind;
use tokio::task::JoinHandle;

/// Base of the exit code after a signal: shells add the signal's number to it.
const BY_SIGNAL: i32 = 128;

/// See the module.
pub(super) struct Program {
    pid: Pid,
    ended: JoinHandle<std::io::Result<ExitStatus>>,
}

impl Program {
    /// Must be called on a thread that lives as long as the agent: the kernel takes that thread's end for
    /// the agent's.
    pub(super) fn start(mut command: Command) -> std::io::Result<Self> {
        #[expect(
            unsafe_code,
            reason = "what runs between fork and exec is one system call"
        )]
        // SAFETY: `prctl` is async-signal-safe, and nothing is allocated.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let mut child = command.spawn()?;
        Ok(Self {
            pid: Pid::from_child(&child),
            ended: tokio::task::spawn_blocking(move || child.wait()),
        })
    }

    /// Passes a signal on. The program is not waited for to the end before [`ended`] says so, so the number is its own.
    pub(super) fn signal(&self, signal: SignalKind) {
        let signal = Signal::from_named_raw(signal.as_raw_value());
        if let Some(Err(error)) = signal.map(|signal| kill_process(self.pid, signal)) {
            tracing::debug!(%error, "cannot send the signal to the command");
        }
    }
}

/// Waits for the program's end; for ever if there is none. The exit code is as in a shell.
pub(super) async fn ended(program: &mut Option<Program>) -> u8 {
    let Some(program) = program else {
        return std::future::pending().await;
    };
    let status = match (&mut program.ended).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            tracing::error!(%error, "cannot wait for the command");
            return 1;
        }
        Err(error) => {
            tracing::error!(%error, "the task that waits for the command failed");
            return 1;
        }
    };
    let code = status
        .code()
        .or(status.signal().map(|signal| BY_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

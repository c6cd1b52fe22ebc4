//! Process 1 of an enclosure: passes signals to end on, reaps orphans, and ends when the runner does or when the
//! outside is gone. Its end ends all processes inside.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait,
};

use super::signals::{BlockedSignals, OUTSIDE_GONE};

/// Exit code of a runner that a signal ended, less the signal's number: the shells' way.
const SIGNALLED: i32 = 128;

/// From now on the kernel tells us when the outside dies, and the terminal's Ctrl-C goes to the outside alone, which
/// passes it on once.
pub(super) fn part_from_outside() -> io::Result<()> {
    set_parent_process_death_signal(Some(OUTSIDE_GONE))?;
    Ok(rustix::process::setpgid(None, None)?)
}

/// `None` in the child.
#[expect(
    unsafe_code,
    reason = "the runner is a copy of this process, not another program"
)]
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, so the copy is whole.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid if pid > 0 => Ok(Pid::from_raw(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process without running the destructors of values that belong to the outside's copy.
#[expect(
    unsafe_code,
    reason = "std's exit runs handlers of the process we were copied from"
)]
pub(super) fn end(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Runs the duties of process 1, until the end.
pub(super) fn look_after(runner: Pid, blocked: &BlockedSignals, folder: &Path) -> ! {
    loop {
        match blocked.wait() {
            Some(signal) if signal == Signal::CHILD.as_raw() => {
                if let Some(code) = reap(runner) {
                    end(code);
                }
            }
            Some(signal) if signal == OUTSIDE_GONE.as_raw() => {
                // After all processes are killed, none writes into the folder; only then can it be removed.
                kill_everybody();
                let _ = fs::remove_dir_all(folder);
                end(SIGNALLED + libc::SIGKILL);
            }
            Some(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = kill_process(runner, signal);
                }
            }
            None => {}
        }
    }
}

/// Collects ended processes; returns the exit code when the runner is among them.
fn reap(runner: Pid) -> Option<i32> {
    let mut code = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == runner {
            let signalled = || SIGNALLED + status.terminating_signal().unwrap_or(0);
            code = Some(status.exit_status().unwrap_or_else(signalled));
        }
    }
    code
}

/// Every process inside but us, and waits until they are gone.
#[expect(unsafe_code, reason = "rustix has no kill of all")]
fn kill_everybody() {
    // SAFETY: in a process namespace of its own, -1 is every other process inside it.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    while wait(WaitOptions::empty()).is_ok() {}
}

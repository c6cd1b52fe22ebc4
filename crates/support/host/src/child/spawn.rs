//! Forking so that the child dies with us: the kernel is told to kill it, and one thread that never ends forks them all.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::thread;

use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::isolation::ProcessIsolation;

#[expect(
    unsafe_code,
    reason = "prctl between fork and exec is the only way to be killed with the parent"
)]
pub(super) fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: both calls are async-signal-safe system calls that touch no memory of ours.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the parent died between fork and prctl, the signal would never come.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

#[expect(
    unsafe_code,
    reason = "a child moves to its place between fork and exec"
)]
pub(super) fn start_in(command: &mut Command, place: ProcessIsolation) {
    // SAFETY: `Place::enter` makes system calls only, on descriptors and strings that the closure owns.
    unsafe {
        command.pre_exec(move || place.enter());
    }
}

/// The child enters the groups behind these doors and keeps to these cores (all, when there are none).
#[expect(
    unsafe_code,
    reason = "a child moves to its groups and cores between fork and exec"
)]
pub(super) fn confine(command: &mut Command, doors: Vec<File>, cores: &[usize]) {
    if doors.is_empty() && cores.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(*core);
    }
    let pinned = !cores.is_empty();
    // SAFETY: system calls only, on descriptors and a set that the closure owns.
    unsafe {
        command.pre_exec(move || {
            for mut door in &doors {
                door.write_all(b"0")?;
            }
            if pinned {
                sched_setaffinity(None, &set)?;
            }
            Ok(())
        });
    }
}

type Spawn = (Command, mpsc::SyncSender<io::Result<Child>>);

/// `PR_SET_PDEATHSIG` fires when the forking *thread* ends, so one thread that never ends forks them all.
pub(super) fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
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
    let gone = || io::Error::other("the thread that starts processes has ended");
    let (answer, child) = mpsc::sync_channel(1);
    spawner
        .lock()
        .map_err(|_| gone())?
        .send((command, answer))
        .map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

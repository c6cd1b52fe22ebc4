//! Namespaces of a mesh's own: network, mounts, processes, IPC, and without root a user namespace around them.
//!
//! ```text
//! voile up (outside: terminal, published sockets)          host's namespaces
//!   └─ init (process 1 inside: reaps, ends everything)     the mesh's namespaces
//!        └─ runner ── control, sidecars, applications
//! ```
//! The host's own network is never touched. When init ends, the kernel kills all processes inside, grandchildren too,
//! and frees their resources: nothing is left, whichever of the three is killed. [`enter`] forks twice and must be
//! called while the process has one thread; it returns both outside and inside.

mod init;
mod parent_setup;
mod signals;
mod socket;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal};

pub use parent_setup::OutsideSetup;
use socket::SocketMessage;
pub use socket::{InsideSocket, SocketKind};

/// Which side of the wall we are on.
#[derive(Debug)]
pub enum EnclosureSide {
    /// The original process, which attends to the inside until it ends.
    Outside(Box<OutsideSetup>),
    /// In the new namespaces.
    Inside(InsideSocket),
}

/// Why there is no enclosure.
#[derive(Debug, thiserror::Error)]
pub enum EnclosureError {
    /// Forking copies one thread only.
    #[error("this process has {0} threads; only a single-threaded process can enter namespaces")]
    Threads(usize),
    /// The kernel says no.
    #[error("the kernel does not allow new namespaces: {0} ({hint})", hint = hint(.0))]
    NotAllowed(io::Error),
    /// Something failed on the way.
    #[error("cannot set up namespaces: {0}")]
    Setup(#[from] io::Error),
    /// It failed inside.
    #[error("cannot set up namespaces: {0}")]
    Inside(String),
}

/// Returns a hint for people after a refusal.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            "the limit is reached: see /proc/sys/user/max_user_namespaces and max_net_namespaces"
        }
        Some(libc::EINVAL) => {
            "the kernel is built without them: CONFIG_NET_NS, CONFIG_PID_NS, CONFIG_USER_NS"
        }
        _ if flag("/proc/sys/kernel/unprivileged_userns_clone") == Some(false) => {
            "run as root, or allow unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1"
        }
        _ if flag("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(true) => {
            "run as root, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        }
        _ => {
            "run as root with CAP_SYS_ADMIN, or where unprivileged user namespaces are allowed; containers often forbid both"
        }
    }
}

fn flag(path: &str) -> Option<bool> {
    Some(fs::read_to_string(path).ok()?.trim() != "0")
}

/// Forks into new namespaces; inside, `check` decides if they are good. `folder` is removed at the end, whichever
/// process is killed.
///
/// # Errors
/// When the kernel does not allow it or `check` fails; then nothing is left of it, and the caller goes on outside.
pub fn enter(
    folder: &Path,
    check: impl FnOnce() -> Result<(), String>,
) -> Result<EnclosureSide, EnclosureError> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(EnclosureError::Threads(threads));
    }
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(io::Error::from)?;
    let blocked = signals::BlockedSignals::now()?;
    match clone_into_namespaces()? {
        Some(init) => {
            drop(theirs);
            Ok(EnclosureSide::Outside(Box::new(OutsideSetup::attend(
                init, ours, blocked,
            )?)))
        }
        None => {
            drop(ours);
            Ok(EnclosureSide::Inside(inside(
                theirs,
                blocked,
                folder.to_owned(),
                check,
            )))
        }
    }
}

/// In process 1: sets up, forks the runner, and in that returns.
fn inside(
    socket: OwnedFd,
    blocked: signals::BlockedSignals,
    folder: PathBuf,
    check: impl FnOnce() -> Result<(), String>,
) -> InsideSocket {
    let set_up = || -> Result<(), String> {
        init::part_from_outside().map_err(|error| error.to_string())?;
        private_mounts().map_err(|error| format!("mounts: {error}"))?;
        check()
    };
    if let Err(reason) = set_up() {
        let _ = socket::send(&socket, &SocketMessage::Failed(reason));
        init::end(1);
    }
    match init::fork() {
        Ok(None) => {
            blocked.release();
            let inside = InsideSocket::new(socket);
            inside.ready();
            inside
        }
        Ok(Some(runner)) => {
            drop(socket);
            init::look_after(runner, &blocked, &folder)
        }
        Err(error) => {
            let _ = socket::send(&socket, &SocketMessage::Failed(format!("fork: {error}")));
            init::end(1);
        }
    }
}

/// Mounts of ours stay ours, and /proc shows the processes inside.
fn private_mounts() -> io::Result<()> {
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Inside a container that hides parts of /proc the kernel refuses; the old one stays, which shows other numbers.
    let _ = mount("proc", "/proc", "proc", flags, None);
    Ok(())
}

/// `None` in the child.
fn clone_into_namespaces() -> Result<Option<Pid>, EnclosureError> {
    let namespaces =
        libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if user == 0
        && let Ok(done) = clone(namespaces)
    {
        return Ok(done);
    }
    let done = clone(namespaces | libc::CLONE_NEWUSER).map_err(EnclosureError::NotAllowed)?;
    if done.is_none()
        && let Err(error) = map_user(user, group)
    {
        // No process listens yet; the outside sees the end.
        eprintln!("voile: /proc/self/uid_map: {error}");
        init::end(1);
    }
    Ok(done)
}

/// Maps the user to itself: applications run as this user, without the privileges of the namespace.
fn map_user(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

#[expect(unsafe_code, reason = "libc has no fork into new namespaces")]
fn clone(flags: libc::c_int) -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(flags | Signal::CHILD.as_raw());
    // SAFETY: without CLONE_VM this is a fork; the process has one thread, so the copy is whole.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(pid) {
        Ok(0) => Ok(None),
        Ok(pid) if pid > 0 => Ok(Pid::from_raw(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

//! Network namespaces: each pod of a local mesh has one, joined to its siblings by a veth pair on the mesh's bridge.
//!
//! ```text
//! mesh's own namespace:  bridge ── veth … veth          (gateway address, control plane, relays)
//!                                   │      │
//! pod's namespace:                 eth0   eth0           (the pod's addresses, redirect rules)
//! ```
//! A namespace lives as long as somebody holds it: nothing has to be removed, the kernel does it when we are gone,
//! however we went. Threads that enter a namespace end there; none goes on to do other work.

pub mod link;
mod netlink;
pub mod rules;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace, held open.
#[derive(Debug, Clone)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// A new, empty one: a loopback device that is down, nothing else.
    ///
    /// # Errors
    /// When the kernel does not allow it (no CAP_SYS_ADMIN), or namespaces run out.
    pub fn create() -> io::Result<Self> {
        in_thread(|| {
            unshare_network()?;
            Self::current()
        })
    }

    /// The one that the calling thread is in.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn current() -> io::Result<Self> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        Ok(Self(Arc::new(file)))
    }

    /// The one that a process is in.
    ///
    /// # Errors
    /// When it has ended, or is somebody's whose processes we may not look into.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        let file = File::open(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        Ok(Self(Arc::new(file)))
    }

    /// Runs `task` on a thread of its own inside; sockets that it makes stay inside wherever they are used later.
    ///
    /// # Errors
    /// When the thread cannot enter.
    pub fn run<T: Send>(&self, task: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_thread(|| {
            self.enter()?;
            Ok(task())
        })
    }

    /// Moves the calling thread into it, for good: only for threads that end there.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(
            self.0.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where a connection was going before a rule in our namespace turned it to us; `None` when none did.
///
/// # Errors
/// When the socket is gone.
pub fn original_destination(stream: &impl AsFd) -> io::Result<Option<SocketAddr>> {
    let socket = socket2::SockRef::from(stream);
    let Some(local) = socket.local_addr()?.as_socket() else {
        return Ok(None);
    };
    let original = match local {
        SocketAddr::V4(_) => socket.original_dst_v4(),
        SocketAddr::V6(_) => socket.original_dst_v6(),
    };
    // The kernel's way to say that it knows of no such connection is an error, too.
    let original = original.ok().and_then(|address| address.as_socket());
    Ok(original.filter(|to| *to != local))
}

fn in_thread<T: Send>(task: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, task)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}

#[expect(unsafe_code, reason = "unshare touches the thread's kernel state only")]
fn unshare_network() -> io::Result<()> {
    // SAFETY: NEWNET does not unshare descriptors or memory; the calling thread is ours and ends right after.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

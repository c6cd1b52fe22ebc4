//! Network namespaces: each pod of a local mesh has one, joined to its siblings by a veth pair on the mesh's bridge.
//!
//! ```text
//! mesh's own namespace:  bridge ── veth … veth          (gateway address, control plane, relays)
//!                                   │      │
//! pod's namespace:                 eth0   eth0           (the pod's addresses, redirect rules)
//! ```
//! A namespace lives as long as a process holds it. The kernel removes it when this process is gone, whatever the
//! cause. Threads that enter a namespace end there; only [`Namespace::within`] comes back, or the process ends.

pub mod link;
mod netlink;
pub mod rules;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
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
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one that a file stands for, such as `/var/run/netns/NAME`.
    ///
    /// # Errors
    /// The file is not there or may not be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Ok(Self(Arc::new(File::open(path).map_err(failed)?)))
    }

    /// The network namespace of a process.
    ///
    /// # Errors
    /// When it has ended, or belongs to a user whose processes may not be inspected.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::open(Path::new(&format!("/proc/{pid}/ns/net")))
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

    /// Returns an identifier, unique while a process holds the namespace open.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn id(&self) -> io::Result<(u64, u64)> {
        let known = self.0.metadata()?;
        Ok((known.dev(), known.ino()))
    }

    /// Runs `task` on the calling thread, which is inside meanwhile: for a step or two that make sockets, never for waiting. A
    /// thread that cannot come back would do the rest of its work in the wrong network, so the process ends then.
    ///
    /// # Errors
    /// The thread cannot enter, or does not know where it is.
    pub fn within<T>(&self, task: impl FnOnce() -> T) -> io::Result<T> {
        thread_local! {
            static HOME: RefCell<Option<Namespace>> = const { RefCell::new(None) };
        }
        struct Back(Namespace);
        impl Drop for Back {
            fn drop(&mut self) {
                if self.0.enter().is_err() {
                    std::process::abort();
                }
            }
        }
        let known = HOME.with_borrow(Clone::clone);
        let home = match known {
            Some(home) => home,
            None => {
                let home = Self::current()?;
                HOME.set(Some(home.clone()));
                home
            }
        };
        self.enter()?;
        let _back = Back(home);
        Ok(task())
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

impl From<OwnedFd> for Namespace {
    fn from(descriptor: OwnedFd) -> Self {
        Self(Arc::new(descriptor.into()))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the destination of a connection before a rule in this namespace redirected it; `None` without a rule.
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

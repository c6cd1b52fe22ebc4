//! Listening sockets: one per port, accepted on one thread. When descriptors run out, a spare one is given up for a
//! moment so that the waiting connection can be taken and closed: the client learns at once, and accepting never spins.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::limits::{LISTEN_BACKLOG, SHED_LOG_INTERVAL};

/// Binds and listens, non-blocking, with address reuse (a restarted proxy must not wait for old connections to fade).
///
/// # Errors
/// When the address is taken, not ours, or not permitted.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

/// Returns the number of descriptors that this process may have open (the soft limit).
#[must_use]
pub fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}

/// Raises the soft limit of open descriptors to the hard one, and returns the new limit.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    // Refused only where a sandbox forbids it; then the old limit holds, and shedding begins earlier.
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open file descriptors");
    }
    descriptor_limit()
}

/// Connections that were closed at once for want of room. The log tells of them at intervals: one line for each would
/// take more than the connection.
#[derive(Debug, Default)]
pub struct ShedCounter {
    total: Cell<u64>,
    logged: Cell<Option<Instant>>,
}

impl ShedCounter {
    /// Counts one more.
    pub fn count(&self, reason: &str) {
        let total = self.total.get() + 1;
        self.total.set(total);
        let logged = self.logged.get();
        if logged.is_none_or(|then| then.elapsed() >= SHED_LOG_INTERVAL) {
            self.logged.set(Some(Instant::now()));
            tracing::warn!(reason, total, "new connections closed at once");
        }
    }

    /// Returns the number of connections so far.
    pub fn total(&self) -> u64 {
        self.total.get()
    }
}

/// Why no connection was accepted.
#[derive(Debug)]
pub enum AcceptFailure {
    /// Out of descriptors: one waiting connection was taken and closed.
    Shed,
    /// Out of descriptors or memory, and nothing could be shed: pause.
    Exhausted(io::Error),
    /// The listener itself is broken.
    Broken(io::Error),
}

/// A descriptor kept open for the day when there are none.
#[derive(Debug)]
pub struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    /// Reserves one.
    ///
    /// # Errors
    /// When there is none even now.
    pub fn reserve() -> io::Result<Self> {
        File::open("/dev/null").map(|file| Self(Some(file)))
    }

    /// Gives the spare up, takes one waiting connection with it, closes that, takes the spare back.
    fn shed(&mut self, listener: &TcpListener) -> bool {
        self.0 = None;
        let taken = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
        let shed = taken.is_ok();
        drop(taken);
        self.0 = File::open("/dev/null").ok();
        shed
    }
}

/// A listening socket known to this thread's runtime.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncFd<TcpListener>,
    address: SocketAddr,
}

impl Listener {
    /// Registers a bound socket with the current runtime.
    ///
    /// # Errors
    /// When registration fails.
    #[expect(
        unsafe_code,
        reason = "AsyncFd asks for a promise that the descriptor stays open while registered"
    )]
    pub fn new(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        // SAFETY: the TcpListener owns its descriptor, moves into the AsyncFd and is never replaced there.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }
            .map_err(|e| e.into_parts().1)?;
        Ok(Self { socket, address })
    }

    /// Returns the listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same socket, for another process.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        self.socket.get_ref().try_clone()
    }

    /// Stops listening, even if other processes hold the socket: its port is free.
    pub fn close(&self) {
        // A socket that no longer listens is as good.
        let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
    }

    /// Takes the next connection, non-blocking. Dropping the future loses nothing.
    ///
    /// # Errors
    /// See [`AcceptFailure`].
    pub async fn accept(
        &self,
        spare: &RefCell<SpareDescriptor>,
    ) -> Result<(TcpStream, SocketAddr), AcceptFailure> {
        loop {
            // The guard is taken before the system call, so that clearing it forgets only the readiness that the call
            // disproved.
            let mut ready = self
                .socket
                .readable()
                .await
                .map_err(AcceptFailure::Broken)?;
            match rustix::net::acceptfrom_with(
                self.socket.get_ref(),
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok((descriptor, from)) => {
                    return Ok(accepted(descriptor, from.map(SocketAddr::try_from)));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::MFILE | Errno::NFILE)
                    if spare.borrow_mut().shed(self.socket.get_ref()) =>
                {
                    return Err(AcceptFailure::Shed);
                }
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return Err(AcceptFailure::Exhausted(errno.into()));
                }
                Err(
                    errno @ (Errno::BADF
                    | Errno::INVAL
                    | Errno::NOTSOCK
                    | Errno::OPNOTSUPP
                    | Errno::FAULT),
                ) => {
                    return Err(AcceptFailure::Broken(errno.into()));
                }
                // The connection died in the queue (accept(2) lists a dozen ways); the next may be well.
                Err(_) => {}
            }
        }
    }
}

fn accepted(
    descriptor: OwnedFd,
    from: Option<Result<SocketAddr, Errno>>,
) -> (TcpStream, SocketAddr) {
    let stream = TcpStream::from(descriptor);
    let peer = match from {
        Some(Ok(address)) => address,
        // A client that is gone already has no address; reading will say the same.
        _ => SocketAddr::from(([0, 0, 0, 0], 0)),
    };
    (stream, peer)
}

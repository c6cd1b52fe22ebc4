//! Listening and accepting, shared by the echo server and the relay: one thread accepts on all addresses and gives
//! each connection to the worker that holds the fewest, because kernel balancing (SO_REUSEPORT) is by hash and
//! leaves one of two workers with 11 of 16 connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::poll::{Poll, Waker};
use crate::stop::Stop;

/// Connections the kernel queues for us while we are busy.
const BACKLOG: i32 = 4096;
/// Pause before the server accepts again after it ran out of descriptors. The pause keeps the thread from spinning.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(20);
/// The token of the stop descriptor; listeners count from zero.
const STOP: u64 = u64::MAX;

/// Lifts the soft limit on open descriptors to the hard one; best effort.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// Binds and listens, with the address reusable at once.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let make = || {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    make().map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("listen on {address}: {error}"))
    })
}

/// An accepted connection and the listener (by index) that it came through.
pub(crate) type Accepted = (TcpStream, usize);

/// Queue of the new connections of one worker.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Mutex<Vec<Accepted>>,
    /// Connections that the worker holds or has been given.
    pub(crate) held: AtomicUsize,
    pub(crate) waker: Waker,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: Mutex::new(Vec::new()),
            held: AtomicUsize::new(0),
            waker: Waker::new()?,
        }))
    }

    /// Takes all that was given since the last call.
    pub(crate) fn take(&self) -> Vec<Accepted> {
        self.waker.clear();
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn give(&self, accepted: Accepted) {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(accepted);
        self.waker.wake();
    }

    /// The worker has closed one.
    pub(crate) fn closed(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts until stopped. Returns only on stop or when polling itself fails.
pub(crate) fn accept_loop(
    listeners: &[TcpListener],
    inboxes: &[Arc<Inbox>],
    stop: &Stop,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    for (index, listener) in listeners.iter().enumerate() {
        poll.add_level(listener, index as u64)?;
    }
    poll.add_level(stop.fd(), STOP)?;
    let mut turn = 0usize;
    loop {
        for event in 0..poll.wait()? {
            let token = poll.event(event).token;
            if token == STOP {
                stop.seen();
                return Ok(());
            }
            accept_all(
                &listeners[token as usize],
                token as usize,
                inboxes,
                &mut turn,
            );
        }
    }
}

/// Accepts what is queued on one listener. The turn breaks ties, so that short connections spread too.
fn accept_all(listener: &TcpListener, index: usize, inboxes: &[Arc<Inbox>], turn: &mut usize) {
    loop {
        match listener.accept() {
            Ok((stream, _peer)) => {
                let _ = stream.set_nodelay(true);
                if stream.set_nonblocking(true).is_err() {
                    continue;
                }
                *turn = turn.wrapping_add(1);
                let rotated = (0..inboxes.len()).map(|at| &inboxes[(at + *turn) % inboxes.len()]);
                if let Some(inbox) = rotated.min_by_key(|inbox| inbox.held.load(Ordering::Relaxed))
                {
                    inbox.give((stream, index));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
                ) =>
            {
                rest();
                return;
            }
            // The peer gave up before we got to it, or a transient network error: the next one may be fine.
            Err(_) => {}
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event tells that a descriptor somewhere was closed"
)]
fn rest() {
    std::thread::sleep(EXHAUSTED_PAUSE);
}

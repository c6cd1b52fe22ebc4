//! A thin epoll: tokens in, (token, readiness) out, edge-triggered throughout so that steady traffic costs no
//! `epoll_ctl`. Nothing here allocates after construction.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, Timespec, epoll};

/// Events taken from the kernel at once: enough to drain a burst, few enough that a due send is not kept waiting.
const BATCH: usize = 64;

/// Readiness of a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    pub(crate) token: u64,
    flags: epoll::EventFlags,
}

impl Readiness {
    /// Bytes, an end of stream or an error can be read.
    pub(crate) fn readable(self) -> bool {
        use epoll::EventFlags as F;
        self.flags.intersects(F::IN | F::RDHUP | F::HUP | F::ERR)
    }

    /// Bytes can be written, or the write will say what is wrong.
    pub(crate) fn writable(self) -> bool {
        use epoll::EventFlags as F;
        self.flags.intersects(F::OUT | F::HUP | F::ERR)
    }

    /// The peer has finished sending, or the socket has failed. The worker must read until the read reports it.
    pub(crate) fn hangup(self) -> bool {
        use epoll::EventFlags as F;
        self.flags.intersects(F::RDHUP | F::HUP | F::ERR)
    }
}

/// One epoll instance and its reusable list of events.
#[derive(Debug)]
pub(crate) struct Poll {
    fd: OwnedFd,
    /// Our own copy: the kernel's event may hold a pointer, and so may not change threads.
    events: Vec<Readiness>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            fd,
            events: Vec::with_capacity(BATCH),
        })
    }

    /// Watches both directions of a stream, edge-triggered.
    pub(crate) fn add_stream(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        use epoll::EventFlags as F;
        self.add(fd, token, F::IN | F::OUT | F::RDHUP | F::ET)
    }

    /// Watches a timer, edge-triggered (see [`crate::clock::Timer`]).
    pub(crate) fn add_timer(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        use epoll::EventFlags as F;
        self.add(fd, token, F::IN | F::ET)
    }

    /// Watches a descriptor that is readable until it is read: a listener or a stop signal.
    pub(crate) fn add_level(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        self.add(fd, token, epoll::EventFlags::IN)
    }

    /// Watches a descriptor no longer.
    pub(crate) fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    fn add(&self, fd: impl AsFd, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), flags)?;
        Ok(())
    }

    /// Sleeps until something is ready; returns how many events [`Poll::event`] now holds.
    pub(crate) fn wait(&mut self) -> io::Result<usize> {
        self.wait_unless(false)
    }

    /// As [`Poll::wait`]; if `busy`, only checks, without sleeping.
    pub(crate) fn wait_unless(&mut self, busy: bool) -> io::Result<usize> {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        self.events.clear();
        let mut batch = [MaybeUninit::<epoll::Event>::uninit(); BATCH];
        match epoll::wait(&self.fd, &mut batch, busy.then_some(&AT_ONCE)) {
            Ok((ready, _)) => {
                let copied = ready.iter().map(|event| Readiness {
                    token: event.data.u64(),
                    flags: event.flags,
                });
                self.events.extend(copied);
                Ok(self.events.len())
            }
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// The event of that index in the last batch. Copied, so that handling it may change the poll.
    pub(crate) fn event(&self, index: usize) -> Readiness {
        self.events[index]
    }
}

/// Wakes a thread that sleeps in [`Poll::wait`].
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    /// Wakes the sleeper, now or when it next sleeps.
    pub(crate) fn wake(&self) {
        // A full counter (EAGAIN) already means "awake".
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Forgets past wakes.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

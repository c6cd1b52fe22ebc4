//! Flag that ends a run early; every thread can also sleep on it. SIGINT and SIGTERM raise it when the program asks for that. A
//! test or the lab raises it by hand.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::poll::Waker;

/// The descriptor that the signal handler writes to; -1 until [`Stop::on_signals`].
static SIGNAL_FD: AtomicI32 = AtomicI32::new(-1);

/// A request to stop, seen by all clones. Level-triggered: never cleared, so every thread that polls it wakes.
#[derive(Debug, Clone)]
pub struct Stop {
    shared: Arc<StopState>,
}

#[derive(Debug)]
struct StopState {
    raised: AtomicBool,
    waker: Waker,
}

impl Stop {
    /// Makes a stop that is not raised.
    pub fn new() -> io::Result<Self> {
        let shared = StopState {
            raised: AtomicBool::new(false),
            waker: Waker::new()?,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Asks all watching threads to finish.
    pub fn raise(&self) {
        self.shared.raised.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Reports if the flag was raised, by hand or by signal.
    #[must_use]
    pub fn raised(&self) -> bool {
        self.shared.raised.load(Ordering::Acquire)
    }

    /// The descriptor that becomes, and stays, readable once raised.
    pub(crate) fn fd(&self) -> &impl std::os::fd::AsFd {
        self.shared.waker.fd()
    }

    /// Marks the stop as raised because its descriptor was readable (a signal handler can only write).
    pub(crate) fn seen(&self) {
        self.shared.raised.store(true, Ordering::Release);
    }

    /// Raises this stop on SIGINT or SIGTERM, for the rest of the process's life. A second signal kills.
    pub fn on_signals(&self) -> io::Result<()> {
        SIGNAL_FD.store(self.shared.waker.fd().as_raw_fd(), Ordering::Release);
        // The handler may run at any time from now on, so the descriptor must never be closed.
        std::mem::forget(self.clone());
        for signal in [libc::SIGINT, libc::SIGTERM] {
            install(signal)?;
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "std has no way to handle a signal")]
fn install(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: `action` is fully initialised; the handler only loads an atomic and calls write(2), both
    // async-signal-safe. SA_RESETHAND makes the second signal deadly, so that a hung run can be ended.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[expect(
    unsafe_code,
    reason = "write(2) by descriptor number is what a signal handler may do"
)]
extern "C" fn on_signal(_signal: libc::c_int) {
    let one = 1u64.to_ne_bytes();
    let fd = SIGNAL_FD.load(Ordering::Acquire);
    // SAFETY: async-signal-safe; the buffer outlives the call; a bad descriptor only fails.
    unsafe {
        libc::write(fd, one.as_ptr().cast(), one.len());
    }
}

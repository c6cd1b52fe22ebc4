//! The signals that both ends of an enclosure wait for instead of being interrupted by.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::process::Signal;

/// Sent by the kernel to process 1 when the outside is gone.
pub(super) const OUTSIDE_GONE: Signal = Signal::USR1;
/// Signals passed on to the runner: the ones that ask for an end, and USR2, whose meaning is the runner's.
pub(super) const PASSED: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR2];

/// These signals wait; copied by fork.
#[derive(Debug)]
pub(super) struct BlockedSignals {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl BlockedSignals {
    #[expect(unsafe_code, reason = "std and rustix cannot block signals")]
    pub(super) fn now() -> io::Result<Self> {
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigemptyset initialises the set, pthread_sigmask the one before; the signals are valid.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in PASSED.into_iter().chain([OUTSIDE_GONE, Signal::CHILD]) {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            let set = set.assume_init();
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) {
                0 => Ok(Self {
                    set,
                    before: before.assume_init(),
                }),
                code => Err(io::Error::from_raw_os_error(code)),
            }
        }
    }

    /// As it was before.
    #[expect(unsafe_code, reason = "std and rustix cannot unblock signals")]
    pub(super) fn release(&self) {
        // SAFETY: the mask was filled by the kernel.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }

    /// Waits for the next of them.
    #[expect(unsafe_code, reason = "std and rustix cannot wait for signals")]
    pub(super) fn wait(&self) -> Option<i32> {
        // SAFETY: the set is initialised, and no information about the signal is asked for.
        let signal = unsafe { libc::sigwaitinfo(&raw const self.set, std::ptr::null_mut()) };
        (signal > 0).then_some(signal)
    }

    /// A descriptor that becomes readable when one of them comes.
    #[expect(unsafe_code, reason = "rustix has no signalfd")]
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is initialised; the descriptor is new and ours.
        unsafe {
            let fd = libc::signalfd(
                -1,
                &raw const self.set,
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            );
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

/// The next signal of a descriptor made by [`Blocked::descriptor`], if one has come.
pub(super) fn next(descriptor: &OwnedFd) -> Option<i32> {
    let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(descriptor, &mut bytes).ok()?;
    // The number is the first field.
    (read == bytes.len()).then(|| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

//! Requests to end (Ctrl-C or SIGTERM), for programs that check between two steps and then clean up.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT and SIGTERM only set a flag; a second one kills, so that a program that hangs can be ended.
///
/// # Errors
/// When the kernel refuses the handler.
#[expect(unsafe_code, reason = "std has no way to handle a signal")]
pub fn watch() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the action is fully initialised, and the handler only stores to an atomic, which is async-signal-safe.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns true if one of them came since [`watch`].
#[must_use]
pub fn asked() -> bool {
    ASKED.load(Ordering::Acquire)
}

extern "C" fn on_signal(_signal: libc::c_int) {
    ASKED.store(true, Ordering::Release);
}

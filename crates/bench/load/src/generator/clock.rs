//! Clocks and the absolute timer. All send times are nanoseconds of `CLOCK_MONOTONIC`. The timer is a timerfd armed with an
//! absolute instant, on a thread whose timer slack is 1 ns: runtime timers round to a millisecond, and the kernel's default slack
//! adds 50 µs.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;

/// The kernel's least timer slack: the default of 50 µs would be added to every send.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

#[expect(
    unsafe_code,
    reason = "rustix looks for the vDSO by itself, which faults under valgrind, where what a request costs is counted"
)]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours; the clocks that we read always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    // Monotonic and CPU clocks start at zero and stay below 2^63 ns for 292 years.
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[must_use]
pub fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time, in nanoseconds, that the calling thread has used.
#[must_use]
pub fn thread_cpu() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Unix time in nanoseconds, for records only; never for a measurement.
#[must_use]
pub fn unix_now() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// Asks the kernel to wake this thread when it said, not up to 50 µs later. Best effort: an older kernel or a
/// sandbox that refuses only makes the generator's own lateness larger, and that is measured.
pub fn sharpen_timers() {
    let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
}

/// A one-shot timer on an absolute instant, readable by epoll.
///
/// Register it edge-triggered: arming it again forgets an earlier expiry, so it never needs to be read.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
    armed: Option<u64>,
}

impl Timer {
    /// Makes a timer that is not armed.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { fd, armed: None })
    }

    /// Arms the timer for `instant` (nanoseconds of [`now`]), or disarms it. Costs nothing when already so armed.
    pub fn set(&mut self, instant: Option<u64>) -> io::Result<()> {
        if self.armed == instant {
            return Ok(());
        }
        // An all-zero value means "disarm", so the first nanosecond of the machine's life is not representable.
        let at = instant.map_or(0, |at| at.max(1));
        let value = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: (at / SECOND) as i64,
                tv_nsec: (at % SECOND) as i64,
            },
        };
        rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &value)?;
        self.armed = instant;
        Ok(())
    }

    /// Tells the timer that it has fired, so that the same instant may be armed again.
    pub fn fired(&mut self) {
        self.armed = None;
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

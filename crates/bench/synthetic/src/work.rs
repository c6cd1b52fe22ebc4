//! Work of a service besides calls: wait, use a CPU, hold memory.

use std::fs;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use voile_graph::{Memory, Probability};

/// Below this the runtime's timers, which count whole milliseconds, would be off by more than a hundredth.
const COARSE: Duration = Duration::from_millis(200);
/// CPU time after which other requests of the thread get their turn.
const SLICE: Duration = Duration::from_millis(1);
/// One byte in each of these makes the kernel give the page.
const PAGE_BYTES: usize = 4096;
/// Period of steady CPU use.
const PERIOD: Duration = Duration::from_millis(20);

/// Waits, with a precision of some 50 µs for all lengths.
pub(crate) async fn sleep(time: Duration) {
    if time >= COARSE || precise(time).await.is_err() {
        tokio::time::sleep(time).await;
    }
}

async fn precise(time: Duration) -> io::Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    let timer = timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    let once = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: time.subsec_nanos().into(),
        },
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    #[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
    // SAFETY: an `OwnedFd` is one descriptor from here until the `AsyncFd`, which owns it, is dropped.
    let timer = unsafe { AsyncFd::register_with_interest(timer, tokio::io::Interest::READABLE)? };
    timer.readable().await?.retain_ready();
    Ok(())
}

/// Uses so much CPU time of this thread.
pub(crate) async fn burn(time: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let slice = left.min(SLICE);
        burn_at_once(slice);
        left -= slice;
        if !left.is_zero() {
            tokio::task::yield_now().await;
        }
    }
}

fn burn_at_once(time: Duration) {
    let used = || {
        let clock = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(clock.tv_sec.unsigned_abs(), clock.tv_nsec as u32)
    };
    let until = used() + time;
    let mut value = 0x2545_f491_4f6c_dd1du64;
    while used() < until {
        for _ in 0..200 {
            value = std::hint::black_box(value ^ (value << 13));
            value ^= value >> 7;
        }
    }
}

/// Memory that is really there.
pub(crate) fn hold(bytes: u64) -> Vec<u8> {
    let mut held = vec![0u8; bytes as usize];
    for byte in held.iter_mut().step_by(PAGE_BYTES) {
        *byte = 1;
    }
    std::hint::black_box(held)
}

/// The bytes that `memoryUsage` stands for.
///
/// # Errors
/// When it is a share, and no cgroup has a limit.
pub(crate) fn bytes_of(memory: Memory) -> Result<u64, String> {
    match memory {
        Memory::Bytes(bytes) => Ok(bytes),
        Memory::OfLimit(share) => {
            let limit = limit().ok_or(
                "`memoryUsage` is a percentage, and no cgroup limits this process: write a size such as 64 MiB",
            )?;
            Ok((limit as f64 * share.get()) as u64)
        }
    }
}

/// The memory that our cgroup, or one above it, may have.
fn limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let path = std::path::Path::new(path.trim_start_matches('/'));
        for above in path.ancestors() {
            let file = std::path::Path::new(root).join(above).join(file);
            let text = fs::read_to_string(file).unwrap_or_default();
            // cgroup v1 writes "no limit" as a number near 2^63.
            let limit = text.trim().parse::<u64>().ok();
            limits.extend(limit.filter(|limit| *limit < 1 << 62));
        }
    }
    limits.into_iter().min()
}

/// Steady use of a share of one CPU, until dropped.
#[derive(Debug)]
pub(crate) struct SteadyLoad {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SteadyLoad {
    pub(crate) fn start(share: Probability) -> Option<Self> {
        if share == Probability::NONE {
            return None;
        }
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            loop {
                let start = Instant::now();
                burn_at_once(PERIOD.mul_f64(share.get()));
                let rest = PERIOD.saturating_sub(start.elapsed());
                if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Some(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for SteadyLoad {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It only burns; if it panicked, there is nothing to save.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burning_uses_the_time_of_this_thread() {
        let used = || {
            let clock = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(clock.tv_sec.unsigned_abs(), clock.tv_nsec as u32)
        };
        let before = used();
        burn_at_once(Duration::from_millis(20));
        let took = used() - before;
        // CPU time, so other load on the machine does not matter.
        assert!(
            took >= Duration::from_millis(20) && took < Duration::from_millis(30),
            "{took:?}"
        );
    }
}

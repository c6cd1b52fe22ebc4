//! Cost of processes: CPU from the kernel's per-process clock (nanoseconds, all threads), memory from `smaps_rollup`,
//! context switches from every thread's status.
//!
//! The split into user and system time comes from clock ticks (usually 10 ms) and is therefore *sampled*. The total
//! from the clock is the figure to trust; the split is only a tendency.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Counters of a process (or of several, added up) that only grow while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all threads, those that have ended included.
    pub cpu_ns: u64,
    /// Time in user mode, in whole ticks: sampled.
    pub user_ns: u64,
    /// Time in the kernel, in whole ticks: sampled.
    pub system_ns: u64,
    /// Context switches because a thread waited, over the threads that run now.
    pub voluntary_switches: u64,
    /// Context switches because the scheduler took the core away, over the threads that run now.
    pub involuntary_switches: u64,
}

impl Usage {
    /// Reads the counters of one process.
    ///
    /// # Errors
    /// When it has ended, or belongs to a user whose processes may not be inspected.
    pub fn of(pid: u32) -> io::Result<Self> {
        let (user_ns, system_ns) = user_and_system_ns(pid)?;
        let (voluntary_switches, involuntary_switches) = context_switches(pid)?;
        Ok(Self {
            cpu_ns: cpu_ns(pid)?,
            user_ns,
            system_ns,
            voluntary_switches,
            involuntary_switches,
        })
    }

    /// Adds up the counters of several processes; those that have ended count nothing.
    #[must_use]
    pub fn of_all(pids: &[u32]) -> Self {
        pids.iter()
            .filter_map(|pid| Self::of(*pid).ok())
            .fold(Self::default(), Self::plus)
    }

    /// Returns the usage since `earlier`. A counter that shrank (a thread that ended took its switches along) counts
    /// zero.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            voluntary_switches: self
                .voluntary_switches
                .saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
        }
    }
}

/// Resources that a process (or several, added up) holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessResources {
    /// Resident memory, shared pages counted in full.
    pub rss_bytes: u64,
    /// Resident memory, each shared page divided by the number of its users.
    pub pss_bytes: u64,
    /// Resident memory that no file backs: the process's own allocations.
    pub anonymous_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl ProcessResources {
    /// Reads the holdings of one process.
    ///
    /// # Errors
    /// When it has ended, or belongs to a user whose processes may not be inspected.
    pub fn of(pid: u32) -> io::Result<Self> {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let kib = |name| field(&rollup, name).unwrap_or(0) * 1024;
        Ok(Self {
            rss_bytes: kib("Rss:"),
            pss_bytes: kib("Pss:"),
            anonymous_bytes: kib("Anonymous:"),
            threads: fs::read_dir(format!("/proc/{pid}/task"))?.count() as u64,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
        })
    }

    /// Adds up several processes; those that have ended hold nothing.
    #[must_use]
    pub fn of_all(pids: &[u32]) -> Self {
        pids.iter()
            .filter_map(|pid| Self::of(*pid).ok())
            .fold(Self::default(), |sum, one| Self {
                rss_bytes: sum.rss_bytes + one.rss_bytes,
                pss_bytes: sum.pss_bytes + one.pss_bytes,
                anonymous_bytes: sum.anonymous_bytes + one.anonymous_bytes,
                threads: sum.threads + one.threads,
                descriptors: sum.descriptors + one.descriptors,
            })
    }
}

/// CPU time of a process in nanoseconds, from its own CPU clock: all threads, those that have ended included.
///
/// # Errors
/// When there is no such process.
#[expect(
    unsafe_code,
    reason = "another process's CPU clock has no safe wrapper"
)]
pub fn cpu_ns(pid: u32) -> io::Result<u64> {
    let mut clock = MaybeUninit::uninit();
    // SAFETY: the kernel's clock id is written to `clock`, which lives here; the result says whether it was.
    let clock = unsafe {
        match libc::clock_getcpuclockid(pid.cast_signed(), clock.as_mut_ptr()) {
            0 => clock.assume_init(),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    };
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: as above, for `time`.
    let time = unsafe {
        if libc::clock_gettime(clock, time.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        time.assume_init()
    };
    Ok(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// One clock tick of `/proc`.
#[must_use]
pub fn tick() -> Duration {
    Duration::from_nanos(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

fn user_and_system_ns(pid: u32) -> io::Result<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat_ticks(&stat)
        .map(|(user, system)| {
            let tick_ns = tick().as_nanos() as u64;
            (user * tick_ns, system * tick_ns)
        })
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat is not as expected"),
            )
        })
}

/// Fields 14 and 15; the name (field 2) may hold spaces and parentheses.
fn parse_stat_ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat
        .get(stat.rfind(')')? + 2..)?
        .split_ascii_whitespace()
        .skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn context_switches(pid: u32) -> io::Result<(u64, u64)> {
    let mut sum = (0, 0);
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between listing and reading.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        sum.0 += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        sum.1 += field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(sum)
}

/// The first number on the line that starts with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 1 0 100 1000 10";
        assert_eq!(parse_stat_ticks(stat), Some((17, 5)));
        assert_eq!(parse_stat_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = "nonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t9\n";
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(9));
        assert_eq!(field(status, "nonvoluntary_ctxt_switches:"), Some(7));
        assert_eq!(field(status, "missing:"), None);
    }
}

//! The machine a figure was measured on, and how busy all of it was meanwhile (on loopback the receiver's kernel work is
//! charged to the sender, so per-process figures need the whole machine's beside them).

use std::fs;
use std::io;

use crate::sampler::tick;

/// Properties of the machine that do not change during a measurement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The kernel's name and release.
    pub kernel: String,
    /// Cores we may run on.
    pub cores: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// The machine's name.
    pub host: String,
}

impl Machine {
    /// Reads this machine's properties. An unknown property is left empty.
    #[must_use]
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        Self {
            cpu: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            kernel: format!(
                "{} {} {}",
                text(uname.sysname()),
                text(uname.release()),
                text(uname.machine())
            ),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            host: text(uname.nodename()),
        }
    }
}

/// Available and idle time of the cores, all added up. Only the difference of two readings has a meaning.
///
/// All time that is not idle was busy: processes, interrupts, and time that the hypervisor gave to another machine.
/// The kernel's own "busy" columns are not used. The tick samples them, and work that wakes by timers hides between
/// ticks: a core that is busy a third of the time may show as idle. On a kernel that stops its tick, idle time is
/// measured, not sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// Cores × time passed.
    pub available_ns: u64,
    /// Idle or waiting for a disk; its grain is one tick of 10 ms.
    pub idle_ns: u64,
}

impl CoreTime {
    /// Reads the clock and `/proc/stat`.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read or is not as expected.
    pub fn now() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = clock.tv_sec.unsigned_abs() * 1_000_000_000 + clock.tv_nsec.unsigned_abs();
        parse_core_time(&stat, tick().as_nanos() as u64, now).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat is not as expected")
        })
    }

    /// Returns the difference since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            available_ns: self.available_ns.saturating_sub(earlier.available_ns),
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
        }
    }

    /// Not idle.
    #[must_use]
    pub fn busy_ns(self) -> u64 {
        self.available_ns.saturating_sub(self.idle_ns)
    }

    /// The busy share, between 0 and 1.
    #[must_use]
    pub fn busy_share(self) -> f64 {
        if self.available_ns == 0 {
            0.0
        } else {
            self.busy_ns() as f64 / self.available_ns as f64
        }
    }
}

/// Busy time of the cores, all added up, in the kernel's own columns. The tick samples them: work that wakes by
/// timers hides between ticks, so that their sum is less than in [`CoreTime`]. Only their proportion is of use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreSplit {
    /// In user mode, lowered priority included.
    pub user_ns: u64,
    /// In the kernel, for processes.
    pub system_ns: u64,
    /// In the kernel, for interrupts and their deferred work: the network's receiving side.
    pub softirq_ns: u64,
    /// Taken by the hypervisor.
    pub steal_ns: u64,
}

impl CoreSplit {
    /// Reads `/proc/stat`.
    ///
    /// # Errors
    /// When it cannot be read or is not as expected.
    pub fn now() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        parse_core_split(&stat, tick().as_nanos() as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat is not as expected")
        })
    }

    /// Returns the difference since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            softirq_ns: self.softirq_ns.saturating_sub(earlier.softirq_ns),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
        }
    }
}

/// user nice system idle iowait irq softirq steal
fn parse_core_split(stat: &str, tick_ns: u64) -> Option<CoreSplit> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let &[user, nice, system, _, _, irq, softirq, steal, ..] = ticks.as_slice() else {
        return None;
    };
    Some(CoreSplit {
        user_ns: (user + nice) * tick_ns,
        system_ns: system * tick_ns,
        softirq_ns: (irq + softirq) * tick_ns,
        steal_ns: steal * tick_ns,
    })
}

/// Returns the number of descriptors that a child process may open; none when there is no limit.
#[must_use]
pub fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum
}

/// Returns the number of descriptors that this process may open; none when there is no limit.
#[must_use]
pub fn own_descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Raises the limit of open descriptors, of this process and its children, as far as it may go. Returns it.
pub fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused only where the maximum is wrong; the old limit stays then.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    own_descriptor_limit()
}

/// Makes room for that many descriptors in us and in each process that we start: as far as the limit may go, and beyond it where
/// the user may raise that, too (root). The limit that holds, when it is less.
///
/// # Errors
/// The limit.
pub fn make_room_for_descriptors(needed: u64) -> Result<(), u64> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(raise_descriptor_limit()) {
        return Ok(());
    }
    let wanted = Rlimit {
        current: Some(needed),
        maximum: Some(needed),
    };
    let limit = own_descriptor_limit();
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => Ok(()),
        Err(_) => Err(limit.unwrap_or(0)),
    }
}

/// Returns the number of further processes and threads that this machine takes, by the nearest limit, and that
/// limit's name.
#[must_use]
pub fn room_for_threads() -> (u64, &'static str) {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // The load average's fourth field is `running/all`: threads of the whole machine.
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let all = load
        .split(' ')
        .nth(3)
        .and_then(|field| field.split_once('/'));
    let there: u64 = all.and_then(|(_, all)| all.parse().ok()).unwrap_or(0);
    let own = rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    // Root is not held to the limit of a user's processes.
    let own = own.filter(|_| !rustix::process::geteuid().is_root());
    [
        (number("/proc/sys/kernel/pid_max"), "kernel.pid_max"),
        (number("/proc/sys/kernel/threads-max"), "kernel.threads-max"),
        (
            number("/sys/fs/cgroup/pids.max"),
            "the control group's pids.max",
        ),
        (
            number("/sys/fs/cgroup/pids/pids.max"),
            "the control group's pids.max",
        ),
        (own, "ulimit -u"),
    ]
    .into_iter()
    .filter_map(|(limit, name)| Some((limit?.saturating_sub(there), name)))
    .min()
    .unwrap_or((u64::MAX, "nothing"))
}

/// Memory that the kernel holds for itself and cannot give back at once: slabs, stacks of threads, page tables, and
/// per-core memory. Of the whole machine: only the difference of two readings has a meaning.
///
/// # Errors
/// When `/proc/meminfo` cannot be read.
pub fn kernel_memory_bytes() -> io::Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let fields = ["SUnreclaim:", "KernelStack:", "PageTables:", "Percpu:"];
    let kib: u64 = fields
        .iter()
        .filter_map(|field| meminfo_kib(&meminfo, field))
        .sum();
    Ok(kib * 1024)
}

/// Memory that is available to processes.
///
/// # Errors
/// When `/proc/meminfo` cannot be read.
pub fn available_memory_bytes() -> io::Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    Ok(meminfo_kib(&meminfo, "MemAvailable:").unwrap_or(0) * 1024)
}

/// The cores that this process and its children may run on.
#[must_use]
pub fn cores_here() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    all.filter(|core| set.is_set(*core)).collect()
}

/// Load average of the last minute.
#[must_use]
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

fn parse_core_time(stat: &str, tick_ns: u64, now_ns: u64) -> Option<CoreTime> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let of_a_core = |line: &&str| {
        let number = line.strip_prefix("cpu").unwrap_or_default();
        number.starts_with(|c: char| c.is_ascii_digit())
    };
    let cores = stat.lines().filter(of_a_core).count() as u64;
    // user nice system idle iowait …
    let mut idle = line.split_ascii_whitespace().skip(3).take(2);
    let ticks: u64 = idle.next()?.parse::<u64>().ok()? + idle.next()?.parse::<u64>().ok()?;
    (cores > 0).then(|| CoreTime {
        available_ns: cores * now_ns,
        idle_ns: ticks * tick_ns,
    })
}

fn cpu_model(cpuinfo: &str) -> String {
    ["model name", "Model", "Hardware", "uarch"]
        .into_iter()
        .find_map(|key| {
            let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn memory_bytes(meminfo: &str) -> u64 {
    meminfo_kib(meminfo, "MemTotal:").unwrap_or(0) * 1024
}

fn meminfo_kib(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_was_busy() {
        let at = |idle, now| {
            let stat = format!("cpu  1 2 3 {idle} 5 6 7 8 0 0\ncpu0 1 1\ncpu1 1 1\nctxt 9\n");
            parse_core_time(&stat, 10, now).expect("parses")
        };
        let passed = at(52, 1_250).since(at(40, 1_000));
        assert_eq!(
            (passed.available_ns, passed.idle_ns, passed.busy_ns()),
            (500, 120, 380)
        );
        assert!((passed.busy_share() - 0.76).abs() < 1e-9);
        // The grain of idle time may make it a little more than there was.
        assert_eq!(at(41, 1_001).since(at(40, 1_000)).busy_ns(), 0);
        for broken in ["cpu 1 2", "cpu 1 2 3 4 5 6 7 8\n", ""] {
            assert_eq!(parse_core_time(broken, 10, 1), None, "{broken}");
        }
    }

    #[test]
    fn the_kernels_columns_are_told_apart() {
        let split = parse_core_split("cpu  1 2 3 40 5 6 7 8 0 0\n", 10).expect("parses");
        let expected = CoreSplit {
            user_ns: 30,
            system_ns: 30,
            softirq_ns: 130,
            steal_ns: 80,
        };
        assert_eq!(split, expected);
        assert_eq!(parse_core_split("cpu  1 2 3\n", 10), None);
    }

    #[test]
    fn the_model_is_found_on_more_than_one_architecture() {
        for (cpuinfo, expected) in [
            (
                "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n",
                "Some CPU @ 2 GHz",
            ),
            ("processor\t: 0\nModel\t\t: A board\n", "A board"),
            ("processor : 0\n", std::env::consts::ARCH),
        ] {
            assert_eq!(cpu_model(cpuinfo), expected);
        }
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            memory_bytes("MemTotal:  1024 kB\nMemFree: 3 kB\n"),
            1024 * 1024
        );
        assert_eq!(memory_bytes(""), 0);
    }
}

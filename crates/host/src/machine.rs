//! The machine a figure was measured on, and how busy all of it was meanwhile (on loopback the receiver's kernel work is
//! charged to the sender, so per-process figures need the whole machine's beside them).

use std::fs;
use std::io;

use crate::sampler::tick;

/// What does not change while we measure.
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
    /// Looks at this machine. What cannot be learned is left empty.
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

/// Time the cores spent since the machine started, all of them added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// Not idle: user, system, interrupts, stolen by the hypervisor.
    pub busy_ns: u64,
    /// Of the busy time, what the hypervisor gave to somebody else.
    pub stolen_ns: u64,
    /// Idle or waiting for a disk.
    pub idle_ns: u64,
}

impl CoreTime {
    /// Reads `/proc/stat`; its grain is one tick per core.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read or is not as expected.
    pub fn now() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        parse_core_time(&stat, tick().as_nanos() as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat is not as expected")
        })
    }

    /// What passed since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            stolen_ns: self.stolen_ns.saturating_sub(earlier.stolen_ns),
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
        }
    }

    /// The busy share, between 0 and 1.
    #[must_use]
    pub fn busy_share(self) -> f64 {
        let all = self.busy_ns + self.idle_ns;
        if all == 0 {
            0.0
        } else {
            self.busy_ns as f64 / all as f64
        }
    }
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

fn parse_core_time(stat: &str, tick_ns: u64) -> Option<CoreTime> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    // user nice system idle iowait irq softirq steal (guest time is within user time)
    let [user, nice, system, idle, iowait, irq, softirq, steal] = *ticks.first_chunk::<8>()?;
    Some(CoreTime {
        busy_ns: (user + nice + system + irq + softirq + steal) * tick_ns,
        stolen_ns: steal * tick_ns,
        idle_ns: (idle + iowait) * tick_ns,
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
    let kib = || {
        meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()
    };
    kib().unwrap_or(0u64) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_time_counts_interrupts_as_busy_and_waiting_as_idle() {
        let time = parse_core_time("cpu  1 2 3 40 5 6 7 8 0 0\ncpu0 1 1\n", 10).expect("parses");
        assert_eq!(
            time,
            CoreTime {
                busy_ns: 270,
                stolen_ns: 80,
                idle_ns: 450
            }
        );
        assert_eq!(parse_core_time("cpu 1 2", 10), None);
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

//! Figures of this process from the kernel: memory, descriptors, processor time. Read on request, never on a timer.

use crate::exposition::MetricFamily;

/// Figures of this process at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessFigures {
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Open descriptors.
    pub open_descriptors: u64,
    /// Processor time of all threads in seconds.
    pub cpu_seconds: f64,
    /// Threads.
    pub threads: u64,
}

impl ProcessFigures {
    /// Reads the figures; one that cannot be read stays zero.
    #[must_use]
    pub fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_default();
            line.split_whitespace()
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let schedstat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self {
            resident_bytes: field("VmRSS:") * 1024,
            open_descriptors: std::fs::read_dir("/proc/self/fd")
                .map_or(0, |dir| dir.count() as u64),
            cpu_seconds: cpu_ticks(&schedstat) as f64 / TICKS_PER_SECOND,
            threads: field("Threads:"),
        }
    }

    /// As Prometheus' customary families.
    #[must_use]
    pub fn families(&self) -> Vec<MetricFamily> {
        let gauge = |name, help, value| MetricFamily::single(name, "gauge", help, value);
        vec![
            gauge(
                "process_resident_memory_bytes",
                "Resident memory.",
                self.resident_bytes as f64,
            ),
            gauge(
                "process_open_fds",
                "Open descriptors.",
                self.open_descriptors as f64,
            ),
            gauge("process_threads", "Threads.", self.threads as f64),
            MetricFamily::single(
                "process_cpu_seconds_total",
                "counter",
                "Processor time, user and system.",
                self.cpu_seconds,
            ),
        ]
    }
}

/// Name of this machine, empty when the kernel does not say.
pub(crate) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// USER_HZ is 100 on every Linux architecture that runs Rust.
const TICKS_PER_SECOND: f64 = 100.0;

/// utime + stime: the 14th and 15th fields of /proc/PID/stat, counted after the name, which may hold spaces.
fn cpu_ticks(stat: &str) -> u64 {
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return 0;
    };
    fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum()
}

//! Comparability of two or more records: the figures, the direction in which each is worse, and the differences between the
//! machines.

use std::collections::BTreeMap;

use crate::record::{Calibration, CellKey, Environment, Estimate, Record};
use crate::summarise::{Rounds, by_cell};
use crate::words::duration;

/// A figure that is compared: its name, and whether less of it is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComparedFigure {
    /// As in [`crate::record::Summary`].
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// Requests per second and the like.
    pub more_is_better: bool,
}

const fn less(name: &'static str, title: &'static str) -> ComparedFigure {
    ComparedFigure {
        name,
        title,
        more_is_better: false,
    }
}

/// All of them, in the order they are shown.
pub const FIGURES: [ComparedFigure; 9] = [
    less("latency_us.p50", "p50"),
    less("latency_us.p99", "p99"),
    less("sidecar.cpu_us_per_request", "CPU/request/proxy"),
    less("machine_cpu_us_per_request", "machine CPU/request"),
    less("sidecar.rss_bytes", "RSS/proxy"),
    less("sidecar.idle_rss_bytes", "RSS/proxy, idle"),
    less("sidecar.bytes_per_connection", "bytes/connection"),
    ComparedFigure {
        more_is_better: true,
        ..less("achieved_rps", "requests/s")
    },
    ComparedFigure {
        more_is_better: true,
        ..less("gigabits_per_core", "throughput/core")
    },
];

/// A figure's values of one cell, by round; nothing for a rate that was asked for.
#[must_use]
pub fn values(cell: &CellKey, rounds: &Rounds, figure: &str) -> Vec<f64> {
    if figure == "achieved_rps" && cell.rate != 0 {
        return Vec::new();
    }
    let of_round = rounds.values().filter_map(|figures| figures.get(figure));
    of_round.copied().collect()
}

/// Every cell with its valid rounds.
#[must_use]
pub fn cells(record: &Record) -> BTreeMap<CellKey, Rounds> {
    by_cell(record)
}

/// Checks if two records may be compared.
///
/// # Errors
/// The reason: another build profile, another size of answers or number of workers.
pub fn comparable(first: &Record, second: &Record) -> Result<(), String> {
    let (a, b) = (&first.environment.profile, &second.environment.profile);
    if a != b {
        return Err(format!(
            "the first record is of a {a} build, the second of a {b} build: figures of different profiles are not compared"
        ));
    }
    let load = |record: &Record| {
        format!(
            "{} bytes, {} workers",
            record.experiment.size_bytes, record.experiment.workers
        )
    };
    let (a, b) = (load(first), load(second));
    if a == b {
        return Ok(());
    }
    Err(format!("the records are of different loads: {a}; {b}"))
}

/// Reports if two records are of one machine, as far as the record shows.
#[must_use]
pub fn same_machine(a: &Environment, b: &Environment) -> bool {
    (&a.cpu, a.cores, &a.kernel, &a.host) == (&b.cpu, b.cores, &b.kernel, &b.host)
}

/// Returns the divisor that makes a figure a multiple of the machine's own speed. None if the figure does not depend on speed, or
/// the machine was not calibrated.
#[must_use]
pub fn measure(environment: &Environment, figure: &str) -> Option<f64> {
    let calibration = environment.calibration.as_ref()?;
    let by = |estimate: &Option<Estimate>| estimate.as_ref().map(|estimate| estimate.median);
    let measure = if figure.contains("cpu_us_per_request") {
        by(&calibration.relay_cpu_us)
    } else if figure.starts_with("latency_us") || figure.starts_with("added_us") {
        by(&calibration.relay_round_trip_us)
    } else if figure == "achieved_rps" {
        by(&calibration.relay_cpu_us).map(|us| 1.0 / us)
    } else if figure.starts_with("gigabits") {
        by(&calibration.aes_gcm_gigabytes_per_second)
    } else {
        None
    };
    measure.filter(|measure| *measure > 0.0)
}

/// Reports if a figure depends on the machine's speed; memory does not.
#[must_use]
pub fn depends_on_speed(figure: &str) -> bool {
    !figure.contains("bytes")
}

/// One piece of the fixed work: its name, its result, and its formatter.
pub(crate) type Piece = (&'static str, Option<Estimate>, fn(f64) -> String);

impl Calibration {
    /// The pieces of work, in words.
    pub(crate) fn rows(&self) -> [Piece; 4] {
        let gigabytes: fn(f64) -> String = |value| format!("{value:.2} GB/s");
        [
            (
                "calibration: a message through a bare relay and back",
                self.relay_round_trip_us,
                duration,
            ),
            (
                "calibration: the relay's CPU for it",
                self.relay_cpu_us,
                duration,
            ),
            (
                "calibration: copying memory",
                self.memcpy_gigabytes_per_second,
                gigabytes,
            ),
            (
                "calibration: AES-256-GCM",
                self.aes_gcm_gigabytes_per_second,
                gigabytes,
            ),
        ]
    }
}

/// Differences that do not forbid a comparison, but that the reader must know.
#[must_use]
pub fn differences(first: &Record, second: &Record) -> Vec<String> {
    let (a, b) = (&first.environment, &second.environment);
    let mut differences = Vec::new();
    for (what, a, b) in [
        ("processor", &a.cpu, &b.cpu),
        ("kernel", &a.kernel, &b.kernel),
        ("machine", &a.host, &b.host),
    ] {
        if a != b {
            differences.push(format!("Another {what}: {a}; {b}."));
        }
    }
    if a.cores != b.cores {
        differences.push(format!("Other cores: {}; {}.", a.cores, b.cores));
    }
    let names: std::collections::BTreeSet<&String> =
        a.versions.keys().chain(b.versions.keys()).collect();
    for name in names {
        let version = |versions: &BTreeMap<String, String>| {
            let version = versions.get(name).cloned();
            version.unwrap_or_else(|| "absent".to_owned())
        };
        let (a, b) = (version(&a.versions), version(&b.versions));
        if a != b {
            differences.push(format!("Another {name}: {a}; {b}."));
        }
    }
    if !a.voile_sha256.is_empty() && a.voile_sha256 == b.voile_sha256 {
        differences.push("Both measured the same voile program, byte for byte.".to_owned());
    }
    differences
}

//! Environment of an experiment's processes: shared loopback or network namespaces of their own, their cores, and their limits.

use std::collections::BTreeMap;

use toml::Spanned;
use voile_report::record::CellKey;

use super::WAYPOINT_MODE;
use super::written::{ComplaintLocation, Written, WrittenLimits};
use crate::definition::error::DefinitionError;

/// Roles that may be given cores.
const ROLES: [&str; 11] = [
    "load",
    "server",
    "client-sidecar",
    "server-sidecar",
    "sidecar",
    "client-node",
    "server-node",
    "node",
    "waypoint",
    "gateway",
    "control",
];
/// More cores than any machine has.
const MAX_CORE: usize = 4095;
/// Range of a sidecar's CPU limit.
const CPU_CORES: std::ops::RangeInclusive<f64> = 0.01..=256.0;
/// Range of a sidecar's memory limit: with less, no proxy starts.
const MEMORY_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=1 << 40;

/// Isolation between client and server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// On loopback addresses of one machine; sidecars are called by address.
    #[default]
    Loopback,
    /// In network namespaces joined by veth pairs; sidecars capture what passes.
    Netns,
}

impl Isolation {
    /// Its word in definitions and records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Netns => "netns",
        }
    }
}

/// Checks if these cells can be measured with this isolation. The error is the reason.
pub(super) fn suits(isolation: Isolation, cells: &[CellKey]) -> Result<(), String> {
    let has = |mode: &str| cells.iter().any(|cell| cell.mode == mode);
    let nodes = ["node", WAYPOINT_MODE].into_iter().find(|mode| has(mode));
    match (isolation, nodes) {
        (Isolation::Loopback, Some(mode)) => Err(format!(
            "mode \"{mode}\" needs isolation = \"netns\": node proxies enter their pods' network namespaces"
        )),
        (Isolation::Netns, _) if has("gateway") => Err(
            "mode \"gateway\" needs isolation = \"loopback\": a gateway is called by its address, without redirection"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Cores by role. A role that is not named may run on all.
pub type CpuSet = BTreeMap<String, Vec<usize>>;

/// Resource limits of one sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SidecarLimits {
    /// Cores' worth of CPU time.
    pub cpu: Option<f64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
}

impl SidecarLimits {
    /// `1 CPU, 512 MiB`.
    #[must_use]
    pub fn in_words(&self) -> String {
        let cpu = self.cpu.map(|cores| format!("{cores} CPU"));
        let memory = self
            .memory_bytes
            .map(|bytes| format!("{} MiB", bytes >> 20));
        let words: Vec<String> = cpu.into_iter().chain(memory).collect();
        words.join(", ")
    }
}

pub(super) fn isolation(
    place: &ComplaintLocation<'_>,
    written: Option<&Spanned<String>>,
) -> Result<Isolation, DefinitionError> {
    let Some(written) = written else {
        return Ok(Isolation::default());
    };
    let word = place.word("isolation", written, &["loopback", "netns"])?;
    Ok(match word.as_str() {
        "netns" => Isolation::Netns,
        _ => Isolation::Loopback,
    })
}

pub(super) fn cpu_sets(
    place: &ComplaintLocation<'_>,
    written: &Written,
) -> Result<BTreeMap<String, CpuSet>, DefinitionError> {
    let mut sets = BTreeMap::new();
    for (name, roles) in &written.cpus {
        if name.get_ref() == "all" {
            let why = "CPU set \"all\" is every core; give it another name";
            return Err(place.error(name.span(), why));
        }
        let mut set = CpuSet::new();
        for (role, cores) in roles {
            let word = place.word("role", role, &ROLES)?;
            let cores = parse_cores(cores.get_ref())
                .map_err(|why| place.error(cores.span(), format!("cores of {word}: {why}")))?;
            match word.as_str() {
                both @ ("sidecar" | "node") => {
                    for side in ["client", "server"] {
                        let role = format!("{side}-{both}");
                        set.entry(role).or_insert_with(|| cores.clone());
                    }
                }
                _ => {
                    set.insert(word, cores);
                }
            }
        }
        sets.insert(name.get_ref().clone(), set);
    }
    Ok(sets)
}

/// `0-2,5`, as the kernel writes them.
fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("\"{text}\": expected numbers and ranges, such as 0-2,5");
    let number = |word: &str| {
        let number = word.trim().parse::<usize>().map_err(|_| wrong())?;
        if number > MAX_CORE {
            return Err(format!("core {number}: no more than {MAX_CORE}"));
        }
        Ok(number)
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

pub(super) fn limits(
    place: &ComplaintLocation<'_>,
    written: Option<&Spanned<WrittenLimits>>,
) -> Result<Option<SidecarLimits>, DefinitionError> {
    let Some(spanned) = written else {
        return Ok(None);
    };
    let written = spanned.get_ref();
    if written.cpu.is_none() && written.memory.is_none() {
        return Err(place.error(spanned.span(), "[limits] must have cpu, memory or both"));
    }
    let cpu = match &written.cpu {
        Some(cores) => Some(place.number("cpu", cores, CPU_CORES)?),
        None => None,
    };
    let memory_bytes = match &written.memory {
        Some(text) => {
            let wrong = |why: String| place.error(text.span(), format!("memory: {why}"));
            Some(parse_memory(text.get_ref()).map_err(wrong)?)
        }
        None => None,
    };
    Ok(Some(SidecarLimits { cpu, memory_bytes }))
}

/// `512MiB`, as Kubernetes' quantities are.
fn parse_memory(text: &str) -> Result<u64, String> {
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit: u64 = match unit.trim().trim_end_matches('B') {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return Err(format!("\"{text}\": expected a number and KiB, MiB or GiB")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    bytes
        .filter(|bytes| MEMORY_BYTES.contains(bytes))
        .ok_or_else(|| format!("\"{text}\": must lie between 4MiB and 1024GiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(parse_cores("0-2,5, 1"), Ok(vec![0, 1, 2, 5]));
        for wrong in ["", "x", "3-1", "1,", "-1", "99999"] {
            assert!(parse_cores(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_has_a_unit() {
        assert_eq!(parse_memory("512MiB"), Ok(512 << 20));
        assert_eq!(parse_memory("1Gi"), Ok(1 << 30));
        for wrong in ["", "MiB", "512MB", "1KiB", "99999999999999999999", "-1MiB"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }
}

//! Processes of one side: found below their common parent, and identified by their command lines. The lab reads their counters in
//! the network where they run.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::netns::Namespace;
use voile_host::ready::http_get;
use voile_host::sampler::{ProcessResources, Usage};

use super::pages::{ServiceCounters, by_mutual_tls};

/// One process.
pub(super) struct Member {
    pid: u32,
    kind: &'static str,
    /// The service of a service or sidecar process.
    pub(super) service: String,
    /// Address of the process's page: of a service itself, of a sidecar its metrics.
    pub(super) address: Option<SocketAddr>,
}

/// All of one side.
pub(super) struct GraphSide {
    pub(super) members: Vec<Member>,
    /// True if each member's pages must be read in the member's own network.
    inside: bool,
}

/// CPU time by process.
pub(super) type Used = BTreeMap<u32, u64>;

impl GraphSide {
    /// All processes below one, itself included.
    pub(super) fn of(root: u32, inside: bool) -> Self {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids =
            entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
        for pid in pids {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name in brackets may hold anything; only numbers follow its last bracket.
            let parent = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
            if let Some(parent) = parent {
                children.entry(parent).or_default().push(pid);
            }
        }
        let (mut members, mut next) = (Vec::new(), vec![root]);
        while let Some(pid) = next.pop() {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            members.push(member(pid, &line));
            next.extend(children.get(&pid).into_iter().flatten());
        }
        Self { members, inside }
    }

    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |member| member.kind == kind)
    }

    /// The kinds that are there.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds: Vec<&str> = self.members.iter().map(|member| member.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    pub(super) fn used(&self) -> Used {
        let used = |member: &Member| Some((member.pid, Usage::of(member.pid).ok()?.cpu_ns));
        self.members.iter().filter_map(used).collect()
    }

    /// Counters of every service, its replicas added up.
    ///
    /// # Errors
    /// If a service does not answer.
    pub(super) fn told(&self) -> Result<BTreeMap<String, ServiceCounters>, String> {
        let mut told: BTreeMap<String, ServiceCounters> = BTreeMap::new();
        for member in self.of_kind("service") {
            let page = self.page(member)?;
            told.entry(member.service.clone())
                .or_default()
                .plus(&ServiceCounters::read(&page));
        }
        Ok(told)
    }

    /// Requests that sidecars took by mutual TLS, all of them added up.
    ///
    /// # Errors
    /// When one does not answer.
    pub(super) fn by_mutual_tls(&self) -> Result<u64, String> {
        let sidecars = self.of_kind("sidecar");
        let counts = sidecars.map(|member| Ok(by_mutual_tls(&self.page(member)?)));
        counts.sum()
    }

    fn page(&self, member: &Member) -> Result<String, String> {
        let what = || format!("the metrics of {} {}", member.kind, member.service);
        let address = member
            .address
            .ok_or_else(|| format!("{}: it has no listen address", what()))?;
        let ask = move || http_get(address, "/metrics");
        let answer = if self.inside {
            Namespace::of_process(member.pid)
                .and_then(|namespace| namespace.run(ask))
                .and_then(|answer| answer)
        } else {
            ask()
        };
        let (_, page) = answer.map_err(|e| format!("{}: {e}", what()))?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }
}

/// CPU time that these used between two looks, in µs.
pub(super) fn spent<'m>(
    members: impl Iterator<Item = &'m Member>,
    before: &Used,
    after: &Used,
) -> f64 {
    let each = members.map(|member| {
        let at = |used: &Used| used.get(&member.pid).copied().unwrap_or(0);
        at(after).saturating_sub(at(before))
    });
    each.sum::<u64>() as f64 / 1000.0
}

/// Median of a figure over the members.
pub(super) fn held<'m>(
    members: impl Iterator<Item = &'m Member>,
    read: fn(&ProcessResources) -> u64,
) -> Option<f64> {
    let each = members.filter_map(|member| ProcessResources::of(member.pid).ok());
    let each: Vec<f64> = each.map(|held| read(&held) as f64).collect();
    voile_report::statistics::median(&each)
}

/// Identifies a process by its command line.
fn member(pid: u32, line: &[u8]) -> Member {
    let words: Vec<String> = line
        .split(|byte| *byte == 0)
        .skip(1)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let (kind, service, address) = match (word(0), word(1)) {
        ("graph", "serve") => ("service", after("--service"), after("--listen")),
        ("proxy", _) => (
            "sidecar",
            after("--workload").map(|name| of_pod(&name)),
            after("--metrics"),
        ),
        ("control", _) => ("control", None, None),
        _ => ("runner", None, None),
    };
    let mut address: Option<SocketAddr> = address.and_then(|text| text.parse().ok());
    // Listens everywhere: it is asked where nothing is captured.
    if let Some(address) = address
        .as_mut()
        .filter(|address| address.ip().is_unspecified())
    {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    Member {
        pid,
        kind,
        service: service.unwrap_or_default(),
        address,
    }
}

/// The service of a pod: its name without the namespace and the number that `voile up` gives it.
fn of_pod(workload: &str) -> String {
    let name = workload.rsplit('/').next().unwrap_or(workload);
    name.rsplit_once('-')
        .map_or(name, |(service, _)| service)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_their_command_lines() {
        for (line, kind, service, address) in [
            (
                "/x/voile graph serve --graph f --service svc-0-1 --listen 127.0.0.1:4000 --quiet",
                "service",
                "svc-0-1",
                Some("127.0.0.1:4000"),
            ),
            (
                "/x/voile graph serve --service svc-0 --listen 127.3.0.2:18080",
                "service",
                "svc-0",
                Some("127.3.0.2:18080"),
            ),
            (
                "/x/voile proxy --workload graph/svc-0-1-0 --metrics 0.0.0.0:15020",
                "sidecar",
                "svc-0-1",
                Some("127.0.0.1:15020"),
            ),
            ("/x/voile control --dir d", "control", "", None),
            ("/x/voile up d --quiet", "runner", "", None),
            ("", "runner", "", None),
        ] {
            let bytes = line.replace(' ', "\0") + "\0";
            let found = member(1, bytes.as_bytes());
            assert_eq!((found.kind, &*found.service), (kind, service), "{line}");
            let expected = address.map(|text| text.parse().expect("an address"));
            assert_eq!(found.address, expected, "{line}");
        }
    }
}

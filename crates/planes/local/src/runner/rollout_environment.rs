//! State of the running pods for a rollout: readiness, clients' knowledge and ends, and if old and new pods can run
//! side by side on one machine.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use voile_model::ResourceName;

use super::Runner;
use crate::addresses::PodIsolation;
use crate::expand::PodPlan;
use crate::rollout::{Progress, RolloutEnvironment};

/// Time that the news of a pod may take to reach proxies. A client that hangs must not keep the old pods for ever. A
/// control plane that has not read of the new pods does keep them, since proxies learn of pods from it alone.
const LONGEST_NEWS: Duration = Duration::from_secs(10);

/// Sockets of this machine, as the kernel lists them.
const SOCKETS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a socket that listens, in those lists.
const LISTENS: &str = "0A";

/// See the module.
pub(super) struct CurrentPods<'a> {
    runner: &'a Runner,
    now: Instant,
    /// True if the control planes have read of all ready pods; asked at most once.
    read: OnceCell<bool>,
    /// True if all clients know them, too.
    heard: OnceCell<bool>,
}

impl Runner {
    pub(super) fn scene(&self, now: Instant) -> CurrentPods<'_> {
        CurrentPods {
            runner: self,
            now,
            read: OnceCell::new(),
            heard: OnceCell::new(),
        }
    }

    /// Since when each pod takes traffic.
    pub(super) fn note_readiness(&mut self, now: Instant) {
        let ready = self.ready();
        self.ready_since.retain(|name, _| ready.contains(name));
        for name in ready {
            self.ready_since.entry(name).or_insert(now);
        }
    }
}

impl RolloutEnvironment for CurrentPods<'_> {
    fn progress(&self, pod: &ResourceName) -> Progress {
        let Some(since) = self.runner.ready_since.get(pod) else {
            return Progress::Unready;
        };
        let published = self.runner.published.as_ref();
        if !published.is_some_and(|published| published.contains(pod)) {
            return Progress::Ready;
        }
        let long_ago = self.now.duration_since(*since) >= LONGEST_NEWS;
        let read = || self.runner.unknown_to_control().is_none();
        let heard = || self.runner.uninformed().is_none();
        let known = match long_ago {
            true => self.read.get_or_init(read),
            false => self.heard.get_or_init(heard),
        };
        match known {
            true => Progress::Known,
            false => Progress::Ready,
        }
    }

    fn is_over(&self, pod: &ResourceName) -> bool {
        let pod = self.runner.pods.get(pod);
        pod.is_some_and(crate::pod_run::PodRun::is_over)
    }

    fn leaving(&self, deployment: &ResourceName) -> BTreeSet<u32> {
        let leaving = self.runner.leaving.iter().map(|leaving| &leaving.pod.plan);
        leaving
            .filter(|pod| is_of(pod, deployment))
            .filter_map(|pod| pod.name.name.rsplit('-').next()?.parse().ok())
            .collect()
    }

    fn fits_twice(&self, deployment: &ResourceName) -> bool {
        if self.runner.ground.layout() == PodIsolation::Namespaces {
            return true;
        }
        let running = self.runner.pods.values().map(|pod| &pod.plan);
        let leaving = self.runner.leaving.iter().map(|leaving| &leaving.pod.plan);
        let mut pods = running.chain(leaving).filter(|pod| is_of(pod, deployment));
        let wildcards = wildcard_ports();
        pods.all(|pod| has_addresses_of_its_own(pod, &wildcards))
    }
}

fn is_of(pod: &PodPlan, deployment: &ResourceName) -> bool {
    pod.controller
        .as_ref()
        .is_some_and(|one| one.key == *deployment)
}

/// Returns true if another pod like it could listen beside it.
fn has_addresses_of_its_own(pod: &PodPlan, wildcards: &BTreeSet<u16>) -> bool {
    let shared =
        |(address, port): &(Ipv4Addr, u16)| *address != pod.address || wildcards.contains(port);
    let mut egress = pod.sidecar.iter().flat_map(|sidecar| &sidecar.egress);
    !pod.endpoints.iter().any(shared) && !egress.any(|listener| listener.bind.is_some())
}

/// Returns the ports with a listener on every address.
fn wildcard_ports() -> BTreeSet<u16> {
    let tables = SOCKETS.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    tables
        .iter()
        .flat_map(|table| listening_everywhere(table))
        .collect()
}

fn listening_everywhere(table: &str) -> Vec<u16> {
    let port = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, _, state) = (words.next()?, words.next()?, words.next()?);
        let (address, port) = local.split_once(':')?;
        let everywhere = address.bytes().all(|digit| digit == b'0');
        (everywhere && state == LISTENS).then(|| u16::from_str_radix(port, 16).ok())?
    };
    table.lines().skip(1).filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_found_in_the_kernels_list() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt
   0: 00000000:46A0 00000000:0000 0A 00000000:00000000 00:00000000 00000000
   1: 0200017F:46A1 00000000:0000 0A 00000000:00000000 00:00000000 00000000
   2: 00000000:46A2 00000000:0000 01 00000000:00000000 00:00000000 00000000
   3: 00000000000000000000000000000000:46A3 00000000000000000000000000000000:0000 0A 0
";
        assert_eq!(listening_everywhere(table), [18080, 18083]);
    }
}

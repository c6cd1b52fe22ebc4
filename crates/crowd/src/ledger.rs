//! What was changed, what arrived where and when, and how long it took. A change carries a mark, a growing number that is found
//! again in what arrives; a proxy that hears of a later change of the same thing has heard of the earlier ones.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// How a mark is written: this, and a number.
pub(crate) const MARK: &str = "mark-r";
/// The name of what concerns every proxy.
pub(crate) const EVERYBODY: &str = "*";
/// Arrivals that are remembered, 24 bytes each; beyond them a report says that it is incomplete.
const MAX_ARRIVALS: usize = 20_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[must_use]
pub fn now_ns() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    clock.tv_sec.unsigned_abs() * 1_000_000_000 + clock.tv_nsec.unsigned_abs()
}

/// The mark in these bytes, if there is one.
pub(crate) fn mark_in(bytes: &[u8]) -> Option<u32> {
    let at = bytes
        .windows(MARK.len())
        .position(|window| window == MARK.as_bytes())?;
    let digits = bytes[at + MARK.len()..]
        .iter()
        .take_while(|b| b.is_ascii_digit());
    digits.copied().try_fold(0u32, |number, digit| {
        number.checked_mul(10)?.checked_add(u32::from(digit - b'0'))
    })
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    name: u32,
    proxy: u32,
    mark: u32,
    at: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    names: HashMap<Arc<str>, u32>,
    /// Names by proxy, of Addresses.
    held: Vec<HashSet<u32>>,
    arrivals: Vec<Arrival>,
    lost: u64,
    changes: Vec<(u32, u32, u64)>,
    synced_at: Vec<u64>,
    updates: u64,
    resources: u64,
    news: Arc<Notify>,
}

/// How far changes have come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Changes that were announced.
    pub changes: usize,
    /// Proxies that hold what was changed, over all changes.
    pub expected: u64,
    /// Of these, how many have heard of it.
    pub reached: u64,
    /// From the change to its arrival, in milliseconds: the median,
    pub p50_ms: f64,
    /// the 99th percentile,
    pub p99_ms: f64,
    /// and the longest.
    pub max_ms: f64,
    /// Responses that proxies took since the last `clear`.
    pub updates: u64,
    /// Resources in them.
    pub resources: u64,
    /// Arrivals that there was no room for; above 0 the figures are not to be believed.
    pub lost: u64,
}

/// How many proxies have all they asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Synced {
    /// Simulated proxies.
    pub proxies: usize,
    /// Of these, in sync on a stream opened since then.
    pub synced: usize,
    /// From then to the last of them, in milliseconds.
    pub last_ms: f64,
    /// To the median one.
    pub p50_ms: f64,
}

impl Ledger {
    /// For this many proxies.
    #[must_use]
    pub fn new(proxies: usize) -> Self {
        Self {
            held: vec![HashSet::new(); proxies],
            synced_at: vec![0; proxies],
            ..Self::default()
        }
    }

    /// Told whenever a proxy comes into sync.
    pub(crate) fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    fn id(&mut self, name: &str) -> u32 {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let id = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.insert(name.into(), id);
        id
    }

    /// A response was taken.
    pub(crate) fn heard(&mut self, resources: usize) {
        self.updates += 1;
        self.resources += resources as u64;
    }

    /// A resource arrived at a proxy, maybe with a mark in it.
    pub fn arrived(&mut self, proxy: usize, name: &str, mark: Option<u32>, at: u64) {
        let name = self.id(name);
        self.held[proxy].insert(name);
        let Some(mark) = mark else {
            return;
        };
        if self.arrivals.len() >= MAX_ARRIVALS {
            self.lost += 1;
            return;
        }
        self.arrivals.push(Arrival {
            name,
            proxy: u32::try_from(proxy).unwrap_or(u32::MAX),
            mark,
            at,
        });
    }

    /// A proxy was told that a resource is gone.
    pub fn removed(&mut self, proxy: usize, name: &str) {
        let name = self.id(name);
        self.held[proxy].remove(&name);
    }

    /// A proxy has all it asked for, on a new stream.
    pub fn in_sync(&mut self, proxy: usize, at: u64) {
        self.synced_at[proxy] = at;
        self.news.notify_waiters();
    }

    /// Something was changed at that moment, and carries this mark now.
    pub fn changed(&mut self, name: &str, mark: u32, at: u64) {
        let name = self.id(name);
        self.changes.push((name, mark, at));
    }

    /// Forgets changes and arrivals.
    pub fn clear(&mut self) {
        self.changes.clear();
        self.arrivals = Vec::new();
        (self.lost, self.updates, self.resources) = (0, 0, 0);
    }

    /// Who is in sync on a stream opened since then.
    #[must_use]
    pub fn synced(&self, since: u64) -> Synced {
        let mut times: Vec<u64> = self
            .synced_at
            .iter()
            .filter(|at| **at >= since && **at > 0)
            .map(|at| at - since)
            .collect();
        times.sort_unstable();
        Synced {
            proxies: self.synced_at.len(),
            synced: times.len(),
            last_ms: times.last().copied().map_or(0.0, milliseconds),
            p50_ms: percentile(&times, 0.5),
        }
    }

    /// How far the announced changes have come.
    #[must_use]
    pub fn report(&self) -> Report {
        let everybody = self.names.get(EVERYBODY).copied();
        let mut changes: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
        for (name, mark, at) in &self.changes {
            changes.entry(*name).or_default().push((*mark, *at));
        }
        let mut arrivals: BTreeMap<(u32, u32), Vec<(u64, u32)>> = BTreeMap::new();
        for one in &self.arrivals {
            let of = arrivals.entry((one.name, one.proxy)).or_default();
            of.push((one.at, one.mark));
        }
        let (mut expected, mut took) = (0, Vec::new());
        for (name, mut changes) in changes {
            changes.sort_unstable();
            for (proxy, held) in self.held.iter().enumerate() {
                if Some(name) != everybody && !held.contains(&name) {
                    continue;
                }
                expected += changes.len() as u64;
                let proxy = u32::try_from(proxy).unwrap_or(u32::MAX);
                let Some(arrivals) = arrivals.get(&(name, proxy)) else {
                    continue;
                };
                let mut left = changes.iter().peekable();
                // In the order in which they came: later marks stand for earlier ones.
                for (at, mark) in arrivals {
                    while let Some((_, since)) = left.next_if(|(change, _)| change <= mark) {
                        took.push(at.saturating_sub(*since));
                    }
                }
            }
        }
        took.sort_unstable();
        Report {
            changes: self.changes.len(),
            expected,
            reached: took.len() as u64,
            p50_ms: percentile(&took, 0.5),
            p99_ms: percentile(&took, 0.99),
            max_ms: took.last().copied().map_or(0.0, milliseconds),
            updates: self.updates,
            resources: self.resources,
            lost: self.lost,
        }
    }
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Of sorted values.
fn percentile(sorted: &[u64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    let at = rank.saturating_sub(1).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().map_or(0.0, milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn marks_are_found_in_anything() {
        for (text, mark) in [
            ("", None),
            ("mark-r7", Some(7)),
            ("\u{1}xmark-r120\u{2}9", Some(120)),
            ("mark-r99999999999", None),
        ] {
            assert_eq!(mark_in(text.as_bytes()), mark, "{text:?}");
        }
    }

    #[test]
    fn a_later_mark_stands_for_earlier_ones_and_who_holds_nothing_is_not_waited_for() {
        let mut ledger = Ledger::new(3);
        for proxy in 0..2 {
            ledger.arrived(proxy, "a", None, 0);
        }
        ledger.changed("a", 1, 10 * MS);
        ledger.changed("a", 2, 20 * MS);
        ledger.arrived(0, "a", Some(1), 15 * MS);
        ledger.arrived(0, "a", Some(2), 24 * MS);
        ledger.arrived(1, "a", Some(2), 30 * MS);
        let report = ledger.report();
        assert_eq!((report.changes, report.expected, report.reached), (2, 4, 4));
        assert_eq!(
            (report.p50_ms, report.p99_ms, report.max_ms),
            (5.0, 20.0, 20.0)
        );
        ledger.changed("a", 3, 40 * MS);
        assert_eq!(ledger.report().reached, 4);
        ledger.removed(1, "a");
        assert_eq!(ledger.report().expected, 3);
        ledger.clear();
        ledger.changed(EVERYBODY, 9, 0);
        ledger.arrived(2, EVERYBODY, Some(9), MS);
        let report = ledger.report();
        assert_eq!((report.expected, report.reached), (3, 1));
    }

    #[test]
    fn only_streams_opened_since_count_as_in_sync() {
        let mut ledger = Ledger::new(2);
        ledger.in_sync(0, 5 * MS);
        ledger.in_sync(1, 9 * MS);
        assert_eq!(ledger.synced(4 * MS).synced, 2);
        let later = ledger.synced(6 * MS);
        assert_eq!((later.synced, later.last_ms), (1, 3.0));
    }
}

//! Record of changes and arrivals, with the time that each change took to each proxy. A change carries a mark: a growing number
//! that is found again in the resource. A proxy that gets a later change of a thing has got the earlier ones, too.
//!
//! Arrivals are counted as they come, so a report costs little: frequent reports on many proxies do not delay deliveries.

use std::collections::HashMap;
use std::sync::Arc;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Prefix of a mark; a number follows it.
pub(crate) const MARK: &[u8; 6] = b"mark-r";
/// Name of the thing that concerns every proxy.
pub(crate) const EVERYBODY: &str = "*";
/// Its number, and that every proxy holds it from the first.
const EVERYBODY_ID: u32 = 0;
/// Digits of stored times, in nanoseconds, up to the longest wait.
const DIGITS: u8 = 3;
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[must_use]
pub fn now_ns() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    clock.tv_sec.unsigned_abs() * 1_000_000_000 + clock.tv_nsec.unsigned_abs()
}

/// An empty histogram of durations in nanoseconds.
pub(crate) fn durations() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
        .expect("invariant: the bounds are in order and the digits few")
}

/// The mark in these bytes, if there is one.
pub(crate) fn mark_in(bytes: &[u8]) -> Option<u32> {
    // Six bytes are compared where they lie; of a slice of any length another function would be called, at every byte.
    let at = bytes.array_windows().position(|window| window == MARK)?;
    let digits = bytes[at + MARK.len()..]
        .iter()
        .take_while(|b| b.is_ascii_digit());
    digits.copied().try_fold(0u32, |number, digit| {
        number.checked_mul(10)?.checked_add(u32::from(digit - b'0'))
    })
}

/// A resource that may change.
#[derive(Debug, Default)]
struct ChangingResource {
    /// Its changes, by growing marks, and when each was made.
    changes: Vec<(u32, u64)>,
    /// Proxies that hold it.
    holders: u64,
    /// The largest mark that has come anywhere.
    newest: u32,
}

/// A thing at a proxy.
#[derive(Debug, Clone, Copy)]
struct SubscribedResource {
    /// Number of its changes that the proxy has got, or need not get.
    heard: usize,
    /// The last mark that came, and when.
    last: Option<(u32, u64)>,
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    names: HashMap<Arc<str>, u32>,
    things: Vec<ChangingResource>,
    /// By proxy, then by name.
    held: Vec<HashMap<u32, SubscribedResource>>,
    took: Histogram<u64>,
    changes: usize,
    expected: u64,
    reached: u64,
    synced_at: Vec<u64>,
    updates: u64,
    resources: u64,
    news: Arc<Notify>,
}

/// Progress of the announced changes.
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
}

/// Number of proxies that have all they asked for.
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
        let everybody = SubscribedResource {
            heard: 0,
            last: None,
        };
        Self {
            names: HashMap::from([(EVERYBODY.into(), EVERYBODY_ID)]),
            things: vec![ChangingResource {
                changes: Vec::new(),
                holders: proxies as u64,
                newest: 0,
            }],
            held: vec![HashMap::from([(EVERYBODY_ID, everybody)]); proxies],
            took: durations(),
            changes: 0,
            expected: 0,
            reached: 0,
            synced_at: vec![0; proxies],
            updates: 0,
            resources: 0,
            news: Arc::default(),
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
        let id = u32::try_from(self.things.len()).unwrap_or(u32::MAX);
        self.names.insert(name.into(), id);
        self.things.push(ChangingResource::default());
        id
    }

    /// A response was taken.
    pub(crate) fn heard(&mut self, resources: usize) {
        self.updates += 1;
        self.resources += resources as u64;
    }

    /// A resource arrived at a proxy, maybe with a mark in it.
    pub fn arrived(&mut self, proxy: usize, name: &str, mark: Option<u32>, at: u64) {
        let id = self.id(name);
        let thing = &mut self.things[id as usize];
        let held = self.held[proxy].entry(id).or_insert_with(|| {
            // A proxy that subscribes now gets earlier changes with the resource; they do not count
            // as deliveries.
            thing.holders += 1;
            SubscribedResource {
                heard: thing.changes.len(),
                last: None,
            }
        });
        let Some(mark) = mark else {
            return;
        };
        held.last = Some((mark, at));
        thing.newest = thing.newest.max(mark);
        // A later mark stands for earlier ones.
        for (_, since) in thing.changes[held.heard..]
            .iter()
            .take_while(|(change, _)| *change <= mark)
        {
            self.took
                .saturating_record(at.saturating_sub(*since).max(1));
            self.reached += 1;
            held.heard += 1;
        }
    }

    /// A proxy was told that a resource is gone: it is waited for no more.
    pub fn removed(&mut self, proxy: usize, name: &str) {
        let id = self.id(name);
        if let Some(held) = self.held[proxy].remove(&id) {
            let thing = &mut self.things[id as usize];
            thing.holders -= 1;
            self.expected -= (thing.changes.len() - held.heard) as u64;
        }
    }

    /// A proxy has all it asked for, on a new stream.
    pub fn in_sync(&mut self, proxy: usize, at: u64) {
        self.synced_at[proxy] = at;
        self.news.notify_waiters();
    }

    /// Something was changed at that moment, and carries this mark now, larger than any before.
    pub fn changed(&mut self, name: &str, mark: u32, at: u64) {
        let id = self.id(name);
        let thing = &mut self.things[id as usize];
        thing.changes.push((mark, at));
        self.changes += 1;
        self.expected += thing.holders;
        if thing.newest < mark {
            return;
        }
        // Some proxies got the change before its announcement; they count now.
        for held in self.held.iter_mut().filter_map(|held| held.get_mut(&id)) {
            let early = held.last.filter(|(last, _)| *last >= mark);
            if let Some((_, came)) = early {
                self.took.saturating_record(came.saturating_sub(at).max(1));
                self.reached += 1;
                held.heard += 1;
            }
        }
    }

    /// Forgets changes and arrivals.
    pub fn clear(&mut self) {
        for thing in &mut self.things {
            thing.changes.clear();
        }
        for held in self.held.iter_mut().flat_map(HashMap::values_mut) {
            held.heard = 0;
        }
        self.took.reset();
        (self.changes, self.expected, self.reached) = (0, 0, 0);
        (self.updates, self.resources) = (0, 0);
    }

    /// Counts the proxies that are in sync on a stream opened since then.
    #[must_use]
    pub fn synced(&self, since: u64) -> Synced {
        let mut took = durations();
        for at in self.synced_at.iter().filter(|at| **at >= since && **at > 0) {
            took.saturating_record(at - since);
        }
        Synced {
            proxies: self.synced_at.len(),
            synced: took.len() as usize,
            last_ms: milliseconds(took.max()),
            p50_ms: milliseconds(took.value_at_quantile(0.5)),
        }
    }

    /// Reports the progress of the announced changes.
    #[must_use]
    pub fn report(&self) -> Report {
        let took = |share: f64| milliseconds(self.took.value_at_quantile(share));
        Report {
            changes: self.changes,
            expected: self.expected,
            reached: self.reached,
            p50_ms: took(0.5),
            p99_ms: took(0.99),
            max_ms: milliseconds(self.took.max()),
            updates: self.updates,
            resources: self.resources,
        }
    }
}

pub(crate) fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
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
        for (seen, wanted) in [
            (report.p50_ms, 5.0),
            (report.p99_ms, 20.0),
            (report.max_ms, 20.0),
        ] {
            assert!((seen / wanted - 1.0).abs() < 2e-3, "{report:?}");
        }
        ledger.changed("a", 3, 40 * MS);
        assert_eq!(ledger.report().reached, 4);
        // A proxy that no longer holds the thing is not waited for; its earlier arrivals stay
        // counted.
        ledger.removed(1, "a");
        assert_eq!(ledger.report().expected, 5);
        ledger.clear();
        ledger.changed(EVERYBODY, 9, 0);
        ledger.arrived(2, EVERYBODY, Some(9), MS);
        let report = ledger.report();
        assert_eq!((report.expected, report.reached), (3, 1));
    }

    #[test]
    fn who_hears_before_it_is_said_has_heard_and_who_comes_late_is_not_expected() {
        let mut ledger = Ledger::new(3);
        ledger.arrived(0, "a", None, 0);
        ledger.arrived(0, "a", Some(1), 12 * MS);
        ledger.changed("a", 1, 10 * MS);
        let report = ledger.report();
        assert_eq!((report.expected, report.reached), (1, 1));
        assert!((report.max_ms - 2.0).abs() < 0.01, "{report:?}");
        // It begins to hold what carries the mark already.
        ledger.arrived(1, "a", Some(1), 15 * MS);
        assert_eq!(ledger.report().expected, 1);
        ledger.changed("a", 2, 20 * MS);
        ledger.arrived(1, "a", Some(2), 21 * MS);
        let report = ledger.report();
        assert_eq!((report.expected, report.reached), (3, 2));
        // Heard twice is counted once.
        ledger.arrived(1, "a", Some(2), 22 * MS);
        assert_eq!(ledger.report().reached, 2);
    }

    #[test]
    fn only_streams_opened_since_count_as_in_sync() {
        let mut ledger = Ledger::new(2);
        ledger.in_sync(0, 5 * MS);
        ledger.in_sync(1, 9 * MS);
        assert_eq!(ledger.synced(4 * MS).synced, 2);
        let later = ledger.synced(6 * MS);
        assert_eq!((later.synced, later.last_ms.round()), (1, 3.0));
    }
}

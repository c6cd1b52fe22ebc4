//! Addresses of names, by their last answers. An answer is used until it expires. The next use then asks anew while
//! the old answer still serves; a failure leaves it. Pure: time and answers are arguments, so nothing here ever wakes
//! a task.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::resolver::{LookupError, ResolvedAddresses};

/// Pause after a first failure before a used name is asked for again; doubled with each further one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest such pause.
const LAST_RETRY: Duration = Duration::from_secs(30);
/// By how much of its time an answer is asked for anew sooner than it must be, at most: many proxies that heard it from one
/// cache at one moment would all ask again at one moment.
const JITTER: f64 = 0.1;

/// State of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameState {
    /// No answer yet.
    Unknown,
    /// The last good answer.
    Known(Arc<[IpAddr]>),
    /// There never was a good answer; the last one said this.
    Failed(Arc<str>),
}

/// Effect of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct TableChange {
    /// The state is another than before.
    pub changed: bool,
    /// An answer failed, and an older one goes on serving.
    pub stale: bool,
}

#[derive(Debug)]
struct NameEntry {
    state: NameState,
    asking: bool,
    /// From when on a use asks again; `None` until the first answer.
    due: Option<Instant>,
    failures: u32,
    /// The last answer failed, and an older one serves.
    stale: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    names: BTreeMap<Arc<str>, NameEntry>,
}

impl Table {
    /// Forgets the names that are not wanted.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.names.retain(|name, _| wanted(name));
    }

    /// Returns true if no name was ever used, or all are forgotten.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name is used now: whether it must be asked for. Says so once until `settle`.
    pub fn used(&mut self, name: &Arc<str>, now: Instant) -> bool {
        let entry = self.names.entry(name.clone()).or_insert(NameEntry {
            state: NameState::Unknown,
            asking: false,
            due: None,
            failures: 0,
            stale: false,
        });
        let ask = !entry.asking && entry.due.is_none_or(|due| due <= now);
        entry.asking |= ask;
        ask
    }

    /// An answer came; `random` is from 0 to 1.
    pub fn settle(
        &mut self,
        name: &str,
        answer: &Result<ResolvedAddresses, LookupError>,
        now: Instant,
        random: f64,
    ) -> TableChange {
        let nothing = TableChange {
            changed: false,
            stale: false,
        };
        let Some(entry) = self.names.get_mut(name) else {
            return nothing;
        };
        entry.asking = false;
        let state = match answer {
            Ok(found) => {
                entry.failures = 0;
                entry.stale = false;
                entry.due = Some(now + found.ttl.mul_f64(JITTER.mul_add(-random, 1.0)));
                NameState::Known(found.addresses.as_slice().into())
            }
            Err(error) => {
                let pause = FIRST_RETRY * 2_u32.saturating_pow(entry.failures.min(16));
                entry.due = Some(now + pause.min(LAST_RETRY));
                entry.failures = entry.failures.saturating_add(1);
                if let NameState::Known(_) = entry.state {
                    entry.stale = true;
                    return TableChange {
                        stale: true,
                        ..nothing
                    };
                }
                NameState::Failed(error.to_string().into())
            }
        };
        let changed = entry.state != state;
        entry.state = state;
        TableChange {
            changed,
            stale: false,
        }
    }

    /// Returns the state of a name; `Unknown` if it was never used.
    pub fn state(&self, name: &str) -> &NameState {
        self.names
            .get(name)
            .map_or(&NameState::Unknown, |entry| &entry.state)
    }

    /// Returns three numbers: known names, those of them whose answer could not be renewed, and names that were asked
    /// for and are not known.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count =
            |fits: fn(&NameEntry) -> bool| self.names.values().filter(|one| fits(one)).count();
        (
            count(|one| matches!(one.state, NameState::Known(_))),
            count(|one| one.stale),
            count(|one| matches!(one.state, NameState::Failed(_))),
        )
    }

    /// Every name and its state.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &NameState)> {
        self.names.iter().map(|(name, entry)| (name, &entry.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(address: &str, seconds: u64) -> Result<ResolvedAddresses, LookupError> {
        Ok(ResolvedAddresses {
            addresses: vec![address.parse().unwrap()],
            ttl: Duration::from_secs(seconds),
        })
    }

    fn shown(table: &Table) -> String {
        match table.state("a") {
            NameState::Unknown => "unknown".to_owned(),
            NameState::Known(addresses) => format!("{addresses:?}"),
            NameState::Failed(why) => format!("failed: {why}"),
        }
    }

    #[test]
    fn a_name_is_asked_for_when_used_and_expired_and_the_last_good_answer_serves_meanwhile() {
        let mut table = Table::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let a: Arc<str> = "a".into();
        assert!(table.used(&a, at(0)));
        assert!(!table.used(&a, at(0)), "it is being asked for");
        let fresh = table.settle("a", &found("10.0.0.1", 30), at(1), 0.0);
        assert!(fresh.changed && !fresh.stale);
        assert!(!table.used(&a, at(30)));
        assert!(table.used(&a, at(31)));
        assert_eq!(shown(&table), "[10.0.0.1]", "while it is asked for anew");
        let failed = table.settle("a", &Err(LookupError::NoSuchName), at(32), 0.0);
        assert!(!failed.changed && failed.stale);
        assert_eq!(shown(&table), "[10.0.0.1]", "a failure leaves it");
        assert!(
            !table.used(&a, at(32)) && table.used(&a, at(33)),
            "after a pause"
        );
        assert!(
            !table
                .settle("a", &found("10.0.0.1", 30), at(34), 0.0)
                .changed,
            "the same again"
        );
        assert!(table.used(&a, at(64)));
        assert!(
            table
                .settle("a", &found("10.0.0.2", 30), at(64), 0.0)
                .changed
        );
        table.retain(|name| name != "a");
        assert_eq!(
            shown(&table),
            "unknown",
            "forgotten with the last who wanted it"
        );
        assert!(
            !table
                .settle("gone", &found("10.0.0.1", 1), at(70), 0.0)
                .changed
        );
    }

    #[test]
    fn pauses_after_failures_grow_to_a_bound() {
        let mut table = Table::default();
        let a: Arc<str> = "a".into();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(table.used(&a, now));
            table.settle("a", &Err(LookupError::NoSuchName), now, 1.0);
            let pause = (0..).find(|s| {
                let due = now + Duration::from_secs(*s);
                table.names["a"].due.is_some_and(|at| at <= due)
            });
            pauses.extend(pause);
            now += Duration::from_secs(pause.unwrap_or_default());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(shown(&table).starts_with("failed: "));
    }

    #[test]
    fn answers_are_asked_for_anew_a_little_sooner_than_they_expire_each_at_its_own_time() {
        let start = Instant::now();
        let asks = |random: f64| {
            let (mut table, a): (Table, Arc<str>) = (Table::default(), "a".into());
            assert!(table.used(&a, start));
            table.settle("a", &found("10.0.0.1", 100), start, random);
            let asked = |second: &u64| table.used(&a, start + Duration::from_secs(*second));
            (0..200).find(asked)
        };
        for (random, second) in [(0.0, 100), (0.5, 95), (1.0, 90)] {
            assert_eq!(asks(random), Some(second), "{random}");
        }
    }

    #[test]
    fn what_could_not_be_renewed_and_what_never_was_found_are_counted() {
        let now = Instant::now();
        let mut table = Table::default();
        let mut settle = |name: &str, answer| {
            let _ = table.used(&name.into(), now);
            table.settle(name, &answer, now, 0.0);
            table.counts()
        };
        assert_eq!(settle("a", found("10.0.0.1", 5)), (1, 0, 0));
        assert_eq!(settle("a", Err(LookupError::NoSuchName)), (1, 1, 0));
        assert_eq!(settle("b", Err(LookupError::NoSuchName)), (1, 1, 1));
        assert_eq!(settle("a", found("10.0.0.1", 5)), (1, 0, 1));
        assert_eq!(settle("b", found("10.0.0.1", 5)), (2, 0, 0));
    }
}

//! Names that are subscribed to for as long as applications look them up: their largest number, and the time at which
//! one is dropped. Time is an argument.

use std::collections::HashMap;
use std::rc::Weak;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names asked for at once, if nothing else is said; the one unused for longest makes room.
const MAX_NAMES: usize = 4096;
/// The part of them that is let go at once when there is no room, so that finding them is not paid for by every name.
const LET_GO: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct DnsQuestion {
    names: HashMap<Arc<str>, Instant>,
    most: usize,
    /// A [`sweep`] runs.
    swept: bool,
}

impl Default for DnsQuestion {
    fn default() -> Self {
        Self::at_most(MAX_NAMES)
    }
}

/// Actions for a name that is looked up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LookupAction {
    /// It is to be asked for.
    pub anew: bool,
    /// These made room.
    pub let_go: Vec<Arc<str>>,
    /// A [`sweep`] is to begin.
    pub sweep: bool,
}

impl DnsQuestion {
    /// So many at once.
    #[must_use]
    pub fn at_most(most: usize) -> Self {
        Self {
            names: HashMap::new(),
            most,
            swept: false,
        }
    }

    /// A name is looked up.
    pub fn used(&mut self, name: &Arc<str>, now: Instant) -> LookupAction {
        if let Some(used) = self.names.get_mut(name) {
            *used = now;
            return LookupAction::default();
        }
        let mut let_go = Vec::new();
        if self.names.len() >= self.most {
            let mut by_age: Vec<(Instant, Arc<str>)> = self
                .names
                .iter()
                .map(|(name, used)| (*used, Arc::clone(name)))
                .collect();
            let share = (self.most / LET_GO).max(1);
            by_age.select_nth_unstable(share - 1);
            let_go.extend(by_age.into_iter().take(share).map(|(_, name)| name));
            for name in &let_go {
                self.names.remove(name);
            }
        }
        self.names.insert(Arc::clone(name), now);
        LookupAction {
            anew: true,
            let_go,
            sweep: !std::mem::replace(&mut self.swept, true),
        }
    }

    /// Drops the names that were not looked up for so long, and returns them; also the time at which the next one may
    /// be due, if there is one.
    pub fn unused(
        &mut self,
        now: Instant,
        unused_for: Duration,
    ) -> (Vec<Arc<str>>, Option<Instant>) {
        let stale = |used: &Instant| now.saturating_duration_since(*used) >= unused_for;
        let unused: Vec<Arc<str>> = self
            .names
            .iter()
            .filter(|(_, used)| stale(used))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for name in &unused {
            self.names.remove(name);
        }
        let next = self.names.values().min().map(|oldest| *oldest + unused_for);
        self.swept = next.is_some();
        (unused, next)
    }

    /// Returns the number of names.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len()
    }
}

/// Runs while there are names, and sleeps until the oldest may be dropped. `let_go` drops what is [`DnsQuestion::unused`], and
/// returns when the next may be due.
pub async fn sweep<T>(owner: Weak<T>, let_go: impl Fn(&T) -> Option<Instant>) {
    while let Some(next) = owner.upgrade().and_then(|owner| let_go(&owner)) {
        tokio::time::sleep_until(next.into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_name_is_asked_for_once_and_let_go_when_nobody_used_it_for_long() {
        let (start, mut asked) = (Instant::now(), DnsQuestion::default());
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert!(asked.used(&a, start).anew);
        assert!(asked.used(&b, start).anew);
        assert_eq!(asked.used(&a, start + 5 * SECOND), LookupAction::default());
        let (unused, next) = asked.unused(start + 10 * SECOND, 10 * SECOND);
        assert_eq!((unused, next), (vec![b], Some(start + 15 * SECOND)));
        let (unused, next) = asked.unused(start + 15 * SECOND, 10 * SECOND);
        assert_eq!((unused, next), (vec![a], None));
        assert_eq!(asked.count(), 0);
    }

    #[test]
    fn those_unused_for_longest_make_room() {
        const NAMES_LET_GO: usize = MAX_NAMES / LET_GO;
        let (start, mut asked) = (Instant::now(), DnsQuestion::default());
        let name = |number: usize| -> Arc<str> { number.to_string().into() };
        for number in 0..MAX_NAMES {
            let at = start + Duration::from_millis(number as u64);
            assert!(asked.used(&name(number), at).let_go.is_empty(), "{number}");
        }
        let asking = asked.used(&"one more".into(), start + 10 * SECOND);
        assert!(asking.anew);
        assert_eq!(asking.let_go.len(), NAMES_LET_GO);
        let old = |name: &Arc<str>| name.parse::<usize>().is_ok_and(|n| n < NAMES_LET_GO);
        assert!(asking.let_go.iter().all(old), "{:?}", asking.let_go);
        assert_eq!(asked.count(), MAX_NAMES - NAMES_LET_GO + 1);
    }
    #[test]
    fn who_may_hold_few_lets_go_of_one_for_one() {
        let (start, mut asked) = (Instant::now(), DnsQuestion::at_most(2));
        let [a, b, c]: [Arc<str>; 3] = ["a".into(), "b".into(), "c".into()];
        assert!(asked.used(&a, start).let_go.is_empty());
        assert!(asked.used(&b, start + SECOND).let_go.is_empty());
        let asking = asked.used(&c, start + 2 * SECOND);
        assert_eq!((asking.let_go, asked.count()), (vec![a], 2));
    }
}

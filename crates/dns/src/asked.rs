//! Names that somebody who knows more is asked about for as long as applications look them up: how many at most, and when one
//! is let go. Time is an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names asked for at once; the one unused for longest makes room.
const MAX_NAMES: usize = 4096;
/// Names let go at once when there is no room, so that finding them is not paid for by every name.
const NAMES_LET_GO: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub struct Asked(HashMap<Arc<str>, Instant>);

/// What to do about a name that is looked up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asking {
    /// It is to be asked for.
    pub anew: bool,
    /// These made room.
    pub let_go: Vec<Arc<str>>,
}

impl Asked {
    /// A name is looked up.
    pub fn used(&mut self, name: &Arc<str>, now: Instant) -> Asking {
        if let Some(used) = self.0.get_mut(name) {
            *used = now;
            return Asking::default();
        }
        let mut let_go = Vec::new();
        if self.0.len() >= MAX_NAMES {
            let mut by_age: Vec<(Instant, Arc<str>)> = self
                .0
                .iter()
                .map(|(name, used)| (*used, Arc::clone(name)))
                .collect();
            by_age.select_nth_unstable(NAMES_LET_GO);
            let_go.extend(by_age.into_iter().take(NAMES_LET_GO).map(|(_, name)| name));
            for name in &let_go {
                self.0.remove(name);
            }
        }
        self.0.insert(Arc::clone(name), now);
        Asking { anew: true, let_go }
    }

    /// Those that nobody looked up for so long, which are let go; and when the next one may be due, if there is one.
    pub fn unused(
        &mut self,
        now: Instant,
        unused_for: Duration,
    ) -> (Vec<Arc<str>>, Option<Instant>) {
        let stale = |used: &Instant| now.saturating_duration_since(*used) >= unused_for;
        let unused: Vec<Arc<str>> = self
            .0
            .iter()
            .filter(|(_, used)| stale(used))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for name in &unused {
            self.0.remove(name);
        }
        let next = self.0.values().min().map(|oldest| *oldest + unused_for);
        (unused, next)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_name_is_asked_for_once_and_let_go_when_nobody_used_it_for_long() {
        let (start, mut asked) = (Instant::now(), Asked::default());
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert!(asked.used(&a, start).anew);
        assert!(asked.used(&b, start).anew);
        assert_eq!(asked.used(&a, start + 5 * SECOND), Asking::default());
        let (unused, next) = asked.unused(start + 10 * SECOND, 10 * SECOND);
        assert_eq!((unused, next), (vec![b], Some(start + 15 * SECOND)));
        let (unused, next) = asked.unused(start + 15 * SECOND, 10 * SECOND);
        assert_eq!((unused, next), (vec![a], None));
        assert_eq!(asked.count(), 0);
    }

    #[test]
    fn those_unused_for_longest_make_room() {
        let (start, mut asked) = (Instant::now(), Asked::default());
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
}

//! Subscriptions that traffic needs, with the time of their last known use. Pure: workers report the present use, and time is
//! an argument. Without subscriptions nothing is checked.
//!
//! ```text
//! begin ─▶ followed ─▶ look: used since the last look? ─┬─ yes ─▶ followed
//!                                                       └─ no, for the idle time ─▶ let go
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Looks are at least the idle time divided by this apart, so that destinations which began one after the other share a
/// look.
const LOOKS: u32 = 4;

/// See the module. An unused subscription ends after one to two and a quarter times the idle time.
#[derive(Debug)]
pub(in crate::control) struct FollowedSubscriptions<K> {
    /// When each began, or was last found to have been used.
    since: BTreeMap<K, Instant>,
    looked: Option<Instant>,
    /// No later than the earliest of `since`; none when nothing is followed.
    oldest: Option<Instant>,
}

impl<K> Default for FollowedSubscriptions<K> {
    fn default() -> Self {
        Self {
            since: BTreeMap::new(),
            looked: None,
            oldest: None,
        }
    }
}

impl<K: Ord + Clone> FollowedSubscriptions<K> {
    /// It is used from now on.
    pub(in crate::control) fn begin(&mut self, key: K, now: Instant) {
        self.since.insert(key, now);
        self.oldest.get_or_insert(now);
    }

    /// When to ask who is used; never while nothing is followed.
    pub(in crate::control) fn next_look(&self, idle: Duration) -> Option<Instant> {
        let due = self.oldest? + idle;
        Some(
            self.looked
                .map_or(due, |looked| due.max(looked + idle / LOOKS)),
        )
    }

    /// Notes the used subscriptions; returns those that were unused for the idle time.
    pub(in crate::control) fn settle(
        &mut self,
        used: &BTreeSet<K>,
        now: Instant,
        idle: Duration,
    ) -> Vec<K> {
        let mut gone: Vec<K> = Vec::new();
        self.since.retain(|key, since| {
            if used.contains(key) {
                *since = now;
            }
            let stays = now.saturating_duration_since(*since) < idle;
            if !stays {
                gone.push(key.clone());
            }
            stays
        });
        self.oldest = self.since.values().min().copied();
        self.looked = self.oldest.map(|_| now);
        gone
    }

    /// Removes `count` subscriptions to make room: unused ones first, then by longest disuse.
    pub(in crate::control) fn make_room(&mut self, count: usize, used: &BTreeSet<K>) -> Vec<K> {
        let mut by_age: Vec<(bool, Instant, K)> = self
            .since
            .iter()
            .map(|(key, since)| (used.contains(key), *since, key.clone()))
            .collect();
        by_age.sort_unstable();
        let gone: Vec<K> = by_age
            .into_iter()
            .take(count)
            .map(|(_, _, key)| key)
            .collect();
        for key in &gone {
            self.since.remove(key);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(300);

    /// Events of the test, by second.
    enum SubscriptionEvent {
        Begin(u8),
        Use(u8),
        /// From here on it is held open, or no longer.
        Hold(u8, bool),
    }
    use SubscriptionEvent::{Begin, Hold, Use};

    /// Lets the clock run from one event or look to the next, as the control thread does; gives when what was let go, and
    /// how many looks there were.
    fn run(events: &[(u64, SubscriptionEvent)], end: u64) -> (Vec<(u64, u8)>, usize) {
        let begun = Instant::now();
        let mut followed: FollowedSubscriptions<u8> = FollowedSubscriptions::default();
        let (mut marked, mut held) = (BTreeSet::new(), BTreeSet::new());
        let (mut gone, mut looks) = (Vec::new(), 0);
        let mut events = events.iter().peekable();
        loop {
            let at = |seconds: u64| begun + Duration::from_secs(seconds);
            let look = followed.next_look(IDLE);
            match (events.peek(), look) {
                (Some((second, event)), look) if look.is_none_or(|look| at(*second) <= look) => {
                    match event {
                        Begin(key) => {
                            followed.begin(*key, at(*second));
                            marked.insert(*key);
                        }
                        Use(key) => drop(marked.insert(*key)),
                        Hold(key, true) => drop(held.insert(*key)),
                        Hold(key, false) => {
                            held.remove(key);
                            marked.insert(*key);
                        }
                    }
                    events.next();
                }
                (_, Some(look)) if look <= at(end) => {
                    looks += 1;
                    let used = marked.union(&held).copied().collect();
                    marked.clear();
                    let second = look.duration_since(begun).as_secs();
                    let left = followed.settle(&used, look, IDLE);
                    gone.extend(left.into_iter().map(|key| (second, key)));
                }
                _ => return (gone, looks),
            }
        }
    }

    #[test]
    fn what_is_not_used_is_let_go_after_a_while_and_then_nothing_is_looked_at() {
        let day = 24 * 3600;
        // Called once: one look finds the call, the next none, and that was the last.
        assert_eq!(run(&[(0, Begin(1))], day), (vec![(600, 1)], 2));
        assert_eq!(run(&[], day), (vec![], 0));
        // Used ones stay, and so do those that are held open.
        let uses: Vec<(u64, SubscriptionEvent)> = (1..100).map(|n| (n * 290, Use(1))).collect();
        let mut all = vec![(0, Begin(1))];
        all.extend(uses);
        let (gone, _) = run(&all, 99 * 290);
        assert_eq!(gone, []);
        let (gone, _) = run(&[(0, Begin(1)), (1, Hold(1, true))], day);
        assert_eq!(gone, []);
        // An end counts as a use.
        let (gone, _) = run(
            &[(0, Begin(1)), (1, Hold(1, true)), (5999, Hold(1, false))],
            day,
        );
        assert!(
            matches!(gone[..], [(at, 1)] if (6299..=6675).contains(&at)),
            "{gone:?}"
        );
    }

    #[test]
    fn any_use_keeps_it_for_the_idle_time_and_no_more_than_two_and_a_quarter_of_it() {
        for seed in 0..500_u64 {
            let mut luck = fastrand::Rng::with_seed(seed);
            let mut last = BTreeMap::new();
            let mut events: Vec<(u64, SubscriptionEvent)> = Vec::new();
            let mut second = 0;
            for key in 0..20 {
                second += luck.u64(..60);
                last.insert(key, second);
                events.push((second, Begin(key)));
                for _ in 0..luck.u64(..6) {
                    // Never so late that it may have been let go.
                    let again = last[&key] + luck.u64(..300);
                    events.push((again, Use(key)));
                    last.insert(key, again);
                }
            }
            events.sort_by_key(|(second, _)| *second);
            let (gone, looks) = run(&events, 24 * 3600);
            assert_eq!(gone.len(), 20, "seed {seed}");
            for (at, key) in gone {
                let idle = at - last[&key];
                assert!(
                    (300..=675).contains(&idle),
                    "seed {seed}: {key} after {idle}"
                );
            }
            let span = last.values().max().copied().unwrap_or_default() + 675;
            assert!(looks as u64 <= span / 75 + 1, "seed {seed}: {looks}");
        }
    }

    #[test]
    fn who_was_not_used_for_longest_makes_room() {
        let now = Instant::now();
        let mut followed: FollowedSubscriptions<u8> = FollowedSubscriptions::default();
        for key in 0..6_u8 {
            followed.begin(key, now + Duration::from_secs(key.into()));
        }
        let used = BTreeSet::from([0, 3, 4]);
        assert_eq!(followed.make_room(4, &used), [1, 2, 5, 0]);
        assert_eq!(followed.since.into_keys().collect::<Vec<_>>(), [3, 4]);
    }
}

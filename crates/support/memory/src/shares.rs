//! Shares of a bounded number of places, by source: who gets the next place, and who must go for it. Pure; its callers hold
//! the connections. A source with many connections can never take the place of one with few.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Source of a connection, in whose share its place counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address: a host chooses the rest as it likes.
    Ipv6([u8; 8]),
    /// A mesh identity, proven by the certificate of the connection, and the address it called from.
    Member(Arc<str>, IpAddr),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::Ipv4(address),
            IpAddr::V6(address) => {
                let mut prefix = [0; 8];
                prefix.copy_from_slice(&address.octets()[..8]);
                Self::Ipv6(prefix)
            }
        }
    }
}

/// The limits of a lane.
#[derive(Debug)]
pub struct LaneLimits {
    /// Places in all.
    pub places: usize,
    /// Places of one source.
    pub per_source: usize,
    /// Time for which a holder keeps its place while sources of no smaller share wait.
    pub min_stay: Duration,
    /// Longest time for which a place may be held.
    pub deadline: Duration,
}

/// Decision about a source that wants a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// There is one.
    Admit,
    /// This one must go first.
    Evict(u64),
    /// Nobody must go before this moment.
    Wait(Instant),
    /// Everybody who could go is going.
    Busy,
}

#[derive(Debug)]
struct PermitHolder {
    source: Source,
    since: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct LanePermits {
    /// Its limits.
    pub limits: &'static LaneLimits,
    next: u64,
    holders: BTreeMap<u64, PermitHolder>,
    /// Holders that were not told to go, by source.
    staying: HashMap<Source, BTreeSet<u64>>,
    leaving: usize,
}

impl LanePermits {
    /// Nobody holds a place.
    #[must_use]
    pub fn new(limits: &'static LaneLimits) -> Self {
        Self {
            limits,
            next: 0,
            holders: BTreeMap::new(),
            staying: HashMap::new(),
            leaving: 0,
        }
    }

    /// Places held, including by those that were told to go.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks if there are none")]
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Those that were told to go and have not yet gone.
    pub fn leaving(&self) -> usize {
        self.leaving
    }

    /// Places of a source.
    pub fn held_by(&self, source: &Source) -> usize {
        self.staying.get(source).map_or(0, BTreeSet::len)
    }

    /// The source with most places; of several, the one whose oldest is the oldest.
    pub fn largest(&self) -> Option<&Source> {
        let all = self.staying.iter();
        all.max_by_key(|(_, held)| (held.len(), std::cmp::Reverse(held.first().copied())))
            .map(|(source, _)| source)
    }

    /// The oldest place of a source.
    pub fn oldest_of(&self, source: &Source) -> Option<u64> {
        self.staying.get(source)?.first().copied()
    }

    /// Decides about a source that wants a place. `largest` is [`Self::largest`].
    pub fn decide(&self, source: &Source, largest: Option<&Source>, now: Instant) -> Decision {
        let mine = self.held_by(source);
        let victim = match mine >= self.limits.per_source {
            true => Some(source),
            false if self.len() < self.limits.places => return Decision::Admit,
            false => largest,
        };
        let oldest = victim.and_then(|victim| Some((victim, self.oldest_of(victim)?)));
        let Some((victim, oldest)) = oldest else {
            return Decision::Busy;
        };
        // A source whose share stays larger even then is evicted without delay.
        if victim != source && self.held_by(victim) > mine + 1 {
            return Decision::Evict(oldest);
        }
        let due = self.holders[&oldest].since + self.limits.min_stay;
        match due <= now {
            true => Decision::Evict(oldest),
            false => Decision::Wait(due),
        }
    }

    /// Gives a place.
    pub fn give(&mut self, source: Source, now: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        self.staying.entry(source.clone()).or_default().insert(id);
        self.holders.insert(id, PermitHolder { source, since: now });
        id
    }

    /// Counts a holder as one that was told to go.
    pub fn dismiss(&mut self, id: u64) {
        if let Some(holder) = self.holders.get(&id)
            && remove(&mut self.staying, &holder.source, id)
        {
            self.leaving += 1;
        }
    }

    /// Takes a place back.
    pub fn release(&mut self, id: u64) {
        if let Some(holder) = self.holders.remove(&id)
            && !remove(&mut self.staying, &holder.source, id)
        {
            self.leaving -= 1;
        }
    }
}

/// Removes a holder. Returns true if it was there.
fn remove(staying: &mut HashMap<Source, BTreeSet<u64>>, source: &Source, id: u64) -> bool {
    let Some(held) = staying.get_mut(source) else {
        return false;
    };
    let was_there = held.remove(&id);
    if held.is_empty() {
        staying.remove(source);
    }
    was_there
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LaneLimits = LaneLimits {
        places: 4,
        per_source: 3,
        min_stay: Duration::from_millis(100),
        deadline: Duration::from_secs(1),
    };

    fn source(number: u8) -> Source {
        IpAddr::from([127, 0, 0, number]).into()
    }

    #[test]
    fn the_largest_source_gives_way_at_once_and_equals_after_a_while() {
        let now = Instant::now();
        let later = now + LIMITS.min_stay;
        // Sources that hold places, who wants one, when, and the answer.
        let cases: [(&[u8], u8, Instant, Decision); 8] = [
            (&[1, 1, 1], 2, now, Decision::Admit),
            (&[1, 1, 1], 1, now, Decision::Wait(later)),
            (&[1, 1, 1], 1, later, Decision::Evict(0)),
            (&[2, 1, 1, 1], 3, now, Decision::Evict(1)),
            (&[2, 1, 1, 1], 2, now, Decision::Evict(1)),
            (&[2, 1, 1, 1], 1, now, Decision::Wait(later)),
            (&[1, 2, 3, 4], 5, now, Decision::Wait(later)),
            (&[4, 3, 2, 1], 5, later, Decision::Evict(0)),
        ];
        for (held, wants, at, expected) in cases {
            let mut places = LanePermits::new(&LIMITS);
            for number in held {
                places.give(source(*number), now);
            }
            let largest = places.largest().cloned();
            let decision = places.decide(&source(wants), largest.as_ref(), at);
            assert_eq!(decision, expected, "{held:?} {wants}");
        }
    }

    #[test]
    fn who_was_told_to_go_holds_its_place_until_it_has_gone() {
        let now = Instant::now();
        let mut places = LanePermits::new(&LIMITS);
        let held: Vec<u64> = (1..=4).map(|one| places.give(source(one), now)).collect();
        held.iter().for_each(|id| places.dismiss(*id));
        places.dismiss(held[0]);
        assert_eq!((places.len(), places.leaving()), (4, 4));
        let wanted = source(9);
        assert_eq!(places.decide(&wanted, None, now), Decision::Busy);
        places.release(held[0]);
        places.release(held[0]);
        assert_eq!((places.len(), places.leaving()), (3, 3));
        assert_eq!(places.decide(&wanted, None, now), Decision::Admit);
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::9"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    }
}

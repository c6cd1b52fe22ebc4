//! The memory ceiling: near it idle connections are given up, at it new work is refused, so that the kernel never has to
//! kill a proxy. Looked at when work arrives, in one system call every so often; an idle proxy looks at nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Share of the limit, in percent, from which on idle connections are closed.
const RELIEVE_PERCENT: u64 = 80;

/// Share of the limit, in percent, from which on new work is refused: the rest is for work in flight.
const CLOSE_PERCENT: u64 = 90;

/// Arrivals between two looks: so many requests add well less than the remaining tenth.
const ARRIVALS_PER_LOOK: u32 = 64;

/// Distance to the ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemoryPressure {
    /// Far.
    Free = 0,
    /// Idle connections are given up.
    Relieve = 1,
    /// New work is refused.
    Closed = 2,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ceiling {
    /// Limit in bytes of resident memory; 0 is none.
    limit: AtomicU64,
    statm: OnceLock<File>,
    level: AtomicU8,
    arrivals: AtomicU32,
}

impl Ceiling {
    /// A ceiling at `limit` bytes of resident memory; 0 is none.
    pub(crate) fn new(limit: u64) -> Self {
        let ceiling = Self {
            limit: AtomicU64::new(0),
            statm: OnceLock::new(),
            level: AtomicU8::new(0),
            arrivals: AtomicU32::new(0),
        };
        ceiling.set(limit);
        ceiling
    }

    /// Sets another limit; returns true if it changed.
    pub(crate) fn set(&self, limit: u64) -> bool {
        if self.limit.swap(limit, Ordering::Relaxed) == limit {
            return false;
        }
        if limit > 0
            && self.statm.get().is_none()
            && let Ok(file) = File::open("/proc/self/statm")
        {
            // Only one thread sets limits; if two did, either file would do.
            let _ = self.statm.set(file);
        }
        // Work in flight notices at its next look; new work that was refused may be accepted now.
        if self.is_closed() || limit == 0 {
            self.look();
        }
        true
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn level(&self) -> MemoryPressure {
        match self.level.load(Ordering::Relaxed) {
            0 => MemoryPressure::Free,
            1 => MemoryPressure::Relieve,
            _ => MemoryPressure::Closed,
        }
    }

    /// Returns true if new work is refused at this moment.
    pub(crate) fn is_closed(&self) -> bool {
        self.level() == MemoryPressure::Closed
    }

    /// Counts an arrival. Looks every so often, and always while work is refused. Returns the level if it looked and
    /// found memory short.
    pub(crate) fn arrived(&self) -> Option<MemoryPressure> {
        if self.limit.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // A number lost between two workers only delays a look.
        let arrivals = self.arrivals.load(Ordering::Relaxed).wrapping_add(1);
        self.arrivals.store(arrivals, Ordering::Relaxed);
        if !arrivals.is_multiple_of(ARRIVALS_PER_LOOK) && !self.is_closed() {
            return None;
        }
        Some(self.look()).filter(|level| *level > MemoryPressure::Free)
    }

    /// Asks the kernel now.
    pub(crate) fn look(&self) -> MemoryPressure {
        let limit = self.limit.load(Ordering::Relaxed);
        let level = level(self.resident().unwrap_or(0), limit);
        self.level.store(level as u8, Ordering::Relaxed);
        level
    }

    fn resident(&self) -> Option<u64> {
        let mut room = [0; 128];
        let read = self.statm.get()?.read_at(&mut room, 0).ok()?;
        let text = std::str::from_utf8(&room[..read]).ok()?;
        let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}

fn level(resident: u64, limit: u64) -> MemoryPressure {
    let reached = |percent| resident >= limit / 100 * percent;
    match limit {
        0 => MemoryPressure::Free,
        _ if reached(CLOSE_PERCENT) => MemoryPressure::Closed,
        _ if reached(RELIEVE_PERCENT) => MemoryPressure::Relieve,
        _ => MemoryPressure::Free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_the_share_of_the_limit() {
        for (resident, limit, expected) in [
            (u64::MAX, 0, MemoryPressure::Free),
            (0, 1000, MemoryPressure::Free),
            (799, 1000, MemoryPressure::Free),
            (800, 1000, MemoryPressure::Relieve),
            (899, 1000, MemoryPressure::Relieve),
            (900, 1000, MemoryPressure::Closed),
            (5000, 1000, MemoryPressure::Closed),
        ] {
            assert_eq!(level(resident, limit), expected, "{resident} of {limit}");
        }
    }

    #[test]
    fn the_kernel_is_asked_every_so_often_and_always_while_closed() {
        let none = Ceiling::new(0);
        assert_eq!((none.arrived(), none.is_closed()), (None, false));
        let tiny = Ceiling::new(1000);
        let looks = (0..ARRIVALS_PER_LOOK).filter_map(|_| tiny.arrived());
        assert_eq!(looks.collect::<Vec<_>>(), [MemoryPressure::Closed]);
        assert_eq!(tiny.arrived(), Some(MemoryPressure::Closed));
        // It may be lifted and set again while the proxy runs.
        assert!(tiny.set(0) && !tiny.is_closed());
        assert_eq!(tiny.arrived(), None);
        assert!(tiny.set(1000) && !tiny.set(1000));
        let looks = (0..ARRIVALS_PER_LOOK).filter_map(|_| tiny.arrived());
        assert_eq!(looks.last(), Some(MemoryPressure::Closed));
        let roomy = Ceiling::new(u64::MAX);
        let looks = (0..1000).filter_map(|_| roomy.arrived());
        assert_eq!(looks.count(), 0);
    }
}

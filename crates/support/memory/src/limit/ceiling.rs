//! The memory ceiling: near it idle connections are given up, at it new work is refused, so that the kernel never has to
//! kill a proxy. Looked at when work arrives, in one system call every so often; an idle proxy looks at nothing.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::heap::give_back;
use crate::text::release_cold_pages;

/// Share of the limit, in percent, from which on idle connections are closed.
const RELIEVE_PERCENT: u64 = 80;

/// Share of the limit, in percent, from which on new work is refused: the rest is for work in flight.
const CLOSE_PERCENT: u64 = 90;

/// Under a small limit more than the rest must be left: this many bytes, or this part of it.
const LEAST_ROOM: u64 = 8 * 1024 * 1024;
const LEAST_PART: u64 = 8;

/// From this share on refusing was not enough, and ordinary exchanges in flight end, in percent.
const OVER_PERCENT: u64 = 95;

/// Arrivals between two looks: so many requests add well less than the remaining tenth.
const ARRIVALS_PER_LOOK: u32 = 64;

/// The same from [`RELIEVE_PERCENT`] on.
const ARRIVALS_PER_NEAR_LOOK: u32 = 8;

/// Time in which a connection takes most of what it will take: its handshake, and the buffers of its first request.
const YOUNG: Duration = Duration::from_millis(100);

/// Bytes that it takes in this time.
const YOUNG_BYTES: u64 = 64 * 1024;

/// Part of the limit that is kept free for young connections, however many there are, in percent.
const YOUNG_PERCENT: u64 = 10;

/// Largest part of the limit as which released pages of the program count: a narrow limit must not stay closed by them.
const MOST_RETURNING: u64 = 2;

/// Time in which the needed ones of released pages come back, on a busy machine, too.
const RETURN: Duration = Duration::from_secs(3);

/// Least time between two times that a look gives back what nobody needs.
const RELIEF_INTERVAL: Duration = Duration::from_secs(1);

/// Distance to the ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Far.
    Free = 0,
    /// Idle connections are given up.
    Relieve = 1,
    /// New work is refused.
    Closed = 2,
}

/// Told of every level that is found.
type LevelObserver = Box<dyn Fn(MemoryPressure) + Send + Sync>;

/// See the module.
pub struct Ceiling {
    observer: LevelObserver,
    /// Limit in bytes of resident memory; 0 is none.
    limit: AtomicU64,
    statm: OnceLock<File>,
    level: AtomicU8,
    arrivals: AtomicU32,
    /// Bytes that connections will take which have begun.
    expected: AtomicU64,
    young: YoungConnections,
    /// Bytes of the program's own pages before they were released: most of them come back as they are needed.
    returning: AtomicU64,
    /// When `returning` was measured.
    released: Mutex<Option<Instant>>,
    /// When unneeded memory was last given back for want of room.
    relieved: Mutex<Option<Instant>>,
}

impl Ceiling {
    /// A ceiling at `limit` bytes of resident memory; 0 is none. `observer` is told of each level that is found.
    pub fn new(limit: u64, observer: impl Fn(MemoryPressure) + Send + Sync + 'static) -> Self {
        let ceiling = Self {
            observer: Box::new(observer),
            limit: AtomicU64::new(0),
            statm: OnceLock::new(),
            level: AtomicU8::new(0),
            arrivals: AtomicU32::new(0),
            expected: AtomicU64::new(0),
            young: YoungConnections::default(),
            returning: AtomicU64::new(0),
            released: Mutex::default(),
            relieved: Mutex::default(),
        };
        ceiling.set(limit);
        ceiling
    }

    /// Sets another limit; returns true if it changed.
    pub fn set(&self, limit: u64) -> bool {
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

    /// The limit; 0 is none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// The level that was found last.
    pub fn level(&self) -> MemoryPressure {
        match self.level.load(Ordering::Relaxed) {
            0 => MemoryPressure::Free,
            1 => MemoryPressure::Relieve,
            _ => MemoryPressure::Closed,
        }
    }

    /// Returns true if there is a limit.
    pub fn is_set(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    /// Returns true if new work is refused at this moment.
    pub fn is_closed(&self) -> bool {
        self.level() == MemoryPressure::Closed
    }

    /// Counts an arrival. Looks every so often, and always while work is refused. Returns the level if it looked and
    /// found memory short.
    pub fn arrived(&self) -> Option<MemoryPressure> {
        if self.limit.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // A number lost between two workers only delays a look.
        let arrivals = self.arrivals.load(Ordering::Relaxed).wrapping_add(1);
        self.arrivals.store(arrivals, Ordering::Relaxed);
        let each = match self.level() {
            MemoryPressure::Free => ARRIVALS_PER_LOOK,
            MemoryPressure::Relieve => {
                self.young.begin();
                ARRIVALS_PER_NEAR_LOOK
            }
            MemoryPressure::Closed => 1,
        };
        if !arrivals.is_multiple_of(each) {
            return None;
        }
        Some(self.look()).filter(|level| *level > MemoryPressure::Free)
    }

    /// Asks the kernel now.
    pub fn look(&self) -> MemoryPressure {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == 0 {
            return self.found(MemoryPressure::Free);
        }
        let mut level = self.measure(limit);
        if level == MemoryPressure::Closed && self.relieves() {
            give_back();
            self.release_pages();
            level = self.measure(limit);
        }
        self.found(level)
    }

    fn found(&self, level: MemoryPressure) -> MemoryPressure {
        self.level.store(level as u8, Ordering::Relaxed);
        (self.observer)(level);
        level
    }

    fn measure(&self, limit: u64) -> MemoryPressure {
        let young = self.young.count() * YOUNG_BYTES;
        let expected =
            self.expected.load(Ordering::Relaxed) + young.min(limit / 100 * YOUNG_PERCENT);
        let resident = self.resident().unwrap_or_default();
        level(resident.lasting(self.returning(limit)) + expected, limit)
    }

    /// Releases the program's own pages. They count further on, since needed ones come back.
    pub fn release_pages(&self) {
        let before = self.resident().unwrap_or_default().shared;
        release_cold_pages();
        // What another thread finds differs little.
        let Ok(mut released) = self.released.try_lock() else {
            return;
        };
        // Pages that were released a moment ago have not come back yet, and count still.
        if released.is_some_and(|then| then.elapsed() < RETURN) {
            self.returning.fetch_max(before, Ordering::Relaxed);
        } else {
            *released = Some(Instant::now());
            self.returning.store(before, Ordering::Relaxed);
        }
    }

    fn returning(&self, limit: u64) -> u64 {
        let returning = self.returning.load(Ordering::Relaxed);
        returning.min(limit / MOST_RETURNING)
    }

    /// Returns true if this thread is to give back what nobody needs: freed memory, and pages of the program.
    fn relieves(&self) -> bool {
        let Ok(mut last) = self.relieved.try_lock() else {
            return false;
        };
        let due = last.is_none_or(|last| last.elapsed() >= RELIEF_INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }

    /// A connection was accepted. For a moment it counts as more than it holds, as requests do near the ceiling.
    pub fn accepted(&self) {
        self.young.begin();
    }

    /// Counts what a connection will take, until it has taken it and drops the value.
    pub fn expect(&self, bytes: u64) -> ExpectedMemory<'_> {
        self.expected.fetch_add(bytes, Ordering::Relaxed);
        ExpectedMemory(self, bytes)
    }

    /// Bytes to free before the proxy accepts new work again; and if memory is so short that refusing was not enough.
    pub fn excess(&self) -> (u64, bool) {
        let limit = self.limit.load(Ordering::Relaxed);
        let resident = self.resident().unwrap_or_default();
        let resident = resident.lasting(self.returning(limit));
        let target = u64::midpoint(limit / 100 * RELIEVE_PERCENT, closed_from(limit));
        let excess = resident.saturating_sub(target);
        let over = limit > 0 && resident >= limit / 100 * OVER_PERCENT;
        (excess, over)
    }

    fn resident(&self) -> Option<ResidentMemory> {
        let mut room = [0; 128];
        let read = self.statm.get()?.read_at(&mut room, 0).ok()?;
        let text = std::str::from_utf8(&room[..read]).ok()?;
        let pages = text.split_ascii_whitespace().skip(1);
        let mut bytes = pages.map(|pages| {
            let pages: Option<u64> = pages.parse().ok();
            pages.map(|pages| pages * rustix::param::page_size() as u64)
        });
        Some(ResidentMemory {
            all: bytes.next()??,
            shared: bytes.next()??,
        })
    }
}

impl fmt::Debug for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Ceiling");
        shown
            .field("limit", &self.limit())
            .field("level", &self.level());
        shown.finish_non_exhaustive()
    }
}

/// Memory that a connection will take.
#[derive(Debug)]
pub struct ExpectedMemory<'a>(&'a Ceiling, u64);

impl Drop for ExpectedMemory<'_> {
    fn drop(&mut self) {
        self.0.expected.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Resident memory, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct ResidentMemory {
    all: u64,
    /// Of it, pages of files: the program's own.
    shared: u64,
}

impl ResidentMemory {
    /// All of it, with so much of released pages that come back.
    fn lasting(self, returning: u64) -> u64 {
        self.all + returning.saturating_sub(self.shared)
    }
}

/// Connections that were accepted in this slice of time, and in the one before it.
#[derive(Debug, Default)]
struct YoungConnections {
    now: AtomicU64,
    before: AtomicU64,
    turn: Mutex<Option<Instant>>,
}

impl YoungConnections {
    fn begin(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        if let Ok(mut turn) = self.turn.try_lock() {
            let elapsed = turn.map_or(2 * YOUNG, |turn| turn.elapsed());
            if elapsed >= YOUNG {
                let last = self.now.swap(0, Ordering::Relaxed);
                let last = if elapsed >= 2 * YOUNG { 0 } else { last };
                self.before.store(last, Ordering::Relaxed);
                *turn = Some(Instant::now());
            }
        }
        self.now.load(Ordering::Relaxed) + self.before.load(Ordering::Relaxed)
    }
}

/// Bytes from which on new work is refused.
fn closed_from(limit: u64) -> u64 {
    let small = LEAST_ROOM.min(limit / LEAST_PART);
    (limit / 100 * CLOSE_PERCENT).min(limit - small)
}

fn level(resident: u64, limit: u64) -> MemoryPressure {
    let reached = |percent| resident >= limit / 100 * percent;
    match limit {
        0 => MemoryPressure::Free,
        _ if resident >= closed_from(limit) => MemoryPressure::Closed,
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
            (874, 1000, MemoryPressure::Relieve),
            (875, 1000, MemoryPressure::Closed),
            ((900 << 20) - 1, 1000 << 20, MemoryPressure::Relieve),
            (900 << 20, 1000 << 20, MemoryPressure::Closed),
            (5000, 1000, MemoryPressure::Closed),
        ] {
            assert_eq!(level(resident, limit), expected, "{resident} of {limit}");
        }
    }

    #[test]
    fn pages_that_were_released_a_moment_ago_still_count() {
        let ceiling = Ceiling::new(1 << 40, |_| {});
        ceiling.release_pages();
        let counted = ceiling.returning(u64::MAX);
        assert!(counted > 0);
        // Those that come back have not yet.
        ceiling.release_pages();
        assert!(ceiling.returning(u64::MAX) >= counted);
    }

    #[test]
    fn the_kernel_is_asked_every_so_often_and_always_while_closed() {
        let none = Ceiling::new(0, |_| {});
        assert_eq!((none.arrived(), none.is_closed()), (None, false));
        let tiny = Ceiling::new(1000, |_| {});
        let looks = (0..ARRIVALS_PER_LOOK).filter_map(|_| tiny.arrived());
        assert_eq!(looks.collect::<Vec<_>>(), [MemoryPressure::Closed]);
        assert_eq!(tiny.arrived(), Some(MemoryPressure::Closed));
        // It may be lifted and set again while the proxy runs.
        assert!(tiny.set(0) && !tiny.is_closed());
        assert_eq!(tiny.arrived(), None);
        assert!(tiny.set(1000) && !tiny.set(1000));
        let looks = (0..ARRIVALS_PER_LOOK).filter_map(|_| tiny.arrived());
        assert_eq!(looks.last(), Some(MemoryPressure::Closed));
        let roomy = Ceiling::new(u64::MAX, |_| {});
        let looks = (0..1000).filter_map(|_| roomy.arrived());
        assert_eq!(looks.count(), 0);
    }
}

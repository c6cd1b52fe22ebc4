//! What a process does near its memory limit: has its workers close what is idle, ends the largest holders, and gives back
//! to the kernel what the allocator keeps. Of one thread, inside a `LocalSet` of tokio.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::ceiling::{Ceiling, MemoryPressure};
use crate::heap::give_back;

/// Time that workers get to close idle connections before the freed memory is given back.
const RELIEF_TIME: Duration = Duration::from_millis(200);

/// Least time between two runs of giving memory back while it is not short: a burst frees its memory over a while.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(3);

/// Time between two rounds of ending the largest holders while new work is refused: at first, and at most.
const FIRST_ROUND: Duration = Duration::from_millis(50);
const LAST_ROUND: Duration = Duration::from_secs(1);

/// The same while memory still grows.
const SHORTEST_ROUND: Duration = Duration::from_millis(2);

/// Time after which ordinary exchanges end if refusing new work did not help.
const REFUSING_HELPS: Duration = Duration::from_secs(3);

/// Between two lines in the log about it, while it lasts.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// An order to end holders of memory.
#[derive(Debug, Clone, Copy)]
pub struct ShedOrder {
    /// Bytes that must go.
    pub bytes: usize,
    /// Ordinary exchanges, too.
    pub ordinary: bool,
}

/// The workers of a process, which hold its memory.
pub trait MemoryHolders: 'static {
    /// The limit.
    fn ceiling(&self) -> &Ceiling;
    /// Close what is idle.
    fn close_idle(&self);
    /// End holders of memory.
    fn shed(&self, order: ShedOrder);
    /// Forget what has no user.
    fn forget_unused(&self) {}
}

/// See the module.
#[derive(Debug)]
pub struct MemoryRelief<H>(Rc<ReliefState<H>>);

impl<H> Clone for MemoryRelief<H> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

#[derive(Debug)]
struct ReliefState<H> {
    holders: Rc<H>,
    /// Memory is about to be given back.
    giving_back: Cell<bool>,
    /// Freed memory will be given back after a while.
    freed: Cell<bool>,
    /// When memory was last given back.
    gave_back: Cell<Option<Instant>>,
    /// The largest holders are being ended until there is room.
    shedding: Cell<bool>,
    /// Memory grew in the meantime.
    grew: Notify,
    /// When it was last said that memory is short.
    said_short: Cell<Option<Instant>>,
}

impl<H: MemoryHolders> MemoryRelief<H> {
    /// The relief of these holders.
    pub fn new(holders: Rc<H>) -> Self {
        Self(Rc::new(ReliefState {
            holders,
            giving_back: Cell::new(false),
            freed: Cell::new(false),
            gave_back: Cell::new(None),
            shedding: Cell::new(false),
            grew: Notify::new(),
            said_short: Cell::new(None),
        }))
    }

    /// Memory is short: all workers close idle connections, and the freed memory goes back to the kernel.
    pub fn relieve(&self) {
        self.shed_while_closed();
        if self.0.giving_back.get() {
            return; // Somebody said so a moment ago.
        }
        self.0.holders.close_idle();
        let now = Instant::now();
        let said = self.0.said_short.get();
        if said.is_none_or(|then| now.duration_since(then) >= SAID_EVERY) {
            self.0.said_short.set(Some(now));
            tracing::warn!("memory limit is near: closing idle connections");
        }
        self.give_back_soon();
    }

    /// Gives freed memory back after a short time for the workers; requests in the meantime share one run.
    pub fn give_back_soon(&self) {
        if self.0.giving_back.replace(true) {
            return;
        }
        let relief = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(RELIEF_TIME).await;
            relief.0.giving_back.set(false);
            relief.give_back_now();
        });
    }

    /// Gives the memory of a burst back: soon after the first word that much was freed, then in intervals. No timer runs without
    /// such a word.
    pub fn burst_is_over(&self) {
        if self.0.freed.replace(true) {
            return;
        }
        let last = self.0.gave_back.get();
        let since = last.map_or(GIVE_BACK_INTERVAL, |last| last.elapsed());
        let wait = GIVE_BACK_INTERVAL.saturating_sub(since).max(RELIEF_TIME);
        let relief = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(wait).await;
            relief.0.freed.set(false);
            relief.give_back_now();
        });
    }

    fn give_back_now(&self) {
        self.0.gave_back.set(Some(Instant::now()));
        self.0.holders.forget_unused();
        give_back();
        // The program's own pages are resident, too. Needed ones come back from the page cache; the others would keep a
        // proxy with a narrow limit from accepting any connection again.
        let ceiling = self.0.holders.ceiling();
        if ceiling.look() > MemoryPressure::Free {
            ceiling.release_pages();
            ceiling.look();
        }
    }

    /// Ends the largest holders of memory, round by round, while new work is refused. Ordinary exchanges end only if refusing did
    /// not help.
    fn shed_while_closed(&self) {
        let is_closed = |relief: &Self| relief.0.holders.ceiling().look() == MemoryPressure::Closed;
        if self.0.shedding.get() {
            return self.0.grew.notify_one();
        }
        if !is_closed(self) {
            return;
        }
        self.0.shedding.set(true);
        let relief = self.clone();
        tokio::task::spawn_local(async move {
            let (began, mut pause) = (Instant::now(), FIRST_ROUND);
            relief.give_back_now();
            while is_closed(&relief) {
                let (excess, over) = relief.0.holders.ceiling().excess();
                relief.0.holders.shed(ShedOrder {
                    bytes: usize::try_from(excess).unwrap_or(usize::MAX),
                    ordinary: over && began.elapsed() >= REFUSING_HELPS,
                });
                // Peers that fill their windows at once do not wait for the next round.
                tokio::time::sleep(SHORTEST_ROUND).await;
                let grew = tokio::time::timeout(pause, relief.0.grew.notified()).await;
                if grew.is_err() {
                    pause = (pause * 2).min(LAST_ROUND);
                    relief.give_back_now();
                }
            }
            relief.0.shedding.set(false);
        });
    }
}

//! Bytes of large heads that all connections of a process hold. HPACK makes 60 KiB from twenty bytes, so limits of one
//! connection bound nothing where there are many. Heads of usual size are never counted. The connection asks before a stream
//! opens and gives back when the stream is forgotten.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of the heads of one stream that are not counted: the stream itself costs several times as much.
pub const USUAL_HEAD: usize = 1024;

/// Bytes of large heads that all connections of a proxy hold, however many connections there are: 1,500 streams with 10 KiB of
/// cookies each. Near [`HEADS_PART`] of the memory limit it is less. A source has at most half of it, and no more than what is
/// left for others.
pub const MAX_HEADS_OF_ALL: usize = 16 * 1024 * 1024;

/// Part of the memory limit that heads may have: the copies of them that a proxy holds fit between an idle proxy and the ceiling.
const HEADS_PART: u64 = 32;

/// Bytes that all connections of the process may hold. Workers share it without a lock.
#[derive(Debug)]
pub struct HeadBudget {
    limit: AtomicUsize,
    closed: AtomicBool,
    refused: AtomicU64,
    held: AtomicUsize,
}

impl HeadBudget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            closed: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            held: AtomicUsize::new(0),
        }
    }

    /// A budget of [`MAX_HEADS_OF_ALL`].
    pub fn of_process() -> Self {
        Self::new(MAX_HEADS_OF_ALL)
    }

    /// Changes the limit to what fits into so many bytes of memory; 0 is any number. Bytes that are held stay held.
    pub fn fit_into(&self, memory: u64) {
        let part = usize::try_from(memory / HEADS_PART).unwrap_or(usize::MAX);
        let limit = match memory {
            0 => MAX_HEADS_OF_ALL,
            _ => part.min(MAX_HEADS_OF_ALL),
        };
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Refuses every large head from now on, or no longer.
    pub fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Bytes held by all sources.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Heads that found no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes `bytes` for a source that then holds `own`, if that is no more than what is free.
    fn take(&self, own: usize, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let taken = !self.is_closed()
            && self
                .held
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                    let held = held + bytes;
                    (own <= limit.saturating_sub(held)).then_some(held)
                })
                .is_ok();
        if !taken {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

/// The part of a [`HeadBudget`] that one worker's connections hold, by source. The owner of the connections numbers the sources.
#[derive(Debug)]
pub(crate) struct HeadShares {
    budget: Arc<HeadBudget>,
    by_source: RefCell<HashMap<u64, usize>>,
}

impl HeadShares {
    pub(crate) fn new(budget: Arc<HeadBudget>) -> Self {
        Self {
            budget,
            by_source: RefCell::default(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.budget.is_closed()
    }

    /// Takes `bytes` for a source, if the source then holds no more here than what is free. On one worker a source gets half of
    /// the budget; `n` sources on `w` workers get `nw` parts of `nw + 1`: some is always left for another.
    pub(crate) fn take(&self, source: u64, bytes: usize) -> bool {
        let mut by_source = self.by_source.borrow_mut();
        let own = by_source.get(&source).copied().unwrap_or(0) + bytes;
        let taken = self.budget.take(own, bytes);
        if taken {
            by_source.insert(source, own);
        }
        taken
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, source: u64, bytes: usize) {
        self.budget.held.fetch_sub(bytes, Ordering::Relaxed);
        let mut by_source = self.by_source.borrow_mut();
        if let Some(own) = by_source.get_mut(&source) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                by_source.remove(&source);
                if by_source.is_empty() {
                    *by_source = HashMap::new();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_gets_no_more_than_what_it_leaves_to_others() {
        let budget = Arc::new(HeadBudget::new(100));
        let shares = HeadShares::new(Arc::clone(&budget));
        let take_all = |source| (0..).take_while(|_| shares.take(source, 5)).count() * 5;
        assert_eq!([take_all(1), take_all(2), take_all(3)], [50, 25, 10]);
        assert_eq!((budget.held(), budget.refused()), (85, 3));
        assert!(shares.take(4, 5), "somebody new has room");
        shares.give(4, 5);
        shares.give(1, 50);
        assert!(shares.take(4, 30));
        budget.close(true);
        assert!(!shares.take(5, 1));
        budget.close(false);
        for (source, bytes) in [(2, 25), (3, 10), (4, 30)] {
            shares.give(source, bytes);
        }
        assert_eq!(budget.held(), 0);
        assert!(shares.by_source.borrow().is_empty());
        budget.fit_into(10 * HEADS_PART);
        assert!(!shares.take(1, 6) && shares.take(1, 5));
    }

    #[test]
    fn workers_share_the_budget() {
        let budget = Arc::new(HeadBudget::new(90));
        let workers = [(); 2].map(|()| HeadShares::new(Arc::clone(&budget)));
        let taken = workers.each_ref().map(|shares| {
            let count = (0..).take_while(|_| shares.take(1, 5)).count();
            count * 5
        });
        assert_eq!((taken, budget.held()), ([45, 20], 65));
        assert!(workers[0].take(2, 10), "another source has room");
        workers[1].give(1, 20);
        assert_eq!(budget.held(), 55);
    }
}

//! Bytes of large heads that all connections of a process hold. HPACK makes 60 KiB from twenty bytes, so limits of one
//! connection bound nothing where there are many. Heads of usual size are never counted. The connection asks before a stream
//! opens and gives back when the stream is forgotten.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the heads of one stream that are not counted: the stream itself costs several times as much.
pub const USUAL_HEAD: usize = 1024;

/// See the module. The numbers of sources are chosen by the owner of the connections.
#[derive(Debug)]
pub struct HeadBudget {
    limit: AtomicUsize,
    closed: AtomicBool,
    refused: AtomicU64,
    held: Mutex<HeadsHeld>,
}

#[derive(Debug, Default)]
struct HeadsHeld {
    all: usize,
    by_source: HashMap<u64, usize>,
}

impl HeadBudget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            closed: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            held: Mutex::default(),
        }
    }

    /// Changes the limit. Bytes that are held stay held.
    pub fn set_limit(&self, limit: usize) {
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
        self.lock().all
    }

    /// Heads that found no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes `bytes` for a source, if the source then holds no more than what is free. One source gets half of the budget, `n`
    /// sources get `n` parts of `n + 1`: some is always left for another.
    pub(crate) fn take(&self, source: u64, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut held = self.lock();
        let own = held.by_source.get(&source).copied().unwrap_or(0) + bytes;
        let free = limit.saturating_sub(held.all + bytes);
        if own > free || self.closed.load(Ordering::Relaxed) {
            drop(held);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        held.all += bytes;
        held.by_source.insert(source, own);
        true
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, source: u64, bytes: usize) {
        let mut held = self.lock();
        held.all = held.all.saturating_sub(bytes);
        if let Some(own) = held.by_source.get_mut(&source) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                held.by_source.remove(&source);
                if held.by_source.is_empty() {
                    held.by_source = HashMap::new();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HeadsHeld> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_gets_no_more_than_what_it_leaves_to_others() {
        let budget = HeadBudget::new(100);
        let take_all = |source| (0..).take_while(|_| budget.take(source, 5)).count() * 5;
        assert_eq!([take_all(1), take_all(2), take_all(3)], [50, 25, 10]);
        assert_eq!((budget.held(), budget.refused()), (85, 3));
        assert!(budget.take(4, 5), "somebody new has room");
        budget.give(4, 5);
        budget.give(1, 50);
        assert!(budget.take(4, 30));
        budget.close(true);
        assert!(!budget.take(5, 1));
        budget.close(false);
        for (source, bytes) in [(2, 25), (3, 10), (4, 30)] {
            budget.give(source, bytes);
        }
        assert_eq!(budget.held(), 0);
        assert!(budget.lock().by_source.is_empty());
        budget.set_limit(10);
        assert!(!budget.take(1, 6) && budget.take(1, 5));
    }
}

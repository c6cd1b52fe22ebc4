//! Requests that wait for an external signer: their number is limited, for all callers and for each.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Requests that wait at once.
pub(super) const MAX_PENDING: usize = 32;
/// Requests of one caller that wait at once. A signer that is slow for one caller leaves three quarters to others.
pub(super) const MAX_PENDING_PER_CALLER: usize = MAX_PENDING / 4;

/// Requests that wait, by caller.
#[derive(Debug, Default)]
pub(super) struct PendingRequests(Mutex<BTreeMap<String, usize>>);

impl PendingRequests {
    /// Admits one more request of a caller. At the limit a caller comes again; it does not wait for others.
    ///
    /// # Errors
    /// Too many wait.
    pub(super) fn admit<'a>(&'a self, caller: &'a str) -> Result<PendingRequest<'a>, String> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.values().sum::<usize>() >= MAX_PENDING {
            return Err(format!("{MAX_PENDING} other requests wait"));
        }
        let own = waiting.entry(caller.to_owned()).or_default();
        if *own >= MAX_PENDING_PER_CALLER {
            return Err(format!(
                "{MAX_PENDING_PER_CALLER} others of this caller wait"
            ));
        }
        *own += 1;
        Ok(PendingRequest { all: self, caller })
    }
}

/// A request that waits, until it is dropped.
#[derive(Debug)]
pub(super) struct PendingRequest<'a> {
    all: &'a PendingRequests,
    caller: &'a str,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let mut waiting = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = waiting.get_mut(self.caller) {
            *own -= 1;
            if *own == 0 {
                waiting.remove(self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_holds_a_quarter_and_gives_it_back() {
        let all = PendingRequests::default();
        let admit = |caller: &'static str| -> Vec<_> {
            (0..MAX_PENDING_PER_CALLER)
                .map(|_| all.admit(caller).expect("admitted"))
                .collect()
        };
        let mut greedy = admit("greedy");
        let refused = all.admit("greedy").expect_err("its share is used");
        assert_eq!(refused, "8 others of this caller wait");
        let others = [admit("one"), admit("two"), admit("three")];
        let refused = all.admit("four").expect_err("all are used");
        assert_eq!(refused, "32 other requests wait");
        greedy.pop();
        let admitted = all.admit("four").expect("there is room");
        drop((admitted, greedy, others));
        assert!(
            all.0.lock().expect("no panic").is_empty(),
            "nothing is kept"
        );
    }
}

//! Callers of a pod's tunnel port (15008) that have not shown a certificate yet. Each costs a TLS session, so a worker bounds
//! their number and their time, by source. Accepting never stops: of too many the oldest of the source with most goes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use voile_memory::shares::{Decision, LaneLimits, LanePermits, Source};
use voile_transport::TLS_HANDSHAKE_TIMEOUT;

use crate::memory::CONNECTION_BYTES;

/// Unproven callers of a worker. A handshake costs a fraction of a millisecond of a core, so more at once would only make each of
/// them slower.
const MAX_UNPROVEN: usize = 256;

/// Of those, the callers of one source. Another proxy opens one connection at a time for each identity and destination.
const MAX_UNPROVEN_PER_SOURCE: usize = 64;

/// Bytes that unproven callers of a worker hold: the product of number and size.
pub const UNPROVEN_BYTES: usize = MAX_UNPROVEN * CONNECTION_BYTES;

const LIMITS: LaneLimits = LaneLimits {
    places: MAX_UNPROVEN,
    per_source: MAX_UNPROVEN_PER_SOURCE,
    // The oldest is the one that says nothing: an honest caller needs milliseconds.
    min_stay: Duration::ZERO,
    deadline: TLS_HANDSHAKE_TIMEOUT,
};

/// Least time between two lines in the log of a worker about such callers.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct UnprovenCallers {
    permits: RefCell<LanePermits>,
    dismissals: RefCell<HashMap<u64, Rc<Notify>>>,
    last_line: Cell<Option<Instant>>,
    unsaid: Cell<u64>,
}

impl Default for UnprovenCallers {
    fn default() -> Self {
        Self {
            permits: RefCell::new(LanePermits::new(&LIMITS)),
            dismissals: RefCell::default(),
            last_line: Cell::default(),
            unsaid: Cell::default(),
        }
    }
}

impl UnprovenCallers {
    /// Gives a caller from this address a place. None where everybody is going already.
    pub(crate) fn admit(&self, from: IpAddr) -> Option<UnprovenCaller<'_>> {
        let (now, source) = (Instant::now(), Source::from(from));
        let mut permits = self.permits.borrow_mut();
        let largest = match permits.len() < LIMITS.places {
            true => None,
            false => permits.largest().cloned(),
        };
        match permits.decide(&source, largest.as_ref(), now) {
            Decision::Admit => {}
            Decision::Evict(id) => {
                permits.dismiss(id);
                if let Some(dismissal) = self.dismissals.borrow().get(&id) {
                    dismissal.notify_one();
                }
            }
            Decision::Wait(_) | Decision::Busy => return None,
        }
        let (id, dismissed) = (permits.give(source, now), Rc::new(Notify::new()));
        let dismissal = Rc::clone(&dismissed);
        self.dismissals.borrow_mut().insert(id, dismissal);
        Some(UnprovenCaller {
            all: self,
            id,
            dismissed,
        })
    }
}

impl UnprovenCallers {
    /// Returns the number of refusals without a line since the last one, if a line is due.
    pub(crate) fn is_line_due(&self) -> Option<u64> {
        let now = Instant::now();
        let last = self.last_line.get();
        if last.is_some_and(|last| now - last < LINE_INTERVAL) {
            self.unsaid.set(self.unsaid.get() + 1);
            return None;
        }
        self.last_line.set(Some(now));
        Some(self.unsaid.take())
    }
}

/// One caller's place; dropping it gives the place back.
pub(crate) struct UnprovenCaller<'a> {
    all: &'a UnprovenCallers,
    id: u64,
    dismissed: Rc<Notify>,
}

impl UnprovenCaller<'_> {
    /// Does what proves the caller, unless it takes too long or another caller needs the place.
    pub(crate) async fn within<T>(
        &self,
        proving: impl Future<Output = T>,
    ) -> Result<T, &'static str> {
        tokio::select! {
            biased;
            () = self.dismissed.notified() => Err("too many callers show no certificate: the oldest of its source is closed"),
            done = tokio::time::timeout(LIMITS.deadline, proving) => {
                done.map_err(|_| "the caller did not show a certificate in time")
            }
        }
    }
}

impl Drop for UnprovenCaller<'_> {
    fn drop(&mut self) {
        self.all.permits.borrow_mut().release(self.id);
        let mut dismissals = self.all.dismissals.borrow_mut();
        dismissals.remove(&self.id);
        if dismissals.is_empty() {
            dismissals.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unproven_callers_of_a_worker_hold_16_mib() {
        assert_eq!(UNPROVEN_BYTES, 16 << 20);
    }

    #[tokio::test]
    async fn a_crowd_that_shows_no_certificate_takes_no_place_of_another_source() {
        let all = UnprovenCallers::default();
        let address = |last: usize| IpAddr::from([10, 0, (last / 256) as u8, (last % 256) as u8]);
        let quiet = all.admit(address(1)).expect("a place");
        let mut crowd = Vec::new();
        for _ in 0..4 * MAX_UNPROVEN {
            crowd.push(
                all.admit(address(2))
                    .expect("the oldest of its source goes"),
            );
        }
        let gone = crowd.len() - MAX_UNPROVEN_PER_SOURCE;
        for one in &crowd[..gone] {
            assert!(one.within(std::future::pending::<()>()).await.is_err());
        }
        drop(crowd.drain(..gone));
        // Many sources with one each: the oldest of the largest goes, and no source with one before it.
        let many: Vec<_> = (3..MAX_UNPROVEN)
            .map(|last| all.admit(address(last)))
            .collect();
        assert!(many.iter().all(Option::is_some));
        assert_eq!(quiet.within(std::future::ready(7)).await, Ok(7));
    }
}

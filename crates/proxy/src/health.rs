//! What all workers of a proxy know together of a destination: which endpoints answer badly, and how much is under way. Made by
//! the control thread and part of a plan, so that every worker holds the same; carried on when endpoints come and go.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::time::Duration;

use tokio::sync::Notify;
use voile_traffic::{Breaker, Held, Limits, Outcome, OutlierPolicy, Outliers, Resource};

/// Who of a destination answers badly.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) policy: OutlierPolicy,
    /// Who is watched, in the order of the plan.
    pub(crate) endpoints: Vec<SocketAddr>,
    outliers: Outliers,
    /// Changes whenever somebody is put out.
    changes: AtomicU64,
}

impl Watch {
    /// Of endpoints of which some were watched before.
    pub(crate) fn follow(
        policy: OutlierPolicy,
        endpoints: Vec<SocketAddr>,
        before: Option<&Self>,
    ) -> Self {
        let outliers = match before {
            None => Outliers::new(policy.clone(), endpoints.len()),
            Some(before) => {
                let places = before.endpoints.iter().enumerate();
                let known: HashMap<_, _> =
                    places.map(|(place, address)| (address, place)).collect();
                let was = endpoints.iter().map(|address| known.get(address).copied());
                let was: Vec<Option<usize>> = was.collect();
                Outliers::follow(policy.clone(), &was, &before.outliers)
            }
        };
        Self {
            policy,
            endpoints,
            outliers,
            changes: AtomicU64::new(0),
        }
    }

    /// Whether an endpoint is not to be asked now.
    pub(crate) fn is_out(&self, place: u32, now: Duration) -> bool {
        self.outliers.is_out(place as usize, now)
    }

    /// How many are not.
    pub(crate) fn out(&self, now: Duration) -> usize {
        self.outliers.out(now)
    }

    /// Takes note of how a request ended; says whether its endpoint was put out for it.
    pub(crate) fn report(&self, place: u32, outcome: Outcome, now: Duration) -> bool {
        let was_out = self.is_out(place, now);
        if !self.outliers.report(place as usize, outcome, now) {
            return false;
        }
        self.changes.fetch_add(1, Relaxed);
        !was_out && self.is_out(place, now)
    }

    /// Another number whenever somebody was put out.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

/// How much may be under way to a destination, and who waits for a connection.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) limits: Limits,
    breaker: Arc<Breaker>,
    /// Told when a connection may have become free while somebody waits.
    freed: Notify,
}

/// A place of a connection; dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct Seated {
    gate: Arc<Gate>,
    // Let go of before the others are told.
    held: Option<Held>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.held = None;
        self.gate.freed();
    }
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            breaker: Breaker::new(limits),
            freed: Notify::new(),
        }
    }

    /// Takes room for one; `None` when there is no more.
    pub(crate) fn take(&self, resource: Resource) -> Option<Held> {
        self.breaker.take(resource)
    }

    /// Takes a connection's place, if there is one.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<Seated> {
        let held = self.take(Resource::Connections)?;
        Some(Seated {
            gate: Arc::clone(self),
            held: Some(held),
        })
    }

    /// A connection carries nothing any more, or is gone.
    pub(crate) fn freed(&self) {
        // Who begins to wait says so before it looks once more, and this is said before anybody is looked for.
        fence(SeqCst);
        // Nobody waits, as a rule, and then nothing is written.
        if self.breaker.used(Resource::Pending) > 0 {
            self.freed.notify_waiters();
        }
    }

    /// Takes a connection's place as soon as there is one; an error says whether there was room to wait, and a connection that
    /// is there may have become free meanwhile.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Seated, Waited> {
        if let Some(seated) = self.seat() {
            return Ok(seated);
        }
        let _waiting = self.take(Resource::Pending).ok_or(Waited::InVain)?;
        let mut freed = pin!(self.freed.notified());
        freed.as_mut().enable();
        fence(SeqCst);
        if let Some(seated) = self.seat() {
            return Ok(seated);
        }
        freed.await;
        Err(Waited::Freed)
    }
}

/// Why there is no connection's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// As many wait as may.
    InVain,
    /// One was freed.
    Freed,
}

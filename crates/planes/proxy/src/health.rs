//! Health of a destination that all workers of a proxy share: endpoints that answer badly, and the load in flight. The control
//! thread makes it as a part of the plan, so that every worker has the same one. It survives changes of the endpoints.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use voile_traffic::{
    Breaker, BreakerLimits, BreakerPermit, CheckPolicy, CheckedEndpoint, Ejection, EndpointHealth,
    OutlierDetection, Outliers, Resource, UpstreamOutcome,
};
use voile_xds::wire::HealthCheck;

/// Ejected endpoints of a destination: by outlier detection, and by health checks.
#[derive(Debug)]
pub(crate) struct Watch {
    /// None without outlier detection.
    pub(crate) policy: Option<OutlierDetection>,
    /// Watched endpoints, in the order of the plan.
    pub(crate) endpoints: Vec<SocketAddr>,
    outliers: Option<Outliers>,
    /// Health checks; none without a HealthCheck.
    pub(crate) checks: Option<Checks>,
    /// Changes whenever an endpoint is ejected.
    changes: AtomicU64,
}

/// Health checks of a destination's endpoints, and their results.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) said: Arc<HealthCheck>,
    policy: CheckPolicy,
    /// In the order of the plan. A subset shares the records of the whole service.
    pub(crate) records: Vec<Arc<CheckRecord>>,
    pub(crate) tally: Arc<HealthTally>,
}

/// Health record of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct CheckRecord {
    checked: CheckedEndpoint,
    /// Last failure, while it lasts; for people.
    why: Mutex<Option<Box<str>>>,
}

/// Results of the health checks of a service port.
#[derive(Debug, Default)]
pub(crate) struct HealthTally {
    /// Changes whenever an endpoint becomes healthy or unhealthy.
    changes: AtomicU64,
    pub(crate) good: AtomicU64,
    pub(crate) bad: AtomicU64,
}

impl CheckRecord {
    /// The same endpoint, asked the same at other times.
    pub(crate) fn follow(old: &Self) -> Self {
        Self {
            checked: CheckedEndpoint::follow(&old.checked),
            why: Mutex::new(old.why()),
        }
    }

    pub(crate) fn standing(&self) -> EndpointHealth {
        self.checked.standing()
    }

    /// Last failure.
    pub(crate) fn why(&self) -> Option<Box<str>> {
        self.said().clone()
    }

    fn said(&self) -> MutexGuard<'_, Option<Box<str>>> {
        // No code panics while it holds the lock, and a text is never written by half.
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Checks {
    pub(crate) fn new(
        said: &Arc<HealthCheck>,
        records: Vec<Arc<CheckRecord>>,
        tally: Arc<HealthTally>,
    ) -> Self {
        let terms = &said.terms;
        Self {
            policy: CheckPolicy {
                interval: terms.interval,
                jitter_percent: terms.jitter_percent,
                healthy: terms.healthy_threshold,
                unhealthy: terms.unhealthy_threshold,
            },
            said: Arc::clone(said),
            records,
            tally,
        }
    }

    /// Claims the check of an endpoint for the calling worker. An error is the time until the next check is
    /// due.
    pub(crate) fn claim(&self, place: usize, now: Duration, lot: u64) -> Result<(), Duration> {
        self.records[place].checked.claim(&self.policy, now, lot)
    }

    /// Stores a result; returns the endpoint's health if it changed for load balancing.
    pub(crate) fn heard(
        &self,
        place: usize,
        answer: &Result<(), Box<str>>,
    ) -> Option<EndpointHealth> {
        let record = &self.records[place];
        *record.said() = answer.as_ref().err().cloned();
        let counter = match answer {
            Ok(()) => &self.tally.good,
            Err(_) => &self.tally.bad,
        };
        counter.fetch_add(1, Relaxed);
        let news = record.checked.heard(&self.policy, answer.is_ok());
        if news.is_some() {
            self.tally.changes.fetch_add(1, Relaxed);
        }
        news
    }
}

impl Watch {
    /// Makes the state of new endpoints; endpoints that were watched before keep theirs.
    pub(crate) fn follow(
        policy: Option<OutlierDetection>,
        endpoints: Vec<SocketAddr>,
        checks: Option<Checks>,
        before: Option<&Self>,
    ) -> Self {
        let outliers = policy.map(|policy| {
            let Some((before, outliers)) =
                before.and_then(|before| Some((before, before.outliers.as_ref()?)))
            else {
                return Outliers::new(policy, endpoints.len());
            };
            let places = before.endpoints.iter().enumerate();
            let known: HashMap<_, _> = places.map(|(place, address)| (address, place)).collect();
            let was = endpoints.iter().map(|address| known.get(address).copied());
            let was: Vec<Option<usize>> = was.collect();
            Outliers::follow(policy, &was, outliers)
        });
        Self {
            policy,
            endpoints,
            outliers,
            checks,
            changes: AtomicU64::new(0),
        }
    }

    /// Returns true if an endpoint receives no traffic now.
    pub(crate) fn is_out(&self, place: u32, now: Duration) -> bool {
        let place = place as usize;
        let unwell = |checks: &Checks| checks.records[place].checked.is_unwell();
        self.is_put_out(place, now) || self.checks.as_ref().is_some_and(unwell)
    }

    /// Returns true if outlier detection ejected the endpoint.
    fn is_put_out(&self, place: usize, now: Duration) -> bool {
        let outliers = self.outliers.as_ref();
        outliers.is_some_and(|outliers| outliers.is_out(place, now))
    }

    /// Number of endpoints that outlier detection ejected; `None` without outlier detection.
    pub(crate) fn out(&self, now: Duration) -> Option<usize> {
        let outliers = self.outliers.as_ref();
        outliers.map(|outliers| outliers.out(now))
    }

    /// Counts the end of a request; returns the ejected endpoints.
    pub(crate) fn report(
        &self,
        place: u32,
        outcome: UpstreamOutcome,
        now: Duration,
    ) -> Vec<Ejection> {
        let Some(outliers) = &self.outliers else {
            return Vec::new();
        };
        let out = outliers.report(place as usize, outcome, now);
        if !out.is_empty() {
            self.changes.fetch_add(1, Relaxed);
        }
        out
    }

    /// Number that changes whenever an endpoint is ejected or its health changes.
    pub(crate) fn changes(&self) -> u64 {
        let found = self.checks.as_ref();
        let found = found.map_or(0, |checks| checks.tally.changes.load(Relaxed));
        self.changes.load(Relaxed).wrapping_add(found)
    }
}

/// Circuit breaker of a destination, and the queue for its connections.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) limits: BreakerLimits,
    breaker: Arc<Breaker>,
    /// Notified when a connection may have become free while a request waits.
    freed: Notify,
}

/// A place of a connection; dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct ConnectionSeat {
    gate: Arc<Gate>,
    // Dropped before waiting tasks are notified.
    held: Option<BreakerPermit>,
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        self.held = None;
        self.gate.freed();
    }
}

impl Gate {
    pub(crate) fn new(limits: BreakerLimits) -> Self {
        Self {
            limits,
            breaker: Breaker::new(limits),
            freed: Notify::new(),
        }
    }

    /// Takes one unit of a resource; `None` at the limit.
    pub(crate) fn take(&self, resource: Resource) -> Option<BreakerPermit> {
        self.breaker.take(resource)
    }

    /// Takes a place for a connection, if one is free.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<ConnectionSeat> {
        let held = self.take(Resource::Connections)?;
        Some(ConnectionSeat {
            gate: Arc::clone(self),
            held: Some(held),
        })
    }

    /// A connection carries nothing any more, or is gone.
    pub(crate) fn freed(&self) {
        // A waiting task announces itself before it looks again; this fence comes before waiting tasks are
        // counted.
        fence(SeqCst);
        // Most of the time no request waits, and then nothing is written.
        if self.breaker.used(Resource::Pending) > 0 {
            self.freed.notify_waiters();
        }
    }

    /// Takes a place for a connection as soon as one is free. An error says if there was room to wait, and if an existing
    /// connection may have become free meanwhile.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<ConnectionSeat, WaitError> {
        if let Some(seated) = self.seat() {
            return Ok(seated);
        }
        let _waiting = self.take(Resource::Pending).ok_or(WaitError::InVain)?;
        let mut freed = pin!(self.freed.notified());
        freed.as_mut().enable();
        fence(SeqCst);
        if let Some(seated) = self.seat() {
            return Ok(seated);
        }
        freed.await;
        Err(WaitError::Freed)
    }
}

/// Why there is no connection's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// As many wait as may.
    InVain,
    /// One was freed.
    Freed,
}

//! Circuit breakers: limits on a destination's connections and requests in the whole proxy. A request over a limit is
//! refused at once; nothing waits here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Connections: Istio's `tcp.maxConnections`.
    Connections,
    /// Requests that wait for a connection: `http1MaxPendingRequests`.
    Pending,
    /// Requests under way: `http2MaxRequests`.
    Requests,
    /// Retries under way: `maxRetries`.
    Retries,
}

/// Limits by resource; none where nothing is said, as with Istio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BreakerLimits {
    /// See [`Resource::Connections`].
    pub connections: Option<u32>,
    /// See [`Resource::Pending`].
    pub pending: Option<u32>,
    /// See [`Resource::Requests`].
    pub requests: Option<u32>,
    /// See [`Resource::Retries`].
    pub retries: Option<u32>,
}

impl BreakerLimits {
    fn of(&self, resource: Resource) -> Option<u32> {
        match resource {
            Resource::Connections => self.connections,
            Resource::Pending => self.pending,
            Resource::Requests => self.requests,
            Resource::Retries => self.retries,
        }
    }
}

/// A destination's breaker, shared by workers. A resource without a limit is not counted, so that it costs nothing.
#[derive(Debug, Default)]
pub struct Breaker {
    limits: BreakerLimits,
    used: [AtomicU32; 4],
}

/// Something under way; dropping it makes room again.
#[derive(Debug)]
pub struct BreakerPermit {
    /// None where there is no limit.
    of: Option<(Arc<Breaker>, Resource)>,
}

impl Breaker {
    /// Creates a breaker with these limits. A change of limits makes a new breaker; earlier requests then count for
    /// the old one.
    #[must_use]
    pub fn new(limits: BreakerLimits) -> Arc<Self> {
        let used = Default::default();
        Arc::new(Self { limits, used })
    }

    /// Takes room for one; `None` when there is no more.
    #[must_use]
    pub fn take(self: &Arc<Self>, resource: Resource) -> Option<BreakerPermit> {
        let Some(limit) = self.limits.of(resource) else {
            return Some(BreakerPermit { of: None });
        };
        let one_more = |used: u32| (used < limit).then_some(used + 1);
        let used = &self.used[resource as usize];
        used.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        let of = Some((Arc::clone(self), resource));
        Some(BreakerPermit { of })
    }

    /// Returns the used amount; 0 where there is no limit.
    #[must_use]
    pub fn used(&self, resource: Resource) -> u32 {
        self.used[resource as usize].load(Relaxed)
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if let Some((breaker, resource)) = self.of.take() {
            breaker.used[resource as usize].fetch_sub(1, Relaxed);
        }
    }
}

//! Active health checks: health of an endpoint by answers in a row, and time of the next check. The workers of a
//! proxy share the state through atomics: the first worker to see a due check runs it. Envoy's rules (its page
//! "Health checking"), except that an endpoint takes traffic until its first answer, and every bad answer counts
//! alike.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Interval of an endpoint's health checks, and answers that decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckPolicy {
    /// From one question to the next.
    pub interval: Duration,
    /// Up to this part of the interval is added, in hundredths.
    pub jitter_percent: u32,
    /// So many good answers in a row and it is well again.
    pub healthy: u32,
    /// So many bad ones in a row and it is not.
    pub unhealthy: u32,
}

/// First checks run within this time, spread at random: a proxy that starts does not check all endpoints at once.
pub const FIRST_WITHIN: Duration = Duration::from_secs(1);

/// Health of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointHealth {
    /// It has not answered yet, and takes traffic.
    Unasked,
    /// It takes traffic.
    Well,
    /// It takes none.
    Unwell,
}

const UNASKED: u8 = 0;
const WELL: u8 = 1;
const UNWELL: u8 = 2;

/// One endpoint, as all workers see it. Moments are nanoseconds since a fixed one.
#[derive(Debug, Default)]
pub struct CheckedEndpoint {
    standing: AtomicU8,
    /// Good answers in a row, or bad ones below zero.
    row: AtomicI32,
    /// Time of the next check; 0: not decided yet.
    next: AtomicU64,
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// A part of a time, by a lot from all numbers.
fn part(of: Duration, lot: u64) -> Duration {
    let nanos = (u128::from(nanos(of)) * u128::from(lot)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl CheckedEndpoint {
    /// The same endpoint, asked the same at other times: it stands as it stood and is asked anew.
    #[must_use]
    pub fn follow(old: &Self) -> Self {
        Self {
            standing: AtomicU8::new(old.standing.load(Relaxed)),
            ..Self::default()
        }
    }

    /// Returns the endpoint's health.
    pub fn standing(&self) -> EndpointHealth {
        match self.standing.load(Relaxed) {
            WELL => EndpointHealth::Well,
            UNWELL => EndpointHealth::Unwell,
            _ => EndpointHealth::Unasked,
        }
    }

    /// Returns true if the endpoint takes no traffic.
    pub fn is_unwell(&self) -> bool {
        self.standing.load(Relaxed) == UNWELL
    }

    /// Claims the check that is due for this caller alone; otherwise returns the time of the next check.
    pub fn claim(&self, policy: &CheckPolicy, now: Duration, lot: u64) -> Result<(), Duration> {
        let due = self.next.load(Relaxed);
        let next = match due {
            0 => now + part(policy.interval.min(FIRST_WITHIN), lot),
            due if due > nanos(now) => return Err(Duration::from_nanos(due)),
            _ => now + policy.interval + part(policy.interval * policy.jitter_percent / 100, lot),
        };
        match self
            .next
            .compare_exchange(due, nanos(next), Relaxed, Relaxed)
        {
            Ok(_) if due > 0 => Ok(()),
            Ok(_) => Err(next),
            Err(theirs) => Err(Duration::from_nanos(theirs)),
        }
    }

    /// Applies an answer; returns the health if it changed.
    pub fn heard(&self, policy: &CheckPolicy, good: bool) -> Option<EndpointHealth> {
        let row = self.row.load(Relaxed);
        let row = match good {
            true => row.max(0).saturating_add(1),
            false => row.min(0).saturating_sub(1),
        };
        self.row.store(row, Relaxed);
        let enough = |needed: u32| row.unsigned_abs() >= needed;
        let standing = match (self.standing(), good) {
            // One answer is more than nothing.
            (EndpointHealth::Unasked, true) => WELL,
            (EndpointHealth::Unasked, false) => UNWELL,
            (EndpointHealth::Unwell, true) if enough(policy.healthy) => WELL,
            (EndpointHealth::Well, false) if enough(policy.unhealthy) => UNWELL,
            _ => return None,
        };
        let before = self.standing.swap(standing, Relaxed);
        (before != UNASKED || standing == UNWELL).then(|| self.standing())
    }
}

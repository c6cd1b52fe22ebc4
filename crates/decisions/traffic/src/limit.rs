//! Local rate limits: token buckets, shared by a proxy's workers without a lock, one for all requests or one for each
//! key in a bounded room. Clients see them in the IETF's `RateLimit` fields (draft-ietf-httpapi-ratelimit-headers).
//!
//! A bucket is one number, the moment at which it would be full (the "generic cell rate algorithm"). A full bucket is
//! like an unused one, so that its room can be given to another key and nothing is forgotten.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::hash::xxh64;

/// Rate of requests: a burst, and the speed at which it refills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests that may come at once.
    burst: u32,
    /// Nanoseconds in which one more is allowed; rounded up, so that never more are than was said.
    each: u64,
}

/// Why a rate is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Nothing would ever pass, or time would stand still.
    #[error("a limit must allow at least one request, in a time longer than 0")]
    Nothing,
    /// Filling up would take longer than clocks count.
    #[error("{burst} requests at one per {each:?} need more than a year to refill")]
    TooSlow {
        /// Requests at once.
        burst: u32,
        /// The time for one.
        each: Duration,
    },
}

/// Longest time in which a bucket may fill up.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitVerdict {
    /// True if the request may pass.
    pub allowed: bool,
    /// Further requests that may pass at once.
    pub remaining: u32,
    /// When the bucket is full again.
    pub full_in: Duration,
    /// When the next may pass; zero if one may now.
    pub retry_in: Duration,
}

impl Rate {
    /// `requests` in each `interval`, up to `burst` of them at once.
    pub fn new(requests: u32, interval: Duration, burst: u32) -> Result<Self, RateError> {
        if requests == 0 || burst == 0 || interval.is_zero() {
            return Err(RateError::Nothing);
        }
        let each = interval.as_nanos().div_ceil(u128::from(requests));
        if each * u128::from(burst) > LONGEST.as_nanos() {
            let each = interval / requests;
            return Err(RateError::TooSlow { burst, each });
        }
        let each = each as u64;
        Ok(Self { burst, each })
    }

    fn capacity(self) -> u64 {
        self.each * u64::from(self.burst)
    }

    /// Judges a request at a moment by when the bucket would be full; the new such moment if it may pass.
    fn judge(self, full_at: u64, now: u64) -> (LimitVerdict, Option<u64>) {
        let missing = full_at.saturating_sub(now);
        let after = missing + self.each;
        let allowed = after <= self.capacity();
        let left = if allowed { after } else { missing };
        let verdict = LimitVerdict {
            allowed,
            remaining: (self.capacity().saturating_sub(left) / self.each) as u32,
            full_in: Duration::from_nanos(left),
            retry_in: Duration::from_nanos((left + self.each).saturating_sub(self.capacity())),
        };
        (verdict, allowed.then_some(now + after))
    }

    fn take(self, bucket: &AtomicU64, now: Duration) -> LimitVerdict {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        let mut full_at = bucket.load(Relaxed);
        loop {
            let (verdict, next) = self.judge(full_at, now);
            let Some(next) = next else {
                return verdict;
            };
            match bucket.compare_exchange_weak(full_at, next, Relaxed, Relaxed) {
                Ok(_) => return verdict,
                Err(other) => full_at = other,
            }
        }
    }

    /// Returns the value of `RateLimit-Policy` for a policy of this name.
    #[must_use]
    pub fn policy(self, name: &str) -> String {
        let window = seconds(Duration::from_nanos(self.capacity()));
        format!("{};q={};w={window}", quoted(name), self.burst)
    }
}

impl LimitVerdict {
    /// Returns the value of `RateLimit`: the requests that are left, and the time until all are there again.
    #[must_use]
    pub fn field(&self, name: &str) -> String {
        let (left, time) = (self.remaining, seconds(self.full_in));
        format!("{};r={left};t={time}", quoted(name))
    }

    /// The value of `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after(&self) -> u64 {
        seconds(self.retry_in).max(1)
    }
}

/// Quota of one limit, from a service that counts for several proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Requests in each window.
    pub requests: u32,
    /// Length of the window.
    pub window: Duration,
    /// Requests that are left.
    pub remaining: u32,
    /// When the next window begins.
    pub reset_in: Duration,
}

impl Quota {
    /// The value of `RateLimit-Policy`, for a policy of this name.
    #[must_use]
    pub fn policy(&self, name: &str) -> String {
        let window = seconds(self.window);
        format!("{};q={};w={window}", quoted(name), self.requests)
    }

    /// The value of `RateLimit`.
    #[must_use]
    pub fn field(&self, name: &str) -> String {
        let time = seconds(self.reset_in);
        format!("{};r={};t={time}", quoted(name), self.remaining)
    }

    /// The value of `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after(&self) -> u64 {
        seconds(self.reset_in).max(1)
    }
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Returns a string of structured fields (RFC 9651), without the characters that it may not contain.
fn quoted(name: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in name.chars().filter(|letter| (' '..='~').contains(letter)) {
        if matches!(letter, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted + "\""
}

/// One bucket for all requests.
#[derive(Debug)]
pub struct Bucket {
    rate: Rate,
    full_at: AtomicU64,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        let full_at = AtomicU64::new(0);
        Self { rate, full_at }
    }

    /// Takes one from it, if one is there.
    pub fn take(&self, now: Duration) -> LimitVerdict {
        self.rate.take(&self.full_at, now)
    }
}

/// Key that tells requests apart: a hash, so that long names take no room. The seed is the proxy's own secret, so
/// that no client can choose a key that collides with another's.
#[derive(Debug, Clone, Copy)]
pub struct LimitKey(u64);

impl LimitKey {
    /// Nothing yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// And this: a route's name, an identity, a header's value; `None` is unlike any value.
    #[must_use]
    pub fn and(self, part: Option<&[u8]>) -> Self {
        Self(match part {
            Some(part) => xxh64(part, self.0),
            None => xxh64(&[], self.0 ^ u64::MAX),
        })
    }
}

/// Places in which a key may be.
const WAYS: usize = 8;

/// A bucket for each key, in a bounded room.
#[derive(Debug)]
pub struct KeyedBuckets {
    rate: Rate,
    /// Key and moment at which its bucket would be full; sets of [`WAYS`], the last of each shared by all keys
    /// without room.
    slots: Box<[(AtomicU64, AtomicU64)]>,
}

impl KeyedBuckets {
    /// Room for about so many keys that are in use at once. Beyond it, keys share buckets: less passes then, never more.
    #[must_use]
    pub fn new(rate: Rate, keys: usize) -> Self {
        let sets = keys.div_ceil(WAYS - 1).max(1);
        let slots = (0..sets * WAYS).map(|_| Default::default());
        Self {
            rate,
            slots: slots.collect(),
        }
    }

    /// Number of buckets, shared ones included; never more than at the beginning.
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.len()
    }

    /// Takes one from a key's bucket, if one is there.
    pub fn take(&self, key: LimitKey, now: Duration) -> LimitVerdict {
        self.rate.take(&self.slot(key, now).1, now)
    }

    /// Returns a key's slot: its own, one whose bucket is full again, or the shared one if there is no room.
    fn slot(&self, key: LimitKey, now: Duration) -> &(AtomicU64, AtomicU64) {
        // No key is 0.
        let key = key.0.max(1);
        let sets = (self.slots.len() / WAYS) as u64;
        let set = crate::share::below(key, sets) as usize * WAYS;
        let (shared, own) = self.slots[set..set + WAYS]
            .split_last()
            .expect("invariant: a set has several ways");
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        loop {
            if let Some(known) = own.iter().find(|slot| slot.0.load(Relaxed) == key) {
                return known;
            }
            let Some(free) = own.iter().find(|slot| slot.1.load(Relaxed) <= now) else {
                return shared;
            };
            // If two threads want it at once, the loser looks again.
            let was = free.0.load(Relaxed);
            if was != key && free.0.compare_exchange(was, key, Relaxed, Relaxed).is_ok() {
                return free;
            }
        }
    }
}

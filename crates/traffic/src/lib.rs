//! Decisions about where a request goes: which service an authority means, which route it takes, which endpoint takes the
//! call, whether it may be made again or at all. Pure: randomness and time are arguments, nothing here knows a socket.

mod authority;
pub mod balance;
mod breaker;
mod check;
mod hash;
mod limit;
mod outlier;
mod retry;
pub mod route;
mod share;

pub use authority::{AuthorityTable, MAX_AUTHORITY};
pub use breaker::{Breaker, BreakerPermit, BreakerLimits, Resource};
pub use check::{CheckPolicy, CheckedEndpoint, FIRST_WITHIN, EndpointHealth};
pub use hash::xxh64;
pub use limit::{Bucket, KeyedBuckets, LimitKey, Quota, Rate, RateError, LimitVerdict};
pub use outlier::{Ejection, UpstreamOutcome, OutlierPolicy, Outliers, EjectionReason, SuccessRate, unsuccessful};
pub use retry::{
    Attempt, BACKOFF_BASE, BACKOFF_CAP, BUDGET_MIN, BUDGET_PERCENT, Conditions, DEFAULT_RETRIES,
    RetryBudget, RetryPolicy,
};
pub use share::{RequestShare, ShareError, Weights};

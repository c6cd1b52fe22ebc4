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
pub use breaker::{Breaker, BreakerLimits, BreakerPermit, Resource};
pub use check::{CheckPolicy, CheckedEndpoint, EndpointHealth, FIRST_WITHIN};
pub use hash::xxh64;
pub use limit::{Bucket, KeyedBuckets, LimitKey, LimitVerdict, Quota, Rate, RateError};
pub use outlier::{
    Ejection, EjectionReason, OutlierDetection, Outliers, SuccessRate, UpstreamOutcome,
    unsuccessful,
};
pub use retry::{
    Attempt, BACKOFF_BASE, BACKOFF_CAP, Conditions, DEFAULT_RETRIES, RetryBudget, RetryPolicy,
    RetrySettings, UNHEEDED_CONDITIONS, retry_conditions,
};
pub use share::{RequestShare, ShareError, Weights};

//! Decisions about where a request goes: which service an authority means, which endpoint takes the call, whether it may
//! be made again. Pure: randomness and time are arguments, nothing here knows a socket.

mod authority;
pub mod balance;
mod hash;
mod retry;
pub mod route;
mod share;

pub use authority::{AuthorityTable, MAX_AUTHORITY};
pub use balance::{Candidate, pick};
pub use hash::xxh64;
pub use retry::{
    Attempt, BACKOFF_BASE, BACKOFF_CAP, BUDGET_MIN, BUDGET_PERCENT, Conditions, DEFAULT_RETRIES,
    RetryBudget, RetryPolicy,
};
pub use share::{Share, ShareError, Weights};

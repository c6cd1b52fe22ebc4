//! Decisions about where a request goes: which service an authority means, which endpoint takes the call.
//! Pure: randomness is an argument, nothing here knows a socket.

mod authority;
mod balance;

pub use authority::{AuthorityTable, MAX_AUTHORITY};
pub use balance::{Candidate, pick};

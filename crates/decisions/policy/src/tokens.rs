//! Istio's RequestAuthentication. Finds JSON Web Tokens where rules look for them, verifies them with the issuer's
//! keys, and passes their claims to authorization. The current time and the worker's cache of good tokens are
//! arguments.
//!
//! ```text
//! TokenRule* + key sets ──► Rules::new ──► Rules::examine(Request, now, Cache) ──► Outcome
//!                                            │ places ─ token ─ issuer ─ keys       ├ NoToken
//!                                            └ Cache: tokens whose signature held   ├ Verified ──► claims, Edits
//!                                                                                   └ Refused ──► 401, 403
//! ```

mod algorithm;
mod cache;
mod claims;
mod edits;
mod examine;
mod hash;
mod headers;
mod keys;
mod limits;
mod outcome;
mod parse;
mod places;
mod rules;

pub use algorithm::Algorithm;
pub use cache::Cache;
pub use claims::Token;
pub use edits::{TokenEdits, masked_params, without_cookies, without_params};
pub use keys::{KeyFault, KeySet, KeySetError};
pub use limits::{
    CACHE_BYTES, CLOCK_SKEW_SECONDS, MAX_CLAIM_VALUES, MAX_DEPTH, MAX_KEY_SET_BYTES, MAX_KEYS,
    MAX_OUTPUT_BYTES, MAX_SIGNATURE_CHECKS, MAX_TOKEN_BYTES, MAX_TOKENS,
};
pub use outcome::{TokenErrorReason, TokenOutcome, TokenRefusal, Verified};
pub use places::TokenRequest;
pub use rules::{RuleKeys, Rules};

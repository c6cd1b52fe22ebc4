//! Checks of security resources and rate limits; failing closed.

pub(in crate::check) mod authorization;
pub(in crate::check) mod fail_closed;
pub(in crate::check) mod peer_authentication;
pub(in crate::check) mod rate_limit;
pub(in crate::check) mod request_authentication;

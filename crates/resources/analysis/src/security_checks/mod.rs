//! Checks of policies, identities and certificates across resources.

pub(crate) mod ambient;
pub(crate) mod authorization;
pub(crate) mod callers;
pub(crate) mod certificates;
pub(crate) mod mutual_tls;
pub(crate) mod peer_authentication;
pub(crate) mod principals;
pub(crate) mod rate_limits;
pub(crate) mod request_authentication;
pub(crate) mod requests_only;

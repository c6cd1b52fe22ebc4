//! Security resources as proxies get them.

pub(in crate::translate) mod authorization;
pub(in crate::translate) mod client_policies;
pub(in crate::translate) mod rate_limits;
pub(in crate::translate) mod tokens;

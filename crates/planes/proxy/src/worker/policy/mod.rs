//! Security and limits of a connection or request: admission, authorization, tokens, rate limits, and calls to services that decide.

pub(in crate::worker) mod admission;
pub(in crate::worker) mod audit_lines;
pub(in crate::worker) mod authorization;
pub(in crate::worker) mod authorizer;
pub(in crate::worker) mod connection_permit;
pub(in crate::worker) mod decision_counters;
pub(in crate::worker) mod denial;
pub(in crate::worker) mod external_call;
pub(in crate::worker) mod policy_audit;
pub(in crate::worker) mod rate_limits;
pub(in crate::worker) mod request_changes;
pub(in crate::worker) mod request_view;
pub(in crate::worker) mod tokens;

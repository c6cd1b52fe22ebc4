//! Security resources on the wire.

pub(in crate::wire) mod authorization;
pub(in crate::wire) mod authorizer;
pub(in crate::wire) mod connections;
pub(in crate::wire) mod policy;
pub(in crate::wire) mod rate_limit;
pub(in crate::wire) mod tokens;

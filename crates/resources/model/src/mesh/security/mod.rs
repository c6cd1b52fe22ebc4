//! Security resources of a checked mesh.

pub mod authorization;
pub mod peer_authentication;
pub mod rate_limit;
pub mod request_authentication;

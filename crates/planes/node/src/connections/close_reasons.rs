//! ztunnel's words for how connections end, and the idle limit that they have.

use std::time::Duration;

/// Stands for no idle limit of a relay: the kernel's keep-alive notices a peer that is gone.
pub(crate) const NO_IDLE_LIMIT: Duration = Duration::from_hours(24 * 365);

/// ztunnel's words for failures.
pub(crate) const CONNECT: &str = "CONNECT";
pub(crate) const DENY: &str = "DENY";

pub(crate) const IDENTITY_ERROR: &str = "IDENTITY_ERROR";

pub(crate) const CERT_REVOKED: &str = "CERT_REVOKED";

//! Counters of the authorization decisions of one worker.

use std::cell::Cell;
use std::time::Duration;

/// Decisions of one worker.
#[derive(Debug, Default)]
pub(crate) struct DecisionCounters {
    pub(in crate::worker) allowed: Cell<u64>,
    pub(in crate::worker) denied: Cell<u64>,
    pub(in crate::worker) revoked: Cell<u64>,
    /// Longest time in microseconds from the arrival of a change to the end of the connections that it cut.
    pub(in crate::worker) longest_cut: Cell<u64>,
    pub(in crate::worker) audited: Cell<u64>,
    pub(in crate::worker) would_allow: Cell<u64>,
    pub(in crate::worker) would_deny: Cell<u64>,
    pub(in crate::worker) would_ask: Cell<u64>,
    pub(in crate::worker) asked_allowed: Cell<u64>,
    pub(in crate::worker) asked_denied: Cell<u64>,
    pub(in crate::worker) asked_failed: Cell<u64>,
    pub(in crate::worker) asked_failed_open: Cell<u64>,
}

/// A copy of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AuthorizationFigures {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) revoked: u64,
    pub(crate) longest_cut: Duration,
    pub(crate) audited: u64,
    pub(crate) would_allow: u64,
    pub(crate) would_deny: u64,
    pub(crate) would_ask: u64,
    pub(crate) asked: ExternalChecks,
}

/// Counters of answers of external services.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExternalChecks {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Not asked or not answered, and therefore denied.
    pub(crate) failed: u64,
    /// The same, and let pass.
    pub(crate) failed_open: u64,
}

impl DecisionCounters {
    pub(crate) fn figures(&self) -> AuthorizationFigures {
        AuthorizationFigures {
            allowed: self.allowed.get(),
            denied: self.denied.get(),
            revoked: self.revoked.get(),
            longest_cut: Duration::from_micros(self.longest_cut.get()),
            audited: self.audited.get(),
            would_allow: self.would_allow.get(),
            would_deny: self.would_deny.get(),
            would_ask: self.would_ask.get(),
            asked: ExternalChecks {
                allowed: self.asked_allowed.get(),
                denied: self.asked_denied.get(),
                failed: self.asked_failed.get(),
                failed_open: self.asked_failed_open.get(),
            },
        }
    }
}

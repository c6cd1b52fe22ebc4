//! Pace of the log lines of dry-run policies: one in a second from each worker.

use std::cell::Cell;
use std::time::Instant;

/// When a line was last written, and how many were not since then.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pub(in crate::worker) last: Cell<Option<Instant>>,
    pub(in crate::worker) untold: Cell<u64>,
}

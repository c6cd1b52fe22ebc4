//! The time as everything counts it that workers share: since a moment that is the same for all threads of a process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static BEGINNING: OnceLock<Instant> = OnceLock::new();

/// The time now. The first moment is a second, so that nothing begins at zero.
pub(crate) fn now() -> Duration {
    Duration::from_secs(1) + BEGINNING.get_or_init(Instant::now).elapsed()
}

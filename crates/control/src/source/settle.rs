//! When a burst of file events has come to rest: a short quiet, and nobody in the middle of writing. Pure; time is an
//! argument.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Quiet after the last event; editors and copies touch several files within it.
pub(super) const QUIET: Duration = Duration::from_millis(50);
/// How long a file that is being written is waited for. Writers that hold files open for ever exist.
pub(super) const WRITER: Duration = Duration::from_secs(1);
/// How long a stream of events may put off the reading.
pub(super) const LONGEST: Duration = Duration::from_secs(2);

/// What an event says about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happening {
    /// Somebody writes into it.
    Written,
    /// Somebody finished writing, or it came or went whole.
    Done,
}

#[derive(Debug, Default)]
pub(super) struct Burst {
    first: Option<Instant>,
    last: Option<Instant>,
    being_written: BTreeSet<PathBuf>,
}

impl Burst {
    pub(super) fn event(&mut self, path: &Path, happening: Happening, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
        match happening {
            Happening::Written => self.being_written.insert(path.to_owned()),
            Happening::Done => self.being_written.remove(path),
        };
    }

    /// When to look again; `None` when nothing happened, an instant not after `now` when it is time to read.
    pub(super) fn due(&self) -> Option<Instant> {
        let (first, last) = (self.first?, self.last?);
        let rest = match self.being_written.is_empty() {
            true => last + QUIET,
            false => last + WRITER,
        };
        Some(rest.min(first + LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events as (milliseconds, file, happening), then when it is time to read, in milliseconds.
    fn check(events: &[(u64, &str, Happening)], due: Option<u64>) {
        let start = Instant::now();
        let mut burst = Burst::default();
        for (at, file, happening) in events {
            burst.event(
                Path::new(file),
                *happening,
                start + Duration::from_millis(*at),
            );
        }
        assert_eq!(
            burst.due(),
            due.map(|at| start + Duration::from_millis(at)),
            "{events:?}"
        );
    }

    #[test]
    fn a_burst_is_over_after_a_quiet_and_when_nobody_writes() {
        use Happening::{Done, Written};
        check(&[], None);
        check(&[(0, "a", Done)], Some(50));
        check(&[(0, "a", Written), (3, "a", Done)], Some(53));
        check(&[(0, "a", Written)], Some(1000));
        check(&[(0, "a", Written), (30, "b", Done)], Some(1030));
        check(
            &[(0, "a", Written), (900, "a", Written), (1800, "a", Written)],
            Some(2000),
        );
    }
}

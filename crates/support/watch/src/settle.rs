//! Time of the next reading after events: at once when a file came whole, not during a write, a little later after a removal (the
//! file may come back). In a storm of events, reading takes a bounded share of the time. Pure; time is an argument.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Quiet after the last event: a script that replaces several files does it within this.
pub(crate) const BREATH: Duration = Duration::from_millis(5);
/// Longest delay of a reading by unceasing events when all files are whole.
pub(crate) const BREATHLESS: Duration = Duration::from_millis(20);
/// Quiet after something is gone: editors and copies put something else in its place within it.
pub(crate) const QUIET: Duration = Duration::from_millis(50);
/// Longest wait for a file that is being written. Some writers hold files open for ever.
pub(crate) const WRITER: Duration = Duration::from_secs(1);
/// Longest delay of a reading by a stream of events.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);
/// Least and longest rest between two readings.
const REST: (Duration, Duration) = (Duration::from_millis(15), Duration::from_secs(1));
/// Rest, in multiples of the last reading's time: edits without end cost a quarter of a core at most.
const REST_SHARE: u32 = 3;

/// Meaning of an event for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileEvent {
    /// A process writes into it.
    Written,
    /// The writer has closed it, or it came whole.
    Done,
    /// It was removed.
    Gone,
}

/// Rest after a reading that took this long.
pub(crate) fn rest_after(took: Duration) -> Duration {
    (took * REST_SHARE).clamp(REST.0, REST.1)
}

#[derive(Debug, Default)]
pub(crate) struct Burst {
    first: Option<Instant>,
    last: Option<Instant>,
    being_written: BTreeSet<PathBuf>,
    gone: BTreeSet<PathBuf>,
}

impl Burst {
    pub(crate) fn event(&mut self, path: &Path, happening: FileEvent, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
        match happening {
            FileEvent::Written => {
                self.gone.remove(path);
                self.being_written.insert(path.to_owned())
            }
            FileEvent::Done => {
                self.gone.remove(path);
                self.being_written.remove(path)
            }
            FileEvent::Gone => {
                self.being_written.remove(path);
                self.gone.insert(path.to_owned())
            }
        };
    }

    /// When the first of it happened.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.first
    }

    /// When to look again; `None` when nothing happened, an instant not after `now` when it is time to read.
    pub(crate) fn due(&self) -> Option<Instant> {
        let (first, last) = (self.first?, self.last?);
        let (rest, longest) = match (self.being_written.is_empty(), self.gone.is_empty()) {
            (false, _) => (WRITER, LONGEST),
            (true, false) => (QUIET, LONGEST),
            (true, true) => (BREATH, BREATHLESS),
        };
        Some((last + rest).min(first + longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events as (milliseconds, file, happening), then when it is time to read, in milliseconds.
    fn check(events: &[(u64, &str, FileEvent)], due: Option<u64>) {
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
    fn a_burst_is_over_after_a_breath_and_when_nobody_writes_or_takes_away() {
        use FileEvent::{Done, Gone, Written};
        check(&[], None);
        check(&[(0, "a", Done)], Some(5));
        check(&[(0, "a", Done), (4, "b", Done), (7, "c", Done)], Some(12));
        check(&[(0, "a", Done), (18, "b", Done)], Some(20));
        check(&[(0, "a", Written), (3, "a", Done)], Some(8));
        check(&[(0, "a", Written)], Some(1000));
        check(&[(0, "a", Written), (30, "b", Done)], Some(1030));
        check(
            &[(0, "a", Written), (900, "a", Written), (1800, "a", Written)],
            Some(2000),
        );
        check(&[(0, "a", Gone)], Some(50));
        check(&[(0, "a", Gone), (1, "b", Done)], Some(51));
        check(
            &[(0, "a", Gone), (1, "a", Written), (2, "a", Done)],
            Some(7),
        );
        check(&[(0, "a", Written), (1, "a", Gone)], Some(51));
    }

    #[test]
    fn the_longer_a_reading_takes_the_longer_is_the_rest() {
        for (took, rest) in [(0, 15), (1, 15), (10, 30), (200, 600), (5000, 1000)] {
            let rest = Duration::from_millis(rest);
            assert_eq!(rest_after(Duration::from_millis(took)), rest);
        }
    }
}

//! Progress of a long measurement, and an estimate of the rest. Each step states its expected length beforehand.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Steps that are to come, and where we are.
pub(crate) struct Progress<'a> {
    say: &'a dyn Fn(&str),
    /// Expected lengths of the steps, the current one included.
    expected: Vec<Duration>,
    at: Cell<usize>,
    began: Cell<Instant>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(say: &'a dyn Fn(&str), expected: Vec<Duration>) -> Self {
        Self {
            say,
            expected,
            at: Cell::new(0),
            began: Cell::new(Instant::now()),
        }
    }

    /// The next step begins.
    pub(crate) fn next(&self) {
        self.at.set(self.at.get() + 1);
        self.began.set(Instant::now());
    }

    /// Says what is going on, and how long the rest will take.
    pub(crate) fn say(&self, words: &str) {
        let left = left(&self.expected, self.at.get(), self.began.get().elapsed());
        (self.say)(&format!("\r{words} (about {} left)", in_words(left)));
    }

    /// Ends the line.
    pub(crate) fn end(&self) {
        (self.say)("\r");
    }
}

/// Estimated rest within a step. A step that takes longer than expected counts as nearly done.
fn left(expected: &[Duration], at: usize, elapsed: Duration) -> Duration {
    let own = expected.get(at).copied().unwrap_or_default();
    let rest: Duration = expected.iter().skip(at + 1).sum();
    own.saturating_sub(elapsed) + rest
}

/// Minutes, or seconds of the last two.
fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_the_rest_of_this_step_and_all_later_ones() {
        let seconds = Duration::from_secs;
        let expected = [seconds(10), seconds(60), seconds(90)];
        for (at, elapsed, wanted) in [
            (0, 0, "3 min"),
            (1, 20, "3 min"),
            (1, 50, "100 s"),
            (1, 500, "90 s"),
            (2, 89, "1 s"),
            (3, 1, "0 s"),
        ] {
            let said = in_words(left(&expected, at, seconds(elapsed)));
            assert_eq!(said, wanted, "step {at} after {elapsed} s");
        }
    }
}

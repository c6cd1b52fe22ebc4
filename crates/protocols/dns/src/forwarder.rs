//! Queue of questions that are passed on. A number of questions runs at once, a further number waits a moment, and
//! the rest gets an answer at once. Otherwise a burst that a resolver answers in no time would be refused, or a
//! silent resolver would hold everything.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Time that a question waits for its turn: together with the resolver's (4 s) less than a client's patience (5 s).
const WAIT_FOR_TURN: Duration = Duration::from_millis(800);

/// See the module.
#[derive(Debug)]
pub struct DnsUpstream {
    turns: Semaphore,
    waiting: Cell<usize>,
    longest: usize,
}

/// A question that is passed on; the next one's turn comes when this is dropped.
#[derive(Debug)]
pub struct QueryTurn<'a> {
    _permit: SemaphorePermit<'a>,
}

impl DnsUpstream {
    /// With `at_once` turns; at most `longest` wait for theirs.
    pub fn new(at_once: usize, longest: usize) -> Self {
        Self {
            turns: Semaphore::new(at_once),
            waiting: Cell::new(0),
            longest,
        }
    }

    /// Waits for a turn; `None` when there is none to be had in time.
    pub async fn turn(&self) -> Option<QueryTurn<'_>> {
        if let Ok(permit) = self.turns.try_acquire() {
            return Some(QueryTurn { _permit: permit });
        }
        let _waiting = WaitingQuery::begin(self)?;
        let permit = tokio::time::timeout(WAIT_FOR_TURN, self.turns.acquire()).await;
        permit
            .ok()?
            .ok()
            .map(|permit| QueryTurn { _permit: permit })
    }
}

struct WaitingQuery<'a>(&'a DnsUpstream);

impl<'a> WaitingQuery<'a> {
    fn begin(line: &'a DnsUpstream) -> Option<Self> {
        let waiting = line.waiting.get();
        (waiting < line.longest).then(|| {
            line.waiting.set(waiting + 1);
            Self(line)
        })
    }
}

impl Drop for WaitingQuery<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn some_go_some_wait_and_the_rest_is_told_at_once() {
        let line = DnsUpstream::new(1, 1);
        let first = line.turn().await;
        assert!(first.is_some());
        let start = tokio::time::Instant::now();
        let (second, third) = tokio::join!(line.turn(), line.turn());
        assert!(second.is_none(), "nobody left in time");
        assert!(third.is_none());
        assert_eq!(start.elapsed(), WAIT_FOR_TURN, "only one waited");
        let leave = async { drop(first) };
        let (second, ()) = tokio::join!(line.turn(), leave);
        assert!(second.is_some(), "its turn came");
    }
}

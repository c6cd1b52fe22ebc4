//! Limit of the connections that a relay holds at once. When all are in use, further connections wait in the kernel's
//! queue, and a line in the log says why.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Between two lines in the log about one relay.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// See the module. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimit {
    /// Name of the relay, for people.
    what: Arc<str>,
    limit: usize,
    free: Arc<Semaphore>,
    said: Arc<Mutex<Option<Instant>>>,
}

impl ConnectionLimit {
    /// Creates room for `limit` connections of `what`.
    pub(crate) fn new(what: &str, limit: usize) -> Self {
        Self {
            what: what.into(),
            limit,
            free: Arc::new(Semaphore::new(limit)),
            said: Arc::default(),
        }
    }

    /// Returns the name of the relay, for people.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Waits for a free place, which is free again when it is dropped. Returns None when places are no longer given.
    pub(crate) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        if let Some(line) = self.full(Instant::now()) {
            tracing::error!("{line}");
        }
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    /// Returns the message that no place is free, unless it was given a moment ago.
    fn full(&self, now: Instant) -> Option<String> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_some_and(|then| now < then + SAID_EVERY) {
            return None;
        }
        *said = Some(now);
        Some(format!(
            "{}: the limit of {} open connections is reached (each takes two file descriptors of this process); new connections wait until one closes",
            self.what, self.limit
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_place_gets_the_next_and_it_is_said_once_in_a_while() {
        let room = ConnectionLimit::new("127.0.0.1:80", 2);
        let said = || *room.said.lock().expect("not poisoned");
        let first = room.place().await.expect("a place");
        let _second = room.place().await.expect("a place");
        assert_eq!(said(), None, "there was room");
        let ends = tokio::spawn(async move {
            tokio::task::yield_now().await;
            drop(first);
        });
        let _third = room.place().await.expect("the first one's place");
        ends.await.expect("it ended");
        let said = said().expect("it was said");
        assert_eq!(room.full(said), None);
        let line = room.full(said + SAID_EVERY).expect("after a while");
        assert!(
            line.starts_with("127.0.0.1:80: the limit of 2 open connections"),
            "{line}"
        );
    }
}

//! Ways to end a connection: lingering, so that a refused client reads its answer instead of a reset, and resetting,
//! so that a cut stream is never mistaken for a finished one.
//!
//! A lingering connection has sent everything and drops data that its client still sends (RFC 9112 section 9.6). It
//! ends with the client's end, after [`LINGER_BYTES`], after [`LINGER_TIMEOUT`], or when the process has more than
//! [`MAX_LINGERING`] of them and it is the oldest.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::limits::{LINGER_BYTES, LINGER_QUIET, LINGER_TIMEOUT, MAX_LINGERING};
use crate::stream::TransportStream;

/// The lingering connections of this process, the oldest first.
static LINGERING: Mutex<Registry> = Mutex::new(Registry {
    next: 0,
    wakers: BTreeMap::new(),
});

struct Registry {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

fn registry() -> MutexGuard<'static, Registry> {
    // Every change is one call, so that a panic leaves nothing half done.
    LINGERING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bounds of one lingering connection. Dropping it makes room for another.
#[derive(Debug)]
pub struct LingeringConnection {
    number: u64,
    began: Instant,
    last: Instant,
    dropped: usize,
    quiet: Duration,
}

impl LingeringConnection {
    /// Begins to linger until nothing comes for `quiet`; ends the oldest lingering connection where there are too many.
    #[must_use]
    pub fn begin(now: Instant, quiet: Duration) -> Self {
        let mut registry = registry();
        let number = registry.next;
        registry.next += 1;
        registry.wakers.insert(number, Waker::noop().clone());
        let displaced = match registry.wakers.len() > MAX_LINGERING {
            true => registry.wakers.pop_first(),
            false => None,
        };
        drop(registry);
        if let Some((_, waker)) = displaced {
            waker.wake();
        }
        Self {
            number,
            began: now,
            last: now,
            dropped: 0,
            quiet,
        }
    }

    /// Lingering connections of this process at this moment.
    #[must_use]
    pub fn count() -> usize {
        registry().wakers.len()
    }

    /// Notes that so many bytes were dropped. True if that is enough.
    pub fn dropped(&mut self, bytes: usize, now: Instant) -> bool {
        self.last = now;
        self.dropped = self.dropped.saturating_add(bytes);
        self.dropped >= LINGER_BYTES || now >= self.began + LINGER_TIMEOUT
    }

    /// When it ends if nothing comes before.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        (self.last + self.quiet).min(self.began + LINGER_TIMEOUT)
    }

    /// Returns true if newer connections took its room; otherwise they wake the task when they do.
    #[must_use]
    pub fn is_displaced(&self, cx: &Context<'_>) -> bool {
        match registry().wakers.get_mut(&self.number) {
            Some(waker) => {
                waker.clone_from(cx.waker());
                false
            }
            None => true,
        }
    }
}

impl Drop for LingeringConnection {
    fn drop(&mut self) {
        registry().wakers.remove(&self.number);
    }
}

/// Ends this side, then reads and drops the client's data, until the client closes or a limit passes. Closing with
/// unread bytes would make the kernel send a reset, and the reset would overtake the answer.
pub async fn linger(mut stream: TransportStream) {
    let mut lingering = LingeringConnection::begin(Instant::now(), LINGER_QUIET);
    let shut = tokio::time::timeout(LINGER_QUIET, stream.shutdown()).await;
    if !matches!(shut, Ok(Ok(()))) {
        return;
    }
    let mut scratch = [0u8; 2048];
    loop {
        let displaced = std::future::poll_fn(|cx| match lingering.is_displaced(cx) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        });
        let read = tokio::select! {
            read = stream.read(&mut scratch) => read,
            () = displaced => return,
            () = tokio::time::sleep_until(lingering.deadline().into()) => return,
        };
        match read {
            Ok(count @ 1..) if !lingering.dropped(count, Instant::now()) => {}
            _ => return,
        }
    }
}

/// Makes closing this socket send a reset, which tells the peer that the stream was cut, not finished.
pub fn reset(tcp: &TcpStream) {
    // Failing means that the socket is already gone.
    let _ = socket2::SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lingering_connection_has_bounds_of_bytes_of_time_and_of_number() {
        let began = Instant::now();
        let mut first = LingeringConnection::begin(began, LINGER_QUIET);
        assert_eq!(first.deadline(), began + LINGER_QUIET);
        // A byte now and then prolongs it, though not for ever.
        let mut now = began;
        while now < began + LINGER_TIMEOUT - LINGER_QUIET {
            now += LINGER_QUIET / 2;
            assert!(!first.dropped(1, now));
        }
        assert_eq!(first.deadline(), began + LINGER_TIMEOUT);
        assert!(first.dropped(1, began + LINGER_TIMEOUT));
        let mut second = LingeringConnection::begin(began, LINGER_QUIET);
        assert!(!second.dropped(LINGER_BYTES - 1, began + Duration::from_millis(1)));
        assert!(second.dropped(1, began + Duration::from_millis(1)));
        // Others linger in this process at the same time.
        let cx = Context::from_waker(Waker::noop());
        let many: Vec<_> = (0..MAX_LINGERING)
            .map(|_| LingeringConnection::begin(began, LINGER_QUIET))
            .collect();
        assert!(first.is_displaced(&cx) && second.is_displaced(&cx));
        assert!(many.last().is_some_and(|last| !last.is_displaced(&cx)));
        assert!(LingeringConnection::count() <= MAX_LINGERING);
    }
}

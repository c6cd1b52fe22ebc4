//! The end of a process in good order: the signals that ask for it, and the time that work in flight gets.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Interval in which a draining process checks if its work has ended.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on the signals end the process no more.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

/// Waits until `is_over` holds.
pub async fn until_over(is_over: impl Fn() -> bool) {
    while !is_over() {
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

/// Waits until all work is `over`, the limit has passed, or there is `haste`. `connections` counts those that are open.
pub async fn drain(
    limit: Duration,
    connections: impl Fn() -> usize,
    over: impl Future<Output = ()>,
    haste: impl Future<Output = ()>,
) {
    tracing::info!(connections = connections(), ?limit, "draining");
    tokio::select! {
        done = tokio::time::timeout(limit, over) => if done.is_err() {
            tracing::warn!(connections = connections(), "drain timeout: closing the remaining connections");
        },
        () = haste => {
            tracing::warn!(connections = connections(), "second signal: shutting down at once");
        }
    }
}

//! Queue of records from workers to a writer or sender: bounded in number and bytes, never waiting. A record without
//! room is dropped and counted. A reader is woken once and then gathers for a while, so that a busy worker pays no
//! wake-up per record, and an idle proxy has no timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use tokio::sync::Notify;

/// Records that may wait: a second of 8,000 requests.
pub const MAX_QUEUED_RECORDS: usize = 8192;

/// Bytes of records that may wait: a reader that stands still must not cost the proxy its memory ceiling.
pub const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, Default)]
struct OutboxState {
    bytes: AtomicUsize,
    dropped: AtomicU64,
    delivered: AtomicU64,
    /// The reader was woken and has not looked yet.
    armed: AtomicBool,
    wake: Notify,
    /// No sender is left.
    closed: Notify,
}

#[derive(Debug)]
struct OutboxSender<T> {
    /// None only while it is dropped.
    records: Option<SyncSender<(T, usize)>>,
    shared: Arc<OutboxState>,
}

impl<T> Drop for OutboxSender<T> {
    fn drop(&mut self) {
        // First closed, then said.
        self.records = None;
        self.shared.closed.notify_one();
        self.shared.wake.notify_one();
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Outbox<T>(Arc<OutboxSender<T>>);

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Inbox<T> {
    records: Receiver<(T, usize)>,
    shared: Arc<OutboxState>,
}

/// Both ends.
#[must_use]
pub fn outbox<T>() -> (Outbox<T>, Inbox<T>) {
    let (sender, records) = sync_channel(MAX_QUEUED_RECORDS);
    let shared = Arc::new(OutboxState::default());
    let sending = OutboxSender {
        records: Some(sender),
        shared: Arc::clone(&shared),
    };
    (Outbox(Arc::new(sending)), Inbox { records, shared })
}

impl<T> Outbox<T> {
    /// Hands over a record of so many bytes, or drops it.
    pub fn send(&self, record: T, bytes: usize) {
        let shared = &self.0.shared;
        let queued = shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        let room = queued.saturating_add(bytes) <= MAX_QUEUED_BYTES;
        let sent = |sender: &SyncSender<(T, usize)>| sender.try_send((record, bytes)).is_ok();
        if !(room && self.0.records.as_ref().is_some_and(sent)) {
            shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
            shared.dropped.fetch_add(1, Ordering::Relaxed);
        } else if !shared.armed.swap(true, Ordering::AcqRel) {
            shared.wake.notify_one();
        }
    }

    /// Records dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.shared.dropped.load(Ordering::Relaxed)
    }

    /// Records that reached the collector, as far as it confirms.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.0.shared.delivered.load(Ordering::Relaxed)
    }
}

impl<T> Inbox<T> {
    /// Returns the queued records, `most` at most. Waits for a first record, and then for `gather` so that more may
    /// come. Returns `None` when no sender is left and everything was read.
    pub async fn batch(&mut self, gather: Duration, most: usize) -> Option<Vec<T>> {
        let mut batch = Vec::new();
        while batch.is_empty() {
            // From here on, a sender wakes the reader again.
            self.shared.armed.store(false, Ordering::Release);
            if !self.take(&mut batch, 1) {
                return None;
            }
            if batch.is_empty() {
                self.shared.wake.notified().await;
            }
        }
        // From here on, senders no longer wake the reader.
        self.shared.armed.store(true, Ordering::Release);
        // Ended early by the end of all writers; the next call sees that.
        let _ = tokio::time::timeout(gather, self.shared.closed.notified()).await;
        self.take(&mut batch, most);
        Some(batch)
    }

    /// Blocks for a record; for threads of their own.
    ///
    /// # Errors
    /// When no sender is left and everything was read.
    pub fn wait(&mut self) -> Result<T, RecvError> {
        let (record, bytes) = self.records.recv()?;
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(record)
    }

    /// Takes the queued records. False when no sender is left.
    pub fn take(&mut self, batch: &mut Vec<T>, most: usize) -> bool {
        while batch.len() < most {
            match self.records.try_recv() {
                Ok((record, bytes)) => {
                    self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
                    batch.push(record);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Counts records that were taken and could not be delivered.
    pub fn lost(&self, records: u64) {
        self.shared.dropped.fetch_add(records, Ordering::Relaxed);
    }

    /// Counts records that were taken and delivered.
    pub fn delivered(&self, records: u64) {
        self.shared.delivered.fetch_add(records, Ordering::Relaxed);
    }
}

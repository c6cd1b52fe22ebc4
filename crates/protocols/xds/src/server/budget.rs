//! Budget of one identity: the memory and work that it may cause over all its streams. A proven caller is not trusted beyond its
//! identity: its names, versions, bytes, streams and lookups are counted. An identity's budget grows with the mesh's declarations
//! (its workloads, and the number of resources), never with a caller's claims.
//!
//! ```text
//! stream ─ held bytes ─▶ Share ─▶ Account of the identity ─ beyond its Allowance ─▶ RESOURCE_EXHAUSTED, and the stream ends
//! ```
//! No clock: time is an argument.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stream::{MAX_RESPONSE_BYTES, MAX_TYPES};
use crate::server::end_reason::StreamEndReason;

/// Largest message that is taken of anybody, in bytes: ten thousand names of some hundred bytes and as many versions.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a message for each resource in the mesh, where that is more: a proxy that comes back names all it holds, with versions.
pub(super) const MESSAGE_BYTES_PER_RESOURCE: usize = 256;
/// Largest message in any mesh, in bytes.
pub const MAX_MESSAGE_BYTES_EVER: usize = 32 * 1024 * 1024;

/// Memory that a name costs a stream that asks for it, besides its own bytes: its entries in six sets and tables. An estimate.
pub(super) const NAME_BYTES: usize = 384;
/// Memory of a sent resource, in bytes: two shared pointers in a table.
pub(super) const SENT_BYTES: usize = 64;
/// Memory of an open stream that asks for nothing, in bytes, its connection included.
const STREAM_BYTES: usize = 32 * 1024;

/// Memory allowed to one stream, in bytes: some ten thousand names that do not exist.
pub const HELD_PER_STREAM: usize = 4 * 1024 * 1024;
/// And for each resource in the mesh: its name asked for under two types, and told.
pub const HELD_PER_RESOURCE: usize = 1024;
/// Streams' shares that an identity has whatever its workloads: an old stream and its successor.
const WHOLE_STREAMS: usize = 2;
/// Memory that each workload of an identity adds, in bytes: three times the memory of a sidecar with three hundred names.
pub const HELD_PER_WORKLOAD: usize = 256 * 1024;
/// The product: what one identity may have kept in all, in bytes, however many workloads it has. Node proxies, which the operator names,
/// are told of the whole mesh each, and have what that takes.
pub const MAX_HELD_PER_IDENTITY: usize = 512 * 1024 * 1024;

/// Unread responses of one stream, in bytes: one of each type, of the largest size.
pub(super) const UNREAD_PER_STREAM: usize = MAX_TYPES * MAX_RESPONSE_BYTES;
/// The product: unread responses of one identity in all, in bytes, however many workloads it has. For node proxies it grows with
/// their number.
pub const MAX_UNREAD_PER_IDENTITY: usize = 256 * 1024 * 1024;

/// Streams of an identity that no declared workload has.
pub const STREAMS_PER_IDENTITY: usize = 64;
/// And for each of its workloads: one for each control plane, and those of a successor.
pub const STREAMS_PER_WORKLOAD: usize = 4;

/// Names looked at for an identity's own requests in a burst: a second of a core at most. Pushes are not counted.
pub(super) const WORK_BURST: usize = 2_000_000;
/// And for each resource in the mesh: a proxy that asks for one after the other has all it knows looked at each time.
const WORK_PER_RESOURCE: usize = 200;
/// And for each of its workloads: a restart of all.
const WORK_PER_WORKLOAD: usize = 20_000;
/// In so much time a burst is earned again: a tenth of a core.
const WORK_REFILL: Duration = Duration::from_secs(10);
/// Work of opening a stream.
const OPEN_WORK: usize = 1_000;
/// Work of a message, whatever it contains.
pub(super) const MESSAGE_WORK: usize = 16;
/// Work of a certificate: its request is verified, and it is signed. An identity gets 5,000 in a burst and 500 a second after it.
pub const CERTIFICATE_WORK: usize = 400;
/// Bytes of a message that count as one name looked at.
pub(super) const BYTES_OF_WORK: usize = 64;
/// Work of one refusal of ours: it is a line in the log and an event.
pub(super) const REFUSAL_WORK: usize = 2_000;

/// Between two lines about names that an identity may not have.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// Identities remembered before those without streams are forgotten that have earned their burst again.
const FEW: usize = 1024;

/// Allowance of an identity, by the mesh's declarations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Workloads that have the identity.
    pub workloads: usize,
    /// Resources in the mesh.
    pub resources: usize,
    /// Its workloads are node proxies, each of which is told of the whole mesh.
    pub serves_nodes: bool,
}

impl Allowance {
    /// Largest message, in bytes.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        let larger = self.resources.saturating_mul(MESSAGE_BYTES_PER_RESOURCE);
        larger.clamp(MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES_EVER)
    }

    /// Names in one message.
    pub(super) fn fields(&self) -> usize {
        self.stream_bytes() / SENT_BYTES
    }

    /// Memory allowed to one stream, in bytes.
    #[must_use]
    pub fn stream_bytes(&self) -> usize {
        HELD_PER_STREAM + self.resources.saturating_mul(HELD_PER_RESOURCE)
    }

    /// Memory allowed to all streams of the identity together, in bytes.
    #[must_use]
    pub fn identity_bytes(&self) -> usize {
        let own = self.stream_bytes().saturating_mul(WHOLE_STREAMS);
        if self.serves_nodes {
            let nodes = self.workloads.saturating_mul(self.stream_bytes());
            return own.saturating_add(nodes);
        }
        let workloads = self.workloads.saturating_mul(HELD_PER_WORKLOAD);
        let all = own.saturating_add(workloads);
        all.min(MAX_HELD_PER_IDENTITY.max(own))
    }

    /// Unread responses allowed to one stream, in bytes: the answer to a node proxy's wildcard is not divided.
    fn stream_unread(&self) -> usize {
        UNREAD_PER_STREAM + self.resources.saturating_mul(HELD_PER_RESOURCE)
    }

    /// Unread responses allowed to all streams of the identity together, in bytes.
    #[must_use]
    pub fn unread_bytes(&self) -> usize {
        let own = self.stream_unread().saturating_mul(WHOLE_STREAMS);
        let workloads = self.workloads.saturating_mul(self.stream_unread());
        let all = own.saturating_add(workloads);
        if self.serves_nodes {
            return all;
        }
        all.min(MAX_UNREAD_PER_IDENTITY.max(own))
    }

    /// Streams at once.
    #[must_use]
    pub fn streams(&self) -> usize {
        STREAMS_PER_IDENTITY.saturating_add(self.workloads.saturating_mul(STREAMS_PER_WORKLOAD))
    }

    /// Names looked at in a burst.
    fn burst(&self) -> f64 {
        let mesh = if self.serves_nodes { self.resources } else { 0 };
        let each = WORK_PER_WORKLOAD.saturating_add(mesh.saturating_mul(4));
        let all = self.workloads.saturating_mul(each);
        let mesh = self.resources.saturating_mul(WORK_PER_RESOURCE);
        let own = WORK_BURST.saturating_add(mesh);
        own.saturating_add(all) as f64
    }
}

#[derive(Debug)]
struct Balance {
    streams: usize,
    held: usize,
    /// Bytes of responses that its streams have not read.
    unread: usize,
    /// Work done that is not earned again.
    work: f64,
    at: Instant,
    /// When a line about refused names is written next, and how many names had none.
    log_at: Option<Instant>,
    unlogged: usize,
}

impl Balance {
    fn earn(&mut self, allowance: &Allowance, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        let earned = allowance.burst() * elapsed / WORK_REFILL.as_secs_f64();
        self.work = (self.work - earned).max(0.0);
        self.at = now;
    }
}

/// One identity's.
#[derive(Debug)]
struct Account(Mutex<Balance>);

impl Account {
    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(
        &self,
        work: usize,
        allowance: &Allowance,
        now: Instant,
    ) -> Result<(), StreamEndReason> {
        let mut balance = self.balance();
        balance.earn(allowance, now);
        if balance.work > allowance.burst() {
            return Err(StreamEndReason::TooMuch(
                "this identity exceeds the request rate limit: try again later".to_owned(),
            ));
        }
        balance.work += work as f64;
        Ok(())
    }
}

/// Accounts by identity.
#[derive(Debug, Clone, Default)]
pub(super) struct Accounts(Arc<Mutex<HashMap<Arc<str>, Arc<Account>>>>);

impl Accounts {
    /// A stream begins.
    pub(super) fn open(
        &self,
        identity: &Arc<str>,
        allowance: &Allowance,
        now: Instant,
    ) -> Result<StreamBudget, StreamEndReason> {
        let account = self.account(identity, now);
        let mut balance = account.balance();
        if balance.streams >= allowance.streams() {
            return Err(StreamEndReason::TooMuch(format!(
                "more than {} streams with the same identity",
                allowance.streams()
            )));
        }
        balance.streams += 1;
        drop(balance);
        let mut share = StreamBudget {
            account,
            held: 0,
            unread: 0,
        };
        share.hold(0, 0, allowance)?;
        share.work(OPEN_WORK, allowance, now)?;
        Ok(share)
    }

    /// Counts work for an identity outside its streams.
    pub(super) fn work(
        &self,
        identity: &Arc<str>,
        (work, allowance): (usize, &Allowance),
        now: Instant,
    ) -> Result<(), StreamEndReason> {
        self.account(identity, now).work(work, allowance, now)
    }

    fn account(&self, identity: &Arc<str>, now: Instant) -> Arc<Account> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > FEW && !all.contains_key(identity) {
            let least = Allowance::default();
            all.retain(|_, account| {
                let mut balance = account.balance();
                balance.earn(&least, now);
                balance.streams > 0 || balance.work > 0.0
            });
        }
        let account = all.entry(identity.clone()).or_insert_with(|| {
            Arc::new(Account(Mutex::new(Balance {
                streams: 0,
                held: 0,
                unread: 0,
                work: 0.0,
                at: now,
                log_at: None,
                unlogged: 0,
            })))
        });
        account.clone()
    }
}

/// One stream's share of its identity's account. Dropping it gives back what it holds.
#[derive(Debug)]
pub(super) struct StreamBudget {
    account: Arc<Account>,
    held: usize,
    unread: usize,
}

impl StreamBudget {
    /// The stream has so many bytes kept for its caller, and so many of a message that is not whole.
    pub(super) fn hold(
        &mut self,
        kept: usize,
        unfinished: usize,
        allowance: &Allowance,
    ) -> Result<(), StreamEndReason> {
        let most = allowance.stream_bytes();
        if kept > most {
            return Err(StreamEndReason::TooMuch(format!(
                "the subscriptions of this stream exceed the limit: {kept} of {most} bytes"
            )));
        }
        let bytes = kept + unfinished + STREAM_BYTES;
        let mut balance = self.account.balance();
        let all = balance.held - self.held + bytes;
        let most = allowance.identity_bytes();
        if all > most && bytes > self.held {
            return Err(StreamEndReason::TooMuch(format!(
                "the subscriptions of all streams with this identity exceed the limit: {all} of {most} bytes"
            )));
        }
        balance.held = all;
        self.held = bytes;
        Ok(())
    }

    /// So many bytes of responses wait because the caller does not read.
    pub(super) fn leave_unread(
        &mut self,
        bytes: usize,
        allowance: &Allowance,
    ) -> Result<(), StreamEndReason> {
        let mut balance = self.account.balance();
        let all = balance.unread - self.unread + bytes;
        let most = allowance.unread_bytes();
        if all > most && bytes > self.unread {
            return Err(StreamEndReason::TooMuch(format!(
                "the unread responses of all streams with this identity exceed the limit: {all} of {most} bytes"
            )));
        }
        balance.unread = all;
        self.unread = bytes;
        Ok(())
    }

    /// So many names were looked at for what the caller said.
    pub(super) fn work(
        &self,
        names: usize,
        allowance: &Allowance,
        now: Instant,
    ) -> Result<(), StreamEndReason> {
        self.account.work(names, allowance, now)
    }

    /// So many more names are refused: of how many a line is to be written now, if one is.
    pub(super) fn log_refused(&self, names: usize, now: Instant) -> Option<usize> {
        let mut balance = self.account.balance();
        balance.unlogged += names;
        if balance.log_at.is_some_and(|at| now < at) {
            return None;
        }
        balance.log_at = Some(now + LOG_EVERY);
        Some(std::mem::take(&mut balance.unlogged))
    }
}

impl Drop for StreamBudget {
    fn drop(&mut self) {
        let mut balance = self.account.balance();
        balance.streams -= 1;
        balance.held -= self.held;
        balance.unread -= self.unread;
    }
}

#[cfg(test)]
mod tests;

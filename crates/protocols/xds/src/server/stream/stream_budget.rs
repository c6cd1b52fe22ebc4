//! Memory and work that a stream causes, as its identity's budget counts them.

use super::{DiscoveryStream, StreamType};
use crate::server::budget::{NAME_BYTES, SENT_BYTES};
use crate::server::denied_names::RefusedNames;

impl<C: 'static> DiscoveryStream<C> {
    /// See `Conversation`.
    pub(in super::super) fn kept_bytes(&self) -> usize {
        self.kinds.values().map(StreamType::kept_bytes).sum()
    }

    /// Returns true if something must be looked at.
    pub(in super::super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(in super::super) fn asks(&self) -> bool {
        self.asks
    }

    pub(in super::super) fn take_looked(&mut self) -> usize {
        let kinds = self.kinds.values_mut();
        kinds.map(|kind| std::mem::take(&mut kind.looked)).sum()
    }

    pub(in super::super) fn take_refused(&mut self) -> Option<RefusedNames> {
        let refused = self.kinds.values_mut().map(|kind| kind.refused.take());
        refused.reduce(RefusedNames::join).flatten()
    }
}

impl StreamType {
    /// Memory that the type keeps, in bytes.
    fn kept_bytes(&self) -> usize {
        let asked = self.name_bytes + self.names.len() * NAME_BYTES;
        asked + self.claimed_bytes + self.sent.len() * SENT_BYTES + self.rejected.bytes()
    }
}

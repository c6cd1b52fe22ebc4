//! Callers without a verified certificate, by address. The control thread asks the control plane about each, for labels only.
//! It follows a caller while the caller is active, and lets it go after a while.

mod answers;

use std::collections::BTreeMap;
use std::net::IpAddr;

use voile_telemetry::PeerLabels;

use crate::control::discovery::followed_subscriptions::FollowedSubscriptions;

/// Addresses asked for at once; those that have not called for longest make room.
const MAX_STRANGERS: usize = 4096;

/// Let go at once when there is no room.
const MADE_ROOM: usize = MAX_STRANGERS / 16;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::control) struct UnknownCallers {
    /// Answers, by address.
    told: BTreeMap<IpAddr, Option<Option<PeerLabels>>>,
    pub(in crate::control) followed: FollowedSubscriptions<IpAddr>,
    /// Let go so far.
    let_go: u64,
}

impl UnknownCallers {
    /// Returns true if labels are asked for by this address.
    pub(in crate::control) fn has(&self, address: IpAddr) -> bool {
        self.told.contains_key(&address)
    }

    pub(in crate::control) fn len(&self) -> usize {
        self.told.len()
    }

    /// Number of addresses let go so far.
    pub(in crate::control) fn let_go(&self) -> u64 {
        self.let_go
    }
}

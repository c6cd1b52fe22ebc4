//! Subscription changes since the driver last looked. Changes of one name are merged, and the last one counts. An
//! unsubscribe followed by a subscribe is kept as both: the caller has forgotten the resource that it held.

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_proto::discovery::DeltaDiscoveryRequest;

use super::subscriptions::Subscriptions;

/// Wish for one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WantedChange {
    Wanted,
    Unwanted,
    /// Let go, and then asked for: it must be answered anew.
    WantedAgain,
}

/// Changes that nobody has sent yet, by type and name.
#[derive(Debug, Default)]
pub struct PendingChanges(BTreeMap<(Arc<str>, Arc<str>), WantedChange>);

impl PendingChanges {
    /// Number of names with a change.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no change.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wants a name.
    pub fn want(&mut self, type_url: &Arc<str>, name: Arc<str>) {
        self.0
            .entry((type_url.clone(), name))
            .and_modify(|wish| {
                if *wish == WantedChange::Unwanted {
                    *wish = WantedChange::WantedAgain;
                }
            })
            .or_insert(WantedChange::Wanted);
    }

    /// Wants it no more, and has forgotten what it held of it.
    pub fn let_go(&mut self, type_url: &Arc<str>, name: Arc<str>) {
        self.0
            .insert((type_url.clone(), name), WantedChange::Unwanted);
    }

    /// Makes them so; the requests to send, if there is a stream.
    pub fn apply(self, subscriptions: &mut Subscriptions) -> Vec<DeltaDiscoveryRequest> {
        type Names = (Vec<Arc<str>>, Vec<Arc<str>>);
        let mut by_type: BTreeMap<Arc<str>, Names> = BTreeMap::new();
        for ((type_url, name), wish) in self.0 {
            let (subscribe, unsubscribe) = by_type.entry(type_url).or_default();
            match wish {
                WantedChange::Wanted => subscribe.push(name),
                WantedChange::Unwanted => unsubscribe.push(name),
                WantedChange::WantedAgain => {
                    unsubscribe.push(name.clone());
                    subscribe.push(name);
                }
            }
        }
        by_type
            .into_iter()
            .filter_map(|(type_url, (subscribe, unsubscribe))| {
                subscriptions.change(&type_url, subscribe, unsubscribe)
            })
            .collect()
    }
}

//! Limits of the translation for stock gRPCs, by subject. A new translation of a subject replaces its limits. Subjects that are
//! gone from the mesh are forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use voile_envoy::Limit;

/// Parts kept of one service: its ports and subsets, which callers name.
const MAX_PARTS: usize = 256;

/// By service or workload, then by what of it.
type Met = BTreeMap<Arc<str>, BTreeMap<String, BTreeSet<Limit>>>;

/// See the module. All snapshots of a control plane have the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct EnvoyLimits(Arc<Mutex<Met>>);

impl EnvoyLimits {
    fn locked(&self) -> MutexGuard<'_, Met> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the limits of this part of it now. The log has each once, for as long as it holds.
    pub(crate) fn met(&self, about: &Arc<str>, part: String, limits: BTreeSet<Limit>) {
        let mut met = self.locked();
        let parts = met.get(about);
        if parts.is_some_and(|parts| parts.len() >= MAX_PARTS && !parts.contains_key(&part)) {
            return;
        }
        let before = match met.get_mut(about) {
            Some(parts) if limits.is_empty() => {
                let before = parts.remove(&part);
                if parts.is_empty() {
                    met.remove(about);
                }
                before
            }
            None if limits.is_empty() => None,
            _ => met
                .entry(about.clone())
                .or_default()
                .insert(part, limits.clone()),
        };
        drop(met);
        let known = |limit: &&Limit| before.as_ref().is_some_and(|all| all.contains(*limit));
        for limit in limits.iter().filter(|limit| !known(limit)) {
            tracing::error!(about = &**about, "not supported by stock gRPC: {limit}");
        }
    }

    /// Forgets what is about something that is not there.
    pub(crate) fn keep(&self, is_there: impl Fn(&Arc<str>) -> bool) {
        self.locked().retain(|about, _| is_there(about));
    }

    /// All of them, as a page shows them.
    pub(crate) fn all(&self) -> BTreeMap<String, Vec<String>> {
        let met = self.locked();
        let lines = |parts: &BTreeMap<String, BTreeSet<Limit>>| {
            let each = parts.values().flatten();
            each.map(ToString::to_string).collect()
        };
        met.iter()
            .map(|(about, parts)| (about.to_string(), lines(parts)))
            .collect()
    }
}

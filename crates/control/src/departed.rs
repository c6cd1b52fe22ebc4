//! Workloads that left the mesh: their proxies get time to finish, then the mesh is none of their business, however long
//! their tokens and certificates are good for. Known to this process only; a token that nobody rewrites ends by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use voile_model::{Identity, Namespace};

use crate::snapshot::MeshSnapshot;

/// Most that are remembered of each kind; the first to leave is forgotten first.
const MAX_DEPARTED: usize = 10_000;

/// See the module. Each with the moment at which its streams end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Departed {
    pods: HashMap<(Namespace, Arc<str>), Instant>,
    /// Identities that no workload has any more.
    identities: HashMap<Identity, Instant>,
}

impl Departed {
    /// What is true after `after` took the place of `before`.
    pub(crate) fn follow(&self, before: &MeshSnapshot, after: &MeshSnapshot, end: Instant) -> Self {
        let pods = |of: &MeshSnapshot| -> Vec<(Namespace, Arc<str>)> {
            let all = of.configurations.values();
            all.map(|private| (private.owner.namespace.clone(), private.pod.clone()))
                .collect()
        };
        let identities = |of: &MeshSnapshot| -> Vec<Identity> {
            let all = of.configurations.values();
            all.map(|private| private.owner.clone()).collect()
        };
        Self {
            pods: gone(&self.pods, pods(before), &pods(after), end),
            identities: gone(
                &self.identities,
                identities(before),
                &identities(after),
                end,
            ),
        }
    }

    /// When this caller's streams end, if it left.
    pub(crate) fn farewell(&self, caller: &voile_identity::Caller) -> Option<Instant> {
        let end = match &caller.pod {
            Some(pod) => {
                let key = (caller.identity.namespace.clone(), pod.as_str().into());
                self.pods.get(&key)
            }
            None => self.identities.get(&caller.identity),
        };
        end.copied()
    }
}

fn gone<K: Clone + Eq + std::hash::Hash>(
    known: &HashMap<K, Instant>,
    before: Vec<K>,
    after: &[K],
    end: Instant,
) -> HashMap<K, Instant> {
    let there: std::collections::HashSet<&K> = after.iter().collect();
    let mut all = known.clone();
    for key in before {
        all.entry(key).or_insert(end);
    }
    all.retain(|key, _| !there.contains(key));
    if all.len() > MAX_DEPARTED {
        let mut ends: Vec<Instant> = all.values().copied().collect();
        ends.sort_unstable();
        let oldest = ends[all.len() - MAX_DEPARTED];
        all.retain(|_, end| *end >= oldest);
    }
    all
}

//! Which policies the workloads of each identity obey, and which keys they need for that: nobody is told of one that is not
//! for it. Workloads with the same policies, which most of a namespace are, share one set.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use voile_model::Identity;

/// The names of policies and key sets, by type.
pub(crate) type Names = BTreeMap<&'static str, BTreeSet<Arc<str>>>;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EffectivePolicies(HashMap<Identity, Arc<Names>>);

impl EffectivePolicies {
    /// Returns true if a workload of this identity obeys the policy.
    pub(crate) fn includes(&self, identity: &Identity, kind: &str, name: &str) -> bool {
        let names = self.0.get(identity).and_then(|names| names.get(kind));
        names.is_some_and(|names| names.contains(name))
    }

    /// Policies that somebody obeys in only one of the two.
    pub(crate) fn differences(&self, other: &Self) -> Names {
        let mut found = Names::new();
        let mut seen = HashSet::new();
        let identities = self.0.keys().chain(other.0.keys());
        for identity in identities {
            let (one, other) = (self.0.get(identity), other.0.get(identity));
            // Most of a namespace share one set before and one after.
            let pair = (one.map(Arc::as_ptr), other.map(Arc::as_ptr));
            if pair.0 == pair.1 || !seen.insert(pair) {
                continue;
            }
            for (these, those) in [(one, other), (other, one)] {
                for (kind, names) in these.into_iter().flat_map(|names| &**names) {
                    let those = those.and_then(|names| names.get(kind));
                    let is_new = |name: &&Arc<str>| !those.is_some_and(|all| all.contains(*name));
                    let new = names.iter().filter(is_new).cloned();
                    found.entry(kind).or_default().extend(new);
                }
            }
        }
        found
    }

    #[cfg(test)]
    pub(crate) fn retain(&mut self, keep: impl Fn(&Identity) -> bool) {
        self.0.retain(|identity, _| keep(identity));
    }

    /// A workload that left keeps the policies that it obeyed before.
    pub(crate) fn keep(&mut self, before: &Self, has_left: impl Fn(&Identity) -> bool) {
        let left = before.0.iter().filter(|(identity, _)| has_left(identity));
        let left = left.map(|(identity, names)| (identity.clone(), Arc::clone(names)));
        self.0.extend(left);
    }
}

/// Makes them.
#[derive(Default)]
pub(crate) struct EffectivePoliciesBuilder {
    by_identity: HashMap<Identity, Arc<Names>>,
    sets: HashSet<Arc<Names>>,
}

impl EffectivePoliciesBuilder {
    /// A workload of this identity obeys these.
    pub(crate) fn add(&mut self, identity: &Identity, names: &Arc<Names>) {
        let Some(before) = self.by_identity.get(identity) else {
            self.by_identity.insert(identity.clone(), Arc::clone(names));
            return;
        };
        if before == names {
            return;
        }
        let mut all = Names::clone(before);
        for (kind, names) in &**names {
            all.entry(kind).or_default().extend(names.iter().cloned());
        }
        let shared = match self.sets.get(&all) {
            Some(shared) => Arc::clone(shared),
            None => {
                let made = Arc::new(all);
                self.sets.insert(Arc::clone(&made));
                made
            }
        };
        self.by_identity.insert(identity.clone(), shared);
    }

    pub(crate) fn finish(self) -> EffectivePolicies {
        EffectivePolicies(self.by_identity)
    }
}

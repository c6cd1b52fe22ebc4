//! Which policies the workloads of each identity obey: nobody is told of a policy that is not for it. Workloads with the same
//! policies, which most of a namespace are, share one set.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use voile_model::Identity;

/// The names of policies, by type.
pub(crate) type Names = BTreeMap<&'static str, BTreeSet<Arc<str>>>;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Obeyed(HashMap<Identity, Arc<Names>>);

impl Obeyed {
    /// Whether a workload of this identity obeys it.
    pub(crate) fn includes(&self, identity: &Identity, kind: &str, name: &str) -> bool {
        let names = self.0.get(identity).and_then(|names| names.get(kind));
        names.is_some_and(|names| names.contains(name))
    }

    /// Whoever left finishes with what it obeyed before.
    pub(crate) fn keep(&mut self, before: &Self, has_left: impl Fn(&Identity) -> bool) {
        let left = before.0.iter().filter(|(identity, _)| has_left(identity));
        let left = left.map(|(identity, names)| (identity.clone(), Arc::clone(names)));
        self.0.extend(left);
    }
}

/// Makes them.
#[derive(Default)]
pub(crate) struct Gathering {
    by_identity: HashMap<Identity, Arc<Names>>,
    sets: HashSet<Arc<Names>>,
}

impl Gathering {
    /// A workload of this identity obeys these.
    pub(crate) fn add(&mut self, identity: &Identity, names: Names) {
        let before = self.by_identity.get(identity);
        let all = match before {
            Some(before) if **before == names => return,
            Some(before) => {
                let mut all = Names::clone(before);
                for (kind, names) in names {
                    all.entry(kind).or_default().extend(names);
                }
                all
            }
            None => names,
        };
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

    pub(crate) fn finish(self) -> Obeyed {
        Obeyed(self.by_identity)
    }
}

//! Labels and equality selectors over them, as Kubernetes and Istio use them.

use std::collections::BTreeMap;
use std::collections::btree_map::Iter;
use std::sync::Arc;

/// A set of labels, or of labels that must be there (a selector).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(BTreeMap<Arc<str>, Arc<str>>);

impl Labels {
    /// No labels.
    pub const NONE: Self = Self(BTreeMap::new());

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(AsRef::as_ref)
    }

    /// As a selector: every label of `self` is in `labels` with the same value. An empty selector selects everything.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.0
            .iter()
            .all(|(key, value)| labels.0.get(key) == Some(value))
    }

    /// Returns true if there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// In order of keys.
    pub fn iter(&self) -> Iter<'_, Arc<str>, Arc<str>> {
        self.0.iter()
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(k, v)| (k.into(), v.into()))
                .collect(),
        )
    }
}

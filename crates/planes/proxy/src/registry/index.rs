//! Names of resources by something they contain: several resources may contain the same, and one resource several.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Index<K>(HashMap<K, BTreeSet<Arc<str>>>);

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Index<K> {
    pub(super) fn insert(&mut self, key: K, name: &Arc<str>) {
        self.0.entry(key).or_default().insert(name.clone());
    }

    pub(super) fn remove(&mut self, key: &K, name: &Arc<str>) {
        if let Some(names) = self.0.get_mut(key) {
            names.remove(name);
            if names.is_empty() {
                self.0.remove(key);
                self.shrink();
            }
        }
    }

    /// A map that once was large gives its room back.
    fn shrink(&mut self) {
        const LEAST: usize = 64; // entries: less is not worth the copy
        if self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to((self.0.len() * 2).max(LEAST));
        }
    }

    /// In order of names, so that answers do not depend on the order in which resources came.
    pub(super) fn get<'a>(&'a self, key: &K) -> impl Iterator<Item = &'a Arc<str>> + use<'a, K> {
        self.0.get(key).into_iter().flatten()
    }
}

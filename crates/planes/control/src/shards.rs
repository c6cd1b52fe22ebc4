//! A map by name that snapshots share: it is cut into shards, and a snapshot that differs from the one before in a few names copies
//! only their shards. It knows the sum of what it holds, whatever the order in which it came to be.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// A shard of a mesh of 50,000 workloads holds about 200 names: copying it takes microseconds.
const SHARDS: usize = 256;

/// The part of a value that counts when two maps are compared by their sums.
pub(crate) trait ShardWeight {
    /// Hashes everything that distinguishes a value from others under its name. Hashes nothing if that follows from other maps.
    fn weigh(&self, hash: &mut Sha256) -> bool;
}

type Shard<V> = HashMap<Arc<str>, V>;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Shards<V> {
    shards: Vec<Arc<Shard<V>>>,
    len: usize,
    sum: u128,
}

impl<V> Default for Shards<V> {
    fn default() -> Self {
        let empty = Arc::new(HashMap::new());
        Self {
            shards: vec![empty; SHARDS],
            len: 0,
            sum: 0,
        }
    }
}

fn shard_of(name: &str) -> usize {
    // The same for every map and snapshot.
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish() as usize % SHARDS
}

fn weight<V: ShardWeight>(name: &str, value: &V) -> u128 {
    let mut hash = Sha256::new();
    hash.update(name);
    hash.update([0]);
    if !value.weigh(&mut hash) {
        return 0;
    }
    let digest = hash.finalize();
    digest
        .iter()
        .take(16)
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

impl<V: Clone + ShardWeight> Shards<V> {
    pub(crate) fn insert(&mut self, name: Arc<str>, value: V) -> Option<V> {
        self.sum = self.sum.wrapping_add(weight(&name, &value));
        let shard = Arc::make_mut(&mut self.shards[shard_of(&name)]);
        let old = shard.insert(name.clone(), value);
        match &old {
            Some(old) => self.sum = self.sum.wrapping_sub(weight(&name, old)),
            None => self.len += 1,
        }
        old
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<V> {
        self.get(name)?;
        let shard = Arc::make_mut(&mut self.shards[shard_of(name)]);
        let old = shard.remove(name)?;
        self.len -= 1;
        self.sum = self.sum.wrapping_sub(weight(name, &old));
        Some(old)
    }
}

impl<V> Shards<V> {
    pub(crate) fn get(&self, name: &str) -> Option<&V> {
        self.shards[shard_of(name)].get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The sum over all it holds: equal for equal maps.
    pub(crate) fn sum(&self) -> u128 {
        self.sum
    }

    /// Names under which the two hold something else, or only one holds something. Shards that both share are not looked at.
    pub(crate) fn differences(&self, other: &Self, same: impl Fn(&V, &V) -> bool) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        for (one, other) in self.shards.iter().zip(&other.shards) {
            if Arc::ptr_eq(one, other) {
                continue;
            }
            for (name, value) in one.iter() {
                if !other.get(name).is_some_and(|other| same(value, other)) {
                    found.push(name.clone());
                }
            }
            let gone = other.keys().filter(|name| !one.contains_key(*name));
            found.extend(gone.cloned());
        }
        found
    }
}

impl<V: PartialEq> PartialEq for Shards<V> {
    fn eq(&self, other: &Self) -> bool {
        let same = |(one, other): (&Arc<Shard<V>>, &Arc<Shard<V>>)| {
            Arc::ptr_eq(one, other) || one == other
        };
        self.len == other.len && self.shards.iter().zip(&other.shards).all(same)
    }
}

impl<V: Eq> Eq for Shards<V> {}

#[cfg(test)]
mod tests {
    use super::*;

    impl ShardWeight for u32 {
        fn weigh(&self, hash: &mut Sha256) -> bool {
            hash.update(self.to_be_bytes());
            true
        }
    }

    #[test]
    fn equal_content_has_equal_sums_whatever_came_before() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut map: Shards<u32> = Shards::default();
        let mut plain: HashMap<String, u32> = HashMap::new();
        for _ in 0..5000 {
            let name = format!("n{}", random.u32(..700));
            if random.bool() {
                let value = random.u32(..3);
                let copy = map.clone();
                assert_eq!(
                    map.insert(name.as_str().into(), value),
                    plain.insert(name, value)
                );
                assert!(copy.differences(&map, |a, b| a == b).len() <= 1);
            } else {
                assert_eq!(map.remove(&name), plain.remove(&name));
            }
        }
        let mut fresh = Shards::default();
        for (name, value) in &plain {
            fresh.insert(name.as_str().into(), *value);
        }
        assert_eq!((map.len(), map.sum()), (plain.len(), fresh.sum()));
        assert_eq!(map, fresh);
        assert!(map.differences(&fresh, |a, b| a == b).is_empty());
        fresh.insert("one more".into(), 1);
        assert_ne!(map, fresh);
        assert_ne!(map.sum(), fresh.sum());
        assert_eq!(map.differences(&fresh, |a, b| a == b), ["one more".into()]);
    }
}

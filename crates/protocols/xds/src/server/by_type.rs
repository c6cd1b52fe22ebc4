//! A sorted list of entries by type, for a stream's state: three or four entries, sixteen at most. A B-tree has room for eleven
//! in its first node, and thousands of streams would each keep that room; a sorted list keeps no spare room.

use std::sync::Arc;

use voile_proto::type_url;

/// Entries by type, in the order of the types' names.
#[derive(Debug, Clone)]
pub(super) struct ByType<V>(Vec<(Arc<str>, V)>);

impl<V> Default for ByType<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V> ByType<V> {
    /// Index of a type's entry, or of its place if it is missing.
    pub(super) fn place(&self, type_url: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(of, _)| (**of).cmp(type_url))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, type_url: &str) -> Option<&V> {
        let place = self.place(type_url).ok()?;
        Some(&self.0[place].1)
    }

    /// The entry of a type; a new one where there is none.
    pub(super) fn of(&mut self, type_url: &str) -> &mut V
    where
        V: Default,
    {
        let place = self.place(type_url).unwrap_or_else(|place| {
            // Types come one by one and hardly ever: no room is kept for more.
            self.0.reserve_exact(1);
            self.0
                .insert(place, (type_url::shared(type_url), V::default()));
            place
        });
        &mut self.0[place].1
    }

    /// The entry at an index.
    pub(super) fn at_mut(&mut self, place: usize) -> (&Arc<str>, &mut V) {
        let (of, value) = &mut self.0[place];
        (of, value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.0.iter().map(|(of, value)| (of, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut V)> {
        self.0.iter_mut().map(|(of, value)| (&*of, value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_the_order_of_their_names_and_none_is_there_twice() {
        let mut all: ByType<u32> = ByType::default();
        for name in ["c", "a", "d", "b", "a", "c"] {
            *all.of(name) += 1;
        }
        let shown: Vec<String> = all.iter().map(|(of, n)| format!("{of}{n}")).collect();
        assert_eq!(shown, ["a2", "b1", "c2", "d1"]);
        assert_eq!((all.get("b"), all.get("e"), all.len()), (Some(&1), None, 4));
        assert_eq!(all.0.capacity(), 4, "no room is kept for more");
        let place = all.place("b").expect("it is there");
        let (of, number) = all.at_mut(place);
        assert_eq!(&**of, "b");
        *number = 7;
        assert_eq!(all.values().sum::<u32>(), 12);
    }
}

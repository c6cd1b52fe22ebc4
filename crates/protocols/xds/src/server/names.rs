//! Names of a type that a stream must look at again. An endpoint changes, and thousands of streams are told one name each: a set has
//! room of its own, which is made, read and given back for each of them.

use std::collections::BTreeSet;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Names {
    /// No name.
    #[default]
    None,
    /// The usual case.
    One(Arc<str>),
    /// Several.
    Many(BTreeSet<Arc<str>>),
}

impl Names {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::One(one) => **one == *name,
            Self::Many(all) => all.contains(name),
        }
    }

    pub(super) fn insert(&mut self, name: Arc<str>) {
        match self {
            Self::None => *self = Self::One(name),
            Self::One(one) if *one == name => {}
            Self::One(one) => *self = Self::Many(BTreeSet::from([one.clone(), name])),
            Self::Many(all) => drop(all.insert(name)),
        }
    }

    /// In the order of names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(one) => (Some(one), None),
            Self::Many(all) => (None, Some(all)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl Extend<Arc<str>> for Names {
    fn extend<I: IntoIterator<Item = Arc<str>>>(&mut self, names: I) {
        names.into_iter().for_each(|name| self.insert(name));
    }
}

impl FromIterator<Arc<str>> for Names {
    fn from_iter<I: IntoIterator<Item = Arc<str>>>(names: I) -> Self {
        let mut all = Self::None;
        all.extend(names);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_set_whatever_their_number() {
        for all in ["", "a", "aa", "ba", "bab", "cabac"] {
            let names = || all.split("").filter(|name| !name.is_empty());
            let few: Names = names().map(Arc::from).collect();
            let set: BTreeSet<Arc<str>> = names().map(Arc::from).collect();
            assert!(few.iter().eq(&set), "{all}");
            assert_eq!(few.is_empty(), set.is_empty(), "{all}");
            for name in ["a", "b", "c"] {
                assert_eq!(few.contains(name), set.contains(name), "{name} of {all}");
            }
        }
    }
}

//! The claims that rules ask for, as a tree: a token is walked once, by its own names or by the policies', whichever are
//! fewer, so that neither a thousand claims in a token nor ten thousand in policies cost more than the other has.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use super::hash::TextHasher;
use crate::claims::{Claim, Object};

/// Paths of claims below one name.
#[derive(Debug, Default)]
pub(super) struct ClaimNames {
    number: Option<u16>,
    below: HashMap<Arc<str>, Self, BuildHasherDefault<TextHasher>>,
}

impl ClaimNames {
    /// Adds a path by its number.
    pub(super) fn add(&mut self, path: &[Arc<str>], number: u16) {
        match path.split_first() {
            None => self.number = Some(number),
            Some((name, rest)) => self
                .below
                .entry(name.clone())
                .or_default()
                .add(rest, number),
        }
    }

    /// The claims of a token that some rule asks for.
    pub(super) fn each<'a>(&self, claims: Object<'a>, found: &mut impl FnMut(u16, Claim<'a>)) {
        if self.below.len() <= claims.len() {
            for (name, names) in &self.below {
                if let Some(value) = claims.get(name) {
                    names.value(value, found);
                }
            }
        } else {
            for (name, value) in claims.iter() {
                if let Some(names) = self.below.get(name) {
                    names.value(value, found);
                }
            }
        }
    }

    fn value<'a>(&self, value: Claim<'a>, found: &mut impl FnMut(u16, Claim<'a>)) {
        if let Some(number) = self.number {
            found(number, value);
        }
        if let (false, Claim::Object(inner)) = (self.below.is_empty(), value) {
            self.each(inner, found);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.below.is_empty()
    }

    pub(super) fn memory(&self) -> usize {
        // An `Arc` keeps two counts before the text; a map, one byte for each place.
        let text = |name: &str| name.len() + 2 * size_of::<usize>();
        let below = self.below.iter();
        let below = below.map(|(name, names)| text(name) + names.memory());
        self.below.capacity() * (size_of::<(Arc<str>, Self)>() + 1) + below.sum::<usize>()
    }
}

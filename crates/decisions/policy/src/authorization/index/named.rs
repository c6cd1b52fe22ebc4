//! The tables of one node. Those of fixed attributes are tried one after another: there are a dozen at most. Headers and
//! claims may be asked for by ten thousand names, and a request has a handful of them: among many, those it has are found.

use super::prepared::Prepared;
use super::rules::{Dimension, Matcher};
use super::store::{Store, Table};

/// So many headers and claims are tried one after another.
const FEW_NAMES: usize = 4;
/// No entry.
const VACANT: u16 = u16::MAX;

/// Index from values to registered numbers, by attribute.
#[derive(Debug, Default)]
pub(super) struct Tables {
    fixed: Box<[(Dimension, Table)]>,
    /// Headers and claims, ascending.
    names: Box<[Dimension]>,
    named: Box<[NamedValueIndex]>,
    /// Index of each name in `names`, by a hash of its number; empty while there are few names.
    places: Box<[u16]>,
}

/// Values registered for one header or claim.
#[derive(Debug)]
pub(super) enum NamedValueIndex {
    /// One value, which is compared: most names are asked for with one.
    One(Matcher, u32),
    More(Box<Table>),
}

fn home(name: Dimension, mask: usize) -> usize {
    (u32::from(name.0).wrapping_mul(0x9e37_79b1) >> 16) as usize & mask
}

impl Tables {
    /// Tables of fixed attributes, and of headers and claims in ascending order.
    pub(super) fn new(
        fixed: Vec<(Dimension, Table)>,
        named: Vec<(Dimension, NamedValueIndex)>,
    ) -> Self {
        let (names, named): (Vec<Dimension>, Vec<NamedValueIndex>) = named.into_iter().unzip();
        let places = match names.len() > FEW_NAMES {
            true => places(&names),
            false => Box::default(),
        };
        Self {
            fixed: fixed.into(),
            names: names.into(),
            named: named.into(),
            places,
        }
    }

    /// Reports everything registered under the values of a request.
    pub(super) fn each(&self, store: &Store, facts: &Prepared<'_>, found: &mut impl FnMut(u32)) {
        for (dim, table) in &self.fixed {
            table.each(store, *dim, facts, found);
        }
        if self.places.is_empty() {
            for (dim, entry) in self.names.iter().zip(&self.named) {
                entry.each(store, *dim, facts, found);
            }
            return;
        }
        for dim in facts.named() {
            if let Some(place) = self.place(dim) {
                self.named[place].each(store, dim, facts, found);
            }
        }
    }

    fn place(&self, name: Dimension) -> Option<usize> {
        let mask = self.places.len() - 1;
        let mut at = home(name, mask);
        loop {
            let place = self.places[at];
            if place == VACANT {
                return None;
            }
            if self.names[usize::from(place)] == name {
                return Some(usize::from(place));
            }
            at = (at + 1) & mask;
        }
    }

    /// Bytes held on the heap.
    pub(super) fn memory(&self) -> usize {
        let fixed = self.fixed.iter().map(|(_, table)| table.memory());
        let named = self.named.iter().map(NamedValueIndex::memory);
        size_of_val(&*self.fixed)
            + size_of_val(&*self.names)
            + size_of_val(&*self.named)
            + size_of_val(&*self.places)
            + fixed.chain(named).sum::<usize>()
    }
}

/// At least twice as many places as names, so that the next vacant one is near.
fn places(names: &[Dimension]) -> Box<[u16]> {
    let size = (names.len() * 2).next_power_of_two();
    let mut places = vec![VACANT; size].into_boxed_slice();
    // Names have numbers of 15 bits, so that a place never looks vacant.
    for (name, place) in names.iter().zip(0u16..) {
        let mut at = home(*name, size - 1);
        while places[at] != VACANT {
            at = (at + 1) & (size - 1);
        }
        places[at] = place;
    }
    places
}

impl NamedValueIndex {
    fn each(
        &self,
        store: &Store,
        dim: Dimension,
        facts: &Prepared<'_>,
        found: &mut impl FnMut(u32),
    ) {
        match self {
            Self::More(table) => table.each(store, dim, facts, found),
            Self::One(matcher, registered) => facts.each_text(dim, &mut |text| {
                if store.text_matches(*matcher, text) {
                    found(*registered);
                }
            }),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::One(..) => 0,
            Self::More(table) => size_of::<Table>() + table.memory(),
        }
    }
}

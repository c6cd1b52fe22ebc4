//! Index from a value to the texts that match it. Whole texts are found by one hash. Prefixes and suffixes are found by
//! one hash for each length that occurs among them: never more than the value has bytes, usually a handful. This bound
//! is a trie's, with fewer steps, and does not depend on the number of texts.

use super::hash::{self, PrefixHash};
use super::texts::{TextId, Texts};

const SEED: u32 = 0;
/// No text.
const EMPTY: TextId = TextId::MAX;
/// Nothing is registered.
pub(super) const NOTHING: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct HashSlot {
    hash: u32,
    text: TextId,
    value: u32,
}

impl HashSlot {
    /// Distance of this slot from its home position.
    fn way(&self, at: usize, mask: usize) -> usize {
        at.wrapping_sub(self.hash as usize) & mask
    }
}

/// A hash table of texts that are kept elsewhere.
#[derive(Debug, Default)]
pub(super) struct HashSlots {
    /// A power of two of them, at most three quarters in use; or none.
    slots: Box<[HashSlot]>,
}

impl HashSlots {
    /// A table of texts (each once), given with their hashes.
    pub(super) fn new(entries: impl ExactSizeIterator<Item = (u32, TextId, u32)>) -> Self {
        if entries.len() == 0 {
            return Self::default();
        }
        let size = (entries.len() * 4 / 3 + 1).next_power_of_two();
        let mask = size - 1;
        let empty = HashSlot {
            hash: 0,
            text: EMPTY,
            value: NOTHING,
        };
        let mut slots = vec![empty; size].into_boxed_slice();
        for (hash, text, value) in entries {
            let mut carried = HashSlot { hash, text, value };
            let (mut at, mut way) = (hash as usize & mask, 0);
            // Robin Hood hashing: an entry close to its home position yields its slot to an entry farther from home.
            // All distances stay short, and a search for a missing text ends early.
            while slots[at].text != EMPTY {
                let theirs = slots[at].way(at, mask);
                if theirs < way {
                    std::mem::swap(&mut slots[at], &mut carried);
                    way = theirs;
                }
                (at, way) = ((at + 1) & mask, way + 1);
            }
            slots[at] = carried;
        }
        Self { slots }
    }

    /// The value registered under a text with this hash that `is` accepts.
    pub(super) fn find(&self, hash: u32, is: impl Fn(TextId, u32) -> bool) -> Option<u32> {
        let mask = self.slots.len().checked_sub(1)?;
        let (mut at, mut way) = (hash as usize & mask, 0);
        loop {
            let slot = self.slots[at];
            if slot.text == EMPTY {
                return None;
            }
            if slot.hash == hash {
                if is(slot.text, slot.value) {
                    return Some(slot.value);
                }
            } else if slot.way(at, mask) < way {
                return None;
            }
            (at, way) = ((at + 1) & mask, way + 1);
        }
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.slots)
    }
}

/// Texts of one kind of comparison and what is registered under each.
#[derive(Debug, Default)]
pub(super) struct TextTable {
    whole: HashSlots,
    beginnings: HashSlots,
    /// The lengths that occur, ascending.
    beginning_lengths: Box<[u32]>,
    ends: HashSlots,
    end_lengths: Box<[u32]>,
}

/// The way a registered text is compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TextMatch {
    Whole,
    Beginning,
    End,
}

fn lengths(texts: &Texts, entries: &[(TextId, u32)]) -> Box<[u32]> {
    let mut all: Vec<u32> = entries
        .iter()
        .map(|(text, _)| texts.get(*text).len() as u32)
        .collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

impl TextTable {
    /// A table of texts, each once for a comparison.
    pub(super) fn new(texts: &Texts, entries: &[(TextMatch, TextId, u32)]) -> Self {
        let of = |how| {
            let entries = entries.iter().filter(move |entry| entry.0 == how);
            entries
                .map(|(_, text, value)| (*text, *value))
                .collect::<Vec<_>>()
        };
        let by_beginning =
            |(text, value): &(TextId, u32)| (hash::whole(SEED, texts.get(*text)), *text, *value);
        let by_end = |(text, value): &(TextId, u32)| {
            let bytes = texts.get(*text);
            (PrefixHash::new(SEED).end(bytes, bytes.len()), *text, *value)
        };
        let (whole, beginnings, ends) = (
            of(TextMatch::Whole),
            of(TextMatch::Beginning),
            of(TextMatch::End),
        );
        Self {
            whole: HashSlots::new(whole.iter().map(by_beginning)),
            beginning_lengths: lengths(texts, &beginnings),
            beginnings: HashSlots::new(beginnings.iter().map(by_beginning)),
            end_lengths: lengths(texts, &ends),
            ends: HashSlots::new(ends.iter().map(by_end)),
        }
    }

    /// The number registered under the whole value.
    pub(super) fn whole(&self, texts: &Texts, value: &[u8]) -> Option<u32> {
        if self.whole.slots.is_empty() {
            return None;
        }
        self.whole
            .find(hash::whole(SEED, value), |text, _| texts.get(text) == value)
    }

    /// Reports everything registered under a prefix of the value, shortest first.
    pub(super) fn beginnings(&self, texts: &Texts, value: &[u8], found: &mut impl FnMut(u32)) {
        let mut state = PrefixHash::new(SEED);
        for length in &self.beginning_lengths {
            let Some(beginning) = value.get(..*length as usize) else {
                return;
            };
            let hash = state.beginning(value, beginning.len());
            let here = self
                .beginnings
                .find(hash, |text, _| texts.get(text) == beginning);
            if let Some(registered) = here {
                found(registered);
            }
        }
    }

    /// Reports everything registered under a suffix of the value, shortest first.
    pub(super) fn ends(&self, texts: &Texts, value: &[u8], found: &mut impl FnMut(u32)) {
        let mut state = PrefixHash::new(SEED);
        for length in &self.end_lengths {
            let Some(start) = value.len().checked_sub(*length as usize) else {
                return;
            };
            let end = &value[start..];
            let hash = state.end(value, end.len());
            if let Some(registered) = self.ends.find(hash, |text, _| texts.get(text) == end) {
                found(registered);
            }
        }
    }

    /// All three.
    pub(super) fn each(&self, texts: &Texts, value: &[u8], found: &mut impl FnMut(u32)) {
        if let Some(registered) = self.whole(texts, value) {
            found(registered);
        }
        self.beginnings(texts, value, found);
        self.ends(texts, value, found);
    }

    pub(super) fn memory(&self) -> usize {
        let lengths = self.beginning_lengths.len() + self.end_lengths.len();
        self.whole.memory()
            + self.beginnings.memory()
            + self.ends.memory()
            + lengths * size_of::<u32>()
    }
}

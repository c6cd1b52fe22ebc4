//! Path prefixes of routes: a trie that keeps only the nodes that matter, searched by binary search over their
//! lengths (after Waldvogel and others, "Scalable High Speed IP Routing Lookups", 1997).
//!
//! The search begins with the middle of the lengths that occur: one hash. If a prefix of that length is known, the
//! longest one is there or deeper; otherwise it is shorter. A marker leads the search to a longer key, and knows the
//! longest key that is its prefix. So the steps are the logarithm of the *lengths* that occur, not of the keys: one,
//! if all keys are of one length. Each key leads to the next shorter key that is its prefix.

use std::collections::{BTreeMap, BTreeSet};

use super::candidates::{Candidates, RouteCandidate};
use super::matching::{RouteInput, ends_segment};
use super::texts::{RunningHash, Texts};

/// Entries under a key: entries that match wherever the key ends, and entries that want a segment to end there.
#[derive(Debug, Clone, Default)]
pub(super) struct PrefixEntries<T> {
    pub(super) anywhere: T,
    pub(super) segment: T,
}

/// Node of a key.
#[derive(Debug, Clone)]
struct PrefixNode {
    length: u32,
    /// The next shorter key that this one begins with; itself at the root.
    shorter: u32,
    under: PrefixEntries<Candidates>,
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Prefixes<const FOLD: bool> {
    /// That occur, ascending, without 0.
    lengths: Box<[u32]>,
    /// Keys and markers.
    texts: Texts<FOLD>,
    /// By number of a text: the longest key that it begins with.
    longest: Box<[u32]>,
    /// Keys, in order of their texts; the first is the empty one.
    nodes: Box<[PrefixNode]>,
}

/// Of keys in order, the empty one first: each one's next shorter, and all texts with the longest key of each.
struct PrefixPlan<'k> {
    shorter: Vec<u32>,
    longest: BTreeMap<&'k [u8], u32>,
}

impl<'k> PrefixPlan<'k> {
    fn new(keys: &[&'k [u8]], lengths: &[u32]) -> Self {
        let mut texts: BTreeSet<&[u8]> = keys.iter().copied().collect();
        for key in keys {
            texts.extend(markers(lengths, key.len()).map(|length| &key[..length]));
        }
        let mut plan = Self {
            shorter: vec![0; keys.len()],
            longest: BTreeMap::new(),
        };
        // In order, all that begins with a key follows it at once.
        let mut open: Vec<u32> = Vec::new();
        let mut next = 0;
        for text in texts {
            while open
                .last()
                .is_some_and(|key| !text.starts_with(keys[*key as usize]))
            {
                open.pop();
            }
            let shorter = open.last().copied().unwrap_or_default();
            if keys.get(next) == Some(&text) {
                plan.shorter[next] = shorter;
                open.push(next as u32);
                next += 1;
            }
            let longest = open.last().copied().unwrap_or_default();
            plan.longest.insert(text, longest);
        }
        plan
    }
}

/// The lengths at which a search for a key of this length turns towards longer ones.
fn markers(lengths: &[u32], length: usize) -> impl Iterator<Item = usize> {
    let (mut low, mut high) = (0, lengths.len());
    std::iter::from_fn(move || {
        while low < high {
            let middle = low + (high - low) / 2;
            let asked = lengths[middle] as usize;
            if asked < length {
                low = middle + 1;
                return Some(asked);
            }
            high = middle;
        }
        None
    })
}

impl<const FOLD: bool> Prefixes<FOLD> {
    /// Indexes the entries under each key, in order of precedence. `build` makes candidates of entries.
    pub(super) fn new(
        mut keys: BTreeMap<Vec<u8>, PrefixEntries<Vec<u32>>>,
        mut build: impl FnMut(Vec<u32>) -> Candidates,
    ) -> Self {
        keys.entry(Vec::new()).or_default();
        let texts: Vec<&[u8]> = keys.keys().map(Vec::as_slice).collect();
        let lengths: BTreeSet<u32> = texts.iter().map(|text| text.len() as u32).collect();
        let lengths: Vec<u32> = lengths.into_iter().filter(|length| *length > 0).collect();
        let PrefixPlan { shorter, longest } = PrefixPlan::new(&texts, &lengths);
        let table = Texts::new(longest.keys().copied());
        let longest = longest.into_values().collect();
        let nodes = keys
            .into_iter()
            .zip(shorter)
            .map(|((key, under), shorter)| PrefixNode {
                length: key.len() as u32,
                shorter,
                under: PrefixEntries {
                    anywhere: build(under.anywhere),
                    segment: build(under.segment),
                },
            });
        Self {
            lengths: lengths.into(),
            texts: table,
            longest,
            nodes: nodes.collect(),
        }
    }

    /// The longest key that a path begins with.
    fn longest(&self, path: &[u8]) -> u32 {
        let mut found = 0;
        let mut base = RunningHash::default();
        let (mut low, mut high) = (0, self.lengths.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let length = self.lengths[middle] as usize;
            let Some(beginning) = path.get(..length) else {
                high = middle;
                continue;
            };
            let mut ahead = base;
            ahead.advance::<FOLD>(path, length);
            match self
                .texts
                .find(ahead.finish::<FOLD>(path, length), beginning)
            {
                Some(text) => {
                    found = self.longest[text as usize];
                    base = ahead;
                    low = middle + 1;
                }
                None => high = middle,
            }
        }
        found
    }

    /// Looks among all that lie under beginnings of the request's path for one that precedes `best`.
    pub(super) fn look<R: RouteInput + ?Sized>(
        &self,
        entries: &[RouteCandidate],
        request: &R,
        path: &[u8],
        best: &mut u32,
    ) {
        let mut at = self.longest(path);
        loop {
            let node = &self.nodes[at as usize];
            node.under.anywhere.look(entries, request, best);
            if ends_segment(path, node.length as usize) {
                node.under.segment.look(entries, request, best);
            }
            if node.length == 0 {
                return;
            }
            at = node.shorter;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Candidates, Prefixes};

    fn of(keys: &[&str]) -> Prefixes<false> {
        let keys = keys
            .iter()
            .map(|key| (key.as_bytes().to_vec(), <_>::default()));
        Prefixes::new(keys.collect(), |_| Candidates::default())
    }

    /// The key that is found, as its length.
    fn longest(prefixes: &Prefixes<false>, path: &str) -> u32 {
        prefixes.nodes[prefixes.longest(path.as_bytes()) as usize].length
    }

    #[test]
    fn the_longest_beginning_is_found_whatever_lengths_there_are() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..2_000 {
            let text = |random: &mut fastrand::Rng, most| -> String {
                (0..random.usize(..most))
                    .map(|_| random.char('a'..='b'))
                    .collect()
            };
            let keys: Vec<String> = (0..random.usize(..20))
                .map(|_| text(&mut random, 24))
                .collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let prefixes = of(&keys);
            for _ in 0..20 {
                let path = match random.bool() {
                    true => text(&mut random, 30),
                    false => keys.first().unwrap_or(&"").to_string() + &text(&mut random, 9),
                };
                let known = keys.iter().filter(|key| path.starts_with(**key));
                let wanted = known.map(|key| key.len()).max().unwrap_or(0);
                assert_eq!(
                    longest(&prefixes, &path) as usize,
                    wanted,
                    "{path} {keys:?}"
                );
            }
        }
    }

    #[test]
    fn each_key_leads_to_the_next_shorter_one() {
        let keys = ["/", "/a", "/a/b", "/ab", "/b"];
        let prefixes = of(&keys);
        let shorter: BTreeMap<u32, u32> = prefixes
            .nodes
            .iter()
            .map(|node| (node.length, prefixes.nodes[node.shorter as usize].length))
            .collect();
        assert_eq!(shorter[&4], 2, "/a/b leads to /a");
        assert_eq!(shorter[&3], 2, "/ab leads to /a");
        assert_eq!(shorter[&1], 0, "/ leads to the empty one");
    }
}

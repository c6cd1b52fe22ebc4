//! Hashing of texts by words, such that all beginnings of a text (or all its ends) are hashed in one pass over it. Keys come
//! from policies, which are trusted; a hostile request can only miss.

use std::hash::Hasher;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD: usize = size_of::<u64>();

/// The state after the whole words of a beginning (or end).
#[derive(Clone, Copy)]
pub(super) struct PrefixHash {
    words: u64,
    /// Bytes that are in it.
    taken: usize,
}

impl PrefixHash {
    pub(super) fn new(seed: u32) -> Self {
        Self {
            words: u64::from(seed),
            taken: 0,
        }
    }

    fn fold(words: u64, word: u64) -> u64 {
        (words.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER)
    }

    /// The hash of `bytes[..length]`; lengths must not fall from call to call.
    pub(super) fn beginning(&mut self, bytes: &[u8], length: usize) -> u32 {
        while self.taken + WORD <= length {
            self.words = Self::fold(self.words, word(bytes, self.taken));
            self.taken += WORD;
        }
        let rest = length - self.taken;
        let tail = match rest {
            0 => 0,
            _ if length >= WORD => word(bytes, length - WORD) >> (8 * (WORD - rest)),
            _ => partial(&bytes[..length]),
        };
        finish(self.words, tail, length)
    }

    /// The hash of the last `length` bytes; lengths must not fall from call to call.
    pub(super) fn end(&mut self, bytes: &[u8], length: usize) -> u32 {
        while self.taken + WORD <= length {
            self.taken += WORD;
            self.words = Self::fold(self.words, word(bytes, bytes.len() - self.taken));
        }
        let rest = length - self.taken;
        let start = bytes.len() - length;
        let tail = match rest {
            0 => 0,
            _ if length >= WORD => word(bytes, start) & (u64::MAX >> (8 * (WORD - rest))),
            _ => partial(&bytes[start..]),
        };
        finish(self.words, tail, length)
    }
}

/// The eight bytes at a place.
fn word(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes[at..].first_chunk();
    u64::from_le_bytes(*eight.expect("invariant: callers stay eight bytes before the end"))
}

/// Fewer than eight bytes.
fn partial(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn finish(words: u64, tail: u64, length: usize) -> u32 {
    let mixed = PrefixHash::fold(words, tail ^ (length as u64) << 56);
    (mixed ^ mixed >> 29).wrapping_mul(MULTIPLIER).to_le_bytes()[4..]
        .first_chunk()
        .map_or(0, |high| u32::from_le_bytes(*high))
}

/// The hash of a whole text.
pub(super) fn whole(seed: u32, bytes: &[u8]) -> u32 {
    PrefixHash::new(seed).beginning(bytes, bytes.len())
}

/// This bit tells a small letter from its capital.
const CASE: u64 = 0x2020_2020_2020_2020;

/// The hash of a whole text of which the letters' case does not count.
pub(super) fn whole_any_case(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().fold(0, |words, word| {
        PrefixHash::fold(words, u64::from_le_bytes(*word) | CASE)
    });
    let tail = match rest {
        [] => 0,
        rest => partial(rest) | CASE,
    };
    finish(words, tail, bytes.len())
}

/// For maps of texts of policies.
#[derive(Debug, Default)]
pub(super) struct TextHasher(u64);

impl Hasher for TextHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let hash = u64::from(whole(self.0 as u32, bytes));
        self.0 = hash << 32 | hash;
    }

    /// Ignores the end marker of a text: only one text is hashed.
    fn write_u8(&mut self, _: u8) {}
}

#[cfg(test)]
mod tests {
    use super::{PrefixHash, whole, whole_any_case};

    #[test]
    fn case_counts_for_nothing_and_all_else_does() {
        let name = b"x-forwarded-client-cert";
        for length in 0..=name.len() {
            let name = &name[..length];
            let hash = whole_any_case(name);
            assert_eq!(hash, whole_any_case(&name.to_ascii_uppercase()));
            for other in 0..length {
                let mut changed = name.to_vec();
                changed[other] = b'Q';
                assert_ne!(hash, whole_any_case(&changed), "{length} {other}");
            }
        }
    }

    #[test]
    fn beginnings_and_ends_hash_as_wholes_do() {
        let text = b"/api/v1/resources/0001/parts/xyz";
        let mut beginnings = PrefixHash::new(7);
        let mut ends = PrefixHash::new(7);
        for length in 0..=text.len() {
            assert_eq!(
                beginnings.beginning(text, length),
                whole(7, &text[..length])
            );
            let end = &text[text.len() - length..];
            assert_eq!(ends.end(text, length), PrefixHash::new(7).end(end, length));
        }
    }
}

//! Texts of routes, numbered, and found again by one hash. Hashing goes by words and can be halted and taken up again, so
//! that the beginnings of a path are hashed in about one pass over it. Keys come from configuration, which is trusted; a
//! hostile request can only miss.

const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
const WORD: usize = size_of::<u64>();

/// This bit tells a small letter from its capital. Other bytes may fall together under it; they are compared in the end.
const CASE: u64 = 0x2020_2020_2020_2020;

/// The hash of a text's whole words so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunningHash {
    state: u64,
    taken: usize,
}

impl RunningHash {
    /// Takes the whole words of `text[..length]` that were not taken yet.
    pub(super) fn advance<const FOLD: bool>(&mut self, text: &[u8], length: usize) {
        let (words, _) = text[self.taken..length].as_chunks::<WORD>();
        for word in words {
            self.state = mix(self.state, fold::<FOLD>(u64::from_le_bytes(*word)));
        }
        self.taken += words.len() * WORD;
    }

    /// The hash of `text[..length]`, to which it was advanced.
    pub(super) fn finish<const FOLD: bool>(self, text: &[u8], length: usize) -> u32 {
        let rest = &text[self.taken..length];
        let last = rest
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        let last = if FOLD && !rest.is_empty() {
            last | CASE
        } else {
            last
        };
        let mixed = mix(self.state, last ^ (length as u64) << 56);
        (mixed ^ mixed >> 32) as u32
    }
}

fn fold<const FOLD: bool>(word: u64) -> u64 {
    if FOLD { word | CASE } else { word }
}

fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state.rotate_left(17) ^ word).wrapping_mul(u128::from(MULTIPLIER));
    product as u64 ^ (product >> 64) as u64
}

/// See the module. With `FOLD`, the case of ASCII's letters counts for nothing, and all texts are in lower case.
#[derive(Debug, Clone)]
pub(super) struct Texts<const FOLD: bool> {
    bytes: Box<[u8]>,
    /// End of each text in `bytes`; a text begins at the end of the one before.
    ends: Box<[u32]>,
    /// Hash and number of a text, found from the hash's place onward; a power of two, at most half full.
    slots: Box<[(u32, u32)]>,
}

const EMPTY: u32 = u32::MAX;

impl<const FOLD: bool> Texts<FOLD> {
    /// Numbers texts, all different, in the order given.
    pub(super) fn new<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for text in texts {
            bytes.extend_from_slice(text);
            ends.push(bytes.len() as u32);
        }
        let room = (ends.len() * 2).next_power_of_two();
        let mut table = Self {
            bytes: bytes.into(),
            ends: ends.into(),
            slots: vec![(0, EMPTY); room].into(),
        };
        for number in 0..table.ends.len() {
            let hash = Self::hash(table.text(number as u32));
            let mut at = hash as usize & (room - 1);
            while table.slots[at].1 != EMPTY {
                at = (at + 1) & (room - 1);
            }
            table.slots[at] = (hash, number as u32);
        }
        table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn text(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let begin = match number {
            0 => 0,
            after => self.ends[after - 1] as usize,
        };
        &self.bytes[begin..self.ends[number] as usize]
    }

    fn hash(text: &[u8]) -> u32 {
        let mut running = RunningHash::default();
        running.advance::<FOLD>(text, text.len());
        running.finish::<FOLD>(text, text.len())
    }

    /// A text's number.
    pub(super) fn get(&self, text: &[u8]) -> Option<u32> {
        self.find(Self::hash(text), text)
    }

    /// A text's number, by its hash.
    pub(super) fn find(&self, hash: u32, text: &[u8]) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let (known, number) = self.slots[at];
            if number == EMPTY {
                return None;
            }
            if known == hash && same::<FOLD>(self.text(number), text) {
                return Some(number);
            }
            at = (at + 1) & mask;
        }
    }
}

fn same<const FOLD: bool>(known: &[u8], text: &[u8]) -> bool {
    if FOLD {
        known.eq_ignore_ascii_case(text)
    } else {
        known == text
    }
}

#[cfg(test)]
mod tests {
    use super::{RunningHash, Texts};

    #[test]
    fn every_text_is_found_under_its_number_and_no_other_is() {
        let texts: Vec<String> = (0..500).map(|n| format!("/path/{}", n * n)).collect();
        let table = Texts::<false>::new(texts.iter().map(String::as_bytes));
        for (number, text) in texts.iter().enumerate() {
            assert_eq!(table.get(text.as_bytes()), Some(number as u32));
            assert_eq!(table.get(text.to_uppercase().as_bytes()), None);
            assert_eq!(table.get(format!("{text}/").as_bytes()), None);
        }
        let folded = Texts::<true>::new(texts.iter().map(String::as_bytes));
        for (number, text) in texts.iter().enumerate() {
            assert_eq!(
                folded.get(text.to_uppercase().as_bytes()),
                Some(number as u32)
            );
        }
        let none = Texts::<false>::new([].into_iter());
        assert_eq!((none.is_empty(), none.get(b"")), (true, None));
    }

    #[test]
    fn texts_of_one_hash_are_told_apart() {
        // Of so many pairs two or three have a hash in common.
        let texts: Vec<String> = (0..200_000).map(|n| format!("/{n}")).collect();
        let (known, others) = texts.split_at(100_000);
        let table = Texts::<false>::new(known.iter().map(String::as_bytes));
        let found = |text: &&String| table.get(text.as_bytes()).is_some();
        assert_eq!(others.iter().filter(found).count(), 0);
        assert_eq!(known.iter().filter(found).count(), known.len());
    }

    #[test]
    fn beginnings_hash_as_wholes_do_from_wherever_they_are_taken_up() {
        let text = b"/api/v1/resources/0001/parts/xyz";
        for halt in 0..=text.len() {
            let mut halted = RunningHash::default();
            halted.advance::<true>(text, halt);
            for length in halt..=text.len() {
                let mut ahead = halted;
                ahead.advance::<true>(text, length);
                let mut whole = RunningHash::default();
                whole.advance::<true>(&text[..length], length);
                assert_eq!(
                    ahead.finish::<true>(text, length),
                    whole.finish::<true>(&text[..length], length)
                );
            }
        }
    }
}

//! A worker's cache of tokens whose signature was valid. The key is a hash of the whole token; the whole token is
//! compared too, so that no token is mistaken for another. The cache is bounded in bytes, and a token that was used
//! again stays longer. Bad tokens are not cached: an attacker can send a new one each time, and a later key may make
//! one valid.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use smallvec::SmallVec;

use super::claims::Token;
use super::headers::Headers;
use super::keys::Fingerprint;
use super::limits::{CACHE_BYTES, MAX_STRANGERS};
use super::outcome::TokenErrorReason;
use crate::tokens::hash::{HashedKeyHasher, hash};

/// Key sets that did not make a token's signature, and the reason that each gave.
pub(super) type Strangers = SmallVec<[(Fingerprint, TokenErrorReason); 1]>;

/// One worker's memory of good tokens.
pub struct Cache {
    seed: u64,
    entries: HashMap<u64, CachedToken, BuildHasherDefault<HashedKeyHasher>>,
    /// In the order in which they came, or were last found to be in use.
    order: VecDeque<u64>,
    bytes: usize,
    limit: usize,
    pub(super) headers: Headers,
}

struct CachedToken {
    token: Arc<Token>,
    /// Keys that need not be tried again with this token, if several rules trust the same issuer.
    strangers: Strangers,
    bytes: usize,
    used: bool,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("tokens", &self.entries.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// An empty cache. The seed must be random if strangers send tokens, so that no client can cause hash collisions.
    pub fn new(seed: u64) -> Self {
        Self::with_limit(seed, CACHE_BYTES)
    }

    /// As `new`, holding at most so many bytes.
    pub fn with_limit(seed: u64, limit: usize) -> Self {
        Self {
            seed,
            entries: HashMap::default(),
            order: VecDeque::new(),
            bytes: 0,
            limit,
            headers: Headers::new(seed),
        }
    }

    /// The number of cached tokens.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if no token is cached.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// About how many bytes they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets everything and gives the memory back.
    pub fn clear(&mut self) {
        *self = Self::with_limit(self.seed, self.limit);
    }

    pub(super) fn hash(&self, token: &[u8]) -> u64 {
        hash(self.seed, token)
    }

    pub(super) fn get(&mut self, hash: u64, token: &[u8]) -> Option<(Arc<Token>, Strangers)> {
        let entry = self.entries.get_mut(&hash)?;
        if entry.token.text.as_bytes() != token {
            return None;
        }
        entry.used = true;
        Some((entry.token.clone(), entry.strangers.clone()))
    }

    /// Keeps in mind that these keys did not make the signature of a token that is remembered.
    pub(super) fn add_stranger(
        &mut self,
        hash: u64,
        token: &Token,
        stranger: (Fingerprint, TokenErrorReason),
    ) {
        if let Some(entry) = self.entries.get_mut(&hash)
            && entry.token.text == token.text
        {
            if entry.strangers.len() == MAX_STRANGERS {
                entry.strangers.remove(0);
            }
            entry.strangers.push(stranger);
        }
    }

    pub(super) fn insert(&mut self, hash: u64, token: Arc<Token>, mut strangers: Strangers) {
        const LARGEST_SHARE: usize = 8; // one token may not push out all others
        strangers.truncate(MAX_STRANGERS);
        // As many as may be tried took room that is not reckoned with.
        strangers.shrink_to_fit();
        // With its place in the order and in the table, which is never full and grows where entries come and go; with the counts of
        // an `Arc`; and what else may be kept in mind.
        let place = 3 * (size_of::<CachedToken>() + 2 * size_of::<u64>()) + 2 * size_of::<usize>();
        let bytes =
            token.memory() + place + MAX_STRANGERS * size_of::<(Fingerprint, TokenErrorReason)>();
        if bytes > self.limit / LARGEST_SHARE {
            self.remove(hash);
            return;
        }
        self.bytes += bytes;
        let entry = CachedToken {
            token,
            strangers,
            bytes,
            used: false,
        };
        match self.entries.insert(hash, entry) {
            Some(before) => self.bytes -= before.bytes,
            None => self.order.push_back(hash),
        }
        while self.bytes > self.limit {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            match self.entries.get_mut(&oldest) {
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.order.push_back(oldest);
                }
                Some(entry) => {
                    self.bytes -= entry.bytes;
                    self.entries.remove(&oldest);
                }
                None => {}
            }
        }
    }

    /// Its place in the order stays, and is passed over later.
    fn remove(&mut self, hash: u64) {
        if let Some(entry) = self.entries.remove(&hash) {
            self.bytes -= entry.bytes;
            self.order.retain(|other| *other != hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::hash;

    #[test]
    fn texts_that_differ_in_one_byte_have_other_hashes() {
        let text: Vec<u8> = (0..200).map(|number: u8| number.wrapping_mul(37)).collect();
        let mut seen = HashSet::new();
        for seed in 0..4 {
            for length in 0..text.len() {
                assert!(seen.insert(hash(seed, &text[..length])));
            }
            for at in 0..text.len() {
                for bit in 0..8 {
                    let mut other = text.clone();
                    other[at] ^= 1 << bit;
                    assert!(seen.insert(hash(seed, &other)), "{at} {bit}");
                }
            }
        }
    }
}

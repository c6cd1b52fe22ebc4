//! Cache of headers of valid tokens. An issuer writes the same header on all its tokens until its key changes, so it
//! need not be parsed for each of them. Headers of bad tokens are not cached: their sender could push out all others.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use super::algorithm::Algorithm;
use super::limits::{MAX_HEADER_BYTES, MAX_HEADERS};
use crate::tokens::hash::{HashedKeyHasher, hash};

/// The parts of a token's header that verification needs.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<Arc<str>>,
}

/// Headers by their text as it came.
#[derive(Default)]
pub(super) struct Headers {
    seed: u64,
    known: HashMap<u64, (Box<str>, Header), BuildHasherDefault<HashedKeyHasher>>,
}

impl Headers {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            known: HashMap::default(),
        }
    }

    pub(super) fn get(&self, text: &str) -> Option<&Header> {
        let (known, header) = self.known.get(&hash(self.seed, text.as_bytes()))?;
        (**known == *text).then_some(header)
    }

    pub(super) fn keep(&mut self, text: &str, header: &Header) {
        if text.len() > MAX_HEADER_BYTES || self.get(text).is_some() {
            return;
        }
        if self.known.len() >= MAX_HEADERS {
            self.known.clear();
        }
        let entry = (text.into(), header.clone());
        self.known.insert(hash(self.seed, text.as_bytes()), entry);
    }
}

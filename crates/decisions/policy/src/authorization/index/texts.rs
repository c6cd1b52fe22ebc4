//! Every text of the policies once, one after another in one buffer: a rule holds four bytes for a text it shares.

use std::collections::HashMap;
use std::sync::Arc;

/// A text's number.
pub(super) type TextId = u32;

/// The texts of one engine.
#[derive(Debug, Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    /// End of each text; a text begins at the end of the text before it.
    ends: Vec<u32>,
}

impl Texts {
    pub(super) fn get(&self, text: TextId) -> &[u8] {
        let text = text as usize;
        let start = match text.checked_sub(1) {
            Some(before) => self.ends[before] as usize,
            None => 0,
        };
        &self.bytes[start..self.ends[text] as usize]
    }

    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// Numbers texts while policies are compiled.
#[derive(Debug, Default)]
pub(super) struct Interner {
    texts: Texts,
    known: HashMap<Arc<[u8]>, TextId>,
}

impl Interner {
    pub(super) fn id(&mut self, text: &[u8]) -> TextId {
        if let Some(id) = self.known.get(text) {
            return *id;
        }
        let id = self.texts.ends.len() as TextId;
        self.texts.bytes.extend_from_slice(text);
        let end = u32::try_from(self.texts.bytes.len());
        self.texts
            .ends
            .push(end.expect("invariant: policies have less than 4 GiB of text"));
        self.known.insert(text.into(), id);
        id
    }

    pub(super) fn texts(&self) -> &Texts {
        &self.texts
    }

    pub(super) fn finish(mut self) -> Texts {
        self.texts.bytes.shrink_to_fit();
        self.texts.ends.shrink_to_fit();
        self.texts
    }
}

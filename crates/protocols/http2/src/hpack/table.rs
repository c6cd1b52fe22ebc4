//! HPACK's dynamic table (RFC 7541 section 2.3.2): the newest entry first, the oldest leave when room is wanted.

use std::collections::VecDeque;

use crate::head;

/// Size of an entry beside its text, by the RFC.
pub(crate) const ENTRY_OVERHEAD: usize = 32;

#[derive(Debug)]
pub(super) struct DynamicTableEntry {
    /// Name, then value.
    text: Box<[u8]>,
    name: usize,
    /// The name's number.
    pub(super) number: u8,
    /// Name and value were found to be well formed.
    pub(super) sound: bool,
}

impl DynamicTableEntry {
    fn size(&self) -> usize {
        self.text.len() + ENTRY_OVERHEAD
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.text[..self.name]
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.text[self.name..]
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<DynamicTableEntry>,
    size: usize,
    room: usize,
}

impl Table {
    pub(super) fn new(room: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            room,
        }
    }

    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Changes how much it holds.
    pub(super) fn resize(&mut self, room: usize) {
        self.room = room;
        self.evict(0);
    }

    /// The entry of that age, the newest being 0.
    pub(super) fn get(&self, age: usize) -> Option<&DynamicTableEntry> {
        self.entries.get(age)
    }

    /// Adds a field; one that is larger than the table empties it (RFC 7541 section 4.4). True when it is there now.
    pub(super) fn insert(&mut self, text: &[u8], name: usize, number: u8) -> bool {
        let size = text.len() + ENTRY_OVERHEAD;
        self.evict(size);
        if size > self.room {
            return false;
        }
        self.size += size;
        self.entries.push_front(DynamicTableEntry {
            text: text.into(),
            name,
            number,
            sound: head::is_sound(number, &text[..name], &text[name..]),
        });
        true
    }

    fn evict(&mut self, wanted: usize) {
        while self.size + wanted > self.room {
            let Some(oldest) = self.entries.pop_back() else {
                return;
            };
            self.size -= oldest.size();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

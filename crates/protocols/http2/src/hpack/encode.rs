//! Writes header blocks. A field goes into the table when it was seen before, so that one-time fields (the ids of a
//! trace, a path with a number in it) push nothing out. Secrets never go there, nor fields with a question mark.

use std::collections::VecDeque;

use super::table::Table;
use super::{TABLE_BYTES, known};
use crate::fields::Field;

/// Fields remembered to have been seen, by hash; a power of two.
const SEEN: usize = 128;

/// Larger fields stay out of the table, which has room for 4096 bytes.
const MAX_INDEXED: usize = 512;

/// Encoding of a field that is not in a table yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldEncoding {
    /// As it is, and into the table.
    Indexed,
    /// As it is.
    Plain,
    /// As it is, also through every forwarding hop.
    Never,
}

#[derive(Debug)]
pub(crate) struct Encoder {
    table: Table,
    /// Hashes of the table's entries, newest first, for the search.
    hashes: VecDeque<u32>,
    /// Half a hash of each, since there is one of these for every idle connection: a field that is taken for another was
    /// only indexed at its first time.
    seen: Box<[u16; SEEN]>,
    /// The peer is to be told of a new size at the next block: the least in between, then the last.
    resized: Option<(usize, usize)>,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(TABLE_BYTES),
            hashes: VecDeque::new(),
            seen: Box::new([0; SEEN]),
            resized: None,
        }
    }

    /// The peer's table holds no more than `bytes` from now on.
    pub(crate) fn limit(&mut self, bytes: usize) {
        let room = bytes.min(TABLE_BYTES);
        let least = self.resized.map_or(self.table.room(), |(least, _)| least);
        if room != self.table.room() || self.resized.is_some() {
            self.resized = Some((least.min(room), room));
        }
        self.table.resize(room);
        self.hashes.truncate(self.table.len());
    }

    /// Writes table size updates, which come before the first field of a block.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((least, last)) = self.resized.take() {
            if least < last {
                integer(out, 0x20, 5, least);
            }
            integer(out, 0x20, 5, last);
        }
    }

    /// Appends one field.
    pub(crate) fn field(&mut self, out: &mut Vec<u8>, field: Field<'_>) {
        let Field {
            name,
            value,
            number,
            never,
            ..
        } = field;
        let both = known::field(number, value);
        if both > 0 {
            out.push(0x80 | both);
            return;
        }
        let way = if never {
            FieldEncoding::Never
        } else {
            way(name, value)
        };
        let mut way = way;
        if way == FieldEncoding::Indexed {
            let hash = hash(name, value);
            if let Some(age) = self.find(hash, name, value) {
                integer(out, 0x80, 7, known::ENTRIES.len() + 1 + age);
                return;
            }
            let seen = &mut self.seen[(hash >> 8) as usize % SEEN];
            // Not 0, which stands for nothing seen.
            let half = (hash >> 16) as u16 | 1;
            if *seen == half {
                self.insert(hash, name, value, number);
            } else {
                *seen = half;
                way = FieldEncoding::Plain;
            }
        }
        let (flags, prefix) = match way {
            FieldEncoding::Indexed => (0x40, 6),
            FieldEncoding::Plain => (0, 4),
            FieldEncoding::Never => (0x10, 4),
        };
        let index = known::index(number);
        integer(out, flags, prefix, index);
        if index == 0 {
            string(out, name);
        }
        string(out, value);
    }

    fn find(&self, hash: u32, name: &[u8], value: &[u8]) -> Option<usize> {
        let age = self.hashes.iter().position(|known| *known == hash)?;
        let entry = self.table.get(age)?;
        (entry.name() == name && entry.value() == value).then_some(age)
    }

    fn insert(&mut self, hash: u32, name: &[u8], value: &[u8], number: u8) {
        let text = [name, value].concat();
        if self.table.insert(&text, name.len(), number) {
            self.hashes.push_front(hash);
        }
        self.hashes.truncate(self.table.len());
    }
}

fn way(name: &[u8], value: &[u8]) -> FieldEncoding {
    match name {
        b"authorization" | b"proxy-authorization" => FieldEncoding::Never,
        b"cookie" | b"set-cookie" | b"content-length" => FieldEncoding::Plain,
        b":path" if value.contains(&b'?') => FieldEncoding::Plain,
        _ if name.len() + value.len() > MAX_INDEXED => FieldEncoding::Plain,
        _ => FieldEncoding::Indexed,
    }
}

fn hash(name: &[u8], value: &[u8]) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (name.len() as u64) << 32 | value.len() as u64;
    for text in [name, value] {
        let mut words = text.chunks_exact(8);
        for word in &mut words {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            state = (state.rotate_left(5) ^ word).wrapping_mul(ODD);
        }
        for byte in words.remainder() {
            state = (state.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(ODD);
        }
    }
    (state >> 32) as u32
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}

fn integer(out: &mut Vec<u8>, flags: u8, prefix: u32, value: usize) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

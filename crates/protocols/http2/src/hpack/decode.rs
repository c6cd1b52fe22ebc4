//! Reads header blocks. Fields are stored up to the limit. The rest is read only to keep the table that both ends
//! share.

use super::table::{ENTRY_OVERHEAD, Table};
use super::{TABLE_BYTES, huffman, known};
use crate::fields::{Fields, Origin};

/// A block that cannot be read; the connection is lost with it (RFC 9113 section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadBlock;

/// Continuation bytes of an integer: enough for every length there is.
const MAX_INTEGER_BYTES: usize = 4;

/// Longest `content-type` that is kept beyond the limit: the refusal of a head depends on its protocol.
const MAX_LATE_TYPE: usize = 128;

#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(TABLE_BYTES),
        }
    }

    /// Appends the block's fields to `out`, of which at most `limit` bytes, in the count of RFC 9113 section 6.5.2, are
    /// kept, and the first short `content-type` wherever it is. Says whether they were all.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        out: &mut Fields,
        limit: usize,
    ) -> Result<bool, BadBlock> {
        let (mut rest, mut size, mut begun) = (block, 0_usize, false);
        while let Some(first) = rest.first().copied() {
            if first & 0xe0 == 0x20 {
                // Changes of size only at the beginning (RFC 7541 section 4.2).
                let room = integer(&mut rest, 5)?;
                if begun || room > TABLE_BYTES {
                    return Err(BadBlock);
                }
                self.table.resize(room);
                continue;
            }
            begun = true;
            let mark = out.mark();
            let (name, origin) = if first & 0x80 != 0 {
                self.indexed(&mut rest, out)?
            } else {
                self.literal(&mut rest, out)?
            };
            let length = out.mark() - mark;
            size = size.saturating_add(length + ENTRY_OVERHEAD);
            if size > limit && !is_late_type(out, mark, name) {
                out.back_to(mark);
            } else {
                let origin = Origin {
                    never: first & 0xf0 == 0x10,
                    ..origin
                };
                out.line(mark, name, origin);
            }
        }
        Ok(size <= limit)
    }

    /// Appends the text of an indexed field; gives the length of its name.
    fn indexed(&self, rest: &mut &[u8], out: &mut Fields) -> Result<(usize, Origin), BadBlock> {
        let index = integer(rest, 7)?;
        let (name, value, origin) = self.entry(index)?;
        out.text(name);
        out.text(value);
        Ok((name.len(), origin))
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8], Origin), BadBlock> {
        if let Some((name, value)) = known::entry(index) {
            let origin = Origin {
                number: known::name_of(index),
                sound: true,
                never: false,
            };
            return Ok((name, value, origin));
        }
        let age = index.checked_sub(known::ENTRIES.len() + 1);
        let entry = age.and_then(|age| self.table.get(age)).ok_or(BadBlock)?;
        let origin = Origin {
            number: entry.number,
            sound: entry.sound,
            never: false,
        };
        Ok((entry.name(), entry.value(), origin))
    }

    fn literal(&mut self, rest: &mut &[u8], out: &mut Fields) -> Result<(usize, Origin), BadBlock> {
        let in_table = rest[0] & 0x40 != 0;
        let index = integer(rest, if in_table { 6 } else { 4 })?;
        let mark = out.mark();
        let number = if index == 0 {
            string(rest, out)?;
            known::number(out.since(mark))
        } else {
            let (name, _, origin) = self.entry(index)?;
            out.text(name);
            origin.number
        };
        let name = out.mark() - mark;
        string(rest, out)?;
        if in_table {
            self.table.insert(out.since(mark), name, number);
        }
        Ok((name, Origin::new(number)))
    }
}

/// Returns true if the field since `mark` is the content type of a head that is too large already.
fn is_late_type(out: &Fields, mark: usize, name: usize) -> bool {
    let field = out.since(mark);
    field.len() <= MAX_LATE_TYPE
        && &field[..name] == b"content-type"
        && !out.contains("content-type")
}

/// Appends a string.
fn string(rest: &mut &[u8], out: &mut Fields) -> Result<(), BadBlock> {
    let coded = rest.first().ok_or(BadBlock)? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (text, after) = rest.split_at_checked(length).ok_or(BadBlock)?;
    *rest = after;
    if !coded {
        out.text(text);
        return Ok(());
    }
    match huffman::decode(text, out.room()) {
        true => Ok(()),
        false => Err(BadBlock),
    }
}

/// Reads an integer whose first byte has `prefix` bits of it (RFC 7541 section 5.1).
fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, BadBlock> {
    let (first, mut after) = rest.split_first().ok_or(BadBlock)?;
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value == most {
        for at in 0.. {
            let (byte, next) = after.split_first().ok_or(BadBlock)?;
            after = next;
            value += usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                break;
            }
            if at + 1 == MAX_INTEGER_BYTES {
                return Err(BadBlock);
            }
        }
    }
    *rest = after;
    Ok(value)
}

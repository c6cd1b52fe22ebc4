//! Pool that the connections of one thread share: room for output, and blocks for heads. So a call on a steady
//! connection allocates neither, and an idle connection holds neither.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::budget::HeadBudget;
use crate::fields::Fields;

/// Room for output, in bytes: one TLS record, one write.
pub const ROOM_BYTES: usize = 16 * 1024;

/// First size of a new room. Most connections never send more at a time than a head and a short message; the others
/// make it grow once.
const FIRST_ROOM_BYTES: usize = 4 * 1024;

/// Bytes of rooms that are kept: one is in use only while something waits to be written.
const MAX_ROOM_BYTES: usize = 32 * ROOM_BYTES;

/// Most blocks kept.
const MAX_BLOCKS: usize = 256;

/// A block that grew beyond this is not kept.
const MAX_BLOCK_BYTES: usize = 4 * 1024;

/// Room of a new block: a usual head.
const BLOCK_BYTES: usize = 512;
const BLOCK_LINES: usize = 16;

struct PoolState {
    room_bytes: usize,
    heads: Option<Arc<HeadBudget>>,
    rooms: RefCell<Vec<Vec<u8>>>,
    blocks: RefCell<Vec<Fields>>,
}

/// See the module. Clones share.
#[derive(Clone)]
pub struct Pool(Rc<PoolState>);

impl Default for Pool {
    fn default() -> Self {
        Self::with_room(ROOM_BYTES)
    }
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// One whose connections have so many bytes of room for output. Connections over which much goes write as much at a time: a
    /// write's way through the kernel costs more than its bytes.
    pub fn with_room(bytes: usize) -> Self {
        Self::with_budget(bytes, None)
    }

    /// The same, whose connections take room for large heads from a budget.
    pub fn with_budget(room: usize, heads: Option<Arc<HeadBudget>>) -> Self {
        Self(Rc::new(PoolState {
            room_bytes: room,
            heads,
            rooms: RefCell::default(),
            blocks: RefCell::default(),
        }))
    }

    /// Bytes of room for output.
    pub(crate) fn room_bytes(&self) -> usize {
        self.0.room_bytes
    }

    /// Budget of large heads, if there is one.
    pub(crate) fn heads(&self) -> Option<&HeadBudget> {
        self.0.heads.as_deref()
    }

    /// An empty block.
    pub fn block(&self) -> Fields {
        let block = self.0.blocks.borrow_mut().pop();
        block.unwrap_or_else(|| Fields::with_capacity(BLOCK_BYTES, BLOCK_LINES))
    }

    /// Gives a block back.
    pub fn give_block(&self, mut block: Fields) {
        let mut blocks = self.0.blocks.borrow_mut();
        if (1..=MAX_BLOCK_BYTES).contains(&block.capacity()) && blocks.len() < MAX_BLOCKS {
            block.clear();
            blocks.push(block);
        }
    }

    pub(crate) fn room(&self) -> Vec<u8> {
        let room = self.0.rooms.borrow_mut().pop();
        room.unwrap_or_else(|| Vec::with_capacity(self.0.room_bytes.min(FIRST_ROOM_BYTES)))
    }

    pub(crate) fn give_room(&self, mut room: Vec<u8>) {
        let mut rooms = self.0.rooms.borrow_mut();
        let kept = rooms.len() * self.0.room_bytes;
        // It may have grown to twice its size, and so a little beyond; a larger room is not kept.
        let usual = 1..=2 * self.0.room_bytes;
        if usual.contains(&room.capacity()) && kept < MAX_ROOM_BYTES {
            room.clear();
            rooms.push(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_begins_small_and_is_lent_again_as_it_has_grown() {
        let pool = Pool::with_room(62 * 1024);
        let mut room = pool.room();
        assert_eq!(room.capacity(), FIRST_ROOM_BYTES);
        while room.len() < pool.room_bytes() {
            room.extend_from_slice(&[0; 1024]);
        }
        let grown = room.capacity();
        pool.give_room(room);
        let room = pool.room();
        assert_eq!((room.len(), room.capacity()), (0, grown));
        let mut far = pool.room();
        far.reserve(3 * pool.room_bytes());
        pool.give_room(far);
        assert_eq!(pool.room().capacity(), FIRST_ROOM_BYTES);
    }
}

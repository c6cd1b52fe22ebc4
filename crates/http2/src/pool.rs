//! What the connections of one thread lend each other: room for output, and blocks for heads. So a call on a steady
//! connection allocates neither, and an idle connection holds neither.

use std::cell::RefCell;
use std::rc::Rc;

use crate::fields::Fields;

/// Room for output, in bytes: one TLS record, one write.
pub(crate) const ROOM_BYTES: usize = 16 * 1024;

/// Most rooms kept: one is in use only while something waits to be written.
const MAX_ROOMS: usize = 32;

/// Most blocks kept.
const MAX_BLOCKS: usize = 256;

/// A block that grew beyond this is not kept.
const MAX_BLOCK_BYTES: usize = 4 * 1024;

/// Room of a new block: a usual head.
const BLOCK_BYTES: usize = 512;
const BLOCK_LINES: usize = 16;

#[derive(Default)]
struct Shared {
    rooms: RefCell<Vec<Vec<u8>>>,
    blocks: RefCell<Vec<Fields>>,
}

/// See the module. Clones share.
#[derive(Clone, Default)]
pub struct Pool(Rc<Shared>);

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
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
        room.unwrap_or_else(|| Vec::with_capacity(ROOM_BYTES))
    }

    pub(crate) fn give_room(&self, mut room: Vec<u8>) {
        let mut rooms = self.0.rooms.borrow_mut();
        if room.capacity() == ROOM_BYTES && rooms.len() < MAX_ROOMS {
            room.clear();
            rooms.push(room);
        }
    }
}

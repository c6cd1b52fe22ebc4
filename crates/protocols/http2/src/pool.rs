//! Pool that the connections of one thread share: room for output, and blocks for heads. So a call on a steady
//! connection allocates neither, and an idle connection holds neither.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use slab::Slab;

use crate::budget::{HeadBudget, HeadShares, USUAL_HEAD};
use crate::connection::{Connection, MemoryHolder};
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

/// Bytes that are taken before the owner is told: much less than the part of a memory limit that is left when new work is refused.
const MUCH_TAKEN: usize = 512 * 1024;

/// Bytes that are freed before the owner is told: much less than what a proxy holds without traffic.
const MUCH_FREED: usize = 1024 * 1024;

/// Size of a change of the memory that the pool's users hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryChange {
    /// [`MUCH_TAKEN`] since the last time.
    Grown,
    /// [`MUCH_FREED`] since the last time; the pool does not keep it.
    Freed,
}

/// A connection whose streams hold memory, of this protocol or another.
pub trait MemoryHolders {
    /// The bytes of each. None while the connection is in use.
    fn holders(&self) -> Vec<(usize, MemoryHolder)>;

    /// Ends one, with what it holds, unless the connection is in use.
    fn end_holder(&self, holder: MemoryHolder) -> bool;
}

impl MemoryHolders for RefCell<Connection> {
    fn holders(&self) -> Vec<(usize, MemoryHolder)> {
        let connection = self.try_borrow();
        connection.map_or_else(|_| Vec::new(), |connection| connection.holders().collect())
    }

    fn end_holder(&self, holder: MemoryHolder) -> bool {
        let connection = self.try_borrow_mut();
        connection
            .map(|mut connection| connection.end_holder(holder))
            .is_ok()
    }
}

struct PoolState {
    room_bytes: usize,
    heads: Option<HeadShares>,
    grown: Cell<usize>,
    freed: Cell<usize>,
    owner: OnceCell<Box<dyn Fn(MemoryChange)>>,
    links: RefCell<Slab<Weak<dyn MemoryHolders>>>,
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
            heads: heads.map(HeadShares::new),
            grown: Cell::default(),
            freed: Cell::default(),
            owner: OnceCell::new(),
            links: RefCell::default(),
            rooms: RefCell::default(),
            blocks: RefCell::default(),
        }))
    }

    /// Bytes of room for output.
    pub(crate) fn room_bytes(&self) -> usize {
        self.0.room_bytes
    }

    /// Has the owner told of changes, from now on. It must not touch a connection when it is called.
    pub fn on_change(&self, owner: impl Fn(MemoryChange) + 'static) {
        let _ = self.0.owner.set(Box::new(owner));
    }

    /// Notes memory that was taken and comes from no pool.
    pub fn grew(&self, bytes: usize) {
        self.note(&self.0.grown, bytes, MUCH_TAKEN, MemoryChange::Grown);
    }

    /// Notes memory that was freed and goes into no pool.
    pub fn freed(&self, bytes: usize) {
        self.note(&self.0.freed, bytes, MUCH_FREED, MemoryChange::Freed);
    }

    fn note(&self, sum: &Cell<usize>, bytes: usize, much: usize, change: MemoryChange) {
        let now = sum.get() + bytes;
        if now < much {
            return sum.set(now);
        }
        sum.set(0);
        if let Some(owner) = self.0.owner.get() {
            owner(change);
        }
    }

    /// Returns true if the process is short of memory, so that nothing large is taken.
    pub fn is_short(&self) -> bool {
        self.0.heads.as_ref().is_some_and(HeadShares::is_closed)
    }

    /// Lists a connection among the possible holders of much memory, until it is dropped.
    pub fn list(&self, link: Weak<dyn MemoryHolders>) -> usize {
        self.0.links.borrow_mut().insert(link)
    }

    /// Takes it out of the list.
    pub fn unlist(&self, place: usize) {
        let mut links = self.0.links.borrow_mut();
        links.try_remove(place);
        if links.is_empty() {
            links.shrink_to_fit();
        }
    }

    /// Ends the streams that hold most, the largest first, and connections whose peers take nothing, until `wanted` bytes are
    /// freed. Spares everything that holds less than `least` bytes. Gives the bytes, and how many were ended.
    pub fn shed(&self, wanted: usize, least: usize) -> (usize, usize) {
        let links: Vec<_> = {
            let links = self.0.links.borrow();
            links
                .iter()
                .filter_map(|(_, link)| link.upgrade())
                .collect()
        };
        let mut holders = Vec::new();
        for (at, link) in links.iter().enumerate() {
            let all = link.holders().into_iter();
            let large = all.filter(|(bytes, _)| *bytes >= least);
            holders.extend(large.map(|(bytes, holder)| (bytes, at, holder)));
        }
        holders.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
        let (mut freed, mut ended) = (0, 0);
        for (bytes, at, holder) in holders {
            if freed >= wanted {
                break;
            }
            if links[at].end_holder(holder) {
                (freed, ended) = (freed + bytes, ended + 1);
            }
        }
        (freed, ended)
    }

    /// Takes room for large heads of a source. Gives the bytes that count, none of them without a budget; `None` without room.
    pub(crate) fn take_heads(&self, source: u64, bytes: usize) -> Option<usize> {
        let Some(shares) = &self.0.heads else {
            return Some(0);
        };
        self.grew(bytes);
        shares.take(source, bytes).then_some(bytes)
    }

    /// Gives room back that [`Self::take_heads`] took.
    pub(crate) fn give_heads(&self, source: u64, bytes: usize) {
        if let Some(shares) = &self.0.heads {
            shares.give(source, bytes);
            self.freed(bytes);
        }
    }

    /// Room for the heads of another protocol, which count as those of HTTP/2 do.
    #[must_use]
    pub fn head_room(&self, source: u64) -> HeadRoom {
        HeadRoom {
            pool: self.clone(),
            source,
            taken: 0,
        }
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
        } else {
            drop(blocks);
            self.freed(block.capacity());
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
        } else {
            drop(rooms);
            self.freed(room.capacity());
        }
    }
}

/// Room that a head takes while it is read, see [`Pool::head_room`]. Dropping it gives the room back.
pub struct HeadRoom {
    pool: Pool,
    source: u64,
    taken: usize,
}

impl HeadRoom {
    /// Takes room for a head of so many bytes. A head of usual size takes none. Returns false where there is none.
    pub fn resize(&mut self, bytes: usize) -> bool {
        if bytes <= USUAL_HEAD {
            self.give();
            return true;
        }
        let more = bytes.saturating_sub(self.taken);
        let taken = match more {
            0 => Some(0),
            _ => self.pool.take_heads(self.source, more),
        };
        self.taken += taken.unwrap_or(0);
        taken.is_some()
    }

    fn give(&mut self) {
        if self.taken > 0 {
            self.pool.give_heads(self.source, self.taken);
            self.taken = 0;
        }
    }
}

impl Drop for HeadRoom {
    fn drop(&mut self) {
        self.give();
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

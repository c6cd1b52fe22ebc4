//! Streams by their numbers: the open ones by place, and a short memory of those that are over.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes one number by one multiplication. A peer chooses its numbers, but only rising ones, and few are open.
#[derive(Debug, Default)]
struct ByNumber(u64);

impl Hasher for ByNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// End of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosedStream {
    /// By both ends having said all, or by the peer's reset: nothing may follow.
    Over,
    /// By this end's reset: frames that the peer sent before it knew are ignored.
    ResetByUs,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Places fit in as many bits as numbers do.
    open: HashMap<u32, u32, BuildHasherDefault<ByNumber>>,
    over: VecDeque<u32>,
    reset: VecDeque<u32>,
}

/// Streams remembered that ended well; only a peer that breaks the rules speaks of them again.
const MAX_OVER: usize = 16;

impl Ids {
    pub(super) fn get(&self, id: u32) -> Option<usize> {
        self.open.get(&id).map(|place| *place as usize)
    }

    pub(super) fn insert(&mut self, id: u32, key: usize) {
        self.open.insert(id, key as u32);
    }

    /// The stream is over; at most `resets` of those that we reset are remembered.
    pub(super) fn close(&mut self, id: u32, how: ClosedStream, resets: usize) {
        self.open.remove(&id);
        let (memory, most) = match how {
            ClosedStream::Over => (&mut self.over, MAX_OVER),
            ClosedStream::ResetByUs => (&mut self.reset, resets),
        };
        if memory.len() >= most {
            memory.pop_front();
        }
        memory.push_back(id);
    }

    /// Returns the end of a stream that is not open, if it is remembered.
    pub(super) fn gone(&self, id: u32) -> Option<ClosedStream> {
        if self.reset.contains(&id) {
            return Some(ClosedStream::ResetByUs);
        }
        self.over.contains(&id).then_some(ClosedStream::Over)
    }

    pub(super) fn keys(&self) -> Vec<usize> {
        self.open.values().map(|place| *place as usize).collect()
    }
}

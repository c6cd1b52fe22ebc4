//! Worker-local buffers for relaying. A connection borrows one only while bytes pass through it; a busy one is given
//! larger ones. Idle connections hold none, so 10,000 of them cost descriptors and little else.

use std::cell::RefCell;

/// Sizes in bytes, small to large: a busy stream moves up one with every buffer it fills.
const SIZES: [usize; 3] = [4 * 1024, 16 * 1024, 64 * 1024];

/// Buffers of each size kept for reuse by a worker: 2.6 MB at most, 128 KB in a quiet proxy.
const KEPT: [usize; 3] = [128, 64, 16];

thread_local! {
    static POOL: RefCell<[Vec<Box<[u8]>>; 3]> = const { RefCell::new([Vec::new(), Vec::new(), Vec::new()]) };
}

/// Which size a stream has earned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Class(u8);

impl Class {
    /// Of the largest buffers.
    pub(crate) const LARGEST: Self = Self(SIZES.len() as u8 - 1);

    /// The class after a read of `count` bytes: up when the buffer was filled, down when it was mostly empty.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        let size = SIZES[usize::from(self.0)];
        if count == size {
            Self((self.0 + 1).min(Self::LARGEST.0))
        } else if count < size / 8 {
            Self(self.0.saturating_sub(1))
        } else {
            self
        }
    }
}

/// A borrowed buffer; dropping it gives it back.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    class: Class,
}

impl Buffer {
    /// Borrows a buffer from this worker's pool. Its contents are left over from others of the same worker.
    #[must_use]
    pub fn take(class: Class) -> Self {
        let index = usize::from(class.0);
        let kept = POOL.with_borrow_mut(|pool| pool[index].pop());
        Self {
            bytes: kept.unwrap_or_else(|| vec![0; SIZES[index]].into_boxed_slice()),
            class,
        }
    }

    /// The whole of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The whole of it, to read.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let index = usize::from(self.class.0);
        // While a thread ends its pool may be gone already; then the buffer simply goes too.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool[index].len() < KEPT[index] {
                pool[index].push(bytes);
            }
        });
    }
}

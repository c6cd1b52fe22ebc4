//! Hashes of the keys of the token cache and of the header cache.

use std::hash::Hasher;

/// The keys are hashes already.
#[derive(Default)]
pub(super) struct HashedKeyHasher(u64);

impl Hasher for HashedKeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// A keyed hash of 64 bits: sixteen bytes a step, each multiplied with what the seed made of all before.
pub(super) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        (wide as u64) ^ (wide >> 64) as u64
    };
    let word = |bytes: &[u8]| {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(eight)
    };
    let key = mix(seed ^ ODD, ODD.rotate_left(32)) | 1;
    let mut state = key ^ bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(16);
    for chunk in &mut chunks {
        let (low, high) = chunk.split_at(8);
        state = mix(
            word(low) ^ state ^ ODD,
            word(high) ^ key.rotate_left(17) ^ state,
        );
    }
    let rest = chunks.remainder();
    let (low, high) = rest.split_at(rest.len().min(8));
    state = mix(
        word(low) ^ state ^ ODD,
        word(high) ^ key.rotate_left(17) ^ state,
    );
    mix(state ^ key, ODD)
}

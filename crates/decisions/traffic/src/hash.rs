//! XXH64, which places endpoints and requests where the same key must always lead to the same place, in every program
//! and release. The algorithm is that of xxhash.com's specification.

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

fn round(lane: u64, input: u64) -> u64 {
    let mixed = lane.wrapping_add(input.wrapping_mul(P2));
    mixed.rotate_left(31).wrapping_mul(P1)
}

fn merge(hash: u64, lane: u64) -> u64 {
    (hash ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4)
}

/// The hash of a text.
#[must_use]
pub fn xxh64(text: &[u8], seed: u64) -> u64 {
    let (blocks, rest) = text.as_chunks::<32>();
    let mut hash = if blocks.is_empty() {
        seed.wrapping_add(P5)
    } else {
        of_blocks(blocks, seed)
    };
    hash = hash.wrapping_add(text.len() as u64);
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash.rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
    }
    let (halves, rest) = rest.as_chunks::<4>();
    for half in halves {
        hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(P1);
        hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(P5);
        hash = hash.rotate_left(11).wrapping_mul(P1);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P2);
    hash = (hash ^ hash >> 29).wrapping_mul(P3);
    hash ^ hash >> 32
}

fn of_blocks(blocks: &[[u8; 32]], seed: u64) -> u64 {
    let mut lanes = [
        seed.wrapping_add(P1).wrapping_add(P2),
        seed.wrapping_add(P2),
        seed,
        seed.wrapping_sub(P1),
    ];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = round(*lane, u64::from_le_bytes(*word));
        }
    }
    let turned = lanes.iter().zip([1, 7, 12, 18]);
    let sum = turned.fold(0_u64, |sum, (lane, bits)| {
        sum.wrapping_add(lane.rotate_left(bits))
    });
    lanes.into_iter().fold(sum, merge)
}

#[cfg(test)]
mod tests {
    use super::xxh64;

    #[test]
    fn hashes_are_those_of_the_specification() {
        // Of the specification and of its reference program.
        for (text, seed, wanted) in [
            ("", 0, 0xEF46_DB37_51D8_E999),
            ("a", 0, 0xD24E_C4F1_A98C_6E5B),
            ("abc", 0, 0x44BC_2CF5_AD77_0999),
            (
                "Nobody inspects the spammish repetition",
                0,
                0xFBCE_A83C_8A37_8BF1,
            ),
        ] {
            assert_eq!(xxh64(text.as_bytes(), seed), wanted, "{text}");
        }
        assert_ne!(xxh64(b"a", 1), xxh64(b"a", 0));
    }
}

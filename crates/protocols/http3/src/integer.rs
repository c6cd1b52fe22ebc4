//! QUIC's integers of one, two, four or eight bytes (RFC 9000 section 16).

/// The integer at the start of `bytes` and its length; none while it is not all there.
#[must_use]
pub fn take(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1_usize << (first >> 6);
    let rest = bytes.get(1..length)?;
    let begin = u64::from(first & 0x3f);
    let value = rest
        .iter()
        .fold(begin, |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// Appends an integer of at most 62 bits, as short as it can be.
pub fn put(out: &mut Vec<u8>, value: u64) {
    let (mark, length) = match value {
        0..0x40 => (0, 1),
        0x40..0x4000 => (0x40, 2),
        0x4000..0x4000_0000 => (0x80, 4),
        _ => (0xc0, 8),
    };
    let bytes = value.to_be_bytes();
    let at = out.len();
    out.extend_from_slice(&bytes[8 - length..]);
    out[at] |= mark;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_written_short_and_read_as_the_rfc_writes_them() {
        for (bytes, value) in [
            (&[0x25][..], 37),
            (&[0x7b, 0xbd], 15_293),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
        ] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(take(bytes), Some((value, bytes.len())));
            assert_eq!(take(&bytes[..bytes.len() - 1]), None);
        }
        // Longer than it need be is allowed.
        assert_eq!(take(&[0x40, 0x25]), Some((37, 2)));
    }
}

//! HPACK's Huffman code (RFC 7541, appendix B). The code is canonical: the lengths of the symbols, in order, are all
//! there is to know; codes and decoding limits follow from them.

use super::Malformed;

/// Bits of each symbol's code; the last is the end of string, which may not appear.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
/// The shortest and the longest code.
const SHORTEST: usize = 5;
const LONGEST: usize = 30;
/// The symbol that ends a string; its code's beginning pads the last byte.
const END: u16 = 256;

/// Decoding tables, by length of code.
struct Canonical {
    /// The first code longer than this length, shifted to the left end of 32 bits: windows below it are decided.
    limit: [u64; LONGEST + 1],
    /// Subtract from a code of this length to get its place in `symbols`.
    offset: [i64; LONGEST + 1],
    /// Symbols by length, then by value.
    symbols: [u16; 257],
}

static CANONICAL: Canonical = canonical();

const fn canonical() -> Canonical {
    let mut table = Canonical {
        limit: [0; LONGEST + 1],
        offset: [0; LONGEST + 1],
        symbols: [0; 257],
    };
    let (mut code, mut placed, mut length) = (0u64, 0usize, 1usize);
    while length <= LONGEST {
        code <<= 1;
        table.offset[length] = code as i64 - placed as i64;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                table.symbols[placed] = symbol as u16;
                placed += 1;
                code += 1;
            }
            symbol += 1;
        }
        table.limit[length] = code << (32 - length);
        length += 1;
    }
    table
}

/// Appends the decoded text.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (mut window, mut bits) = (0u64, 0usize);
    let mut rest = coded.iter();
    loop {
        while bits <= 32 {
            let Some(byte) = rest.next() else { break };
            window |= u64::from(*byte) << (56 - bits);
            bits += 8;
        }
        if bits < SHORTEST {
            return padding(window, bits);
        }
        let top = window >> 32;
        let mut length = SHORTEST;
        while length <= LONGEST && top >= CANONICAL.limit[length] {
            length += 1;
        }
        if length > bits || length > LONGEST {
            return padding(window, bits);
        }
        let place = (window >> (64 - length)) as i64 - CANONICAL.offset[length];
        let symbol = CANONICAL.symbols[place as usize];
        if symbol == END {
            return Err(Malformed("Huffman text holds its end symbol"));
        }
        out.push(symbol as u8);
        window <<= length;
        bits -= length;
    }
}

/// Checks the padding: the remaining bits must be fewer than eight, all ones.
fn padding(window: u64, bits: usize) -> Result<(), Malformed> {
    let ones = bits == 0 || window >> (64 - bits) == (1 << bits) - 1;
    if bits < 8 && ones {
        Ok(())
    } else {
        Err(Malformed("Huffman text is padded wrongly"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc_are_read() {
        for (coded, text) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", "custom-value"),
            (b"\x64\x02", "302"),
            (
                b"\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            (b"", ""),
        ] {
            let mut out = Vec::new();
            decode(coded, &mut out).expect("is valid");
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
    }

    #[test]
    fn wrong_padding_and_the_end_symbol_are_refused() {
        for coded in [
            &b"\x64\x02\x00"[..],
            b"\xff",
            b"\xff\xff\xff\xff",
            b"\x64\x02\xff",
        ] {
            assert!(decode(coded, &mut Vec::new()).is_err(), "{coded:02x?}");
        }
    }
}

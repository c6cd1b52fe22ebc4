//! HPACK's Huffman code (RFC 7541, appendix B), read only: the encoder sends plain text, which costs bytes and saves
//! time. The code is canonical, so the lengths of the symbols define it.

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

/// Codes of at most so many bits are found in one step; nearly all text is.
const QUICK: usize = 9;
/// The longest code, in bits.
const LONGEST: usize = 30;
/// The symbol that ends a string.
const END: u16 = 256;

struct Tables {
    /// By the next [`QUICK`] bits: the symbol and its length, which is 0 where the code is longer.
    quick: [(u8, u8); 1 << QUICK],
    /// By length: the first code, how many there are, and where their symbols begin.
    longer: [(u32, u32, u32); LONGEST + 1],
    symbols: [u16; 257],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut tables = Tables {
        quick: [(0, 0); 1 << QUICK],
        longer: [(0, 0, 0); LONGEST + 1],
        symbols: [0; 257],
    };
    let (mut code, mut placed, mut length) = (0_u32, 0_u32, 1_usize);
    while length <= LONGEST {
        code <<= 1;
        let (first, from) = (code, placed);
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                tables.symbols[placed as usize] = symbol as u16;
                if length <= QUICK {
                    let spare = QUICK - length;
                    let mut at = (code as usize) << spare;
                    let end = at + (1 << spare);
                    while at < end {
                        tables.quick[at] = (symbol as u8, length as u8);
                        at += 1;
                    }
                }
                placed += 1;
                code += 1;
            }
            symbol += 1;
        }
        tables.longer[length] = (first, code - first, from);
        length += 1;
    }
    tables
}

/// Appends the decoded text; false when it is not valid.
pub fn decode(coded: &[u8], out: &mut Vec<u8>) -> bool {
    // The next bits stand at the left end of `window`.
    let (mut window, mut bits) = (0_u64, 0_usize);
    let mut rest = coded.iter();
    loop {
        while bits <= 56 {
            let Some(byte) = rest.next() else { break };
            window |= u64::from(*byte) << (56 - bits);
            bits += 8;
        }
        if bits == 0 {
            return true;
        }
        let (symbol, length) = TABLES.quick[(window >> (64 - QUICK)) as usize];
        let (symbol, length) = match length {
            0 => match longer(window) {
                Some(found) => found,
                None => return false,
            },
            length => (u16::from(symbol), usize::from(length)),
        };
        if length > bits {
            // The last byte is filled up with ones, less than eight.
            return bits < 8 && window >> (64 - bits) == (1 << bits) - 1;
        }
        let Ok(byte) = u8::try_from(symbol) else {
            return false;
        };
        out.push(byte);
        window <<= length;
        bits -= length;
    }
}

fn longer(window: u64) -> Option<(u16, usize)> {
    for (length, (first, count, from)) in TABLES.longer.iter().enumerate().skip(QUICK + 1) {
        let code = (window >> (64 - length)) as u32;
        let place = code.wrapping_sub(*first);
        if place < *count {
            return Some((TABLES.symbols[(from + place) as usize], length));
        }
    }
    // Only ones: the beginning of the end of string, good for padding.
    (window >> (64 - LONGEST) == (1 << LONGEST) - 1).then_some((END, LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes as appendix B writes them, from the lengths alone.
    fn code(symbol: u8) -> (u32, usize) {
        let length = usize::from(LENGTHS[usize::from(symbol)]);
        let (first, count, from) = TABLES.longer[length];
        let place = (0..count).find(|at| TABLES.symbols[(from + at) as usize] == symbol.into());
        (first + place.expect("every symbol has a code"), length)
    }

    fn encode(text: &[u8]) -> Vec<u8> {
        let (mut out, mut window, mut bits) = (Vec::new(), 0_u64, 0);
        for symbol in text {
            let (code, length) = code(*symbol);
            window = window << length | u64::from(code);
            bits += length;
            while bits >= 8 {
                bits -= 8;
                out.push((window >> bits) as u8);
            }
        }
        if bits > 0 {
            out.push((window << (8 - bits)) as u8 | (0xff >> bits));
        }
        out
    }

    #[test]
    fn codes_are_those_of_appendix_b() {
        for (symbol, expected) in [
            (b'0', (0x0, 5)),
            (b'a', (0x3, 5)),
            (b' ', (0x14, 6)),
            (b'&', (0xf8, 8)),
            (0, (0x1ff8, 13)),
            (10, (0x3fff_fffc, 30)),
            (255, (0x3ff_ffee, 26)),
        ] {
            assert_eq!(code(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn every_byte_and_any_text_comes_back() {
        let mut random = fastrand::Rng::with_seed(7541);
        let all: Vec<u8> = (0..=255).collect();
        let any = std::iter::repeat_with(|| {
            let length = random.usize(..64);
            std::iter::repeat_with(|| random.u8(..))
                .take(length)
                .collect()
        });
        for text in std::iter::once(all).chain(any.take(2000)) {
            let mut out = Vec::new();
            assert!(decode(&encode(&text), &mut out));
            assert_eq!(out, text);
        }
    }

    #[test]
    fn bad_padding_and_the_end_of_string_are_refused() {
        for (coded, good) in [
            (&[0x1f][..], true),
            (&[0x1f, 0xff], false),
            (&[0x00], false),
            (&[0x18], false),
            (&[0xff], false),
            (&[0xff, 0xff, 0xff, 0xfc], false),
            (&[0xff, 0xff, 0xff, 0xff, 0xff], false),
            (&[], true),
        ] {
            assert_eq!(decode(coded, &mut Vec::new()), good, "{coded:x?}");
        }
    }
}

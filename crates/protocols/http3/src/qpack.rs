//! Blocks of fields. This side allows no dynamic table and uses none, so that a block is complete by itself. The user
//! of a head checks further rules (names, order).

use voile_http2::{Fields, unhuffman};

use crate::known;

/// A block that cannot be read; the connection is lost with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadBlock;

/// Content of a block.
#[derive(Debug)]
pub struct DecodedBlock {
    /// Its fields, as far as the limit goes.
    pub fields: Fields,
    /// True if these are all.
    pub whole: bool,
}

/// Size of each field beside its text (RFC 9114 section 4.2.2).
const OVERHEAD: usize = 32;

/// Continuation bytes of an integer: enough for every length there is.
const MAX_INTEGER_BYTES: usize = 4;

/// Reads a block of which the end may be missing, where it is not `whole`.
///
/// # Errors
/// When it is none, or refers to a table that there is not.
pub fn decode(block: &[u8], whole: bool, limit: usize) -> Result<DecodedBlock, BadBlock> {
    let mut rest = block;
    // No insertions are required, and the base is none.
    if integer(&mut rest, 8)? != 0 || rest.first().ok_or(BadBlock)? & 0x80 != 0 {
        return Err(BadBlock);
    }
    integer(&mut rest, 7)?;
    let (mut fields, mut size) = (Fields::new(), 0_usize);
    let (mut name, mut value) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        name.clear();
        value.clear();
        let never = match field(&mut rest, (&mut name, &mut value)) {
            Ok(never) => never,
            Err(BadBlock) if !whole => break,
            Err(bad) => return Err(bad),
        };
        size = size.saturating_add(name.len() + value.len() + OVERHEAD);
        if size > limit {
            return Ok(DecodedBlock {
                fields,
                whole: false,
            });
        }
        let name = std::str::from_utf8(&name).map_err(|_| BadBlock)?;
        match never {
            true => fields.push_never(name, &value),
            false => fields.push(name, &value),
        }
    }
    Ok(DecodedBlock { fields, whole })
}

/// Reads one field; says whether no table may keep it.
fn field(rest: &mut &[u8], (name, value): (&mut Vec<u8>, &mut Vec<u8>)) -> Result<bool, BadBlock> {
    let first = *rest.first().ok_or(BadBlock)?;
    let entry = |index: usize| known::ENTRIES.get(index).ok_or(BadBlock);
    if first & 0xc0 == 0xc0 {
        let (known, text) = entry(integer(rest, 6)?)?;
        name.extend_from_slice(known.as_bytes());
        value.extend_from_slice(text.as_bytes());
        return Ok(false);
    }
    if first & 0xd0 == 0x50 {
        let (known, _) = entry(integer(rest, 4)?)?;
        name.extend_from_slice(known.as_bytes());
        string(rest, 7, value)?;
        return Ok(first & 0x20 != 0);
    }
    if first & 0xe0 == 0x20 {
        string(rest, 3, name)?;
        string(rest, 7, value)?;
        return Ok(first & 0x10 != 0);
    }
    // All else refers to the dynamic table.
    Err(BadBlock)
}

/// Appends a string whose length begins with `prefix` bits of the first byte, behind the one that says how it is written.
fn string(rest: &mut &[u8], prefix: u32, out: &mut Vec<u8>) -> Result<(), BadBlock> {
    let coded = rest.first().ok_or(BadBlock)? >> prefix & 1 == 1;
    let length = integer(rest, prefix)?;
    let (text, after) = rest.split_at_checked(length).ok_or(BadBlock)?;
    *rest = after;
    match coded {
        false => out.extend_from_slice(text),
        true if unhuffman(text, out) => {}
        true => return Err(BadBlock),
    }
    Ok(())
}

/// Reads an integer whose first byte has `prefix` bits of it.
fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, BadBlock> {
    let (first, mut after) = rest.split_first().ok_or(BadBlock)?;
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (byte, next) = after.split_first().ok_or(BadBlock)?;
            after = next;
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift == 7 * MAX_INTEGER_BYTES {
                return Err(BadBlock);
            }
        }
    }
    *rest = after;
    Ok(value)
}

/// Writes a block: `:status` first, if there is one. The text is plain, which costs bytes and saves time.
#[must_use]
pub fn encode(fields: &Fields) -> Vec<u8> {
    // Nothing is required of a dynamic table.
    let mut out = vec![0, 0];
    let status = fields.status();
    if status != 0 {
        put_field(&mut out, ":status", status.to_string().as_bytes());
    }
    for (name, value) in fields.iter() {
        put_field(&mut out, name, value);
    }
    out
}

fn put_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    match known::find(name, value) {
        (Some(index), _) => put(out, 0xc0, 6, index),
        (None, Some(index)) => {
            put(out, 0x50, 4, index);
            put(out, 0, 7, value.len());
            out.extend_from_slice(value);
        }
        (None, None) => {
            put(out, 0x20, 3, name.len());
            out.extend_from_slice(name.as_bytes());
            put(out, 0, 7, value.len());
            out.extend_from_slice(value);
        }
    }
}

/// Appends an integer whose first bits are in a byte that begins with `mark`.
fn put(out: &mut Vec<u8>, mark: u8, prefix: u32, value: usize) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        return out.push(mark | value as u8);
    }
    out.push(mark | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(fields: &Fields) -> Vec<String> {
        let line =
            |(name, value): (&str, &[u8])| format!("{name}: {}", String::from_utf8_lossy(value));
        let pseudo = [
            (
                ":method",
                Some(fields.method()).filter(|text| !text.is_empty()),
            ),
            (":path", fields.path()),
            (":scheme", fields.scheme()),
        ];
        let pseudo = pseudo
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}: {}", value?)));
        pseudo.chain(fields.iter().map(line)).collect()
    }

    #[test]
    fn a_block_is_read_by_the_static_table_literals_and_huffman() {
        // RFC 9204 B.1, fields by index, a name without one, and a value in Huffman's code (RFC 7541 C.4.3).
        let plain = [
            &[0, 0, 0x51, 0x0b][..],
            b"/index.html",
            &[0xd1, 0xd7, 0x33],
            b"x-a",
            &[1],
            b"1",
            &[0x55, 0x88, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f],
        ]
        .concat();
        let decoded = decode(&plain, true, 1000).expect("a block");
        assert!(decoded.whole);
        let expected = [
            ":method: GET",
            ":path: /index.html",
            ":scheme: https",
            "x-a: 1",
            "cookie: custom-key",
        ];
        assert_eq!(lines(&decoded.fields), expected);
    }

    #[test]
    fn a_block_that_is_none_or_needs_a_dynamic_table_is_refused() {
        for (block, why) in [
            (&[][..], "empty"),
            (&[0], "without a base"),
            (&[1, 0], "an insertion is required"),
            (&[0, 0x80], "a base before the first"),
            (&[0, 0, 0x80], "an entry of the dynamic table"),
            (&[0, 0, 0x40, 0], "a name of the dynamic table"),
            (&[0, 0, 0x10], "an entry behind the base"),
            (&[0, 0, 0x00, 0], "a name behind the base"),
            (&[0, 0, 0xff, 0x24], "entry 99 of 99"),
            (&[0, 0, 0x51, 5, b'a'], "a value that ends early"),
            (
                &[0, 0, 0x27, 0xff, 0xff, 0xff, 0xff, 1],
                "a length without end",
            ),
            (&[0, 0, 0x21, 0xff, 0], "a name that is no text"),
            (&[0, 0, 0x51, 0x81, 0], "no Huffman code"),
        ] {
            assert_eq!(decode(block, true, 1000).err(), Some(BadBlock), "{why}");
        }
    }

    #[test]
    fn of_a_block_beyond_the_limit_the_first_fields_are_kept() {
        let mut fields = Fields::new();
        for name in ["a", "b", "c"] {
            fields.push(name, &[b'x'; 50]);
        }
        let block = encode(&fields);
        for (limit, expected) in [(249, 3), (248, 2), (166, 2), (165, 1), (0, 0)] {
            let decoded = decode(&block, true, limit).expect("a block");
            assert_eq!(decoded.fields.iter().count(), expected, "{limit}");
            assert_eq!(decoded.whole, expected == 3, "{limit}");
        }
        let cut = decode(&block[..100], false, 1000).expect("its beginning");
        assert_eq!((cut.fields.iter().count(), cut.whole), (1, false));
    }

    #[test]
    fn what_we_write_we_read() {
        let mut fields = Fields::response(200);
        fields.push("content-type", b"text/plain");
        fields.push("location", b"/elsewhere");
        fields.push("x-long", &[b'v'; 300]);
        fields.push(&"n".repeat(200), b"");
        let block = encode(&fields);
        // A status and a type that the table knows are a byte each.
        assert_eq!(&block[..4], [0, 0, 0xd9, 0xf5]);
        let decoded = decode(&block, true, 10_000).expect("a block");
        assert_eq!(decoded.fields.status(), 200);
        assert_eq!(lines(&decoded.fields), lines(&fields));
    }
}

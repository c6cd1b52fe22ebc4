//! Header compression (RFC 7541): both tables, a decoder that trusts nothing, and an encoder that indexes what
//! repeats, so that steady requests are a handful of bytes as with any real client.

use std::collections::VecDeque;

use super::{Malformed, huffman};

/// Size of the dynamic tables, in the RFC's count: the protocol's default, which we neither raise nor lower.
const TABLE_BYTES: usize = 4096;
/// Overhead that the RFC adds to the text of a table entry.
const ENTRY_OVERHEAD: usize = 32;
/// Most decoded text of one header block, overhead included. The peer is told this limit.
pub(super) const MAX_LIST_BYTES: usize = 64 * 1024;

const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[derive(Debug)]
struct HpackEntry {
    /// Name, then value.
    text: Box<[u8]>,
    name: usize,
}

impl HpackEntry {
    fn size(&self) -> usize {
        self.text.len() + ENTRY_OVERHEAD
    }

    fn split(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.name)
    }
}

/// The entries that a connection has learned, newest first.
#[derive(Debug)]
struct Dynamic {
    entries: VecDeque<HpackEntry>,
    size: usize,
    limit: usize,
}

impl Dynamic {
    fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            limit: TABLE_BYTES,
        }
    }

    fn shrink(&mut self, to: usize) {
        while self.size > to {
            let Some(oldest) = self.entries.pop_back() else {
                return;
            };
            self.size -= oldest.size();
        }
    }

    fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        if size > self.limit {
            // The RFC: it empties the table and is not an error.
            self.shrink(0);
            return;
        }
        self.shrink(self.limit - size);
        self.size += size;
        self.entries.push_front(HpackEntry {
            text: [name, value].concat().into_boxed_slice(),
            name: name.len(),
        });
    }

    fn get(&self, index: usize) -> Result<(&[u8], &[u8]), Malformed> {
        let unknown = Malformed("header field of an unknown index");
        if let Some((name, value)) = index.checked_sub(1).and_then(|at| STATIC.get(at)) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let at = index.checked_sub(STATIC.len() + 1).ok_or(unknown.clone())?;
        Ok(self.entries.get(at).ok_or(unknown)?.split())
    }
}

/// Reads header blocks.
#[derive(Debug)]
pub(super) struct Decoder {
    table: Dynamic,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            table: Dynamic::new(),
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Passes each field of a whole block on, in order.
    pub(super) fn decode(
        &mut self,
        mut block: &[u8],
        field: &mut impl FnMut(&[u8], &[u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let (mut listed, mut begun) = (0, false);
        while let Some(first) = block.first().copied() {
            if first & 0xe0 == 0x20 {
                let limit = integer(&mut block, 5)?;
                if begun || limit > TABLE_BYTES {
                    return Err(Malformed("header table resized wrongly"));
                }
                self.table.limit = limit;
                self.table.shrink(limit);
                continue;
            }
            begun = true;
            if first & 0x80 != 0 {
                let (name, value) = self.table.get(integer(&mut block, 7)?)?;
                listed += name.len() + value.len() + ENTRY_OVERHEAD;
                within(listed)?;
                field(name, value)?;
                continue;
            }
            let learned = first & 0x40 != 0;
            let index = integer(&mut block, if learned { 6 } else { 4 })?;
            self.name.clear();
            self.value.clear();
            if index == 0 {
                string(&mut block, &mut self.name)?;
            } else {
                self.name.extend_from_slice(self.table.get(index)?.0);
            }
            string(&mut block, &mut self.value)?;
            listed += self.name.len() + self.value.len() + ENTRY_OVERHEAD;
            within(listed)?;
            if learned {
                self.table.insert(&self.name, &self.value);
            }
            field(&self.name, &self.value)?;
        }
        Ok(())
    }
}

fn within(listed: usize) -> Result<(), Malformed> {
    if listed > MAX_LIST_BYTES {
        return Err(Malformed("header list larger than 64 KiB"));
    }
    Ok(())
}

/// Takes an integer with a prefix of so many bits.
fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, Malformed> {
    let cut = Malformed("header block is truncated");
    let (first, rest) = block.split_first().ok_or(cut.clone())?;
    *block = rest;
    let mask = (1usize << prefix) - 1;
    let mut value = usize::from(*first) & mask;
    if value < mask {
        return Ok(value);
    }
    // Four more bytes reach 2^28: beyond every size that may occur here.
    for shift in [0, 7, 14, 21] {
        let (byte, rest) = block.split_first().ok_or(cut.clone())?;
        *block = rest;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed("header block holds a huge integer"))
}

fn string(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let text = block
        .get(..length)
        .ok_or(Malformed("header block is truncated"))?;
    *block = &block[length..];
    if coded {
        huffman::decode(text, out)
    } else {
        out.extend_from_slice(text);
        Ok(())
    }
}

/// Writes header blocks.
#[derive(Debug)]
pub(super) struct Encoder {
    table: Dynamic,
    /// The table was resized. The next block must announce the least size in between, then the last size.
    resized: Option<(usize, usize)>,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self {
            table: Dynamic::new(),
            resized: None,
        }
    }

    /// The peer allows a table of so many bytes.
    pub(super) fn resize(&mut self, allowed: usize) {
        let limit = allowed.min(TABLE_BYTES);
        let least = self.resized.map_or(limit, |(least, _)| least.min(limit));
        if limit != self.table.limit || self.resized.is_some() {
            self.table.limit = limit;
            self.table.shrink(limit);
            self.resized = Some((least, limit));
        }
    }

    /// The next block begins with a word about the table's size.
    pub(super) fn resized(&self) -> bool {
        self.resized.is_some()
    }

    /// Begins a block.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((least, last)) = self.resized.take() {
            put_integer(out, 0x20, 5, least);
            if last != least {
                put_integer(out, 0x20, 5, last);
            }
        }
    }

    /// Appends a field; true if the table learned it, so that the same block will be another the next time.
    pub(super) fn field(
        &mut self,
        name: &[u8],
        value: &[u8],
        learn: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut named = None;
        for (at, entry) in STATIC.iter().enumerate() {
            if entry.0.as_bytes() == name {
                if entry.1.as_bytes() == value {
                    put_integer(out, 0x80, 7, at + 1);
                    return false;
                }
                named = named.or(Some(at + 1));
            }
        }
        for (at, entry) in self.table.entries.iter().enumerate() {
            let (known, its) = entry.split();
            if known == name {
                if its == value {
                    put_integer(out, 0x80, 7, STATIC.len() + 1 + at);
                    return false;
                }
                named = named.or(Some(STATIC.len() + 1 + at));
            }
        }
        let learn = learn && name.len() + value.len() + ENTRY_OVERHEAD <= self.table.limit;
        let (pattern, prefix) = if learn { (0x40, 6) } else { (0, 4) };
        put_integer(out, pattern, prefix, named.unwrap_or(0));
        if named.is_none() {
            put_string(out, name);
        }
        put_string(out, value);
        if learn {
            self.table.insert(name, value);
        }
        learn
    }
}

fn put_integer(out: &mut Vec<u8>, pattern: u8, prefix: u32, value: usize) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    put_integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, Malformed> {
        let mut fields = Vec::new();
        decoder.decode(block, &mut |name, value| {
            let (name, value) = (
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value),
            );
            fields.push(format!("{name}={value}"));
            Ok(())
        })?;
        Ok(fields)
    }

    /// RFC 7541, C.4: three requests on one connection, Huffman coded.
    #[test]
    fn the_requests_of_the_rfc_are_read() {
        let mut decoder = Decoder::new();
        let first = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let second = b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf";
        let third = b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf";
        let common = [
            ":method=GET",
            ":scheme=http",
            ":path=/",
            ":authority=www.example.com",
        ];
        assert_eq!(read(&mut decoder, first).expect("valid"), common);
        let cached = [&common[..], &["cache-control=no-cache"]].concat();
        assert_eq!(read(&mut decoder, second).expect("valid"), cached);
        assert_eq!(
            read(&mut decoder, third).expect("valid"),
            [
                ":method=GET",
                ":scheme=https",
                ":path=/index.html",
                ":authority=www.example.com",
                "custom-key=custom-value"
            ]
        );
        assert_eq!(decoder.table.size, 164);
    }

    #[test]
    fn what_is_written_is_read_back_and_shrinks_to_indices() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let long = "x".repeat(5000);
        let fields = [
            (":status", "200"),
            ("grpc-status", "0"),
            ("x-long", &long),
            ("server", "v"),
        ];
        let mut sizes = Vec::new();
        for round in 0..4 {
            if round == 3 {
                encoder.resize(0);
                encoder.resize(100);
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            for (name, value) in fields {
                encoder.field(name.as_bytes(), value.as_bytes(), true, &mut block);
            }
            let expected: Vec<_> = fields.iter().map(|(n, v)| format!("{n}={v}")).collect();
            assert_eq!(
                read(&mut decoder, &block).expect("valid"),
                expected,
                "round {round}"
            );
            sizes.push(block.len());
        }
        assert!(
            sizes[1] == sizes[2] && sizes[1] + 10 < sizes[0],
            "{sizes:?}"
        );
    }

    #[test]
    fn hostile_blocks_are_refused() {
        let bomb = {
            let mut block = vec![0x40, 1, b'a', 0x7f, 0xa0, 0x1e];
            block.extend(vec![b'v'; 4_000 - 1 + 16]);
            block.truncate(6 + 0x7f + 0x1e * 128 + 0x20);
            block.extend(vec![0xbe; 100]);
            block
        };
        for block in [
            &b"\x80"[..],
            b"\xbe",
            b"\xff\xff\xff\xff\xff\xff",
            b"\x40\x05ab",
            b"\x00",
            b"\x3f\xe2\x1f",
            b"\x82\x20",
            b"\x0f",
            &bomb,
        ] {
            assert!(
                read(&mut Decoder::new(), block).is_err(),
                "{:02x?}",
                &block[..block.len().min(20)]
            );
        }
    }
}

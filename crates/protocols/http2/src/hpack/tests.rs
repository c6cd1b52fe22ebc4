//! The examples of RFC 7541, forbidden blocks, and a check that one end reads the blocks of the other.

use super::{Decoder, Encoder, TABLE_BYTES};
use crate::fields::{Field, Fields};

const LIMIT: usize = 64 * 1024;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("hexadecimal")
    });
    pairs.collect()
}

/// `name: value` of every field, one a line.
fn text(fields: &Fields) -> String {
    let lines = fields.all().map(|Field { name, value, .. }| {
        format!("{}: {}\n", name.escape_ascii(), value.escape_ascii())
    });
    lines.collect()
}

fn read(decoder: &mut Decoder, block: &[u8]) -> Option<String> {
    let mut fields = Fields::new();
    let whole = decoder.decode(block, &mut fields, LIMIT).ok()?;
    assert!(whole);
    Some(text(&fields))
}

#[test]
fn requests_of_appendix_c_are_read() {
    let common = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n";
    let second = format!("{common}cache-control: no-cache\n");
    let third = ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
                 custom-key: custom-value\n";
    for blocks in [
        // C.3, then C.4 with the Huffman code.
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        let mut decoder = Decoder::new();
        for (block, expected) in blocks.iter().zip([common, &second, third]) {
            let got = read(&mut decoder, &bytes(block));
            assert_eq!(got.as_deref(), Some(expected), "{block}");
        }
    }
}

#[test]
fn answers_of_appendix_c_are_read_with_a_table_of_256_bytes() {
    let date = "date: Mon, 21 Oct 2013 20:13:2";
    let first = format!(
        ":status: 302\ncache-control: private\n{date}1 GMT\nlocation: https://www.example.com\n"
    );
    let second = first.replace("302", "307");
    let third = format!(
        ":status: 200\ncache-control: private\n{date}2 GMT\nlocation: https://www.example.com\n\
         content-encoding: gzip\n\
         set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\n"
    );
    let mut decoder = Decoder::new();
    // C.6, after the change of size that it supposes.
    for (block, expected) in [
        (
            "3fe101 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
             2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            first,
        ),
        ("4883 640e ffc1 c0bf", second),
        (
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad \
             94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 \
             65c0 03ed 4ee5 b106 3d50 07",
            third,
        ),
    ] {
        assert_eq!(read(&mut decoder, &bytes(block)), Some(expected), "{block}");
    }
}

#[test]
fn blocks_that_mean_nothing_are_refused() {
    for (what, block) in [
        ("index 0", "80"),
        ("an index beyond both tables", "be"),
        ("a name beyond both tables", "7e 01 61"),
        ("an index that is cut off", "ff"),
        ("an integer that is too long", "ff ff ff ff ff ff"),
        ("a text that is cut off", "00 05 61"),
        ("a length that is cut off", "00"),
        ("no value", "00 01 61"),
        ("a size after a field", "82 20"),
        ("a size beyond the setting", "3f e2 1f"),
        ("a bad Huffman code", "00 81 ff 00"),
        ("an end of string", "00 84 ff ff ff ff 00"),
    ] {
        assert_eq!(read(&mut Decoder::new(), &bytes(block)), None, "{what}");
    }
}

#[test]
fn what_is_beyond_the_limit_is_not_kept_and_the_table_goes_on() {
    let mut decoder = Decoder::new();
    let mut fields = Fields::new();
    // Two fields of 34 bytes each in the RFC's count, the second of them into the table.
    let block = bytes("00 01 61 01 62  40 01 63 01 64");
    assert_eq!(decoder.decode(&block, &mut fields, 40), Ok(false));
    assert_eq!(text(&fields), "a: b\n");
    assert_eq!(read(&mut decoder, &bytes("be")).as_deref(), Some("c: d\n"));
}

#[test]
fn a_block_cannot_be_larger_than_the_limit_however_it_is_made() {
    let mut decoder = Decoder::new();
    // One long field into the table, then a thousand references to it.
    let mut block = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    block.extend(std::iter::repeat_n(b'x', 4000));
    assert_eq!(
        read(&mut decoder, &block).map(|text| text.len()),
        Some(4004)
    );
    let mut fields = Fields::new();
    let bomb = [0xbe].repeat(10_000);
    assert_eq!(decoder.decode(&bomb, &mut fields, LIMIT), Ok(false));
    assert!(fields.mark() <= LIMIT, "{} bytes", fields.mark());
}

#[test]
fn secrets_stay_out_of_the_table_and_what_comes_again_goes_in() {
    let mut encoder = Encoder::new();
    let mut sizes = |name: &str, value: &str| {
        let mut lengths = Vec::new();
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            let mut fields = Fields::new();
            fields.push(name, value.as_bytes());
            fields
                .all()
                .for_each(|field| encoder.field(&mut out, field));
            lengths.push((out[0] & 0xf0, out.len()));
        }
        lengths
    };
    assert_eq!(sizes("x-a", "1"), [(0, 7), (0x40, 7), (0xb0, 1)]);
    assert_eq!(sizes("authorization", "x")[2], (0x10, 4));
    assert_eq!(sizes(":path", "/a?b")[2], (0x00, 6));
    assert_eq!(sizes(":path", "/a")[2], (0xb0, 1));
    assert_eq!(sizes("cookie", "a=b")[2], (0x00, 6));
    assert_eq!(sizes(":method", "GET")[0], (0x80, 1));
}

#[test]
fn what_the_encoder_writes_the_decoder_reads_whatever_the_size_of_the_table() {
    let mut random = fastrand::Rng::with_seed(7541);
    for _ in 0..50 {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        for _ in 0..60 {
            if random.u8(..8) == 0 {
                for _ in 0..random.usize(..3) {
                    encoder.limit(random.usize(..2 * TABLE_BYTES));
                }
            }
            let mut sent = Fields::new();
            for _ in 0..random.usize(..12) {
                let name = random.choice([":path", "x-a", "x-b", "cookie", "te"]);
                let length = if random.u8(..10) == 0 { 700 } else { 6 };
                let value = random.usize(..9).to_string().repeat(length);
                sent.push(name.expect("a name"), value.as_bytes());
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            for field in sent.all() {
                let never = random.u8(..9) == 0;
                encoder.field(&mut block, Field { never, ..field });
            }
            assert_eq!(read(&mut decoder, &block), Some(text(&sent)));
        }
    }
}

#[test]
fn what_is_malformed_stays_so_when_it_comes_out_of_the_table() {
    for (block, sound) in [
        // x-a: 1
        ("40 03 782d61 01 31", true),
        // X-a: 1
        ("40 03 582d61 01 31", false),
        // x-a: a line feed
        ("40 03 782d61 01 0a", false),
        // :path: x
        ("44 01 78", false),
        // :path: /x, and with a space
        ("44 02 2f78", true),
        ("44 03 2f2078", false),
    ] {
        let mut decoder = Decoder::new();
        read(&mut decoder, &bytes(block)).expect("a block");
        let mut again = Fields::new();
        assert_eq!(decoder.decode(&bytes("be"), &mut again, LIMIT), Ok(true));
        let found: Vec<bool> = again.all().map(|field| field.sound).collect();
        assert_eq!(found, [sound], "{block}");
    }
}

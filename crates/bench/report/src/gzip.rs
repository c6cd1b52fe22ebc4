//! Gzip, the form of raw data in a record folder. The lab and tests call this; it opens no file.

use std::io::{self, Read as _, Write as _};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// Compresses text to one gzip member. Members that follow each other in a file are read as one text.
#[must_use]
pub fn compress(text: &str) -> Vec<u8> {
    let mut member = GzEncoder::new(Vec::new(), Compression::best());
    member
        .write_all(text.as_bytes())
        .and_then(|()| member.finish())
        .expect("invariant: a Vec takes every byte")
}

/// The text of all members.
///
/// # Errors
/// When a member is damaged or cut off, or the text is not UTF-8.
pub fn decompress(bytes: &[u8]) -> io::Result<String> {
    io::read_to_string(MultiGzDecoder::new(bytes))
}

/// The text before the first damage. The last member of a file is cut off if the machine ended while it was written.
#[must_use]
pub fn decompress_undamaged(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    // The decoder leaves in `text` what it read before an error.
    let _ = MultiGzDecoder::new(bytes).read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_one_text_up_to_the_first_damage() {
        let (first, second) = (compress("a\n"), compress("bc\n"));
        let whole = [first.clone(), second.clone()].concat();
        assert_eq!(decompress(&whole).expect("undamaged"), "a\nbc\n");
        assert_eq!(decompress_undamaged(&whole), "a\nbc\n");
        for cut in first.len()..whole.len() {
            let text = decompress_undamaged(&whole[..cut]);
            assert!(["a\n", "a\nb", "a\nbc", "a\nbc\n"].contains(&text.as_str()));
        }
        assert!(decompress(&whole[..whole.len() - 1]).is_err());
        assert!(decompress(b"{}").is_err());
        assert_eq!(decompress_undamaged(b""), "");
    }
}

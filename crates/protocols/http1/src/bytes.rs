//! Sets of bytes as tables: each byte of a head is looked up once instead of being compared with a dozen others.

/// For each byte whether it belongs to the set.
pub(crate) struct Bytes([bool; 256]);

/// RFC 9110 section 5.6.2.
pub(crate) static TOKEN: Bytes = ALPHANUMERIC.and(b"!#$%&'*+-.^_`|~");

/// Tokens in which no letter is lower case.
pub(crate) static METHOD: Bytes = Bytes::between(b'0', b'9')
    .and_between(b'A', b'Z')
    .and(b"!#$%&'*+-.^_`|~");

/// Visible characters except the fragment's sign, which no client sends.
pub(crate) static TARGET: Bytes = Bytes::between(b'!', b'"').and_between(b'$', b'~');

/// unreserved, sub-delims and percent of RFC 3986; a comma would let two hosts pass for one.
pub(crate) static NAME: Bytes = ALPHANUMERIC.and(b"-._~%!$&'()*+;=");

const ALPHANUMERIC: Bytes = Bytes::between(b'0', b'9')
    .and_between(b'A', b'Z')
    .and_between(b'a', b'z');

impl Bytes {
    const fn between(from: u8, to: u8) -> Self {
        Self([false; 256]).and_between(from, to)
    }

    const fn and_between(mut self, from: u8, to: u8) -> Self {
        let mut byte = from;
        while byte <= to {
            self.0[byte as usize] = true;
            byte += 1;
        }
        self
    }

    const fn and(mut self, others: &[u8]) -> Self {
        let mut at = 0;
        while at < others.len() {
            self.0[others[at] as usize] = true;
            at += 1;
        }
        self
    }

    /// Returns true if a byte belongs to the set.
    pub(crate) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }

    /// Returns true if every byte of a text belongs to the set. Nearly always they do, so no byte decides before the
    /// others.
    pub(crate) fn hold(&self, text: &[u8]) -> bool {
        text.iter().fold(true, |held, byte| held & self.has(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_the_rfcs_name() {
        let signs = b"!#$%&'*+-.^_`|~";
        for byte in 0..=u8::MAX {
            let token = byte.is_ascii_alphanumeric() || signs.contains(&byte);
            assert_eq!(TOKEN.has(byte), token, "{byte}");
            let method = token && !byte.is_ascii_lowercase();
            assert_eq!(METHOD.has(byte), method, "{byte}");
            let target = matches!(byte, 0x21..=0x7e) && byte != b'#';
            assert_eq!(TARGET.has(byte), target, "{byte}");
            let name = byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(&byte);
            assert_eq!(NAME.has(byte), name, "{byte}");
        }
    }
}

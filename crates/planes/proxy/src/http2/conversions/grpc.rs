//! The proxy's knowledge of gRPC: messages counted by their prefixes, and its statuses.

use std::time::Duration;

use voile_http2::Fields;

/// Counts length-prefixed messages in a body that comes in pieces.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// Complete prefixes seen.
    pub(crate) count: u64,
    prefix: [u8; PREFIX],
    have: usize,
    /// Bytes of the current message still to come.
    left: u64,
}

/// One byte of flags, four of length.
const PREFIX: usize = 5;

impl Messages {
    /// Returns how many began so far.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> u64 {
        while !bytes.is_empty() {
            let skip = usize::try_from(self.left)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            self.left -= skip as u64;
            bytes = &bytes[skip..];
            let want = (PREFIX - self.have).min(bytes.len());
            if self.left > 0 || want == 0 {
                continue;
            }
            self.prefix[self.have..self.have + want].copy_from_slice(&bytes[..want]);
            self.have += want;
            bytes = &bytes[want..];
            if self.have == PREFIX {
                let [_, length @ ..] = self.prefix;
                self.left = u32::from_be_bytes(length).into();
                self.have = 0;
                self.count += 1;
            }
        }
        self.count
    }
}

/// `grpc-status` of trailers, or of a head without a body.
pub(crate) fn status(fields: &Fields) -> Option<u16> {
    parse_status(fields.get("grpc-status")?)
}

/// The value of `grpc-status`.
pub(crate) fn parse_status(value: &[u8]) -> Option<u16> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// `grpc-timeout`: at most eight digits and a unit. None where it is neither, or nothing at all.
pub(crate) fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let timeout = match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    };
    (!timeout.is_zero()).then_some(timeout)
}

/// gRPC status for a local reply with an HTTP status: gRPC's own table, as Envoy follows it. If the table says UNKNOWN and
/// gRPC has a better status for the failure, that one is used: its libraries say RESOURCE_EXHAUSTED to metadata that is
/// too large.
pub(crate) fn from_http(status: u16) -> u16 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        408 => 4,
        413 | 431 => 8,
        501 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

/// `grpc-message`: everything but printable ASCII as `%XX`, and `%` itself.
pub(crate) fn message(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                out.push('%');
                out.push(char::from(DIGITS[usize::from(byte >> 4)]));
                out.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_however_the_body_is_cut() {
        let mut body = Vec::new();
        for length in [0_u32, 1, 300, 0, 7] {
            body.push(0);
            body.extend_from_slice(&length.to_be_bytes());
            body.extend(std::iter::repeat_n(b'x', length as usize));
        }
        for step in [1, 2, 3, 5, 7, 64, body.len()] {
            let mut messages = Messages::default();
            for piece in body.chunks(step) {
                messages.take(piece);
            }
            assert_eq!(messages.count, 5, "in pieces of {step}");
        }
    }

    #[test]
    fn a_timeout_is_a_number_with_a_unit() {
        let millis = |text: &str| timeout(text.as_bytes()).map(|time| time.as_micros());
        for (text, expected) in [
            ("1H", Some(3_600_000_000)),
            ("2M", Some(120_000_000)),
            ("99999999S", Some(99_999_999_000_000)),
            ("250m", Some(250_000)),
            ("7u", Some(7)),
            ("3000n", Some(3)),
            ("0S", None),
            ("", None),
            ("S", None),
            ("1s", None),
            ("-1S", None),
            ("1 S", None),
            ("123456789m", None),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
    }

    #[test]
    fn a_message_survives_as_a_header_value() {
        for (text, expected) in [
            ("no healthy upstream", "no healthy upstream"),
            ("50% of Größe\n", "50%25 of Gr%C3%B6%C3%9Fe%0A"),
        ] {
            assert_eq!(message(text), expected);
        }
    }
}

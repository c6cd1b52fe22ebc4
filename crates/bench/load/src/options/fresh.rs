//! UUIDs that differ in each request: `{uuid}` in a URL's path and query and in a payload, as in Fortio. Prepared requests hold
//! placeholders of the right length. Each sent request is a copy in which only these are overwritten.

use super::{LoadOptions, LoadProtocol};
use crate::wire::PreparedRequest;

/// Placeholder of a UUID in a URL or payload.
const TOKEN: &str = "{uuid}";
/// Placeholder of a UUID in a prepared request. It is no UUID, so it equals no real one.
const PLACE: &str = "{uuid}-place-of-thirty-six-octets---";
const LENGTH: usize = PLACE.len();

impl LoadOptions {
    /// The request with places for UUIDs, where there are to be some.
    pub(super) fn with_places(&self) -> Option<PreparedRequest> {
        if !self.uuids {
            return None;
        }
        let mut one = Self {
            uuids: false,
            ..self.clone()
        };
        one.target.path = one.target.path.replace(TOKEN, PLACE);
        one.body = replaced(&self.body);
        let request = one.one_request();
        let uuids = memchr::memmem::find_iter(&request.bytes, PLACE).collect();
        Some(PreparedRequest { uuids, ..request })
    }

    pub(super) fn check_uuids(&self) -> Result<(), String> {
        match self.uuids && (self.protocol != LoadProtocol::Http1 || !self.more.is_empty()) {
            true => Err(format!(
                "uuids: `{TOKEN}` is supported over HTTP/1 and for one target only"
            )),
            false => Ok(()),
        }
    }
}

fn replaced(body: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(body.len());
    let mut rest = 0;
    for at in memchr::memmem::find_iter(body, TOKEN) {
        all.extend_from_slice(&body[rest..at]);
        all.extend_from_slice(PLACE.as_bytes());
        rest = at + TOKEN.len();
    }
    all.extend_from_slice(&body[rest..]);
    all
}

/// Writes a new one (version 4) into each place.
pub(crate) fn put(bytes: &mut [u8], places: &[usize]) {
    for at in places {
        let random = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
        let mut nibbles = (0..32)
            .rev()
            .map(|nibble| (random >> (4 * nibble)) as usize & 0xf);
        for (index, byte) in bytes[*at..*at + LENGTH].iter_mut().enumerate() {
            *byte = match index {
                8 | 13 | 18 | 23 => b'-',
                _ => nibbles
                    .next()
                    .map_or(b'0', |nibble| b"0123456789abcdef"[nibble]),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::LoadTarget;

    #[test]
    fn each_place_gets_another_and_the_length_is_told_as_it_will_be() {
        let target = LoadTarget::parse("http://127.0.0.1:1/a/{uuid}?id={uuid}").expect("a target");
        let mut options = LoadOptions::new(target);
        "POST".clone_into(&mut options.method);
        options.body = b"<{uuid}>".to_vec();
        options.uuids = true;
        options.check().expect("good");
        let request = &options.requests()[0];
        assert_eq!(request.uuids.len(), 3);
        let sent = || {
            let mut bytes = request.bytes.clone();
            put(&mut bytes, &request.uuids);
            String::from_utf8(bytes).expect("text")
        };
        let (one, other) = (sent(), sent());
        assert!(one.contains("\r\nContent-Length: 38\r\n"), "{one}");
        let of = |text: &str| -> Vec<String> {
            let all = request.uuids.iter();
            all.map(|at| text[*at..*at + LENGTH].to_owned()).collect()
        };
        let mut all = [of(&one), of(&other)].concat();
        for uuid in &all {
            let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
            assert_eq!(&uuid[14..15], "4", "{uuid}");
            assert!("89ab".contains(&uuid[19..20]), "{uuid}");
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6, "{all:?}");
    }

    #[test]
    fn what_is_not_asked_for_stays_as_it_is_and_http2_is_refused() {
        let target = LoadTarget::parse("http://127.0.0.1:1/{uuid}").expect("a target");
        let mut options = LoadOptions::new(target);
        let request = &options.requests()[0];
        assert!(request.uuids.is_empty() && request.bytes.starts_with(b"GET /{uuid} "));
        options.uuids = true;
        options.protocol = LoadProtocol::Http2;
        let why = options.check().expect_err("refused");
        assert!(why.contains("HTTP/1"), "{why}");
    }
}

//! Parts of RFC 6455's handshake that RFC 8441 does without. HTTP/2 has no key and no proof, so a proxy between the two
//! versions makes the key and gives the proof.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use voile_http1::RequestHead;
use voile_http2::Fields;

/// Appended to the key before it is hashed (RFC 6455 section 1.3).
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Random bytes in a key.
const KEY_BYTES: usize = 16;

/// Returns true for RFC 8441's request: CONNECT with `:protocol: websocket`.
pub(crate) fn is_extended_connect(head: &Fields) -> bool {
    let protocol = head.protocol();
    head.method() == "CONNECT"
        && protocol.is_some_and(|name| name.eq_ignore_ascii_case("websocket"))
}

/// Returns true if a request asks for a CONNECT tunnel (RFC 9113 section 8.5).
pub(crate) fn is_plain_connect(head: &Fields) -> bool {
    head.method() == "CONNECT" && head.protocol().is_none()
}

/// Returns true for RFC 6455's complete handshake, which keeps its meaning without the key.
pub(crate) fn is_handshake(head: &RequestHead<'_>) -> bool {
    let key = || STANDARD.decode(head.header("sec-websocket-key").unwrap_or_default());
    let protocol = || head.header("upgrade").unwrap_or_default();
    head.wants_upgrade()
        && head.method() == "GET"
        && protocol().eq_ignore_ascii_case(b"websocket")
        && key().is_ok_and(|key| key.len() == KEY_BYTES)
}

/// `Sec-WebSocket-Key`: sixteen random bytes, a nonce and no secret.
pub(crate) fn key() -> String {
    STANDARD.encode(fastrand::u128(..).to_be_bytes())
}

/// `Sec-WebSocket-Accept` for a key.
pub(crate) fn accept(key: &[u8]) -> String {
    let hashed = [key.trim_ascii(), MAGIC].concat();
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &hashed))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_proof_is_that_of_the_rfcs_example() {
        let accept = super::accept(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_key_is_sixteen_bytes() {
        assert_eq!(super::key().len(), 24);
        assert_ne!(super::key(), super::key());
    }
}

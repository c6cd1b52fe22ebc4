//! A balancer's header: read in pieces it is the same as whole, and nothing beyond it is ever taken.

use voile_transport::proxy_protocol::{MAX_PROXY_HEADER_BYTES, ProxyHeaderError, parse};

/// Any first bytes.
pub(crate) fn decided_once(data: &[u8]) {
    let whole = parse(data);
    for end in 0..data.len() {
        match parse(&data[..end]) {
            Err(ProxyHeaderError::NeedMore) => {
                assert!(
                    end < MAX_PROXY_HEADER_BYTES,
                    "more is wanted than is ever read"
                );
                if let Ok(header) = whole {
                    assert!(end < header.length, "a whole header wants no more");
                }
            }
            decided => {
                assert_eq!(decided, whole, "at byte {end}");
                break;
            }
        }
    }
    if let Ok(header) = whole {
        assert!(header.length <= data.len() && header.length <= MAX_PROXY_HEADER_BYTES);
        assert_eq!(
            parse(&data[..header.length]),
            whole,
            "what follows says nothing"
        );
    }
}

//! Detection: a decision once made stands for any further bytes, and a ClientHello reads the same here as in a TLS
//! stack.

use rustls::server::Acceptor;
use voile_transport::{ClientHello, DetectedProtocol, MAX_DETECTION_BYTES, detect};

/// Any first bytes.
pub(crate) fn decided_once(data: &[u8]) {
    let bytes = &data[..data.len().min(MAX_DETECTION_BYTES - 1)];
    let mut decided: Option<DetectedProtocol> = None;
    for end in 1..=bytes.len() {
        let now = detect(&bytes[..end]);
        if decided.is_some() {
            assert_eq!(now, decided, "at byte {end}");
        }
        decided = now;
    }
}

/// The bytes of a first TLS flight, held against rustls.
pub(crate) fn client_hello(data: &[u8]) {
    let bytes = &data[..data.len().min(MAX_DETECTION_BYTES - 1)];
    let Some(DetectedProtocol::Tls(ours)) = detect(bytes) else {
        return;
    };
    let mut acceptor = Acceptor::default();
    let mut unread = bytes;
    while !unread.is_empty() {
        if acceptor.read_tls(&mut unread).is_err() {
            return;
        }
        match acceptor.accept() {
            Ok(None) => {}
            // A stack that would refuse it never gets to see it differently.
            Err(_) => return,
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let alpn: Vec<&[u8]> = hello.alpn().into_iter().flatten().collect();
                agree(&ours, hello.server_name(), &alpn);
                return;
            }
        }
    }
}

fn agree(ours: &ClientHello, name: Option<&str>, alpn: &[&[u8]]) {
    // rustls drops names that are no DNS names; any other name must be the same here.
    if let Some(name) = name {
        let same = ours.server_name.as_deref().map(str::to_ascii_lowercase);
        assert_eq!(same.as_deref(), Some(name.to_ascii_lowercase().as_str()));
    }
    let found: Vec<&[u8]> = ours.alpn.iter().map(Vec::as_slice).collect();
    assert_eq!(found, alpn);
}

//! Messages of the control plane: any bytes become checked types, or a refusal that names the field, in few words.

use std::fmt::Debug;

use voile_xds::wire::{Address, ProxyConfiguration, ServicePolicy, WireError};

/// Longest refusal, in bytes: it quotes no more of a message than a person reads.
const MAX_REFUSAL: usize = 2048;

/// The first byte says which message the rest is.
pub(crate) fn message(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 3 {
        0 => judged(Address::decode, bytes),
        1 => judged(ProxyConfiguration::decode, bytes),
        _ => judged(ServicePolicy::decode, bytes),
    }
}

fn judged<T: Debug>(decode: impl Fn(&[u8]) -> Result<T, WireError>, bytes: &[u8]) {
    match decode(bytes) {
        Ok(found) => {
            // The same bytes always mean the same.
            let again = decode(bytes).map(|again| format!("{again:?}"));
            assert_eq!(again, Ok(format!("{found:?}")));
        }
        Err(refusal) => {
            let said = refusal.to_string();
            assert!(!refusal.reason.is_empty());
            assert!(said.len() <= MAX_REFUSAL, "{} bytes: {said}", said.len());
        }
    }
}

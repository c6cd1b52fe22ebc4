//! Resources of the wire, with the version that their bytes have.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use voile_xds::server::Resource;

/// Hex digits of a version: 64 bits of the content's hash tell versions of one resource apart.
const VERSION_BYTES: usize = 8;

/// Makes a resource, versioned by what it says.
pub(crate) fn resource(name: Arc<str>, aliases: Vec<Arc<str>>, body: Vec<u8>) -> Resource {
    let mut hash = Sha256::new();
    hash.update(&body);
    for alias in &aliases {
        hash.update([0]);
        hash.update(alias.as_bytes());
    }
    Resource {
        version: hex(&hash.finalize()).into(),
        name,
        aliases,
        body: body.into(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(VERSION_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

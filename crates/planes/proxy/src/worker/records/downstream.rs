//! The caller's side of a connection, as logs tell of it.

use std::net::SocketAddr;

use rustls::CipherSuite;
use voile_telemetry::access_log::TlsFacts;

/// The caller's side of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Downstream<'a> {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// SPIFFE identity, empty in plaintext.
    pub(crate) principal: &'a str,
    /// None in plaintext.
    pub(crate) suite: Option<CipherSuite>,
}

impl Downstream<'_> {
    pub(in crate::worker) fn tls<'a>(&'a self, own: &'a str) -> Option<TlsFacts<'a>> {
        self.suite.map(|suite| {
            let name = suite.as_str().unwrap_or_default();
            let (version, cipher) = match suite {
                CipherSuite::TLS13_AES_128_GCM_SHA256 => ("TLSv1.3", "TLS_AES_128_GCM_SHA256"),
                CipherSuite::TLS13_AES_256_GCM_SHA384 => ("TLSv1.3", "TLS_AES_256_GCM_SHA384"),
                CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => {
                    ("TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256")
                }
                _ => ("TLSv1.2", name),
            };
            TlsFacts {
                version,
                cipher,
                peer: self.principal,
                own,
            }
        })
    }
}

//! Credentials of the discovery stream: the proxy's certificate or the token file, in turn while both exist. A stale
//! token, or a certificate of a replaced root, therefore cannot lock the proxy out.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use voile_identity::CertificateStore;
use voile_xds::client::{Credential, CredentialSource, TokenFile};

pub(in crate::control) struct Credentials {
    token: Option<TokenFile>,
    store: Arc<CertificateStore>,
    attempts: AtomicU64,
}

impl Credentials {
    pub(in crate::control) fn new(
        token_file: Option<PathBuf>,
        store: Arc<CertificateStore>,
    ) -> Self {
        Self {
            token: token_file.map(TokenFile),
            store,
            attempts: AtomicU64::new(0),
        }
    }

    fn certificate(&self) -> Option<Credential> {
        let held = self
            .store
            .current()
            .filter(|held| held.not_after() > SystemTime::now())?;
        Some(Credential::Certificate {
            chain_pem: held.chain_pem().to_owned(),
            key_pem: held.private_key_pem().to_owned(),
        })
    }
}

impl CredentialSource for Credentials {
    fn credential(&self) -> io::Result<Credential> {
        let token_first = self.attempts.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        let token = self.token.as_ref().map(CredentialSource::credential);
        match (self.certificate(), token) {
            (Some(_), Some(Ok(token))) if token_first => Ok(token),
            (Some(certificate), _) => Ok(certificate),
            (None, Some(token)) => token,
            (None, None) => Err(io::Error::other(
                "no credential: neither a token file nor a valid certificate",
            )),
        }
    }
}

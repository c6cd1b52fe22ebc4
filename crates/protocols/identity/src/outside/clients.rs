//! Verification of clients where any certificate is accepted: Gateway API's mode AllowInsecureFallback. The certificate of such a
//! client says nothing, so nothing may be decided by it or told of it.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, verify_tls12_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DistinguishedName, Error};

use crate::verifier::signature_checks;

/// Asks for a certificate by these authorities, and accepts any, or none.
#[derive(Debug)]
pub(super) struct AnyCertificate {
    pub(super) authorities: Arc<dyn ClientCertVerifier>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    signature_checks!(verify_tls12_signature);
}

//! rustls' question "may I believe this peer?" answered from the trust bundle of the moment. *Who* the peer must be
//! is not decided here: the transport compares identities after the handshake (`tls::verify_expected`).

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError};
use voile_model::Identity;

use crate::chain::{ChainError, verify_client_chain, verify_server_chain};
use crate::store::{TrustBundle, TrustStore};

/// Checks of signatures in a rustls verifier that has a `provider`: those of TLS 1.2 by `$tls12`.
macro_rules! signature_checks {
    ($tls12:path) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            leaf: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            $tls12(message, leaf, signed, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            leaf: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, leaf, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.provider
                .signature_verification_algorithms
                .supported_schemes()
        }
    };
}
pub(crate) use signature_checks;

/// Verifies both ends of mesh mutual TLS.
#[derive(Debug)]
pub(crate) struct PeerVerifier {
    trust: Arc<TrustStore>,
    provider: Arc<CryptoProvider>,
}

impl PeerVerifier {
    pub(crate) fn new(trust: Arc<TrustStore>, provider: Arc<CryptoProvider>) -> Self {
        Self { trust, provider }
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
        decide: fn(&TrustBundle, &[CertificateDer<'_>], UnixTime) -> Result<Identity, ChainError>,
    ) -> Result<(), Error> {
        let trust = self
            .trust
            .current()
            .ok_or_else(|| refusal(ChainError::NoTrust))?;
        let mut chain = Vec::with_capacity(1 + rest.len());
        chain.push(leaf.clone());
        chain.extend_from_slice(rest);
        decide(&trust, &chain, now).map(drop).map_err(refusal)
    }
}

/// The TLS alert that fits best, with our reason inside.
fn refusal(error: ChainError) -> Error {
    let reason = match &error {
        ChainError::Chain(webpki::Error::CertExpired { .. }) => CertificateError::Expired,
        ChainError::Chain(webpki::Error::CertNotValidYet { .. }) => CertificateError::NotValidYet,
        ChainError::Revoked => CertificateError::Revoked,
        ChainError::Chain(webpki::Error::UnknownIssuer) => CertificateError::UnknownIssuer,
        ChainError::Chain(webpki::Error::InvalidSignatureForPublicKey) => {
            CertificateError::BadSignature
        }
        _ => CertificateError::Other(OtherError(Arc::new(error))),
    };
    Error::InvalidCertificate(reason)
}

/// TLS 1.2 is never negotiated by our configurations; asked all the same, the answer is no.
fn refuse_tls12(
    _: &[u8],
    _: &CertificateDer<'_>,
    _: &DigitallySignedStruct,
    _: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General(
        "TLS 1.2 is not supported between proxies".to_owned(),
    ))
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(leaf, rest, now, verify_server_chain)?;
        Ok(ServerCertVerified::assertion())
    }

    signature_checks!(refuse_tls12);
}

impl ClientCertVerifier for PeerVerifier {
    /// None: workloads have one certificate, so hints would only cost bytes.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(leaf, rest, now, verify_client_chain)?;
        Ok(ClientCertVerified::assertion())
    }

    signature_checks!(refuse_tls12);
}

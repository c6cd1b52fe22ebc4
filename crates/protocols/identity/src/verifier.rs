//! rustls' question "may I believe this peer?" answered from the trust bundle of the moment. *Who* the peer must be
//! is not decided here: the transport compares identities after the handshake (`tls::verify_expected`).

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use voile_model::Identity;

use crate::chain::{ChainError, verify_client_chain, verify_server_chain};
use crate::store::{TrustBundle, TrustStore};

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

    fn verify_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, leaf, signed, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
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
fn no_tls12() -> Error {
    Error::General("TLS 1.2 is not supported between proxies".to_owned())
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

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
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

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

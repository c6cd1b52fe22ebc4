//! Verifies a certificate chain at a given time: signatures and dates up to a trusted root (webpki), then one
//! SPIFFE identity of a trusted domain in the leaf.

use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, UnixTime};
use voile_model::Identity;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::extensions::ParsedExtension;

use crate::keys::MAX_CHAIN_CERTIFICATES;
use crate::revocation::{CertificateKey, Revocations};
use crate::spiffe::{PeerError, identity_of};
use crate::store::TrustBundle;

/// Why a chain is not believed.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// There is no trust bundle (yet): nobody can be believed.
    #[error("no trust bundle has been received yet")]
    NoTrust,
    /// Signatures, dates or usage are wrong.
    #[error("the certificate chain is not trusted: {0}")]
    Chain(#[from] webpki::Error),
    /// A certificate of the chain was taken back.
    #[error("a certificate of the chain is revoked")]
    Revoked,
    /// There are lists of revoked certificates, and none that can be read.
    #[error("every certificate is refused: the certificate revocation lists are invalid")]
    Closed,
    /// The chain is good, but the leaf names nobody we know.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Believes a client's chain (leaf first), or says why not.
///
/// # Errors
/// The chain does not lead to a root of `trust` at `now`, or names no identity of a trusted domain.
pub fn verify_client_chain(
    trust: &TrustBundle,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<Identity, ChainError> {
    verify(trust, chain, now, KeyUsage::client_auth())
}

/// Believes a server's chain (leaf first), or says why not.
///
/// # Errors
/// As [`verify_client_chain`].
pub fn verify_server_chain(
    trust: &TrustBundle,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<Identity, ChainError> {
    verify(trust, chain, now, KeyUsage::server_auth())
}

/// When a certificate ends; `None` when it cannot be read.
pub(crate) fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(parsed.validity().not_after.to_datetime().into())
}

/// Key identifier of a certificate's issuer, if it names one.
pub(crate) fn issuer_key_id(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let mut extensions = parsed.extensions().iter();
    extensions.find_map(|one| match one.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => Some(id.key_identifier.as_ref()?.0.to_vec()),
        _ => None,
    })
}

fn verify(
    trust: &TrustBundle,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
    usage: KeyUsage,
) -> Result<Identity, ChainError> {
    let (leaf, rest) = chain.split_first().ok_or(PeerError::NoCertificate)?;
    if rest.len() >= MAX_CHAIN_CERTIFICATES {
        return Err(PeerError::Malformed.into());
    }
    let end = EndEntityCert::try_from(leaf)?;
    end.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        trust.anchors(),
        rest,
        now,
        usage,
        None,
        None,
    )?;
    not_revoked(trust.revocations(), chain)?;
    let identity = identity_of(leaf)?;
    match trust.trusts(&identity) {
        true => Ok(identity),
        false => Err(PeerError::UntrustedDomain(identity).into()),
    }
}

/// Refuses a chain of which any certificate is revoked: whoever shows one has no better way up, or would show that.
fn not_revoked(revocations: &Revocations, chain: &[CertificateDer<'_>]) -> Result<(), ChainError> {
    if revocations.is_closed() {
        return Err(ChainError::Closed);
    }
    if revocations.is_empty() {
        return Ok(());
    }
    for certificate in chain {
        let key = CertificateKey::of(certificate).ok_or(PeerError::Malformed)?;
        if revocations.includes(key) {
            return Err(ChainError::Revoked);
        }
    }
    Ok(())
}

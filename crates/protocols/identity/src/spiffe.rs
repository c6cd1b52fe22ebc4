//! The identity a certificate speaks for: exactly one URI SAN, and that a workload's SPIFFE id (X.509-SVID section 2).

use rustls_pki_types::CertificateDer;
use voile_model::Identity;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a peer's certificate names nobody we can speak with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No certificate was presented.
    #[error("the peer presented no certificate")]
    NoCertificate,
    /// The certificate cannot be read.
    #[error("the peer's certificate cannot be parsed")]
    Malformed,
    /// An X.509-SVID has exactly one URI name.
    #[error("the peer's certificate has {0} URI names; a SPIFFE certificate has exactly one")]
    UriNames(usize),
    /// The URI is not a workload identity.
    #[error("the peer's certificate names no workload: {0}")]
    NotSpiffe(String),
    /// The identity's trust domain is not ours, nor an alias of ours.
    #[error("{0} is in a trust domain that is not trusted here")]
    UntrustedDomain(Identity),
    /// A certificate of the peer was taken back.
    #[error("the peer's certificate is revoked")]
    Revoked,
    /// The peer is somebody, but not who was asked for.
    #[error("the peer is {found}, but {wanted} was expected")]
    Unexpected {
        /// Who answered.
        found: Identity,
        /// Identities that were expected, for a person to read.
        wanted: String,
    },
}

/// The identity in a leaf certificate. Says nothing about whether the certificate may be believed.
///
/// # Errors
/// The certificate cannot be parsed, or has not exactly one URI name, or that is no workload identity.
pub fn identity_of(leaf: &CertificateDer<'_>) -> Result<Identity, PeerError> {
    among_uris(leaf, |uris| {
        let Some(uri) = uris.next() else {
            return Err(PeerError::UriNames(0));
        };
        match uris.count() {
            0 => uri
                .parse::<Identity>()
                .map_err(|error| PeerError::NotSpiffe(error.to_string())),
            more => Err(PeerError::UriNames(more + 1)),
        }
    })?
}

/// Returns true if a certificate has this URI among its names.
pub(crate) fn has_uri(leaf: &CertificateDer<'_>, wanted: &str) -> bool {
    among_uris(leaf, |mut uris| {
        Iterator::any(&mut uris, |uri| uri == wanted)
    })
    .unwrap_or(false)
}

fn among_uris<T>(
    leaf: &CertificateDer<'_>,
    look: impl FnOnce(&mut dyn Iterator<Item = &str>) -> T,
) -> Result<T, PeerError> {
    let (rest, certificate) =
        X509Certificate::from_der(leaf.as_ref()).map_err(|_| PeerError::Malformed)?;
    if !rest.is_empty() {
        return Err(PeerError::Malformed);
    }
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| PeerError::Malformed)?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let mut uris = names.filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    Ok(look(&mut uris))
}

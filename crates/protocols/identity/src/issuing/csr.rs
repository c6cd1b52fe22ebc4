//! Checks of certificate requests (PKCS#10, RFC 2986). A request is hostile until proven otherwise: it may only
//! bring a P-256 key, prove that it holds the key, and name no identity but the caller's.

use rcgen::CertificateSigningRequestParams;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use voile_model::Identity;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Largest request read, in bytes of PEM: a P-256 request with one name is under 1 KB.
pub const MAX_CSR_BYTES: usize = 16 * 1024;

const OID_EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";
const OID_P256: &str = "1.2.840.10045.3.1.7";

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsrError {
    /// Larger than [`MAX_CSR_BYTES`].
    #[error("the certificate request has {0} bytes; at most {MAX_CSR_BYTES} are read")]
    TooLarge(usize),
    /// Not a PKCS#10 request in PEM.
    #[error("the certificate request cannot be parsed: {0}")]
    Malformed(&'static str),
    /// Only P-256 keys are certified.
    #[error("the certificate request has a key of type {0}; only ECDSA P-256 is certified")]
    KeyType(String),
    /// The request does not prove that its sender holds the key.
    #[error("the signature of the certificate request does not match its key")]
    Signature,
    /// The request names somebody else than its sender.
    #[error("the certificate request asks for {asked}, but the caller is {caller}")]
    ForeignName {
        /// The names asked for.
        asked: String,
        /// Who asked.
        caller: Identity,
    },
}

/// Checks a request of `caller` and gives the key to certify.
pub(crate) fn check(pem: &str, caller: &Identity) -> Result<rcgen::PublicKey, CsrError> {
    if pem.len() > MAX_CSR_BYTES {
        return Err(CsrError::TooLarge(pem.len()));
    }
    let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| CsrError::Malformed("no PEM block `CERTIFICATE REQUEST`"))?;
    let (rest, request) = X509CertificationRequest::from_der(der.as_ref())
        .map_err(|_| CsrError::Malformed("not PKCS#10"))?;
    if !rest.is_empty() {
        return Err(CsrError::Malformed("bytes after the request"));
    }
    check_key_type(&request.certification_request_info.subject_pki)?;
    check_names(&request, caller)?;
    // Also verifies the signature: the proof of possession.
    let parsed = CertificateSigningRequestParams::from_der(&der).map_err(|error| match error {
        rcgen::Error::InvalidCertificationRequestSignature => CsrError::Signature,
        rcgen::Error::UnsupportedExtension => CsrError::Malformed("an unsupported extension"),
        _ => CsrError::Malformed("an unsupported field"),
    })?;
    Ok(parsed.public_key)
}

/// Returns true if a request that was checked names somebody.
pub(crate) fn names(pem: &str) -> bool {
    let named = |request: &X509CertificationRequest<'_>| {
        let mut extensions = request.requested_extensions().into_iter().flatten();
        extensions.any(|one| matches!(one, ParsedExtension::SubjectAlternativeName(_)))
    };
    read(pem, named).unwrap_or_default()
}

/// The key of a request in DER.
pub(crate) fn public_key(pem: &str) -> Option<Vec<u8>> {
    read(pem, |request| {
        request.certification_request_info.subject_pki.raw.to_vec()
    })
}

fn read<T>(pem: &str, found: impl Fn(&X509CertificationRequest<'_>) -> T) -> Option<T> {
    let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, request) = X509CertificationRequest::from_der(der.as_ref()).ok()?;
    Some(found(&request))
}

fn check_key_type(key: &SubjectPublicKeyInfo<'_>) -> Result<(), CsrError> {
    let algorithm = key.algorithm.algorithm.to_id_string();
    let curve = key
        .algorithm
        .parameters
        .as_ref()
        .and_then(|any| any.as_oid().ok());
    let curve = curve.map(|oid| oid.to_id_string());
    if algorithm == OID_EC_PUBLIC_KEY && curve.as_deref() == Some(OID_P256) {
        return Ok(());
    }
    Err(CsrError::KeyType(
        match (algorithm.as_str(), curve.as_deref()) {
            ("1.2.840.113549.1.1.1", _) => "RSA".to_owned(),
            ("1.3.101.112", _) => "Ed25519".to_owned(),
            (OID_EC_PUBLIC_KEY, Some("1.3.132.0.34")) => "ECDSA P-384".to_owned(),
            (OID_EC_PUBLIC_KEY, Some("1.3.132.0.35")) => "ECDSA P-521".to_owned(),
            (OID_EC_PUBLIC_KEY, curve) => {
                format!("ECDSA with curve {}", curve.unwrap_or("unnamed"))
            }
            (other, _) => other.to_owned(),
        },
    ))
}

/// The names asked for must be none, or exactly the caller's own URI.
fn check_names(request: &X509CertificationRequest<'_>, caller: &Identity) -> Result<(), CsrError> {
    let mut asked = Vec::new();
    for extension in request.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(names) = extension {
            asked.extend(names.general_names.iter());
        }
    }
    let own = caller.to_string();
    match asked.as_slice() {
        [] => Ok(()),
        [GeneralName::URI(uri)] if *uri == own => Ok(()),
        names => {
            const SHOWN: usize = 4; // the rest of a hostile list is noise
            let shown: Vec<String> = names
                .iter()
                .take(SHOWN)
                .map(|name| name.to_string().chars().take(300).collect())
                .collect();
            Err(CsrError::ForeignName {
                asked: shown.join(", "),
                caller: caller.clone(),
            })
        }
    }
}

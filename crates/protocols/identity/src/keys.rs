//! A workload's keys and what the authority made of them. Keys are made here and never written anywhere.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls::crypto::aws_lc_rs::sign::{any_ecdsa_type, any_supported_type};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use voile_model::Identity;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::spiffe::{PeerError, identity_of};

/// Most certificates accepted in one chain or bundle: a rotation holds two or three roots.
pub const MAX_CHAIN_CERTIFICATES: usize = 16;

/// Why keys or an issued chain cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The cryptographic library failed.
    #[error("cannot make or use a P-256 key: {0}")]
    Crypto(String),
    /// The authority's answer is not a chain.
    #[error("the issued certificate chain is invalid: {0}")]
    Chain(String),
    /// The leaf names no workload.
    #[error("the issued certificate is invalid: {0}")]
    Identity(#[from] PeerError),
}

/// A P-256 key pair of a workload, before it is certified.
pub struct Keys(KeyPair);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(P-256, private)")
    }
}

impl Keys {
    /// Makes fresh ones.
    ///
    /// # Errors
    /// The system gave no randomness.
    pub fn generate() -> Result<Self, KeyError> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .map(Self)
            .map_err(|error| KeyError::Crypto(error.to_string()))
    }

    /// A certificate request in PEM. Without an identity the authority puts in the caller's.
    ///
    /// # Errors
    /// Signing failed.
    pub fn request(&self, identity: Option<&Identity>) -> Result<String, KeyError> {
        let failed = |error: rcgen::Error| KeyError::Crypto(error.to_string());
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(identity) = identity {
            let uri = identity.to_string().try_into().map_err(failed)?;
            params.subject_alt_names = vec![SanType::URI(uri)];
        }
        params
            .serialize_request(&self.0)
            .and_then(|request| request.pem())
            .map_err(failed)
    }

    /// Joins the keys with the chain that the authority issued for them (leaf first, root bundle last).
    ///
    /// # Errors
    /// The chain cannot be parsed, is not for these keys, or its leaf names no workload.
    pub fn certify(self, chain: &[String]) -> Result<WorkloadCertificate, KeyError> {
        WorkloadCertificate::new(&self.0.serialize_pem(), chain)
    }
}

/// Certificate and key of a workload for handshakes, and the roots that came with it.
pub struct WorkloadCertificate {
    certified: Arc<CertifiedKey>,
    identity: Identity,
    not_before: SystemTime,
    not_after: SystemTime,
    serial: String,
    roots: Vec<CertificateDer<'static>>,
    chain_pem: String,
    key_pem: String,
}

impl fmt::Debug for WorkloadCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadCertificate")
            .field("identity", &self.identity)
            .field("serial", &self.serial)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl WorkloadCertificate {
    /// Joins a PKCS#8 key in PEM with its chain (leaf first, root bundle last).
    ///
    /// # Errors
    /// As [`Keys::certify`].
    pub fn new(key_pem: &str, chain: &[String]) -> Result<Self, KeyError> {
        let Some((bundle, own)) = chain.split_last().filter(|(_, own)| !own.is_empty()) else {
            let found = chain.len();
            return Err(KeyError::Chain(format!(
                "{found} elements; a leaf and a root are needed"
            )));
        };
        let chain_pem: String = own
            .iter()
            .map(|pem| format!("{}\n", pem.trim_end()))
            .collect();
        let certificates = certificates_of(&chain_pem)?;
        let roots = certificates_of(bundle)?;
        let leaf = certificates
            .first()
            .ok_or_else(|| KeyError::Chain("no leaf".into()))?;
        let identity = identity_of(leaf)?;
        let (_, parsed) = X509Certificate::from_der(leaf.as_ref())
            .map_err(|_| KeyError::Chain("the leaf cannot be parsed".into()))?;
        let not_before = parsed.validity().not_before.to_datetime().into();
        let not_after = parsed.validity().not_after.to_datetime().into();
        let serial = parsed.raw_serial_as_string();
        let certified = certified_key(key_pem, certificates)?;
        Ok(Self {
            certified: Arc::new(certified),
            identity,
            not_before,
            not_after,
            serial,
            roots,
            chain_pem,
            key_pem: key_pem.to_owned(),
        })
    }

    /// Key and chain for rustls.
    pub fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    /// Identity of the certificate.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The first instant of validity.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// The last instant of validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The serial number in hexadecimal, bytes parted by colons.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The roots that came with it.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// The chain in PEM without the root bundle, leaf first.
    pub fn chain_pem(&self) -> &str {
        &self.chain_pem
    }

    /// The private key in PEM: for this process's own TLS clients, never to be written or sent.
    pub fn private_key_pem(&self) -> &str {
        &self.key_pem
    }
}

/// Key and chain as rustls wants them; refuses a key that is not the leaf's.
pub(crate) fn certified_key(
    key_pem: &str,
    chain: Vec<CertificateDer<'static>>,
) -> Result<CertifiedKey, KeyError> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|_| KeyError::Crypto("no PEM block `PRIVATE KEY`".into()))?;
    let key = any_ecdsa_type(&PrivateKeyDer::Pkcs8(der))
        .map_err(|error| KeyError::Crypto(error.to_string()))?;
    matching(chain, key)
}

/// The same of a key that others made: of any type and encoding.
pub(crate) fn foreign_certified_key(
    key_pem: &str,
    chain: Vec<CertificateDer<'static>>,
) -> Result<CertifiedKey, KeyError> {
    let der = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|_| KeyError::Crypto("no PEM block with a private key".into()))?;
    let key = any_supported_type(&der).map_err(|error| KeyError::Crypto(error.to_string()))?;
    matching(chain, key)
}

fn matching(
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
) -> Result<CertifiedKey, KeyError> {
    let certified = CertifiedKey::new(chain, key);
    certified
        .keys_match()
        .map_err(|_| KeyError::Chain("the certificate is for another key".into()))?;
    Ok(certified)
}

/// A PEM block (RFC 7468) of this label.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    const LINE: usize = 64;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(LINE) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}

/// Every certificate in a PEM text; at least one, at most [`MAX_CHAIN_CERTIFICATES`].
pub(crate) fn certificates_of(pem: &str) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .take(MAX_CHAIN_CERTIFICATES + 1)
        .collect();
    match parsed {
        Ok(found) if found.is_empty() => Err(KeyError::Chain("no PEM block `CERTIFICATE`".into())),
        Ok(found) if found.len() > MAX_CHAIN_CERTIFICATES => {
            let reason = format!("more than {MAX_CHAIN_CERTIFICATES} certificates");
            Err(KeyError::Chain(reason))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(KeyError::Chain(format!("bad PEM: {error}"))),
    }
}

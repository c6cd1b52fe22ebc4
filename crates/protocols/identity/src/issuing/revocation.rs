//! Which certificates are taken back before they expire: the lists (CRLs) of the mesh's authorities, verified once when they
//! are read, and kept as a set of short fingerprints. A handshake asks by one look per certificate, and a live connection
//! is asked about again by the fingerprints that it keeps.

pub mod local;

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use sha2::{Digest, Sha256};
use webpki::BorrowedCertRevocationList;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

/// The lists, in the state directory: PEM, one for each authority. Istio's name for it.
pub const CRL_FILE: &str = "ca-crl.pem";
/// Largest text of lists that is read, in bytes. Kubernetes keeps no larger ConfigMap; it is some 20,000 certificates.
pub const MAX_CRL_BYTES: usize = 1024 * 1024;
/// Most lists in it: one for each root and intermediate of a rotation.
pub const MAX_CRLS: usize = 16;

/// Bytes of a fingerprint: 128 bits of SHA-256, so that nobody makes two certificates that share one.
const KEY_BYTES: usize = 16;

/// Fingerprint of a certificate by its authority's terms: the issuer's name and the serial number, hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CertificateKey([u8; KEY_BYTES]);

impl CertificateKey {
    /// The key of a certificate; `None` when it cannot be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate.as_ref()).ok()?;
        Some(Self::new(parsed.issuer().as_raw(), parsed.raw_serial()))
    }

    fn new(issuer: &[u8], serial: &[u8]) -> Self {
        let zeros = serial.iter().take_while(|byte| **byte == 0).count();
        let mut hash = Sha256::new();
        // The issuer's name is DER and tells its own length.
        hash.update(issuer);
        hash.update(&serial[zeros..]);
        let hash = hash.finalize();
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&hash[..KEY_BYTES]);
        Self(key)
    }
}

/// Why lists cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// There are too many bytes or too many lists.
    #[error("{0}")]
    TooLarge(String),
    /// It is not PEM, or holds something else.
    #[error("not a certificate revocation list in PEM: {0}")]
    Pem(String),
    /// A list cannot be parsed, or wants what is not understood here (deltas, indirect lists, unknown critical extensions).
    #[error("list {place}: {reason}")]
    Malformed {
        /// Which, from 1.
        place: usize,
        /// Why.
        reason: String,
    },
    /// A list is of an authority that is not trusted here.
    #[error("list {place}: its issuer ({issuer}) is not an authority of this mesh")]
    Foreign {
        /// Which, from 1.
        place: usize,
        /// Its issuer's name.
        issuer: String,
    },
    /// A list is not signed by the authority that it names.
    #[error("list {place}: not signed by the key of {issuer}")]
    Signature {
        /// Which, from 1.
        place: usize,
        /// Its issuer's name.
        issuer: String,
    },
    /// A list begins in the future.
    #[error("list {place}: becomes valid in the future; is the clock of this machine wrong?")]
    NotYet {
        /// Which, from 1.
        place: usize,
    },
}

/// Longest time by which an authority's clock may be ahead of ours.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Verified lists.
#[derive(Clone, Default)]
pub struct Revocations {
    keys: HashSet<CertificateKey>,
    /// Of the lists as they came, in order.
    digest: [u8; 32],
    next_update: Option<SystemTime>,
    /// Nobody is believed: there are lists, and none that can be read.
    closed: bool,
}

impl fmt::Debug for Revocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocations")
            .field("certificates", &self.keys.len())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Revocations {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.closed == other.closed
    }
}

impl Eq for Revocations {}

/// The lists of a PEM text, as they are.
///
/// # Errors
/// The text is too large, no PEM, or holds no list.
pub fn lists_of(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, RevocationError> {
    if pem.len() > MAX_CRL_BYTES {
        return Err(too_large(pem.len()));
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(pem);
    let lists: Vec<_> = lists
        .collect::<Result<_, _>>()
        .map_err(|error| RevocationError::Pem(error.to_string()))?;
    match lists.is_empty() {
        true => Err(RevocationError::Pem(
            "it has no `X509 CRL` block; remove the file if no certificate is revoked".to_owned(),
        )),
        false => Ok(lists),
    }
}

impl Revocations {
    /// Reads lists, each signed by one of `issuers`. No lists are an empty set.
    ///
    /// # Errors
    /// The lists are too large, or one of them cannot be verified: then none is accepted.
    pub fn read<L: AsRef<[u8]>>(
        lists: &[L],
        issuers: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<Self, RevocationError> {
        Self::gather(lists, Some((issuers, now)))
    }

    /// Reads lists that a trusted sender has verified already: the control plane, for a proxy.
    ///
    /// # Errors
    /// The lists are too large, or one of them cannot be parsed.
    pub fn told<L: AsRef<[u8]>>(lists: &[L]) -> Result<Self, RevocationError> {
        Self::gather(lists, None)
    }

    fn gather<L: AsRef<[u8]>>(
        lists: &[L],
        verify: Option<(&[CertificateDer<'_>], SystemTime)>,
    ) -> Result<Self, RevocationError> {
        let bytes: usize = lists.iter().map(|list| list.as_ref().len()).sum();
        if bytes > MAX_CRL_BYTES {
            return Err(too_large(bytes));
        }
        if lists.len() > MAX_CRLS {
            let found = lists.len();
            return Err(RevocationError::TooLarge(format!(
                "{found} lists, at most {MAX_CRLS} are read"
            )));
        }
        let mut read = Self::default();
        let mut digest = Sha256::new();
        for (index, list) in lists.iter().enumerate() {
            // DER tells its own length.
            digest.update(list.as_ref());
            let next = add(&mut read.keys, list.as_ref(), index + 1, verify)?;
            read.next_update = match (read.next_update, next) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        if !lists.is_empty() {
            read.digest = digest.finalize().into();
        }
        Ok(read)
    }

    /// Believes nobody: in place of lists that cannot be read where none were good before.
    pub fn closed() -> Self {
        Self {
            closed: true,
            ..Self::default()
        }
    }

    /// Returns true if a certificate is revoked.
    pub fn includes(&self, key: CertificateKey) -> bool {
        self.closed || self.keys.contains(&key)
    }

    /// Returns true if every certificate counts as revoked.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Number of revoked certificates.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if no certificate is revoked.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.closed
    }

    /// When the first of the lists should have been replaced.
    pub fn next_update(&self) -> Option<SystemTime> {
        self.next_update
    }
}

fn too_large(bytes: usize) -> RevocationError {
    RevocationError::TooLarge(format!("{bytes} bytes, at most {MAX_CRL_BYTES} are read"))
}

/// Adds what one list says; gives when it should be replaced.
fn add(
    keys: &mut HashSet<CertificateKey>,
    list: &[u8],
    place: usize,
    verify: Option<(&[CertificateDer<'_>], SystemTime)>,
) -> Result<Option<SystemTime>, RevocationError> {
    let malformed = |reason: String| RevocationError::Malformed { place, reason };
    // The strict reader: version, extensions, and that it is a whole list of its own issuer.
    let strict =
        BorrowedCertRevocationList::from_der(list).map_err(|error| malformed(error.to_string()))?;
    for one in &strict {
        one.map_err(|error| malformed(error.to_string()))?;
    }
    let (_, parsed) =
        CertificateRevocationList::from_der(list).map_err(|error| malformed(error.to_string()))?;
    if let Some((issuers, now)) = verify {
        believed(&parsed, issuers, (place, now))?;
    }
    let issuer = parsed.issuer().as_raw();
    let revoked = parsed.iter_revoked_certificates();
    keys.extend(revoked.map(|one| CertificateKey::new(issuer, one.raw_serial())));
    Ok(parsed.next_update().map(|next| next.to_datetime().into()))
}

/// Checks that a list is signed by an issuer of ours and has begun.
fn believed(
    list: &CertificateRevocationList<'_>,
    issuers: &[CertificateDer<'_>],
    (place, now): (usize, SystemTime),
) -> Result<(), RevocationError> {
    let issuer = list.issuer();
    let named = |certificate: &&CertificateDer<'_>| {
        X509Certificate::from_der(certificate)
            .is_ok_and(|(_, certificate)| certificate.subject().as_raw() == issuer.as_raw())
    };
    let mut candidates = issuers.iter().filter(named).peekable();
    if candidates.peek().is_none() {
        let issuer = issuer.to_string();
        return Err(RevocationError::Foreign { place, issuer });
    }
    if !candidates.any(|certificate| signed(list, certificate)) {
        let issuer = issuer.to_string();
        return Err(RevocationError::Signature { place, issuer });
    }
    let begins: SystemTime = list.last_update().to_datetime().into();
    match begins > now + CLOCK_SKEW {
        true => Err(RevocationError::NotYet { place }),
        false => Ok(()),
    }
}

/// Returns true if the key of `certificate`, which must be one for lists, signed the list.
fn signed(list: &CertificateRevocationList<'_>, certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate.as_ref()) else {
        return false;
    };
    let usage = certificate.key_usage().ok().flatten();
    if usage.is_some_and(|usage| !usage.value.crl_sign()) {
        return false;
    }
    let key = &certificate.public_key().subject_public_key.data;
    let (message, signature) = (list.tbs_cert_list.as_ref(), &list.signature_value.data);
    // A key of one kind never verifies what another kind signed.
    webpki::ALL_VERIFICATION_ALGS
        .iter()
        .any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
}

/// The fingerprints of a peer's chain, its own certificate first; what cannot be read has none.
pub fn keys_of(chain: &[CertificateDer<'_>]) -> Box<[CertificateKey]> {
    chain.iter().filter_map(CertificateKey::of).collect()
}

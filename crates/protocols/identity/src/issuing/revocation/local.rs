//! The list that the built-in authority writes itself, in the state directory: what `voile revoke` does. A running control
//! plane sees the new file and tells the proxies.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use rustls_pki_types::CertificateRevocationListDer;
use time::OffsetDateTime;
use voile_model::TrustDomain;
use x509_parser::num_bigint::BigUint;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

use super::{CRL_FILE, MAX_CRL_BYTES, RevocationError, Revocations, lists_of};
use crate::authority::{Authority, AuthorityError, ROOT_CERT_FILE, SERVER_TTL};
use crate::keys::{certificates_of, pem};
use crate::state::{PUBLIC_MODE, StateDir, StateError};

/// Longest serial number, in bytes (RFC 5280 section 4.1.2.2).
const MAX_SERIAL_BYTES: usize = 20;
/// Time for which a certificate stays on the list: the longest life of any certificate that the authority issues.
const KEPT: Duration = SERVER_TTL;

/// Why nothing was revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The authority cannot be opened.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// There is no authority in this directory.
    #[error(
        "{0}: no {ROOT_CERT_FILE} here, so no certificate was ever issued; is it the --state directory of the control plane?"
    )]
    NoAuthority(String),
    /// The list that is there cannot be read.
    #[error("{path}: {error}")]
    List {
        /// The file.
        path: String,
        /// Why.
        error: RevocationError,
    },
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// Not a serial number.
    #[error(
        "`{0}` is not a serial number: expected 1 to {MAX_SERIAL_BYTES} bytes in hexadecimal, with or without colons"
    )]
    Serial(String),
    /// Not a certificate that can be revoked here.
    #[error("{0}")]
    Certificate(String),
    /// A root that may not sign lists.
    #[error("cannot sign the revocation list: {0}")]
    Signing(String),
}

/// One certificate on the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoked {
    /// Its serial number, without leading zeros.
    pub serial: Vec<u8>,
    /// Since when.
    pub since: SystemTime,
}

/// A serial number as `openssl x509 -serial`, `GET /certs` and people write it.
///
/// # Errors
/// It is not hexadecimal, or too long.
pub fn serial_of(text: &str) -> Result<Vec<u8>, RevokeError> {
    let refused = || RevokeError::Serial(text.chars().take(100).collect());
    let digits: String = text.trim().replace(':', "");
    let digits = digits.strip_prefix("0x").unwrap_or(&digits);
    if digits.is_empty() || digits.len() > 2 * MAX_SERIAL_BYTES || !digits.is_ascii() {
        return Err(refused());
    }
    let even = match digits.len() % 2 {
        0 => digits.to_owned(),
        _ => format!("0{digits}"),
    };
    let byte = |at: usize| u8::from_str_radix(&even[at..at + 2], 16).map_err(|_| refused());
    let bytes: Vec<u8> = (0..even.len())
        .step_by(2)
        .map(byte)
        .collect::<Result<_, _>>()?;
    match even.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        true => Ok(without_zeros(&bytes).to_vec()),
        false => Err(refused()),
    }
}

fn without_zeros(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    &serial[zeros..]
}

/// The serial number of a certificate in PEM (the first, where a chain follows) that the authority in `folder` issued.
///
/// # Errors
/// It is no certificate, or somebody else's.
pub fn serial_in(folder: &Path, pem: &str) -> Result<Vec<u8>, RevokeError> {
    let not_ours = |reason: String| RevokeError::Certificate(reason);
    let root = StateDir::open(folder)?.read_public(ROOT_CERT_FILE)?;
    let root = root.ok_or_else(|| RevokeError::NoAuthority(folder.display().to_string()))?;
    let first = |pem: &str| {
        let certificates = certificates_of(pem).map_err(|error| not_ours(error.to_string()))?;
        let first = certificates.into_iter().next();
        first.ok_or_else(|| not_ours("no certificate".to_owned()))
    };
    let (root, certificate) = (first(&root)?, first(pem)?);
    let parse = |der| {
        let parsed = X509Certificate::from_der(der);
        parsed.map_err(|error| not_ours(error.to_string()))
    };
    let ((_, root), (_, certificate)) = (parse(&root)?, parse(&certificate)?);
    match certificate.issuer().as_raw() == root.subject().as_raw() {
        true => Ok(without_zeros(certificate.raw_serial()).to_vec()),
        false => Err(not_ours(format!(
            "issued by {}, not by the authority in {}",
            certificate.issuer(),
            folder.display()
        ))),
    }
}

/// Reads the file of lists, if there is one. It may be a link: what it says is signed.
///
/// # Errors
/// It is no file, cannot be read, or is larger than is ever read.
pub fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !metadata.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    // One more than is allowed, so that too much is seen as too much.
    let most = u64::try_from(MAX_CRL_BYTES + 1).unwrap_or(u64::MAX);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Puts certificates of the authority in `folder` on its list, and gives all that is on it. Other authorities' lists in
/// the same file stay as they are.
///
/// # Errors
/// There is no authority, or its list cannot be read or written: nothing changes then.
pub fn revoke(
    folder: &Path,
    serials: &[Vec<u8>],
    now: SystemTime,
) -> Result<Vec<Revoked>, RevokeError> {
    let shown = || folder.display().to_string();
    if !folder.join(ROOT_CERT_FILE).exists() {
        return Err(RevokeError::NoAuthority(shown()));
    }
    let name =
        TrustDomain::new("cluster.local").ok_or_else(|| RevokeError::NoAuthority(shown()))?;
    let authority = Authority::open(folder, &name, now)?;
    let state = StateDir::open(folder)?;
    let _lock = state.lock()?;
    let path = folder.join(CRL_FILE);
    let read = |error| RevokeError::Read {
        path: path.display().to_string(),
        error,
    };
    let broken = |error| RevokeError::List {
        path: path.display().to_string(),
        error,
    };
    let lists = match read_file(&path).map_err(read)? {
        Some(pem) => lists_of(&pem).map_err(broken)?,
        None => Vec::new(),
    };
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let mut number = BigUint::default();
    for list in &lists {
        let one = std::slice::from_ref(list);
        match Revocations::read(one, authority.roots(), now) {
            Ok(_) => own.extend(entries(list, &mut number)),
            Err(RevocationError::Foreign { .. }) => others.push(list),
            Err(error) => return Err(broken(error)),
        }
    }
    own.retain(|one: &Revoked| one.since + KEPT > now);
    for serial in serials {
        if !own.iter().any(|one| one.serial == *serial) {
            let serial = serial.clone();
            own.push(Revoked { serial, since: now });
        }
    }
    if !serials.is_empty() {
        let text = signed(&authority, &own, number + 1u32, now)?;
        let others = others.into_iter().map(|list| pem("X509 CRL", list));
        let text: String = std::iter::once(text).chain(others).collect();
        if text.len() > MAX_CRL_BYTES {
            return Err(broken(super::too_large(text.len())));
        }
        state.replace(CRL_FILE, &text, PUBLIC_MODE)?;
    }
    Ok(own)
}

/// Entries of a list; the greatest number seen stays in `number`.
fn entries(list: &CertificateRevocationListDer<'_>, number: &mut BigUint) -> Vec<Revoked> {
    let Ok((_, parsed)) = CertificateRevocationList::from_der(list) else {
        return Vec::new();
    };
    if let Some(found) = parsed.crl_number().filter(|found| *found > number) {
        number.clone_from(found);
    }
    let revoked = parsed.iter_revoked_certificates();
    let entry = |one: &x509_parser::revocation_list::RevokedCertificate<'_>| Revoked {
        serial: without_zeros(one.raw_serial()).to_vec(),
        since: one.revocation_date.to_datetime().into(),
    };
    revoked.map(entry).collect()
}

fn signed(
    authority: &Authority,
    revoked: &[Revoked],
    number: BigUint,
    now: SystemTime,
) -> Result<String, RevokeError> {
    let entry = |one: &Revoked| RevokedCertParams {
        serial_number: SerialNumber::from_slice(&one.serial),
        revocation_time: OffsetDateTime::from(one.since),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: OffsetDateTime::from(now),
        // Nobody writes it anew but this command, so it must not become stale by itself.
        next_update: OffsetDateTime::from(authority.not_after()),
        crl_number: SerialNumber::from_slice(&number.to_bytes_be()),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let failed = |error: rcgen::Error| RevokeError::Signing(error.to_string());
    let issuer = authority.issuer();
    let issuer = issuer.map_err(|error| RevokeError::Signing(error.to_string()))?;
    let list = params.signed_by(issuer).map_err(failed)?;
    list.pem().map_err(failed)
}

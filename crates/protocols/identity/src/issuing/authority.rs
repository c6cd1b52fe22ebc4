//! The certificate authority: a self-signed P-256 root in the state directory, and the rules by which it issues. A certificate
//! carries the caller's identity and nothing else, whatever the request says.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;
use voile_model::{Identity, TrustDomain};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::chain::issuer_key_id;
use crate::csr::{self, CsrError};
use crate::keys::{KeyError, certificates_of, certified_key, foreign_certified_key, pem};
use crate::root_record::{self, RootFingerprint, RootLost, RootPolicy};
use crate::state::{PUBLIC_MODE, SECRET_MODE, StateDir, StateError};

/// The root's private key, in the state directory.
pub const ROOT_KEY_FILE: &str = "root-key.pem";
/// The root's certificate, in the state directory.
pub const ROOT_CERT_FILE: &str = "root-cert.pem";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Life of the root: ten years, as Istio's self-signed one.
pub const ROOT_LIFE: Duration = DAY.saturating_mul(3650);
/// Life of a workload's certificate when the request asks for none.
pub const DEFAULT_TTL: Duration = DAY;
/// Longest life of a workload's certificate, whatever is asked: expiry works where no list of revoked ones arrives.
pub const MAX_TTL: Duration = DAY;
/// Shortest life of a workload's certificate: less could not be renewed in time.
pub const MIN_TTL: Duration = Duration::from_secs(10);
/// Life of the control plane's own certificate. It is made anew at each start, in memory.
pub const SERVER_TTL: Duration = DAY.saturating_mul(365);
/// Time by which a certificate's validity is set back, for peers whose clocks lag.
pub const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// Bytes of a serial number: 127 random bits (RFC 5280 allows 20 bytes, CA/B asks for 64 bits).
const SERIAL_BYTES: usize = 16;

/// Why the authority cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Proxies trust another root than there is, or would be made.
    #[error(transparent)]
    RootLost(#[from] RootLost),
    /// Key and certificate do not fit, or one is broken or missing.
    #[error("{folder}: {reason}")]
    Root {
        /// The state directory.
        folder: String,
        /// The error and its remedy.
        reason: String,
    },
}

/// Why a certificate is not issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The request is refused; the caller's fault.
    #[error(transparent)]
    Csr(#[from] CsrError),
    /// The lifetime asked for cannot be granted; the caller's fault.
    #[error("a lifetime of {0:?} was requested; the minimum is {MIN_TTL:?}")]
    Ttl(Duration),
    /// A server name is not a DNS name or address.
    #[error("`{0}` is neither a DNS name nor an IP address")]
    ServerName(String),
    /// The root has expired (or its clock is wrong); nobody can be certified.
    #[error(
        "the root certificate has expired or is not valid yet; give the control plane a new state directory"
    )]
    RootExpired,
    /// Another authority signs.
    #[error(
        "another authority signs the certificates of workloads: ask it (`voile proxy --ca-address`)"
    )]
    SignsNothing,
    /// The cryptographic library failed; the authority's fault.
    #[error("signing failed: {0}")]
    Signing(String),
}

/// A workload's new certificate.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    /// PEM: leaf first, root bundle last.
    pub chain: Vec<String>,
    /// The last instant of validity.
    pub not_after: SystemTime,
}

/// The control plane's own certificate and key.
#[derive(Clone)]
pub struct ServerCertificate {
    /// PEM of the leaf.
    pub chain_pem: String,
    /// PKCS#8 PEM of the key.
    pub key_pem: String,
    /// The same for rustls.
    pub certified: rustls::sign::CertifiedKey,
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCertificate(..)")
    }
}

/// Certificates and key of an authority that others keep, as PEM: Istio's Secrets `cacerts` and `istio-ca-secret`.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityFiles {
    /// The certificate that signs: `ca-cert.pem`.
    pub certificate: String,
    /// Its key: `ca-key.pem`.
    pub key: String,
    /// Certificates from the one that signs up to the root, itself and the root included or not: `cert-chain.pem`.
    pub chain: String,
    /// Roots that are trusted: `root-cert.pem`. One of them is above the certificate.
    pub roots: String,
}

impl fmt::Debug for AuthorityFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorityFiles(private)")
    }
}

/// What an authority has to give.
enum Signer {
    /// Signs.
    Key(Box<Issuer<'static, KeyPair>>),
    /// Signs nothing: another authority made the control plane's certificate.
    Elsewhere(Box<ServerCertificate>),
}

/// The open authority.
pub struct Authority {
    signer: Signer,
    /// Certificates between a leaf and the root, as PEM.
    between_pem: String,
    root_pem: String,
    roots: Vec<CertificateDer<'static>>,
    /// Key identifier of the signer in the certificates that it signs.
    key_id: Option<Vec<u8>>,
    fingerprint: RootFingerprint,
    not_before: SystemTime,
    not_after: SystemTime,
    /// Longest life of a workload's certificate.
    longest: Duration,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the root in `folder`, making folder and root if there are none. `name` goes into the root's subject
    /// (the trust domain by custom); an existing root keeps its own.
    ///
    /// # Errors
    /// The directory or key is open to others, or key and certificate do not belong together.
    pub fn open(
        folder: &Path,
        name: &TrustDomain,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let policy = RootPolicy {
            new_root: true,
            ..RootPolicy::default()
        };
        Self::open_with(folder, name, &policy, now)
    }

    /// As [`Authority::open`], with the root that `policy` permits: without a root in `folder` none is made where proxies trust
    /// one already. Records the root beside the folder.
    ///
    /// # Errors
    /// As [`Authority::open`]; or the root that proxies trust is not in `folder`.
    pub fn open_with(
        folder: &Path,
        name: &TrustDomain,
        policy: &RootPolicy,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        root_record::check_root(folder, policy)?;
        let state = StateDir::open(folder)?;
        let _lock = state.lock()?;
        // Another starter may have made or restored one meanwhile.
        root_record::check_root(folder, policy)?;
        let authority = Self::open_locked(&state, folder, name, now)?;
        if let Some((trusted, source_of_trust)) = root_record::trusted_root(folder, policy)
            && trusted != authority.fingerprint
        {
            return Err(AuthorityError::RootLost(RootLost {
                folder: folder.to_path_buf(),
                found: format!("it has the root {}", authority.fingerprint),
                trusted,
                source_of_trust,
            }));
        }
        root_record::record(folder, &authority.fingerprint);
        Ok(authority)
    }

    fn open_locked(
        state: &StateDir,
        folder: &Path,
        name: &TrustDomain,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let broken = |reason: String| AuthorityError::Root {
            folder: folder.display().to_string(),
            reason,
        };
        let mut certificate = state.read_public(ROOT_CERT_FILE)?;
        let key = match state.read_secret(ROOT_KEY_FILE)? {
            Some(key) => key,
            None if certificate.is_some() => {
                let reason = format!(
                    "has {ROOT_CERT_FILE} but no {ROOT_KEY_FILE}: restore the key, or remove the certificate to start a new mesh"
                );
                return Err(broken(reason));
            }
            None => {
                let key = generate_key()
                    .map_err(|error| broken(error.to_string()))?
                    .serialize_pem();
                state.write_new(ROOT_KEY_FILE, &key, SECRET_MODE)?;
                key
            }
        };
        let pair = || {
            KeyPair::from_pkcs8_pem_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256)
                .map_err(|error| broken(format!("{ROOT_KEY_FILE} is not a P-256 key: {error}")))
        };
        if certificate.is_none() {
            // Also the way back after a crash between the two files: same key, same subject, same chains.
            let root =
                self_signed(&pair()?, name, now).map_err(|error| broken(error.to_string()))?;
            state.write_new(ROOT_CERT_FILE, &root, PUBLIC_MODE)?;
            certificate = Some(root);
        }
        Self::assemble(pair()?, &key, certificate.unwrap_or_default()).map_err(broken)
    }

    /// Makes the files of a new authority: a self-signed root, named after the trust domain.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn generate(name: &TrustDomain, now: SystemTime) -> Result<AuthorityFiles, IssueError> {
        let pair = generate_key().map_err(signing)?;
        let certificate = self_signed(&pair, name, now)?;
        Ok(AuthorityFiles {
            key: pair.serialize_pem(),
            chain: String::new(),
            roots: certificate.clone(),
            certificate,
        })
    }

    /// An authority of these files: the root itself, or one below it. The key may be ECDSA or RSA.
    ///
    /// # Errors
    /// A file cannot be read, the key is not the certificate's, or the certificate is below none of the roots.
    pub fn from_files(files: &AuthorityFiles, now: SystemTime) -> Result<Self, String> {
        let pair = KeyPair::from_pem(&files.key).map_err(|error| format!("ca-key.pem: {error}"))?;
        let certificates = |name: &str, pem: &str| {
            certificates_of(pem).map_err(|error| format!("{name}: {error}"))
        };
        let own = certificates("ca-cert.pem", &files.certificate)?;
        let signer = own.first().ok_or("ca-cert.pem holds no certificate")?;
        let roots = certificates("root-cert.pem", &files.roots)?;
        let root = roots.first().ok_or("root-cert.pem holds no certificate")?;
        let parse = |der: &CertificateDer<'static>| {
            let (_, parsed) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
            if !parsed.is_ca() {
                return Err(format!("{} is not a CA certificate", parsed.subject()));
            }
            let validity = parsed.validity();
            let span = (
                validity.not_before.to_datetime().into(),
                validity.not_after.to_datetime().into(),
            );
            Ok((parsed.public_key().raw.to_vec(), span))
        };
        let (key, (not_before, not_after)) =
            parse(signer).map_err(|error| format!("ca-cert.pem: {error}"))?;
        if key != pair.subject_public_key_info() {
            return Err(
                "ca-key.pem is not the key of ca-cert.pem: restore both from one backup".to_owned(),
            );
        }
        let (root_key, _) = parse(root).map_err(|error| format!("root-cert.pem: {error}"))?;
        let mut between = Vec::new();
        if !roots.contains(signer) {
            between.push(signer.clone());
            if !files.chain.is_empty() {
                let chain = certificates("cert-chain.pem", &files.chain)?;
                between.extend(
                    chain
                        .into_iter()
                        .filter(|one| one != signer && !roots.contains(one)),
                );
            }
        }
        let issuer = Issuer::from_ca_cert_der(signer, pair)
            .map_err(|error| format!("ca-cert.pem: {error}"))?;
        let mut authority = Self {
            signer: Signer::Key(Box::new(issuer)),
            between_pem: between.iter().map(|one| pem("CERTIFICATE", one)).collect(),
            root_pem: files.roots.clone(),
            key_id: None,
            fingerprint: RootFingerprint::of_public_key(&root_key),
            roots,
            not_before,
            not_after,
            longest: MAX_TTL,
        };
        authority.key_id = authority.proves_itself(now)?;
        Ok(authority)
    }

    /// An authority that signs nothing. Another one, below `roots_pem`, signs the certificates of workloads, and made the control
    /// plane's own: `chain_pem` (leaf first) and `key_pem`.
    ///
    /// # Errors
    /// A file cannot be read, the key is not the certificate's, or peers with these roots would refuse the certificate.
    pub fn elsewhere(
        chain_pem: &str,
        key_pem: &str,
        roots_pem: &str,
        now: SystemTime,
    ) -> Result<Self, String> {
        let text = |error: KeyError| error.to_string();
        let roots = certificates_of(roots_pem).map_err(text)?;
        let root = roots.first().ok_or("there is no root")?;
        let (_, root) = X509Certificate::from_der(root).map_err(|error| error.to_string())?;
        let fingerprint = RootFingerprint::of_public_key(root.public_key().raw);
        let chain = certificates_of(chain_pem).map_err(text)?;
        let leaf = chain.first().ok_or("there is no certificate")?;
        let (_, leaf) = X509Certificate::from_der(leaf).map_err(|error| error.to_string())?;
        let validity = leaf.validity();
        let (not_before, not_after) = (
            validity.not_before.to_datetime().into(),
            validity.not_after.to_datetime().into(),
        );
        let certified = foreign_certified_key(key_pem, chain).map_err(text)?;
        let own = ServerCertificate {
            chain_pem: chain_pem.to_owned(),
            key_pem: key_pem.to_owned(),
            certified,
        };
        let authority = Self {
            signer: Signer::Elsewhere(Box::new(own)),
            between_pem: String::new(),
            root_pem: roots_pem.to_owned(),
            roots,
            key_id: None,
            fingerprint,
            not_before,
            not_after,
            longest: MAX_TTL,
        };
        authority.proves_itself(now)?;
        Ok(authority)
    }

    /// Verifies a certificate for nobody, or the given one, as a peer would: dates, constraints and the whole chain are right then.
    /// Returns the key identifier of the signer.
    fn proves_itself(&self, now: SystemTime) -> Result<Option<Vec<u8>>, String> {
        let failed = |error: &dyn fmt::Display| match &self.signer {
            Signer::Key(_) => format!(
                "peers would refuse the certificates that ca-cert.pem signs: {error}; the way to the root is in cert-chain.pem"
            ),
            Signer::Elsewhere(_) => format!("peers would refuse the certificate: {error}"),
        };
        let certificate = self
            .issue_server(&["localhost"], now)
            .map_err(|error| failed(&error))?;
        let anchors = self.roots.iter().map(webpki::anchor_from_trusted_cert);
        let anchors = anchors
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| failed(&error))?;
        let (leaf, between) = certificate
            .certified
            .cert
            .split_first()
            .ok_or("no certificate was signed")?;
        let since = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        EndEntityCert::try_from(leaf)
            .and_then(|leaf| {
                leaf.verify_for_usage(
                    webpki::ALL_VERIFICATION_ALGS,
                    &anchors,
                    between,
                    UnixTime::since_unix_epoch(since),
                    KeyUsage::server_auth(),
                    None,
                    None,
                )
                .map(drop)
            })
            .map_err(|error| failed(&error))?;
        Ok(issuer_key_id(leaf))
    }

    fn assemble(pair: KeyPair, key_pem: &str, root_pem: String) -> Result<Self, String> {
        let unusable = |reason: String| format!("{ROOT_CERT_FILE} cannot be used: {reason}");
        let root = match certificates_of(&root_pem).map_err(|error| unusable(error.to_string()))? {
            mut one if one.len() == 1 => one.remove(0),
            several => {
                return Err(unusable(format!(
                    "{} certificates, one expected",
                    several.len()
                )));
            }
        };
        certified_key(key_pem, vec![root.clone()]).map_err(|_| {
            format!("{ROOT_KEY_FILE} and {ROOT_CERT_FILE} do not belong together: restore both from one backup")
        })?;
        let (_, parsed) = X509Certificate::from_der(root.as_ref())
            .map_err(|error| unusable(error.to_string()))?;
        if !parsed.is_ca() {
            return Err(unusable("not a CA certificate".into()));
        }
        let fingerprint = RootFingerprint::of_public_key(parsed.public_key().raw);
        let not_before = parsed.validity().not_before.to_datetime().into();
        let not_after = parsed.validity().not_after.to_datetime().into();
        let issuer =
            Issuer::from_ca_cert_der(&root, pair).map_err(|error| unusable(error.to_string()))?;
        let root = root.into_owned();
        Ok(Self {
            signer: Signer::Key(Box::new(issuer)),
            between_pem: String::new(),
            root_pem,
            roots: vec![root],
            key_id: None,
            fingerprint,
            not_before,
            not_after,
            longest: MAX_TTL,
        })
    }

    /// The root bundle in PEM, for clients to trust.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// The roots that are trusted.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Key identifier of the signer, as in the certificates that it signs. None for an authority of a state directory.
    pub fn key_id(&self) -> Option<&[u8]> {
        self.key_id.as_deref()
    }

    /// The root's public key, to be compared.
    pub fn fingerprint(&self) -> RootFingerprint {
        self.fingerprint
    }

    /// The last instant at which the root is valid.
    pub(crate) fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Signs as the root.
    pub(crate) fn issuer(&self) -> Result<&Issuer<'static, KeyPair>, IssueError> {
        match &self.signer {
            Signer::Key(issuer) => Ok(issuer),
            Signer::Elsewhere(_) => Err(IssueError::SignsNothing),
        }
    }

    /// Gives workloads certificates of at most `ttl`, whatever they ask for; it is brought between [`MIN_TTL`] and
    /// [`MAX_TTL`].
    pub fn with_longest(mut self, ttl: Duration) -> Self {
        self.longest = ttl.clamp(MIN_TTL, MAX_TTL);
        self
    }

    /// Tells nobody its key identifier: another authority signs the certificates of workloads.
    #[must_use]
    pub fn without_workloads(mut self) -> Self {
        self.key_id = None;
        self
    }

    /// Certifies the key in `csr_pem` for `caller`. `ttl` is cut to the longest; `None` means [`DEFAULT_TTL`].
    ///
    /// # Errors
    /// The request is malformed, of another key type, unsigned, or names anybody but the caller.
    pub fn issue(
        &self,
        csr_pem: &str,
        caller: &Identity,
        ttl: Option<Duration>,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IssueError> {
        let key = csr::check(csr_pem, caller)?;
        let ttl = ttl.unwrap_or(DEFAULT_TTL).min(self.longest);
        if ttl < MIN_TTL {
            return Err(IssueError::Ttl(ttl));
        }
        let uri = caller.to_string().try_into().map_err(signing)?;
        let (pem, not_after) = self.sign(&key, vec![SanType::URI(uri)], ttl, now)?;
        let between = (!self.between_pem.is_empty()).then(|| self.between_pem.clone());
        let chain = [Some(pem), between, Some(self.root_pem.clone())];
        Ok(IssuedCertificate {
            chain: chain.into_iter().flatten().collect(),
            not_after,
        })
    }

    /// A certificate for the control plane itself, valid for `names` (DNS names and addresses). Where another authority signs it is
    /// the one that this made, whatever its names.
    ///
    /// # Errors
    /// A name is neither, or signing failed.
    pub fn issue_server(
        &self,
        names: &[&str],
        now: SystemTime,
    ) -> Result<ServerCertificate, IssueError> {
        if let Signer::Elsewhere(own) = &self.signer {
            return Ok((**own).clone());
        }
        let named = |name: &&str| match name.parse() {
            Ok(address) => Ok(SanType::IpAddress(address)),
            Err(_) if rustls_pki_types::DnsName::try_from(*name).is_ok() => {
                (*name).try_into().map(SanType::DnsName).map_err(signing)
            }
            Err(_) => Err(IssueError::ServerName((*name).to_owned())),
        };
        let names = names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let pair = generate_key().map_err(signing)?;
        let (leaf_pem, _) = self.sign(&pair, names, SERVER_TTL, now)?;
        let chain_pem = leaf_pem + &self.between_pem;
        let key_pem = pair.serialize_pem();
        let certificates =
            certificates_of(&chain_pem).map_err(|error| IssueError::Signing(error.to_string()))?;
        let certified = certified_key(&key_pem, certificates)
            .map_err(|error: KeyError| IssueError::Signing(error.to_string()))?;
        Ok(ServerCertificate {
            chain_pem,
            key_pem,
            certified,
        })
    }

    fn sign(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<(String, SystemTime), IssueError> {
        let issuer = self.issuer()?;
        if now >= self.not_after || now + CLOCK_SKEW < self.not_before {
            return Err(IssueError::RootExpired);
        }
        let not_after = (now + ttl).min(self.not_after);
        let mut params = CertificateParams::default();
        // An empty subject makes the names critical (RFC 5280 section 4.2.1.6).
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names;
        params.not_before = OffsetDateTime::from((now - CLOCK_SKEW).max(self.not_before));
        params.not_after = OffsetDateTime::from(not_after);
        params.serial_number = Some(random_serial()?);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, issuer).map_err(signing)?;
        Ok((certificate.pem(), not_after))
    }
}

pub(crate) fn signing(error: rcgen::Error) -> IssueError {
    IssueError::Signing(error.to_string())
}

fn generate_key() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
}

fn self_signed(pair: &KeyPair, name: &TrustDomain, now: SystemTime) -> Result<String, IssueError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, name.as_str());
    params.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    params.not_after = OffsetDateTime::from(now + ROOT_LIFE);
    params.serial_number = Some(random_serial()?);
    // Leaves only: no authority below this one.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .self_signed(pair)
        .map(|root| root.pem())
        .map_err(signing)
}

/// Fills `bytes` from the provider's generator for secrets.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), IssueError> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(bytes);
    filled.map_err(|_| IssueError::Signing("the system has no random numbers".into()))
}

pub(crate) fn random_serial() -> Result<SerialNumber, IssueError> {
    let mut serial = [0; SERIAL_BYTES];
    random(&mut serial)?;
    // Positive and of full length (RFC 5280 section 4.1.2.2).
    serial[0] = (serial[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&serial))
}

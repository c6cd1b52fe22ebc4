//! TLS with clients outside of the mesh (with servers: `servers`): a certificate that somebody else made for a name of the world's, versions and suites as
//! its owner wants them, and certificates of clients that are none of the mesh's. Nothing here says who anybody is in the mesh.

mod clients;
mod servers;

use std::fmt;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, VerifierBuilderError,
    WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    RootCertStore, ServerConfig, SignatureAlgorithm, SupportedCipherSuite, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::keys::MAX_CHAIN_CERTIFICATES;
use clients::AnyCertificate;
pub use servers::TowardsOutside;

/// Most authorities of the other side's certificates.
const MAX_AUTHORITIES: usize = 1_000;
/// Most lists of what they took back: one for each.
const MAX_LISTS: usize = MAX_AUTHORITIES;

/// TLS with clients outside the mesh. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct OutsideTls {
    /// The certificate and those between it and its root, in PEM.
    pub certificates: Vec<u8>,
    /// Its key, in PEM.
    pub private_key: Vec<u8>,
    /// Others and their keys, for clients that cannot verify this kind of key.
    pub more: Vec<(Vec<u8>, Vec<u8>)>,
    /// Authorities of client certificates, in PEM; empty if clients are not asked for one.
    pub authorities: Vec<u8>,
    /// Lists of certificates that those took back, in PEM; empty where nobody looks.
    pub revocations: Vec<u8>,
    /// True if a client that is asked for a certificate may come without one.
    pub anonymous: bool,
    /// True if a client whose certificate cannot be verified is accepted, too. Then no certificate says who the client is.
    pub unverified: bool,
    /// True if TLS 1.2 is enabled.
    pub tls12: bool,
    /// True if TLS 1.3 is enabled.
    pub tls13: bool,
    /// Suites of TLS 1.2 by OpenSSL's names; none is all that there are.
    pub suites: Vec<Arc<str>>,
}

impl fmt::Debug for OutsideTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutsideTls")
            .field("authorities", &!self.authorities.is_empty())
            .field("revocations", &!self.revocations.is_empty())
            .field("anonymous", &self.anonymous)
            .field("unverified", &self.unverified)
            .field("tls12", &self.tls12)
            .field("tls13", &self.tls13)
            .field("suites", &self.suites)
            .finish_non_exhaustive()
    }
}

/// Why that cannot be spoken. Says nothing of what is secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutsideTlsError {
    /// There is no certificate in the PEM, or more than any chain has.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    /// There is no key in the PEM, or none of a kind that is known.
    #[error("the private key cannot be read")]
    Key,
    /// They do not belong together.
    #[error("the private key is not the certificate's")]
    Mismatch,
    /// The authorities of the other side cannot be read.
    #[error("the certificate authorities cannot be read: {0}")]
    Authorities(String),
    /// The lists of what those took back cannot be read.
    #[error("the certificate revocation lists cannot be read: {0}")]
    Revocations(String),
    /// A text that cannot be a name in a certificate.
    #[error("`{0}` is not a name that a certificate can have")]
    Name(Arc<str>),
    /// A suite that is not spoken.
    #[error("unknown cipher suite `{0}`")]
    Suite(Arc<str>),
    /// The TLS library refuses it.
    #[error("the TLS settings are not supported: {0}")]
    Refused(String),
}

impl OutsideTls {
    /// The accepting side, offering these protocols in ALPN.
    ///
    /// # Errors
    /// Something of it cannot be used.
    pub fn server(&self, alpn: &[&[u8]]) -> Result<Arc<ServerConfig>, OutsideTlsError> {
        let provider = Arc::new(self.provider()?);
        let refused = |error: &dyn fmt::Display| OutsideTlsError::Refused(error.to_string());
        let versions: Vec<&'static SupportedProtocolVersion> =
            [(self.tls13, &TLS13), (self.tls12, &TLS12)]
                .into_iter()
                .filter_map(|(spoken, version)| spoken.then_some(version))
                .collect();
        let resolver = self.resolver(&provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| refused(&error))?;
        let builder = match self.authorities.is_empty() {
            true => builder.with_no_client_auth(),
            false => {
                let roots = Arc::new(roots(&self.authorities)?);
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
                let verifier = match self.anonymous {
                    true => verifier.allow_unauthenticated(),
                    false => verifier,
                };
                let verifier = match self.revocations.is_empty() {
                    true => verifier,
                    // As with Envoy of every certificate of the chain it is known, by a list that is not out of date, or it is refused.
                    false => verifier
                        .with_crls(lists(&self.revocations)?)
                        .enforce_revocation_expiration(),
                };
                let verifier = verifier.build().map_err(|error| match error {
                    VerifierBuilderError::InvalidCrl(error) => {
                        OutsideTlsError::Revocations(rustls::Error::from(error).to_string())
                    }
                    error => refused(&error),
                });
                let verifier = verifier?;
                builder.with_client_cert_verifier(match self.unverified {
                    true => Arc::new(AnyCertificate {
                        authorities: verifier,
                        provider,
                    }),
                    false => verifier,
                })
            }
        };
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        // A new connection proves itself anew, so that a certificate that was taken away is of no use any more.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }

    /// Resolver that selects the certificate for a client.
    fn resolver(
        &self,
        provider: &CryptoProvider,
    ) -> Result<Arc<dyn ResolvesServerCert>, OutsideTlsError> {
        let first = certified(&self.certificates, &self.private_key, provider)?;
        if self.more.is_empty() {
            return Ok(Arc::new(SingleCertAndKey::from(first)));
        }
        let mut all = vec![Arc::new(first)];
        for (chain, key) in &self.more {
            all.push(Arc::new(certified(chain, key, provider)?));
        }
        // As Envoy does: what is cheaper to prove by, for whoever can verify it.
        all.sort_by_key(|one| one.key.algorithm() == SignatureAlgorithm::RSA);
        Ok(Arc::new(CertificateSet(all)))
    }

    fn provider(&self) -> Result<CryptoProvider, OutsideTlsError> {
        let mut provider = aws_lc_rs::default_provider();
        if self.suites.is_empty() {
            return Ok(provider);
        }
        let chosen = self
            .suites
            .iter()
            .map(|name| suite(name).ok_or_else(|| OutsideTlsError::Suite(name.clone())));
        let chosen: Vec<SupportedCipherSuite> = chosen.collect::<Result<_, _>>()?;
        // Those of TLS 1.3 are not chosen among.
        let newer = provider.cipher_suites.iter().copied();
        let newer = newer.filter(|suite| suite.tls13().is_some());
        provider.cipher_suites = newer.chain(chosen).collect();
        Ok(provider)
    }
}

/// Certificates of one name with keys of several kinds, in the order in which they are preferred; never empty.
#[derive(Debug)]
struct CertificateSet(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertificateSet {
    /// rustls offers only the signature schemes that fit a cipher suite of the client. A client that can verify none of the
    /// certificates gets the last one, and reports the error.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut all = self.0.iter();
        let schemes = hello.signature_schemes();
        let suiting = all.find(|one| one.key.choose_scheme(schemes).is_some());
        suiting.or(self.0.last()).cloned()
    }
}

/// A chain with its key, which must belong together.
fn certified(
    chain: &[u8],
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, OutsideTlsError> {
    let chain = certificates(chain, MAX_CHAIN_CERTIFICATES);
    let chain = chain.map_err(OutsideTlsError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| OutsideTlsError::Key)?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|_| OutsideTlsError::Key)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(rustls::Error::InconsistentKeys(_)) => Err(OutsideTlsError::Mismatch),
        Err(error) => Err(OutsideTlsError::Certificate(error.to_string())),
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, OutsideTlsError> {
    let mut roots = RootCertStore::empty();
    let unreadable = OutsideTlsError::Authorities;
    for root in certificates(pem, MAX_AUTHORITIES).map_err(unreadable)? {
        roots
            .add(root)
            .map_err(|error| unreadable(error.to_string()))?;
    }
    Ok(roots)
}

/// Lists of revoked certificates.
fn lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, OutsideTlsError> {
    several(pem, MAX_LISTS).map_err(OutsideTlsError::Revocations)
}

fn certificates(pem: &[u8], most: usize) -> Result<Vec<CertificateDer<'static>>, String> {
    several(pem, most)
}

/// All of one kind; there is one at least.
fn several<T: PemObject>(pem: &[u8], most: usize) -> Result<Vec<T>, String> {
    let all: Result<Vec<_>, _> = T::pem_slice_iter(pem).take(most + 1).collect();
    match all.map_err(|error| error.to_string())? {
        none if none.is_empty() => Err("it has no such PEM block".to_owned()),
        many if many.len() > most => Err(format!("it has more than {most} PEM blocks")),
        some => Ok(some),
    }
}

fn suite(name: &str) -> Option<SupportedCipherSuite> {
    use aws_lc_rs::cipher_suite as suites;
    Some(match name {
        "ECDHE-ECDSA-AES128-GCM-SHA256" => suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-AES256-GCM-SHA384" => suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-CHACHA20-POLY1305" => suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-AES128-GCM-SHA256" => suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-AES256-GCM-SHA384" => suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-CHACHA20-POLY1305" => suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        _ => return None,
    })
}

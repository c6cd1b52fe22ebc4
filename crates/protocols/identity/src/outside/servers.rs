//! TLS with servers outside of the mesh: whom they must be certified by, and by which name; and what we show them. Nothing is guessed:
//! without an authority, or a name, nobody is believed.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, Error, OtherError, RootCertStore};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use voile_model::Identity;
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy,
};

use super::{OutsideTlsError, certified, lists, roots};
use crate::spiffe::{has_uri, identity_of};
use crate::verifier::signature_checks;

/// TLS with servers outside the mesh. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct TowardsOutside {
    /// Trusted authorities, in PEM; `None` is the system's authorities.
    pub authorities: Option<Vec<u8>>,
    /// Lists of certificates that those took back, in PEM; `None` where nobody looks.
    pub revocations: Option<Vec<u8>>,
    /// Client certificate and its key, in PEM.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// One of these must be the certificate's, instead of the name that is asked for: host names, addresses, identities.
    pub names: Vec<Arc<str>>,
    /// True if any certificate is accepted.
    pub unverified: bool,
}

impl fmt::Debug for TowardsOutside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowardsOutside")
            .field("authorities", &self.authorities.is_some())
            .field("revocations", &self.revocations.is_some())
            .field("certificate", &self.certificate.is_some())
            .field("names", &self.names)
            .field("unverified", &self.unverified)
            .finish()
    }
}

impl TowardsOutside {
    /// A client that shows no certificate, and accepts any server that holds the key of its certificate.
    #[must_use]
    pub fn unverified() -> Self {
        Self {
            authorities: None,
            revocations: None,
            certificate: None,
            names: Vec::new(),
            unverified: true,
        }
    }

    /// The connecting side, which names no protocol in ALPN yet.
    ///
    /// # Errors
    /// Something of it cannot be used.
    pub fn client(&self) -> Result<ClientConfig, OutsideTlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let refused = |error: Error| OutsideTlsError::Refused(error.to_string());
        let roots = match &self.authorities {
            Some(pem) => Arc::new(roots(pem)?),
            None if self.unverified => Arc::new(RootCertStore::empty()),
            None => system_roots()?,
        };
        let names = self.names.iter().map(|name| Name::new(name));
        let revoked = self.revocations.as_deref().map(Revoked::new);
        let verifier = Verifier {
            roots,
            revoked: revoked.transpose()?,
            names: names.collect::<Result<_, _>>()?,
            unverified: self.unverified,
            provider: Arc::clone(&provider),
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let own = certified(chain, key, &provider)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
            }
        };
        // A new connection proves itself anew, as everywhere.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// Those that the machine believes (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others), read once.
fn system_roots() -> Result<Arc<RootCertStore>, OutsideTlsError> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = SYSTEM.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    match roots.is_empty() {
        true => Err(OutsideTlsError::Authorities(
            "this system has none".to_owned(),
        )),
        false => Ok(Arc::clone(roots)),
    }
}

/// A name that a certificate may have.
#[derive(Debug)]
enum Name {
    Host(ServerName<'static>),
    Identity(Identity),
    /// One of its URIs, letter by letter.
    Uri(Arc<str>),
}

impl Name {
    fn new(text: &str) -> Result<Self, OutsideTlsError> {
        if let Ok(identity) = text.parse() {
            return Ok(Self::Identity(identity));
        }
        if text.contains("://") {
            return Ok(Self::Uri(text.into()));
        }
        let name = match text.parse::<IpAddr>() {
            Ok(address) => Some(ServerName::IpAddress(address.into())),
            Err(_) => ServerName::try_from(text.to_owned()).ok(),
        };
        name.map(Self::Host)
            .ok_or_else(|| OutsideTlsError::Name(text.into()))
    }

    fn is_of(&self, certificate: &ParsedCertificate<'_>, der: &CertificateDer<'_>) -> bool {
        match self {
            Self::Host(name) => verify_server_name(certificate, name).is_ok(),
            Self::Identity(identity) => identity_of(der).is_ok_and(|found| found == *identity),
            Self::Uri(uri) => has_uri(der, uri),
        }
    }
}

/// Lists of the certificates that authorities revoked.
#[derive(Debug)]
struct Revoked(Vec<CertRevocationList<'static>>);

impl Revoked {
    fn new(pem: &[u8]) -> Result<Self, OutsideTlsError> {
        let read = |list: &CertificateRevocationListDer<'_>| {
            let list = OwnedCertRevocationList::from_der(list);
            list.map(CertRevocationList::from)
                .map_err(|error| OutsideTlsError::Revocations(error.to_string()))
        };
        let all = lists(pem)?;
        Ok(Self(all.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Refuses a chain of which something is revoked, or of which nobody says whether it is by a list that is not out of date.
    fn spare(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        roots: &RootCertStore,
        now: UnixTime,
    ) -> Result<(), Error> {
        let all: Vec<&CertRevocationList<'_>> = self.0.iter().collect();
        let looked = RevocationOptionsBuilder::new(&all)
            .expect("invariant: there is one list at least")
            .with_depth(RevocationCheckDepth::Chain)
            .with_status_policy(UnknownStatusPolicy::Deny)
            .with_expiration_policy(ExpirationPolicy::Enforce)
            .build();
        let end = EndEntityCert::try_from(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let spared = end.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &roots.roots,
            rest,
            now,
            KeyUsage::server_auth(),
            Some(looked),
            None,
        );
        spared.map(drop).map_err(|error| {
            let why = match error {
                webpki::Error::CertRevoked => CertificateError::Revoked,
                webpki::Error::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
                webpki::Error::CrlExpired { .. } => CertificateError::ExpiredRevocationList,
                other => CertificateError::Other(OtherError(Arc::new(other))),
            };
            why.into()
        })
    }
}

#[derive(Debug)]
struct Verifier {
    roots: Arc<RootCertStore>,
    revoked: Option<Revoked>,
    names: Vec<Name>,
    unverified: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.unverified {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            rest,
            now,
            algorithms,
        )?;
        if let Some(revoked) = &self.revoked {
            revoked.spare(leaf, rest, &self.roots, now)?;
        }
        match self.names.as_slice() {
            [] => verify_server_name(&certificate, asked)?,
            names if names.iter().any(|name| name.is_of(&certificate, leaf)) => {}
            _ => return Err(CertificateError::NotValidForName.into()),
        }
        Ok(ServerCertVerified::assertion())
    }

    signature_checks!(verify_tls12_signature);
}

//! A certificate authority in a temporary folder, with a past, so that it can issue what has expired.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::sign::CertifiedKey;
use voile_identity::authority::ROOT_KEY_FILE;
use voile_identity::{
    Authority, CertificateStore, Identity, Keys, TrustBundle, TrustDomain, WorkloadCertificate,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// An authority for one test.
#[derive(Debug)]
pub struct TestAuthority {
    folder: tempfile::TempDir,
    authority: Arc<Authority>,
    trust_domain: TrustDomain,
}

/// A key and a certificate that a peer may show although no honest authority would issue it.
#[derive(Debug, Clone)]
pub struct ShownCertificate {
    /// PEM of the leaf.
    pub chain_pem: String,
    /// PKCS#8 PEM of the key.
    pub key_pem: String,
    /// The same for rustls.
    pub certified: Arc<CertifiedKey>,
}

impl From<&WorkloadCertificate> for ShownCertificate {
    fn from(certificate: &WorkloadCertificate) -> Self {
        Self {
            chain_pem: certificate.chain_pem().to_owned(),
            key_pem: certificate.private_key_pem().to_owned(),
            certified: Arc::clone(certificate.certified_key()),
        }
    }
}

impl TestAuthority {
    /// One for trust domain `cluster.local`, as all tests have by default. Each call makes another root.
    pub fn new() -> Self {
        Self::for_trust_domain("cluster.local")
    }

    /// One for another trust domain.
    pub fn for_trust_domain(trust_domain: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let trust_domain = TrustDomain::new(trust_domain).expect("a trust domain");
        let born = SystemTime::now() - 30 * DAY;
        let authority = Authority::open(&folder.path().join("state"), &trust_domain, born);
        let authority = Arc::new(authority.expect("a fresh authority opens"));
        Self {
            folder,
            authority,
            trust_domain,
        }
    }

    /// The real authority inside.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// Its state directory, as `voile control --state` takes it.
    pub fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    /// A folder that lives as long as this, for the test's other files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its trust domain.
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The identity of a service account in its trust domain.
    pub fn identity(&self, namespace: &str, service_account: &str) -> Identity {
        let domain = &self.trust_domain;
        let text = format!("spiffe://{domain}/ns/{namespace}/sa/{service_account}");
        text.parse().expect("names make an identity")
    }

    /// Trust bundle of this authority alone.
    pub fn trust(&self) -> TrustBundle {
        let roots = self.authority.roots().to_vec();
        TrustBundle::new(self.trust_domain.clone(), Vec::new(), roots).expect("our root is one")
    }

    /// A good certificate.
    pub fn certificate(&self, namespace: &str, service_account: &str) -> WorkloadCertificate {
        self.issued_at(namespace, service_account, SystemTime::now())
    }

    /// A certificate that expired days ago.
    pub fn expired(&self, namespace: &str, service_account: &str) -> WorkloadCertificate {
        self.issued_at(namespace, service_account, SystemTime::now() - 10 * DAY)
    }

    /// A certificate that begins in days to come.
    pub fn not_yet_valid(&self, namespace: &str, service_account: &str) -> WorkloadCertificate {
        self.issued_at(namespace, service_account, SystemTime::now() + 10 * DAY)
    }

    fn issued_at(&self, namespace: &str, account: &str, now: SystemTime) -> WorkloadCertificate {
        let keys = Keys::generate().expect("keys");
        let csr = keys.request(None).expect("a request");
        let identity = self.identity(namespace, account);
        let issued = self
            .authority
            .issue(&csr, &identity, None, now)
            .expect("issued");
        keys.certify(&issued.chain).expect("the chain fits")
    }

    /// A store that shows a good certificate and trusts this authority: all a proxy needs for mutual TLS.
    pub fn store(&self, namespace: &str, service_account: &str) -> Arc<CertificateStore> {
        let store = Arc::new(CertificateStore::new());
        store
            .publish(self.certificate(namespace, service_account))
            .expect("published");
        store
    }

    /// A certificate signed by this root with exactly these URI and DNS names, however wrong.
    pub fn with_names(&self, uris: &[&str], dns: &[&str]) -> ShownCertificate {
        let key_pem = std::fs::read_to_string(self.state().join(ROOT_KEY_FILE)).expect("root key");
        let root_key = KeyPair::from_pem(&key_pem).expect("the root key parses");
        let issuer = Issuer::from_ca_cert_pem(self.authority.root_pem(), root_key).expect("root");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let uri = |name: &&str| SanType::URI((*name).try_into().expect("an ASCII name"));
        let host = |name: &&str| SanType::DnsName((*name).try_into().expect("an ASCII name"));
        params.subject_alt_names = uris.iter().map(uri).chain(dns.iter().map(host)).collect();
        params.not_before = (SystemTime::now() - DAY).into();
        params.not_after = (SystemTime::now() + DAY).into();
        let keys = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("keys");
        let leaf = params.signed_by(&keys, &issuer).expect("signed");
        let key_der = rustls::pki_types::PrivatePkcs8KeyDer::from(keys.serialize_der());
        let signing = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&key_der.into());
        let signing = signing.expect("a P-256 key");
        ShownCertificate {
            chain_pem: leaf.pem(),
            key_pem: keys.serialize_pem(),
            certified: Arc::new(CertifiedKey::new(vec![leaf.der().clone()], signing)),
        }
    }
}

impl Default for TestAuthority {
    fn default() -> Self {
        Self::new()
    }
}

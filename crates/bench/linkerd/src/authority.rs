//! Certificates below the trust anchor of one run: for a proxy that brings its token and asks for its own name, and for the
//! control plane itself. Requests are treated as hostile, though only the lab's own proxies send them.

use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, CertificateSigningRequestParams, ExtendedKeyUsagePurpose, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateSigningRequestDer;

use crate::mesh::{LinkerdWorkload, Mesh};
use crate::messages::identity::{CertifyRequest, CertifyResponse};

/// Life of a certificate: longer than any experiment, since a renewal would disturb the measured figures.
const LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Time by which a certificate begins before now, for clocks that lag.
const SKEW: Duration = Duration::from_secs(60);
/// Largest request read: one of a P-256 key with one name has under 500 bytes.
const MAX_CSR_BYTES: usize = 16 * 1024;

/// Reason for a refusal, for the proxy's log and the lab's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificationError(pub String);

fn refused<T>(why: impl Into<String>) -> Result<T, CertificationError> {
    Err(CertificationError(why.into()))
}

/// The trust anchor with its key.
pub struct Authority {
    root: String,
    issuer: Issuer<'static, KeyPair>,
}

fn usages(params: &mut CertificateParams) {
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
}

fn named(name: &str) -> Result<SanType, CertificationError> {
    let dns = name.to_owned().try_into();
    dns.map(SanType::DnsName)
        .or_else(|_| refused(format!("{name:?} is not a DNS name")))
}

impl Authority {
    /// From PEM of certificate and key.
    ///
    /// # Errors
    /// When one of them is none, or they do not fit.
    pub fn new(root: &str, key: &str) -> Result<Self, CertificationError> {
        let broken =
            |e: rcgen::Error| CertificationError(format!("the trust anchor cannot be used: {e}"));
        let key = KeyPair::from_pem(key).map_err(broken)?;
        let issuer = Issuer::from_ca_cert_pem(root, key).map_err(broken)?;
        Ok(Self {
            root: root.to_owned(),
            issuer,
        })
    }

    /// The trust anchor, PEM.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Certificate and key of a server of that name, PEM.
    pub(crate) fn server(&self, name: &str) -> Result<(String, String), CertificationError> {
        let failed = |e: rcgen::Error| {
            CertificationError(format!(
                "cannot make the control plane's own certificate: {e}"
            ))
        };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![named(name)?];
        usages(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Certifies a proxy that may have the name.
    ///
    /// # Errors
    /// When it may not, or the request is none for that name.
    pub fn certify(
        &self,
        mesh: &Mesh,
        request: &CertifyRequest,
        now: SystemTime,
    ) -> Result<CertifyResponse, CertificationError> {
        let CertifyRequest {
            identity,
            token,
            certificate_signing_request,
        } = request;
        let of_it = |workload: &&LinkerdWorkload| workload.identity == *identity;
        let Some(workload) = mesh.workloads.iter().find(of_it) else {
            return refused(format!("unknown identity {identity:?}"));
        };
        if token.trim_ascii() != workload.token.as_bytes() {
            return refused(format!("the token is not {identity}'s"));
        }
        if certificate_signing_request.len() > MAX_CSR_BYTES {
            return refused(format!("the request is larger than {MAX_CSR_BYTES} bytes"));
        }
        let der = CertificateSigningRequestDer::from(certificate_signing_request.as_slice());
        // Also verifies the signature: the proof that the key is the asker's.
        let csr = CertificateSigningRequestParams::from_der(&der);
        let mut csr = csr.or_else(|e| refused(format!("not a certificate request: {e}")))?;
        let own = named(identity)?;
        if csr.params.subject_alt_names != [own.clone()] {
            let asked = &csr.params.subject_alt_names;
            return refused(format!("the request names {asked:?}, not {identity}"));
        }
        // Of what is asked for only the key and the name count.
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![own];
        usages(&mut params);
        let end = now + LIFE;
        params.not_before = (now - SKEW).into();
        params.not_after = end.into();
        csr.params = params;
        let leaf = csr.signed_by(&self.issuer);
        let leaf = leaf.or_else(|e| refused(format!("signing: {e}")))?;
        Ok(CertifyResponse {
            leaf_certificate: leaf.der().to_vec(),
            intermediate_certificates: Vec::new(),
            valid_until: Some(end.into()),
        })
    }
}

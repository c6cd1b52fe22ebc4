//! Certificates of workloads that an external authority signs. The control plane authenticates the caller, passes the request on, and
//! checks what comes back: whatever the external authority answers, a caller gets a certificate of its own identity and key only.

use std::fmt;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use rustls_pki_types::{CertificateDer, UnixTime};
use tonic::Status;
use tonic::metadata::MetadataValue;
use voile_model::Identity;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authenticator::AuthenticatedCaller;
use crate::authority::{CLOCK_SKEW, IssueError, IssuedCertificate, MAX_TTL, MIN_TTL};
use crate::chain::{not_after, verify_client_chain, verify_server_chain};
use crate::csr;
use crate::keys::{certificates_of, pem};
use crate::service::refused_request;
use crate::store::TrustBundle;

/// Metadata of a refusal: the identity that a request must name. An external authority signs what the request says.
pub(crate) const IDENTITY_METADATA: &str = "voile-identity";
/// Longest life of a certificate beyond what was asked for.
const TOLERANCE: Duration = Duration::from_secs(600);

/// An answer that comes later.
pub type SignerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<String, ExternalSignerError>> + Send + 'a>>;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum ExternalSignerError {
    /// It does not answer, or too many others wait; later it may.
    #[error("the external certificate authority is not available: {0}")]
    Unavailable(String),
    /// It refuses.
    #[error("the external certificate authority refuses: {0}")]
    Refused(String),
}

/// An authority outside the control plane.
pub trait ExternalSigner: fmt::Debug + Send + Sync + 'static {
    /// Has a request of `caller` signed for about `ttl`. Returns the chain in PEM, leaf first.
    fn sign<'a>(&'a self, caller: &'a str, csr_pem: &'a str, ttl: Duration) -> SignerFuture<'a>;

    /// The roots that its certificates lead to.
    fn roots(&self) -> Vec<CertificateDer<'static>>;

    /// Shortest and longest life that is asked for.
    fn lifetimes(&self) -> (Duration, Duration);
}

/// Name of a caller among those that share the signer: its identity. Node proxies have one identity, so each is named by its pod, too.
pub(crate) fn share_of(caller: &AuthenticatedCaller, subject: &Identity) -> String {
    let identity = caller.identity.to_string();
    match &caller.pod {
        Some(pod) if caller.identity != *subject => format!("{identity} {pod}"),
        _ => identity,
    }
}

/// Has `csr_pem` of `caller` signed for `subject` and checks the answer. `bundle` is what the caller trusts from then on.
pub(crate) async fn issue(
    signer: &dyn ExternalSigner,
    caller: &str,
    csr_pem: &str,
    subject: &Identity,
    ttl: Option<Duration>,
    bundle: &str,
) -> Result<IssuedCertificate, Status> {
    let refused = |error: IssueError| refused_request(&error);
    csr::check(csr_pem, subject).map_err(|error| refused(error.into()))?;
    if !csr::names(csr_pem) {
        let mut status = Status::failed_precondition(format!(
            "the certificates are signed by an external authority: the request must name {subject}"
        ));
        if let Ok(value) = MetadataValue::try_from(subject.to_string()) {
            status.metadata_mut().insert(IDENTITY_METADATA, value);
        }
        return Err(status);
    }
    if let Some(ttl) = ttl.filter(|ttl| *ttl < MIN_TTL) {
        return Err(refused(IssueError::Ttl(ttl)));
    }
    let (shortest, longest) = signer.lifetimes();
    let ttl = ttl.unwrap_or(longest).min(longest).max(shortest);
    let chain = signer
        .sign(caller, csr_pem, ttl)
        .await
        .map_err(|error| match &error {
            ExternalSignerError::Unavailable(_) => Status::unavailable(error.to_string()),
            ExternalSignerError::Refused(_) => Status::failed_precondition(error.to_string()),
        })?;
    let until = SystemTime::now() + ttl.min(MAX_TTL) + CLOCK_SKEW + TOLERANCE;
    check(&chain, csr_pem, subject, &signer.roots(), until)
        .map(|(between, not_after)| IssuedCertificate {
            chain: between.into_iter().chain([bundle.to_owned()]).collect(),
            not_after,
        })
        .map_err(|reason| {
            Status::internal(format!(
                "the certificate of the external certificate authority is refused: {reason}"
            ))
        })
}

/// Checks a chain as a peer would, and that it is the requested one. Returns its certificates without roots.
fn check(
    chain: &str,
    csr_pem: &str,
    subject: &Identity,
    roots: &[CertificateDer<'static>],
    until: SystemTime,
) -> Result<(Vec<String>, SystemTime), String> {
    let text = |error: &dyn fmt::Display| error.to_string();
    let all = certificates_of(chain).map_err(|error| text(&error))?;
    let own: Vec<_> = all.into_iter().filter(|one| !roots.contains(one)).collect();
    let leaf = own.first().ok_or("it is a root")?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| text(&error))?;
    if csr::public_key(csr_pem).as_deref() != Some(parsed.public_key().raw) {
        return Err("it is for another key".to_owned());
    }
    if parsed.is_ca() {
        return Err("it is one of an authority".to_owned());
    }
    let trust = TrustBundle::new(subject.trust_domain.clone(), Vec::new(), roots.to_vec());
    let trust = trust.map_err(|error| text(&error))?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = UnixTime::since_unix_epoch(since.unwrap_or_default());
    for verify in [verify_client_chain, verify_server_chain] {
        let found = verify(&trust, &own, now).map_err(|error| text(&error))?;
        if found != *subject {
            return Err(format!("it is for {found}"));
        }
    }
    let ends = not_after(leaf).ok_or("its end cannot be read")?;
    if ends > until {
        return Err("it lives longer than was asked for".to_owned());
    }
    let pems = own.iter().map(|one| pem("CERTIFICATE", one)).collect();
    Ok((pems, ends))
}

#[cfg(test)]
mod tests;

//! Authenticates callers of the control plane: by a bearer token, or else by the client certificate of the connection. The
//! certificate service and the discovery server both use it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls_pki_types::{CertificateDer, UnixTime};
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Status};
use voile_model::Identity;

use crate::chain::verify_client_chain;
use crate::join::JOIN_TOKEN_PREFIX;
use crate::revocation::{CertificateKey, keys_of};
use crate::store::TrustStore;
use crate::token::TokenVerifier;

/// By what a caller proved who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerProof {
    /// A service-account token.
    Token,
    /// The client certificate of its connection.
    Certificate,
    /// A join token, used up by this call.
    JoinToken,
}

/// A caller that proved who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticatedCaller {
    /// Its identity.
    pub identity: Identity,
    /// The pod its token is bound to, if any.
    pub pod: Option<String>,
    /// Proof of the identity.
    pub proof: CallerProof,
    /// Until when that proof is believed.
    pub until: SystemTime,
    /// The certificates that are its proof; none where it is a token.
    pub certificates: Box<[CertificateKey]>,
}

/// The certificates a client presented on its connection, leaf first. A server that does its own TLS puts this into
/// the request's extensions; tonic's own server needs nothing (see [`peer_certificates`]).
#[derive(Debug, Clone, Default)]
pub struct PeerCertificates(pub Arc<Vec<CertificateDer<'static>>>);

/// Decides who calls.
pub trait Authenticator: Send + Sync + 'static {
    /// Authenticates the caller at `now`, or returns `Unauthenticated` with the reason.
    ///
    /// # Errors
    /// The proof is missing or not accepted. A good certificate never makes up for a wrong token.
    fn authenticate(
        &self,
        metadata: &MetadataMap,
        peer: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<AuthenticatedCaller, Status>;

    /// Checks that the authenticated `caller` may have a certificate in the name of `asked`: a node proxy (ztunnel) asks for
    /// the workloads of its node. By default no caller may.
    ///
    /// # Errors
    /// The reason, for the caller and the log.
    fn may_stand_for(&self, caller: &AuthenticatedCaller, asked: &Identity) -> Result<(), String> {
        Err(format!(
            "{} may only ask for itself, not for {asked}",
            caller.identity
        ))
    }

    /// Hears that `caller` was given a certificate in the name of `subject`.
    fn certified(&self, _caller: &AuthenticatedCaller, _subject: &Identity, _until: SystemTime) {}
}

impl<A: Authenticator> Authenticator for Arc<A> {
    fn authenticate(
        &self,
        metadata: &MetadataMap,
        peer: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<AuthenticatedCaller, Status> {
        A::authenticate(self, metadata, peer, now)
    }

    fn may_stand_for(&self, caller: &AuthenticatedCaller, asked: &Identity) -> Result<(), String> {
        A::may_stand_for(self, caller, asked)
    }

    fn certified(&self, caller: &AuthenticatedCaller, subject: &Identity, until: SystemTime) {
        A::certified(self, caller, subject, until);
    }
}

/// The mesh's own authenticator: service-account tokens and certificates of the mesh's roots.
#[derive(Debug)]
pub struct MeshAuthenticator {
    tokens: Arc<dyn TokenVerifier>,
    trust: Arc<TrustStore>,
}

impl MeshAuthenticator {
    /// Believes tokens that `tokens` verifies, and certificates under `trust`, which also says the trust domain.
    pub fn new(tokens: Arc<dyn TokenVerifier>, trust: Arc<TrustStore>) -> Self {
        Self { tokens, trust }
    }
}

impl Authenticator for MeshAuthenticator {
    fn authenticate(
        &self,
        metadata: &MetadataMap,
        peer: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<AuthenticatedCaller, Status> {
        let trust = self.trust.current();
        let trust = trust
            .ok_or_else(|| Status::unavailable("the certificate authority is not ready yet"))?;
        match bearer(metadata)? {
            Some(token) if token.starts_with(JOIN_TOKEN_PREFIX) => Err(Status::unauthenticated(
                "a join token is only valid for the first certificate; authenticate with that certificate",
            )),
            Some(token) => {
                let verified = self.tokens.verify(token, now);
                let (subject, until) =
                    verified.map_err(|error| Status::unauthenticated(error.to_string()))?;
                let identity = subject.identity(trust.trust_domain());
                let identity = identity.ok_or_else(|| {
                    Status::unauthenticated("the token names no valid service account")
                })?;
                Ok(AuthenticatedCaller {
                    identity,
                    pod: subject.pod,
                    proof: CallerProof::Token,
                    until,
                    certificates: Box::default(),
                })
            }
            None if peer.is_empty() => Err(Status::unauthenticated(
                "no credential: send `authorization: Bearer TOKEN` or a client certificate",
            )),
            None => {
                let since = now
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or(Duration::ZERO);
                let unix = UnixTime::since_unix_epoch(since);
                let mut identity = verify_client_chain(&trust, peer, unix)
                    .map_err(|error| Status::unauthenticated(error.to_string()))?;
                let until = peer.first().and_then(|leaf| crate::chain::not_after(leaf));
                // An alias is another name of the same domain; what we issue carries its own name.
                identity.trust_domain = trust.trust_domain().clone();
                Ok(AuthenticatedCaller {
                    identity,
                    pod: None,
                    proof: CallerProof::Certificate,
                    until: until.unwrap_or(now),
                    certificates: keys_of(peer),
                })
            }
        }
    }
}

/// The bearer token of a call, if there is one.
///
/// # Errors
/// There are several `authorization` headers, or one that is not `Bearer TOKEN`.
pub(crate) fn bearer(metadata: &MetadataMap) -> Result<Option<&str>, Status> {
    let mut headers = metadata.get_all("authorization").iter();
    let Some(header) = headers.next() else {
        return Ok(None);
    };
    let refused = || Status::unauthenticated("`authorization` must be one `Bearer TOKEN`");
    if headers.next().is_some() {
        return Err(refused());
    }
    let (scheme, token) = header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .ok_or_else(refused)?;
    match scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() {
        true => Ok(Some(token.trim())),
        false => Err(refused()),
    }
}

/// The client certificates of a request's connection, leaf first; empty when the client showed none. Understands
/// [`PeerCertificates`] and tonic's own TLS server.
pub fn peer_certificates<T>(request: &Request<T>) -> Arc<Vec<CertificateDer<'static>>> {
    let ours = |extensions: &Extensions| extensions.get::<PeerCertificates>().cloned();
    match ours(request.extensions()) {
        Some(PeerCertificates(chain)) => chain,
        None => request.peer_certs().unwrap_or_default(),
    }
}

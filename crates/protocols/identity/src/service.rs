//! Istio's certificate service: authenticates the caller, lets the authority issue, and says what was refused and why.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost_types::value::Kind;
use tonic::{Request, Response, Status};
use voile_model::Identity;
use voile_proto::certificate::{IstioCertificateRequest, IstioCertificateResponse};

use crate::authenticator::{
    AuthenticatedCaller, Authenticator, CallerProof, bearer, peer_certificates,
};
use crate::authority::IssueError;
use crate::authority_store::AuthorityStore;
use crate::csr::{CsrError, MAX_CSR_BYTES};
use crate::external::{self, ExternalSigner, IDENTITY_METADATA};
use crate::generated::certificate_service::istio_certificate_service_server::IstioCertificateService;
pub use crate::generated::certificate_service::istio_certificate_service_server::IstioCertificateServiceServer;
use crate::join::{JOIN_TOKEN_PREFIX, JoinError, JoinTokens, RedeemableToken};
use crate::store::TrustStore;

/// The metadata by which Istio's node agents ask on behalf of others.
pub(crate) const IMPERSONATED_IDENTITY: &str = "ImpersonatedIdentity";

/// Largest request that is read. The caller is authenticated only after the read, so an unproven request must not be as
/// large as gRPC allows (4 MiB). A certificate request and its metadata fit well.
const MAX_REQUEST_BYTES: usize = 4 * MAX_CSR_BYTES;

/// In a call's extensions: its caller has been authenticated by its head.
#[derive(Debug, Clone)]
struct AdmittedCaller(AuthenticatedCaller);

/// The service; wrap it in [`IstioCertificateServiceServer`].
#[derive(Debug)]
pub struct CertificateService<A> {
    authority: AuthorityStore,
    authenticator: A,
    joins: JoinTokens,
    trust: Arc<TrustStore>,
    /// Signs in the authority's place.
    external: Option<Arc<dyn ExternalSigner>>,
    clock: fn() -> SystemTime,
}

impl<A: Authenticator> CertificateService<A> {
    /// A service that issues from `authority`; `trust` says the trust domain of those who join.
    pub fn new(
        authority: impl Into<AuthorityStore>,
        authenticator: A,
        joins: JoinTokens,
        trust: Arc<TrustStore>,
    ) -> Self {
        Self {
            authority: authority.into(),
            authenticator,
            joins,
            trust,
            external: None,
            clock: SystemTime::now,
        }
    }

    /// Has certificates signed by an external authority, if there is one.
    #[must_use]
    pub fn signed_by(mut self, external: Option<Arc<dyn ExternalSigner>>) -> Self {
        self.external = external;
        self
    }

    /// Tells the time by another clock (tests).
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> SystemTime) -> Self {
        self.clock = clock;
        self
    }

    /// The same as a tonic service, ready for a server.
    pub fn into_server(self) -> IstioCertificateServiceServer<Self> {
        Self::server(Arc::new(self))
    }

    /// The same of a service whose callers are also asked for by [`Self::admit`].
    pub fn server(service: Arc<Self>) -> IstioCertificateServiceServer<Self> {
        IstioCertificateServiceServer::from_arc(service)
            .max_decoding_message_size(MAX_REQUEST_BYTES)
    }

    /// Proves who calls by a call's head, before anything of its body is read; the call itself does not ask again.
    ///
    /// # Errors
    /// There is no proof, or it is not believed.
    pub fn admit(&self, head: &mut Request<()>) -> Result<(), Status> {
        let (caller, join) = self.caller(head, (self.clock)())?;
        // A join token is read again by the call that uses it up.
        if join.is_none() {
            head.extensions_mut().insert(AdmittedCaller(caller));
        }
        Ok(())
    }

    /// Authenticates the caller, and returns the join token to use up if that is the proof.
    fn caller<T>(
        &self,
        request: &Request<T>,
        now: SystemTime,
    ) -> Result<(AuthenticatedCaller, Option<RedeemableToken>), Status> {
        match bearer(request.metadata())? {
            Some(token) if token.starts_with(JOIN_TOKEN_PREFIX) => {
                let token = self.joins.check(token, now).map_err(refused_join)?;
                let trust = self.trust.current();
                let domain = trust.ok_or_else(|| {
                    Status::unavailable("the certificate authority is not ready yet")
                })?;
                let identity = token.subject().identity(domain.trust_domain());
                let identity = identity.ok_or_else(|| {
                    Status::unauthenticated("the join token names no valid service account")
                })?;
                let caller = AuthenticatedCaller {
                    identity,
                    pod: None,
                    proof: CallerProof::JoinToken,
                    until: now, // It is good for this call only.
                    certificates: Box::default(),
                };
                Ok((caller, Some(token)))
            }
            _ => {
                let peer = peer_certificates(request);
                let caller = self
                    .authenticator
                    .authenticate(request.metadata(), &peer, now)?;
                Ok((caller, None))
            }
        }
    }
}

fn refused_join(error: JoinError) -> Status {
    match error {
        JoinError::State(_) | JoinError::Random(_) => {
            tracing::error!(%error, "cannot read join tokens");
            Status::internal("the certificate authority cannot read its join tokens")
        }
        _ => Status::unauthenticated(error.to_string()),
    }
}

pub(crate) fn refused_request(error: &IssueError) -> Status {
    match error {
        IssueError::Csr(CsrError::ForeignName { .. }) => {
            Status::permission_denied(error.to_string())
        }
        IssueError::SignsNothing => Status::failed_precondition(error.to_string()),
        IssueError::Csr(_) | IssueError::Ttl(_) => Status::invalid_argument(error.to_string()),
        IssueError::ServerName(_) | IssueError::RootExpired | IssueError::Signing(_) => {
            tracing::error!(%error, "cannot issue a certificate");
            Status::internal(error.to_string())
        }
    }
}

/// The lifetime asked for: 0 means the default (proto3 knows no absence).
fn asked_ttl(seconds: i64) -> Result<Option<Duration>, Status> {
    match u64::try_from(seconds) {
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(Duration::from_secs(seconds))),
        Err(_) => Err(Status::invalid_argument("validity_duration is negative")),
    }
}

/// Identity that the certificate is for, if it is not the caller's. A field that is present but cannot be read is never
/// taken as absent.
fn on_behalf_of(asked: &IstioCertificateRequest) -> Result<Option<Identity>, Status> {
    let fields = asked.metadata.as_ref().map(|metadata| &metadata.fields);
    let Some(value) = fields.and_then(|fields| fields.get(IMPERSONATED_IDENTITY)) else {
        return Ok(None);
    };
    let text = match &value.kind {
        Some(Kind::StringValue(text)) => text.as_str(),
        _ => "",
    };
    let identity = text.parse().map_err(|_| {
        let shown: String = text.chars().take(300).collect();
        Status::invalid_argument(format!(
            "{IMPERSONATED_IDENTITY} `{shown}` is not a SPIFFE id of a workload"
        ))
    })?;
    Ok(Some(identity))
}

#[tonic::async_trait]
impl<A: Authenticator> IstioCertificateService for CertificateService<A> {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let now = (self.clock)();
        let (caller, join) = match request.extensions().get::<AdmittedCaller>() {
            Some(AdmittedCaller(caller)) => (caller.clone(), None),
            None => self.caller(&request, now)?,
        };
        let asked = request.into_inner();
        let subject = match on_behalf_of(&asked)? {
            Some(subject) => {
                let allowed = self.authenticator.may_stand_for(&caller, &subject);
                allowed.map_err(|reason| {
                    tracing::warn!(caller = %caller.identity, %subject, reason, "certificate request refused");
                    Status::permission_denied(format!("{IMPERSONATED_IDENTITY}: {reason}"))
                })?;
                subject
            }
            None => caller.identity.clone(),
        };
        let ttl = asked_ttl(asked.validity_duration)?;
        let authority = self.authority.current();
        let issued = match &self.external {
            Some(signer) => {
                let bundle = authority.root_pem();
                let share = external::share_of(&caller, &subject);
                let csr = &asked.csr;
                external::issue(signer.as_ref(), &share, csr, &subject, ttl, bundle).await
            }
            None => {
                let issued = authority.issue(&asked.csr, &subject, ttl, now);
                issued.map_err(|error| refused_request(&error))
            }
        };
        let issued = issued.inspect_err(|refusal| {
            if refusal.metadata().contains_key(IDENTITY_METADATA) {
                // The caller asks again with its name.
                return;
            }
            let reason = refusal.message();
            tracing::warn!(caller = %caller.identity, %subject, reason, "certificate request refused");
        })?;
        if let Some(join) = join {
            // Only the one who takes the token away gets what was issued for it.
            self.joins.consume(join).map_err(refused_join)?;
        }
        self.authenticator
            .certified(&caller, &subject, issued.not_after);
        tracing::info!(identity = %subject, caller = %caller.identity, proof = ?caller.proof, "certificate issued");
        Ok(Response::new(IstioCertificateResponse {
            cert_chain: issued.chain,
        }))
    }
}

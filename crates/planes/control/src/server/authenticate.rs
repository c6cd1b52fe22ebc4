//! Authenticates a caller by the head of its call. Every port demands a proof. On the plaintext port the only proof is a token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status as Refusal};
use voile_identity::authenticator::peer_certificates;
use voile_identity::service::IstioCertificateServiceServer;
use voile_identity::{Authenticator, CertificateService, MeshAuthenticator};
use voile_model::Identity;
use voile_xds::server::{BoundedLife, CERTIFICATE_WORK, DEPARTED, Snapshot, Streams};

use super::routes::{Answered, GrpcService};
use crate::snapshot::SnapshotCaller;
use crate::status::Status;
use crate::ztunnel::AmbientWorkloads;

/// Said when a stream's time is over.
const EXPIRED: &str =
    "the credential that opened this stream has expired: reconnect with a newer one";
const OLD: &str = "this stream has reached its maximum age: reconnect";
/// Streams end up to this share of their age earlier, so that proxies that came together do not come back together.
const AGE_JITTER: f64 = 0.1;

/// Lifetime of a stream that begins now.
fn life(until: SystemTime, age: Duration) -> BoundedLife {
    let (now, clock) = (Instant::now(), SystemTime::now());
    let age = age.mul_f64(1.0 - AGE_JITTER * random());
    let left = until.duration_since(clock).unwrap_or_default();
    BoundedLife {
        until: now + left.min(age),
        reason: if left < age { EXPIRED } else { OLD },
    }
}

/// From 0 to 1: the standard hasher's keys are random.
fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(0u8) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// Authenticator of the certificate service: certifies proven callers whose workload is in the mesh, within their identity's
/// budget. A workload that left may
/// finish with its certificate (as long as its streams last), and gets no new one.
#[derive(Clone)]
pub(super) struct CertifiedMembers {
    pub(super) authenticator: Arc<MeshAuthenticator>,
    pub(super) snapshots: watch::Receiver<Arc<dyn Snapshot<SnapshotCaller>>>,
    /// They hold the budget of each identity.
    pub(super) streams: Streams<SnapshotCaller>,
    pub(super) staff: watch::Receiver<Arc<AmbientWorkloads>>,
    pub(super) status: Arc<Status>,
}

impl Authenticator for CertifiedMembers {
    fn authenticate(
        &self,
        metadata: &MetadataMap,
        peer: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<voile_identity::AuthenticatedCaller, Refusal> {
        let caller = self.authenticator.authenticate(metadata, peer, now)?;
        let known = SnapshotCaller::Known(caller.clone());
        let farewell = self.snapshots.borrow().farewell(&known);
        if farewell.is_some_and(|at| at <= Instant::now()) {
            tracing::warn!(identity = %caller.identity, "certificate refused: {DEPARTED}");
            return Err(Refusal::permission_denied(DEPARTED));
        }
        self.streams.count_work(&known, CERTIFICATE_WORK)?;
        Ok(caller)
    }

    fn may_stand_for(
        &self,
        caller: &voile_identity::AuthenticatedCaller,
        asked: &Identity,
    ) -> Result<(), String> {
        self.staff.borrow().may_stand_for(caller, asked)
    }

    fn certified(
        &self,
        caller: &voile_identity::AuthenticatedCaller,
        subject: &Identity,
        until: SystemTime,
    ) {
        self.status.certified(caller, subject, until);
    }
}

/// Refusals are logged at most once in so many seconds: whoever has no credential does not choose how much is written.
const LOG_EVERY: u64 = 1;

/// Counts a refused caller, and logs it where none was logged lately.
fn refused(status: &Status, peer: Option<SocketAddr>, refusal: &Refusal) {
    let count = status.refused_callers.fetch_add(1, Ordering::Relaxed) + 1;
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = clock.map_or(0, |since| since.as_secs());
    if now.abs_diff(status.refusal_logged.load(Ordering::Relaxed)) < LOG_EVERY {
        return;
    }
    status.refusal_logged.store(now, Ordering::Relaxed);
    tracing::warn!(?peer, count, "caller refused: {}", refusal.message());
}

/// An interceptor that lets only proven callers pass.
pub(super) fn required(
    authenticator: Arc<MeshAuthenticator>,
    status: Arc<Status>,
    age: Duration,
) -> impl Fn(Request<()>) -> Result<Request<()>, Refusal> + Clone + Send + Sync + 'static {
    move |mut request| {
        let peer = peer_certificates(&request);
        let caller = authenticator
            .authenticate(request.metadata(), &peer, SystemTime::now())
            .inspect_err(|refusal| refused(&status, request.remote_addr(), refusal))?;
        request.extensions_mut().insert(life(caller.until, age));
        request
            .extensions_mut()
            .insert(SnapshotCaller::Known(caller));
        Ok(request)
    }
}

/// The certificate service, which asks who calls before it reads a question.
pub(super) struct Certificates {
    service: Arc<CertificateService<CertifiedMembers>>,
    server: IstioCertificateServiceServer<CertificateService<CertifiedMembers>>,
    status: Arc<Status>,
}

impl Certificates {
    pub(super) fn new(service: CertificateService<CertifiedMembers>, status: Arc<Status>) -> Self {
        let service = Arc::new(service);
        Self {
            server: CertificateService::server(service.clone()),
            service,
            status,
        }
    }
}

impl GrpcService for Certificates {
    const PATHS: &'static [&'static str] =
        &["/istio.v1.auth.IstioCertificateService/CreateCertificate"];

    fn admit(&self, head: http::Request<()>) -> Result<http::Request<()>, Refusal> {
        let (mut head, ()) = head.into_parts();
        let metadata = MetadataMap::from_headers(head.headers);
        let mut asked = Request::from_parts(metadata, head.extensions, ());
        self.service
            .admit(&mut asked)
            .inspect_err(|refusal| refused(&self.status, asked.remote_addr(), refusal))?;
        let (metadata, extensions, ()) = asked.into_parts();
        head.headers = metadata.into_headers();
        head.extensions = extensions;
        Ok(http::Request::from_parts(head, ()))
    }

    fn answer(&self, request: http::Request<Body>) -> Answered {
        let answer = self.server.clone().call(request);
        Box::pin(async move {
            match answer.await {
                Ok(answer) => answer,
                Err(never) => match never {},
            }
        })
    }
}

//! Which call goes to which service, and who may make it. Two services need no router library.

use std::future::{Future, ready};
use std::pin::Pin;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use voile_xds::server::{BoundedLife, ServedStream, Streams};

use crate::snapshot::SnapshotCaller;

const DISCOVERY: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";
/// Discovery, and where it is safe the certificate service.
pub(super) struct Routes<D, C> {
    pub(super) discovery: D,
    pub(super) certificates: Option<C>,
}

/// The answer to a call, to be.
pub(super) type Answered = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl<D: Discovery, C: GrpcService> Routes<D, C> {
    /// Returns true if a call asks for a discovery stream.
    pub(super) fn is_discovery(request: &Request<()>) -> bool {
        request.uri().path().starts_with(DISCOVERY)
    }

    /// Checks that a service answers the call and that its caller may ask. Returns the head with the facts about
    /// the caller.
    pub(super) fn admit(&self, head: Request<()>) -> Result<Request<()>, Status> {
        match &self.certificates {
            Some(certificates) if C::PATHS.contains(&head.uri().path()) => certificates.admit(head),
            _ => Err(Status::unimplemented(
                "this address does not serve the method",
            )),
        }
    }

    /// Answers a call that was admitted.
    pub(super) fn call(&self, request: Request<Body>) -> Answered {
        match &self.certificates {
            Some(certificates) => certificates.answer(request),
            None => Box::pin(ready(Status::unimplemented("").into_http())),
        }
    }
}

/// Opens discovery streams.
pub(super) trait Discovery: 'static {
    fn open(&self, request: Request<()>) -> Result<Box<dyn ServedStream>, Status>;
}

/// Discovery for those who pass a check.
pub(super) struct AuthorizedDiscovery<F> {
    pub(super) streams: Streams<SnapshotCaller>,
    /// Adds the caller to what is known of a call.
    pub(super) check: F,
}

impl<F> Discovery for AuthorizedDiscovery<F>
where
    F: Fn(tonic::Request<()>) -> Result<tonic::Request<()>, Status> + 'static,
{
    fn open(&self, request: Request<()>) -> Result<Box<dyn ServedStream>, Status> {
        let (head, ()) = request.into_parts();
        let metadata = MetadataMap::from_headers(head.headers);
        let asked = tonic::Request::from_parts(metadata, head.extensions, ());
        let peer = asked.remote_addr().map(|peer| peer.ip());
        let (metadata, mut known, ()) = (self.check)(asked)?.into_parts();
        let caller = known.remove::<SnapshotCaller>();
        let caller =
            caller.ok_or_else(|| Status::unauthenticated("the caller was not authenticated"))?;
        let life = known.remove::<BoundedLife>();
        let headers = metadata.into_headers();
        self.streams
            .open(head.uri.path(), &headers, (caller, peer), life)
    }
}

/// A service that answers questions.
pub(super) trait GrpcService: 'static {
    /// The methods that it serves.
    const PATHS: &'static [&'static str];

    /// Authenticates a call by its head, before anything of its body is read.
    fn admit(&self, head: Request<()>) -> Result<Request<()>, Status>;

    /// Answers a call that was admitted.
    fn answer(&self, request: Request<Body>) -> Answered;
}

//! Which call goes to which service, and who may make it. Two services need no router library.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Bytes, Service, StdError};
use tonic::metadata::MetadataMap;
use voile_xds::server::{BoundedLife, Served, Streams};

use crate::snapshot::Caller;

const DISCOVERY: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";
const CERTIFICATES: &str = "/istio.v1.auth.IstioCertificateService/";

/// Discovery, and where it is safe the certificate service.
pub(super) struct Routes<D, C> {
    pub(super) discovery: D,
    pub(super) certificates: Option<C>,
}

/// The answer to a call, to be.
pub(super) type Answered = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl<D: Discovery, C: GrpcService> Routes<D, C> {
    /// Whether a call asks for a discovery stream.
    pub(super) fn is_discovery(request: &Request<()>) -> bool {
        request.uri().path().starts_with(DISCOVERY)
    }

    /// Answers another call.
    pub(super) fn call(&self, request: Request<Body>) -> Answered {
        match &self.certificates {
            Some(certificates) if request.uri().path().starts_with(CERTIFICATES) => {
                certificates.clone().answer(request)
            }
            _ => {
                let refusal = Status::unimplemented("this address serves no such method");
                Box::pin(ready(refusal.into_http()))
            }
        }
    }
}

/// Where discovery streams begin.
pub(super) trait Discovery: 'static {
    fn open(&self, request: Request<()>) -> Result<Box<dyn Served>, Status>;
}

/// Discovery for those who pass a check.
pub(super) struct Checked<F> {
    pub(super) streams: Streams<Caller>,
    /// Adds the caller to what is known of a call.
    pub(super) check: F,
}

impl<F> Discovery for Checked<F>
where
    F: Fn(tonic::Request<()>) -> Result<tonic::Request<()>, Status> + 'static,
{
    fn open(&self, request: Request<()>) -> Result<Box<dyn Served>, Status> {
        let (head, ()) = request.into_parts();
        let metadata = MetadataMap::from_headers(head.headers);
        let asked = tonic::Request::from_parts(metadata, head.extensions, ());
        let (metadata, mut known, ()) = (self.check)(asked)?.into_parts();
        let caller = known.remove::<Caller>();
        let caller =
            caller.ok_or_else(|| Status::unauthenticated("nobody has checked who calls"))?;
        let life = known.remove::<BoundedLife>();
        let headers = metadata.into_headers();
        self.streams.open(head.uri.path(), &headers, caller, life)
    }
}

/// A service that answers questions, with its body's type made one.
pub(super) trait GrpcService: Clone + Send + Sync + 'static {
    fn answer(&mut self, request: Request<Body>) -> Answered;
}

impl<S, B> GrpcService for S
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    fn answer(&mut self, request: Request<Body>) -> Answered {
        let answer = self.call(request);
        Box::pin(async move {
            match answer.await {
                Ok(answer) => answer.map(Body::new),
                Err(never) => match never {},
            }
        })
    }
}

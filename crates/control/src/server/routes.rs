//! Which call goes to which service, and which connections' calls succeed. Two services need no router library.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Bytes, Service, StdError};

use super::newcomers::Entrance;

const DISCOVERY: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";
const CERTIFICATES: &str = "/istio.v1.auth.IstioCertificateService/";

/// Discovery, and where it is safe the certificate service.
#[derive(Debug, Clone)]
pub(super) struct Routes<D, C> {
    pub(super) discovery: D,
    pub(super) certificates: Option<C>,
}

/// The answer to a call, to be.
pub(super) type Answered = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<D: GrpcService, C: GrpcService> Routes<D, C> {
    /// Answers a call. With the first that succeeds its connection is no newcomer's any more.
    pub(super) fn call(&self, mut request: Request<Body>, entrance: &Entrance) -> Answered {
        // Where services look for them.
        request.extensions_mut().insert(entrance.tcp.clone());
        if let Some(tls) = &entrance.tls {
            request.extensions_mut().insert(tls.clone());
        }
        let standing = Arc::clone(&entrance.standing);
        let answered = self.route(request);
        Box::pin(async move {
            let answer = answered.await?;
            // A call that fails at once has its status in the head.
            if !answer.headers().contains_key(Status::GRPC_STATUS) {
                standing.settle();
            }
            Ok(answer)
        })
    }

    fn route(&self, request: Request<Body>) -> Answered {
        let path = request.uri().path();
        if path.starts_with(DISCOVERY) {
            return self.discovery.clone().answer(request);
        }
        match &self.certificates {
            Some(certificates) if path.starts_with(CERTIFICATES) => {
                certificates.clone().answer(request)
            }
            _ => {
                let refusal = Status::unimplemented("this address serves no such method");
                Box::pin(std::future::ready(Ok(refusal.into_http())))
            }
        }
    }
}

/// What both services are, with their body types made one.
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
        Box::pin(async move { Ok(answer.await?.map(Body::new)) })
    }
}

//! Which call goes to which service, and which connections' calls succeed. Two services need no router library.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

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

type Answered = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<D, C> Service<Request<Body>> for Routes<D, C>
where
    D: GrpcService,
    C: GrpcService,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Generated services are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Answered {
        let Some(entrance) = request.extensions_mut().remove::<Entrance>() else {
            return self.route(request);
        };
        // Where services look for them.
        request.extensions_mut().insert(entrance.tcp);
        if let Some(tls) = entrance.tls {
            request.extensions_mut().insert(tls);
        }
        let answered = self.route(request);
        Box::pin(async move {
            let answer = answered.await?;
            // A call that fails at once has its status in the head.
            if !answer.headers().contains_key(Status::GRPC_STATUS) {
                entrance.standing.settle();
            }
            Ok(answer)
        })
    }
}

impl<D: GrpcService, C: GrpcService> Routes<D, C> {
    fn route(&mut self, request: Request<Body>) -> Answered {
        let path = request.uri().path();
        if path.starts_with(DISCOVERY) {
            return self.discovery.answer(request);
        }
        match &mut self.certificates {
            Some(certificates) if path.starts_with(CERTIFICATES) => certificates.answer(request),
            _ => {
                let refusal = Status::unimplemented("this address serves no such method");
                Box::pin(std::future::ready(Ok(refusal.into_http())))
            }
        }
    }
}

/// What both generated services are, with their body types made one.
pub(super) trait GrpcService {
    fn answer(&mut self, request: Request<Body>) -> Answered;
}

impl<S, B> GrpcService for S
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    fn answer(&mut self, request: Request<Body>) -> Answered {
        let answer = self.call(request);
        Box::pin(async move { Ok(answer.await?.map(Body::new)) })
    }
}

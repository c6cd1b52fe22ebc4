//! The services as calls over gRPC: which method is asked, who asks, what is answered. Streams stay open after their one
//! message, as a control plane's do whose mesh never changes.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, once, pending};
use http::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::authority::{Authority, CertificationError};
use crate::mesh::Mesh;
use crate::messages::destination::GetDestination;
use crate::messages::identity::CertifyRequest;
use crate::messages::inbound::PortSpec;
use crate::messages::outbound::TrafficSpec;

/// Methods that are answered, as paths.
pub(crate) const CERTIFY: &str = "/io.linkerd.proxy.identity.Identity/Certify";
pub(crate) const WATCH_PORT: &str = "/io.linkerd.proxy.inbound.InboundServerPolicies/WatchPort";
pub(crate) const WATCH: &str = "/io.linkerd.proxy.outbound.OutboundPolicies/Watch";
pub(crate) const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";
pub(crate) const GET_PROFILE: &str = "/io.linkerd.proxy.destination.Destination/GetProfile";

/// Callback for the log: gets a line about the outcome of each question.
type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// All services.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) tell: Tell,
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A method that answers at once.
struct UnaryMethod<F>(F);

impl<F, M, R> UnaryService<M> for UnaryMethod<F>
where
    F: FnMut(tonic::Request<M>) -> Result<R, Status>,
{
    type Response = R;
    type Future = Ready<Result<tonic::Response<R>, Status>>;

    fn call(&mut self, request: tonic::Request<M>) -> Self::Future {
        ready((self.0)(request).map(tonic::Response::new))
    }
}

/// A method whose answer is one message of a stream that stays open.
struct Watched<F>(F);

impl<F, M, R> ServerStreamingService<M> for Watched<F>
where
    F: FnMut(tonic::Request<M>) -> Result<R, Status>,
    R: Send + 'static,
{
    type Response = R;
    type ResponseStream = BoxStream<'static, Result<R, Status>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<M>) -> Self::Future {
        let answer = (self.0)(request);
        let opened = answer.map(|answer| once(ready(Ok(answer))).chain(pending()).boxed());
        ready(opened.map(tonic::Response::new))
    }
}

/// A refusal that a proxy does not take for a failure to try again at once.
fn unknown(what: String) -> Status {
    Status::new(Code::NotFound, what)
}

impl Services {
    fn certify(self, request: Request<Body>) -> Answered {
        Box::pin(async move {
            let method = UnaryMethod(move |request: tonic::Request<CertifyRequest>| {
                let request = request.into_inner();
                let name = &request.identity;
                let made = self
                    .authority
                    .certify(&self.mesh, &request, SystemTime::now());
                match made {
                    Ok(made) => {
                        (self.tell)(&format!("certified {name}"));
                        Ok(made)
                    }
                    Err(CertificationError(why)) => {
                        (self.tell)(&format!("refused Certify of {name:?}: {why}"));
                        Err(Status::permission_denied(why))
                    }
                }
            });
            Ok(Grpc::new(ProstCodec::default())
                .unary(method, request)
                .await)
        })
    }

    /// A watch, answered by `answer`, which also returns a text for the log. Proxies open their watches before they have
    /// certificates and keep that connection, so the caller is not known. The answers are no secrets, only names of a
    /// laboratory.
    fn watch<M, R>(
        self,
        request: Request<Body>,
        method: &'static str,
        answer: fn(&Mesh, &M) -> (String, Option<R>),
    ) -> Answered
    where
        M: prost::Message + Default + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        Box::pin(async move {
            let watched = Watched(move |request: tonic::Request<M>| {
                let (about, answer) = answer(&self.mesh, request.get_ref());
                match answer {
                    Some(answer) => {
                        (self.tell)(&format!("answered {method} of {about}"));
                        Ok(answer)
                    }
                    None => {
                        (self.tell)(&format!("unknown in {method}: {about}"));
                        Err(unknown(about))
                    }
                }
            });
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.server_streaming(watched, request).await)
        })
    }
}

fn port(
    mesh: &Mesh,
    asked: &PortSpec,
) -> (String, Option<crate::messages::inbound::InboundServer>) {
    let known = u16::try_from(asked.port).ok();
    let server = known.and_then(|port| mesh.server(&asked.workload, port));
    (
        format!("port {} of {:?}", asked.port, asked.workload),
        server,
    )
}

type Policy = crate::messages::outbound::OutboundPolicy;

fn target(mesh: &Mesh, asked: &TrafficSpec) -> (String, Option<Policy>) {
    use crate::messages::outbound::OutboundTarget;
    let about = match &asked.target {
        Some(OutboundTarget::Addr(address)) => address
            .socket()
            .map_or_else(|| "no address".to_owned(), |address| address.to_string()),
        Some(OutboundTarget::Authority(name)) => format!("{name:?}"),
        None => "nothing".to_owned(),
    };
    let policy = asked.target.as_ref().and_then(|target| mesh.policy(target));
    (about, policy)
}

impl Service<Request<Body>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answered {
        let own = self.clone();
        match request.uri().path() {
            CERTIFY => own.certify(request),
            WATCH_PORT => own.watch(request, "WatchPort", port),
            WATCH => own.watch(request, "Watch", target),
            GET => own.watch(request, "Get", |mesh, asked: &GetDestination| {
                (
                    format!("{:?}", asked.path),
                    Some(mesh.endpoints(&asked.path)),
                )
            }),
            GET_PROFILE => own.watch(request, "GetProfile", |mesh, asked: &GetDestination| {
                (format!("{:?}", asked.path), Some(mesh.profile(&asked.path)))
            }),
            other => {
                (self.tell)(&format!(
                    "the lab's control plane has no answer for {other:?}"
                ));
                let status =
                    Status::unimplemented("the lab's control plane does not support this call");
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}

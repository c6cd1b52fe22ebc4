//! Connections that were accepted, each served by a task of its own: HTTP/2 and nothing around it, because thousands of them wait for
//! hours and what each holds is what the control plane holds.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tonic::body::Body;
use tonic::transport::server::Connected;

use super::newcomers::{Entrance, Guarded};
use super::over;
use super::routes::{Answered, GrpcService, Routes};

/// Calls at once on one connection: a proxy has one stream, and now and then asks for a certificate.
const MAX_CALLS: u32 = 16;
/// How long a connection may take to end when it has reached its age: streams end a little earlier, other calls are short.
const AGE_GRACE: Duration = Duration::from_secs(5);

/// Serves what is accepted until `ended`, and then until the last connection is gone.
pub(super) fn serve<S, D, C>(
    mut incoming: mpsc::Receiver<Guarded<S>>,
    routes: Routes<D, C>,
    age: Duration,
    ended: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + 'static
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Guarded<S>: Connected<ConnectInfo = Entrance>,
    D: GrpcService,
    C: GrpcService,
{
    let routes = Arc::new(routes);
    let (end, ending) = watch::channel(());
    async move {
        let mut over = pin!(over(ended));
        loop {
            let stream = tokio::select! {
                () = &mut over => break,
                stream = incoming.recv() => stream,
            };
            let Some(stream) = stream else {
                break;
            };
            let calls = Calls {
                routes: routes.clone(),
                entrance: stream.connect_info(),
            };
            tokio::spawn(connection(stream, calls, age + AGE_GRACE, ending.clone()));
        }
        drop((incoming, ending));
        end.send_replace(());
        end.closed().await;
    }
}

async fn connection<S, D, C>(
    stream: Guarded<S>,
    calls: Calls<D, C>,
    longest: Duration,
    mut ending: watch::Receiver<()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    D: GrpcService,
    C: GrpcService,
{
    let served = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MAX_CALLS)
        .serve_connection(TokioIo::new(stream), calls);
    let mut served = pin!(served);
    let mut too_old = pin!(tokio::time::sleep(longest));
    let mut ended = false;
    loop {
        tokio::select! {
            biased;
            finished = &mut served => {
                if let Err(error) = finished {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = &mut too_old => return,
            _ = ending.changed(), if !ended => {
                ended = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Calls of one connection.
struct Calls<D, C> {
    routes: Arc<Routes<D, C>>,
    entrance: Entrance,
}

impl<D: GrpcService, C: GrpcService> hyper::service::Service<Request<Incoming>> for Calls<D, C> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn call(&self, request: Request<Incoming>) -> Answered {
        self.routes.call(request.map(Body::new), &self.entrance)
    }
}

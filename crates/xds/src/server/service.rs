//! The discovery service as gRPC serves it. Its two methods are told apart here and not by generated code, because a stream that is idle
//! for hours should hold no buffers, and what it says has been written already (see `frame`).

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::body::Frame as BodyFrame;
use tokio::sync::{mpsc, watch};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Streaming};
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response, header};
use tonic::codegen::{Body as HttpBody, Bytes, Service, StdError};
use tonic::server::NamedService;
use tonic_prost::ProstDecoder;

use super::conversation::Conversation;
use super::driver::{BoundedLife, Observer, Session, Snapshots, StreamId};
use super::interest::Interest;
use super::sotw::SotwStream;
use super::stream::{MAX_TYPES, Stream};

const NAME: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// The only encoding of messages that is spoken.
const IDENTITY: &str = "identity";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Largest request that is taken, in bytes: a reconnect names everything held.
const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;
/// Room for a request that a stream begins with, in bytes; it grows to the longest. An acknowledgement is about a hundred.
const REQUEST_ROOM: usize = 256;

/// What goes to a stream's caller: responses as they are written, and at the end why it ends.
pub(super) type Frame = Result<Bytes, Status>;

/// The aggregated discovery service for callers of type `C`, which somebody before us (an interceptor) has put into the
/// request's extensions.
pub struct AdsService<C> {
    snapshots: Snapshots<C>,
    interest: Arc<Interest>,
    observer: Arc<dyn Observer<C>>,
    opened: Arc<AtomicU64>,
    ending: watch::Receiver<bool>,
}

impl<C> Clone for AdsService<C> {
    fn clone(&self) -> Self {
        Self {
            snapshots: self.snapshots.clone(),
            interest: self.interest.clone(),
            observer: self.observer.clone(),
            opened: self.opened.clone(),
            ending: self.ending.clone(),
        }
    }
}

impl<C> NamedService for AdsService<C> {
    const NAME: &'static str = NAME;
}

impl<C: Clone + Send + Sync + 'static, B> Service<Request<B>> for AdsService<C>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let begun = match request.uri().path() {
            DELTA => self.begin(request, Stream::new),
            SOTW => self.begin(request, SotwStream::new),
            _ => Err(Status::unimplemented("discovery has no such method")),
        };
        ready(Ok(begun.unwrap_or_else(Status::into_http)))
    }
}

impl<C: Clone + Send + Sync + 'static> AdsService<C> {
    /// Serves what comes through `snapshots`, and looks at it whenever `interest` says so; all streams end when `ending` becomes true.
    pub fn new(
        snapshots: Snapshots<C>,
        interest: Arc<Interest>,
        observer: Arc<dyn Observer<C>>,
        ending: watch::Receiver<bool>,
    ) -> Self {
        Self {
            snapshots,
            interest,
            observer,
            opened: Arc::new(AtomicU64::new(0)),
            ending,
        }
    }

    fn begin<S: Conversation<C>, B>(
        &self,
        request: Request<B>,
        stream: fn(C) -> S,
    ) -> Result<Response<Body>, Status>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let (mut head, body) = request.into_parts();
        may_be_read(&head.headers)?;
        let caller = head.extensions.remove::<C>();
        let caller =
            caller.ok_or_else(|| Status::unauthenticated("nobody has checked who calls"))?;
        let life = head.extensions.remove::<BoundedLife>();
        let farewell = self.snapshots.borrow().farewell(&caller);
        if farewell.is_some_and(|at| at <= Instant::now()) {
            return Err(self.snapshots.borrow().parting(&caller));
        }
        // One response in flight per type: the queue never holds more.
        let (responses, queue) = mpsc::channel(MAX_TYPES + 1);
        let id = StreamId(self.opened.fetch_add(1, Ordering::Relaxed));
        let session = Session {
            id,
            member: self.interest.join(id.0),
            stream: stream(caller),
            snapshots: self.snapshots.clone(),
            observer: self.observer.clone(),
            responses,
            life,
            farewell,
            named: false,
            introduced: false,
        };
        let room = BufferSettings::new(REQUEST_ROOM, REQUEST_ROOM);
        let decoder = ProstDecoder::<S::Request>::new(room);
        let requests = Streaming::new_request(decoder, body, None, Some(MAX_REQUEST_BYTES));
        tokio::spawn(session.run(requests, self.ending.clone()));
        let mut response = Response::new(Body::new(Responses {
            queue,
            ended: false,
        }));
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
        Ok(response)
    }
}

/// Compressed requests are nobody's here: the peer is told so before it sends one.
fn may_be_read(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding") {
        Some(encoding) if encoding != IDENTITY => {
            let shown = String::from_utf8_lossy(encoding.as_bytes());
            let reason = format!("messages are compressed by `{shown}`, which is not spoken here");
            let mut status = Status::unimplemented(reason);
            let spoken = tonic::metadata::MetadataValue::from_static(IDENTITY);
            status.metadata_mut().insert("grpc-accept-encoding", spoken);
            Err(status)
        }
        _ => Ok(()),
    }
}

/// What a stream says, as the body of an answer.
struct Responses {
    queue: mpsc::Receiver<Frame>,
    ended: bool,
}

impl HttpBody for Responses {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let status = match self.queue.poll_recv(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(frames))) => return Poll::Ready(Some(Ok(BodyFrame::data(frames)))),
            Poll::Ready(Some(Err(status))) => status,
            Poll::Ready(None) => Status::ok(""),
        };
        self.ended = true;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(match status.add_header(&mut trailers) {
            Ok(()) => Ok(BodyFrame::trailers(trailers)),
            Err(status) => Err(status),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

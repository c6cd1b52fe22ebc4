//! Serves streams over tonic: one small task each, which sleeps until the caller speaks, something that it depends on changes, or
//! the caller has been silent for too long.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream as AsyncStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use voile_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};

use super::Snapshot;
use super::conversation::Conversation;
use super::interest::{CALLER, Interest, Membership};
use super::sotw::{Absent, SotwStream};
use super::stream::{Ended, Event, MAX_TYPES, Stream};
use crate::generated::ads::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};

/// Largest request that is taken, in bytes: a reconnect names everything held.
const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;

/// How long a stream may last, put into the request's extensions by whoever checked who calls. Without it: for ever.
#[derive(Debug, Clone, Copy)]
pub struct BoundedLife {
    /// Its last moment.
    pub until: Instant,
    /// What the caller is told then (`UNAUTHENTICATED`): whatever it is, it may come back and prove itself anew.
    pub reason: &'static str,
}

/// What a caller that left the mesh is told.
pub const DEPARTED: &str = "this workload is no longer in the mesh";

/// Number of a stream, unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Hears what happens on streams, for metrics and status pages. Must not block.
pub trait Observer<C>: Send + Sync + 'static {
    /// A stream was opened.
    fn opened(&self, id: StreamId, caller: &C);
    /// The caller named itself (it may say anything).
    fn named(&self, id: StreamId, node: &str);
    /// A request arrived.
    fn event(&self, id: StreamId, type_url: &str, event: &Event);
    /// A response was sent.
    fn sent(&self, id: StreamId, type_url: &str, resources: usize, removed: usize);
    /// What the caller asks for of a type and may not have, or cannot be said to it, with the reasons; all of it, each time.
    fn refused(&self, _id: StreamId, _type_url: &str, _absent: &Absent) {}
    /// The stream ended.
    fn closed(&self, id: StreamId, reason: &str);
}

type Snapshots<C> = watch::Receiver<Arc<dyn Snapshot<C>>>;

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

    /// As a tonic service.
    pub fn into_server(self) -> AggregatedDiscoveryServiceServer<Self> {
        AggregatedDiscoveryServiceServer::new(self).max_decoding_message_size(MAX_REQUEST_BYTES)
    }
}

type Responses<T> = Pin<Box<dyn AsyncStream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl<C: Clone + Send + Sync + 'static> AggregatedDiscoveryService for AdsService<C> {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.begin(request, SotwStream::new)
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        self.begin(request, Stream::new)
    }
}

impl<C: Clone + Send + Sync + 'static> AdsService<C> {
    fn begin<S: Conversation<C>>(
        &self,
        mut request: Request<Streaming<S::Request>>,
        stream: fn(C) -> S,
    ) -> Result<Response<Responses<S::Response>>, Status> {
        let caller = request
            .extensions_mut()
            .remove::<C>()
            .ok_or_else(|| Status::unauthenticated("nobody has checked who calls"))?;
        let life = request.extensions_mut().remove::<BoundedLife>();
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
            introduced: false,
        };
        tokio::spawn(session.run(request.into_inner(), self.ending.clone()));
        Ok(Response::new(Box::pin(ReceiverStream::new(queue))))
    }
}

struct Session<C, S: Conversation<C>> {
    id: StreamId,
    member: Membership,
    stream: S,
    snapshots: Snapshots<C>,
    observer: Arc<dyn Observer<C>>,
    responses: mpsc::Sender<Result<S::Response, Status>>,
    life: Option<BoundedLife>,
    /// When it ends because the caller left the mesh.
    farewell: Option<Instant>,
    /// Whether `member` knows who calls.
    introduced: bool,
}

impl<C: Clone + Send + Sync + 'static, S: Conversation<C>> Session<C, S> {
    async fn run(mut self, requests: Streaming<S::Request>, ending: watch::Receiver<bool>) {
        self.observer.opened(self.id, self.stream.caller());
        let status = self.serve(requests, ending).await;
        self.observer.closed(self.id, status.message());
        if status.code() != Code::Ok {
            // A caller that reads nothing will not read this either.
            let _ = self.responses.try_send(Err(status));
        }
    }

    async fn serve(
        &mut self,
        mut requests: Streaming<S::Request>,
        mut ending: watch::Receiver<bool>,
    ) -> Status {
        let mut named = false;
        loop {
            let silence = until(self.stream.deadline());
            let life = until(self.life.map(|life| life.until));
            let farewell = until(self.farewell);
            tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => {
                        if let (false, Some(node)) = (named, S::node(&request)) {
                            named = true;
                            self.observer.named(self.id, &node.id);
                            let snapshot = self.snapshots.borrow().clone();
                            snapshot.introduce(self.stream.caller_mut(), node);
                        }
                        if let Err(status) = self.receive(request) {
                            return status;
                        }
                    }
                    Ok(None) => return Status::ok("the caller ended the stream"),
                    Err(status) => return Status::ok(format!("the connection broke: {}", status.message())),
                },
                () = self.member.woken() => self.take_news(),
                _ = ending.wait_for(|ending| *ending) => {
                    return Status::unavailable("the control plane is ending");
                }
                () = silence => return status_of(&Ended::Silent),
                () = life => {
                    return Status::unauthenticated(self.life.map_or("", |life| life.reason));
                }
                () = farewell => {
                    let snapshot = self.snapshots.borrow().clone();
                    return snapshot.parting(self.stream.caller());
                }
                () = self.responses.closed() => return Status::ok("the caller is gone"),
            }
            if let Err(status) = self.push() {
                return status;
            }
        }
    }

    fn receive(&mut self, request: S::Request) -> Result<(), Status> {
        let type_url = S::asked(&request).to_owned();
        let event = self
            .stream
            .receive(request, Instant::now())
            .map_err(|ended| status_of(&ended))?;
        self.observer.event(self.id, &type_url, &event);
        Ok(())
    }

    fn push(&mut self) -> Result<(), Status> {
        loop {
            let snapshot = self.snapshots.borrow_and_update().clone();
            self.farewell = snapshot.farewell(self.stream.caller());
            self.say(&*snapshot)?;
            // What was published while we were not yet known to depend on it has woken nobody.
            if !self.become_known(&*snapshot) || !self.snapshots.has_changed().unwrap_or(false) {
                return Ok(());
            }
            self.stream.changed();
        }
    }

    /// Notes what must be looked at again.
    fn take_news(&mut self) {
        let news = self.member.news();
        if news.everything {
            self.stream.changed();
        }
        for (type_url, names) in news.types {
            self.stream.touched(&type_url, names);
        }
        if let Some(at) = news.at {
            self.stream.changed_at(at);
        }
        for question in news.questions {
            // Whoever asked may be gone.
            let _ = question.send(self.stream.held());
        }
    }

    /// Says by what this stream is to be woken; whether there is anything new among it.
    fn become_known(&mut self, snapshot: &dyn Snapshot<C>) -> bool {
        let mut more = self.stream.become_known(&mut self.member);
        if !self.introduced {
            self.introduced = true;
            let caller = snapshot
                .known_as(self.stream.caller())
                .into_iter()
                .collect();
            more |= self.member.know(&CALLER.into(), &caller);
        }
        more
    }

    fn say(&mut self, snapshot: &dyn Snapshot<C>) -> Result<(), Status> {
        while let Some(response) = self.stream.next(snapshot, Instant::now()) {
            let (type_url, resources, removed) = S::said(&response);
            self.observer.sent(self.id, type_url, resources, removed);
            // Full means that the caller acknowledges what it has not read.
            if self.responses.try_send(Ok(response)).is_err() {
                return Err(Status::resource_exhausted("responses are not read"));
            }
        }
        for (type_url, absent) in self.stream.refusals() {
            self.observer.refused(self.id, &type_url, &absent);
        }
        Ok(())
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn status_of(ended: &Ended) -> Status {
    let code = match ended {
        Ended::TooMuch(_) => Code::ResourceExhausted,
        Ended::Violation(_) => Code::InvalidArgument,
        Ended::Silent => Code::DeadlineExceeded,
    };
    Status::new(code, ended.to_string())
}

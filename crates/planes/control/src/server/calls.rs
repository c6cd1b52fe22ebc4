//! The calls of a connection: discovery streams, which are heard and answered as bytes, and questions that a service answers whole.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::{Body as _, Bytes};
use tonic::{Code, Status};
use voile_http2::{ErrorCode, Fields, RecvStream, SendResponse, SendStream};
use voile_xds::server::ServedStream;

use super::budget::{MAX_QUESTION, QUESTION_DEADLINE};
use super::connections::ConnectionsState;
use super::newcomers::ConnectionInfo;
use super::routes::{Discovery, GrpcService, Routes};

/// Turns in a row in which a stream has more to say although what it said before does not fit: its caller acknowledges what it has not
/// read, since there is one response in flight for each type.
const MAX_BEHIND: usize = 16;

const GRPC: &[u8] = b"application/grpc";

/// See the module.
pub(super) enum ServerCall {
    /// A discovery stream.
    Following(StreamingCall),
    /// A question.
    Asking(Pin<Box<dyn Future<Output = ()>>>),
}

impl ServerCall {
    /// Hears what came and says what there is to say, with room to write it down in. Ready when the call is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, room: &mut Vec<u8>) -> Poll<()> {
        match self {
            Self::Following(following) => following.poll(context, room),
            Self::Asking(asking) => asking.as_mut().poll(context),
        }
    }

    /// Returns true for a discovery stream.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Following(_))
    }

    /// The control plane ends: whether the call does, too. Questions are answered first.
    pub(super) fn leave(&mut self) -> bool {
        let Self::Following(following) = self else {
            return false;
        };
        let status = Status::unavailable("the control plane is shutting down");
        following.stream.part(status.message());
        following.finish(&status);
        true
    }
}

/// See [`ServerCall`].
pub(super) struct StreamingCall {
    body: RecvStream,
    say: SendStream,
    stream: Box<dyn ServedStream>,
    /// Turns since what it said last fitted.
    behind: usize,
    /// Bytes of it that the caller has not read, as they were counted last.
    unread: usize,
}

impl StreamingCall {
    fn poll(&mut self, context: &mut Context<'_>, room: &mut Vec<u8>) -> Poll<()> {
        room.clear();
        let ended = match self.hear(room) {
            Some(ended) => Some(ended),
            None => match self.stream.poll(context, room) {
                Poll::Ready(status) => Some(status),
                Poll::Pending => None,
            },
        };
        let ended = match room.is_empty() {
            true => ended,
            false => self.say(room).err().or(ended),
        };
        let ended = ended.or_else(|| self.count_unread().err());
        let Some(status) = ended else {
            return Poll::Pending;
        };
        self.finish(&status);
        Poll::Ready(())
    }

    /// Counts the responses that wait because the caller does not read, in the budget of its identity.
    fn count_unread(&mut self) -> Result<(), Status> {
        let unread = self.say.waiting_bytes();
        if unread == self.unread {
            return Ok(());
        }
        self.unread = unread;
        self.stream.unread(unread).inspect_err(|_| self.give_up())
    }

    /// A caller that reads no responses would not read the trailers either.
    fn give_up(&mut self) {
        self.say.send_reset(ErrorCode::ENHANCE_YOUR_CALM);
    }

    /// Hears what came; why the stream ends, if it does.
    fn hear(&mut self, room: &mut Vec<u8>) -> Option<Status> {
        // The task of the connection runs this after every read, so no other task needs a wake-up.
        let mut nobody = Context::from_waker(Waker::noop());
        loop {
            match self.body.poll_data(&mut nobody) {
                Poll::Pending => return None,
                Poll::Ready(Some(Ok(bytes))) => {
                    self.body.release_capacity(bytes.len());
                    if let Err(status) = self.stream.hear(&bytes, room) {
                        return Some(status);
                    }
                }
                Poll::Ready(None) => {
                    self.stream.part("the client ended the stream");
                    return Some(Status::ok(""));
                }
                // There is nobody left to tell.
                Poll::Ready(Some(Err(failure))) => {
                    self.stream.part(&format!("the stream failed: {failure:?}"));
                    return Some(Status::ok(""));
                }
            }
        }
    }

    fn say(&mut self, said: &[u8]) -> Result<(), Status> {
        let mut nobody = Context::from_waker(Waker::noop());
        self.behind = match self.say.poll_capacity(&mut nobody) {
            Poll::Ready(_) => 0,
            Poll::Pending => self.behind + 1,
        };
        if self.behind > MAX_BEHIND {
            let status = Status::resource_exhausted("the client does not read responses");
            self.stream.part(status.message());
            self.give_up();
            return Err(status);
        }
        // That it failed is heard at the next turn.
        let _ = self.say.send_copy(said, false);
        Ok(())
    }

    fn finish(&mut self, status: &Status) {
        let mut trailers = HeaderMap::new();
        match status.add_header(&mut trailers) {
            Ok(()) => {
                // A caller that is gone does not hear it.
                let _ = self.say.send_trailers(fields(Fields::new(), &trailers));
            }
            Err(_) => self.say.send_reset(ErrorCode::INTERNAL_ERROR),
        }
    }
}

fn fields(mut block: Fields, headers: &HeaderMap) -> Fields {
    for (name, value) in headers {
        block.push(name.as_str(), value.as_bytes());
    }
    block
}

/// Answers at once, with nothing but a head, in the caller's words: a status of gRPC, or one of HTTP.
fn refuse(mut respond: SendResponse, status: Status, speaks_grpc: bool) {
    if !speaks_grpc {
        return refuse_http(respond, http_status(status.code()));
    }
    let refusal: http::Response<Body> = status.into_http();
    let head = fields(Fields::response(200), refusal.headers());
    // A caller that is gone does not hear it.
    let _ = respond.send_response(head, true);
}

fn refuse_http(mut respond: SendResponse, status: StatusCode) {
    let _ = respond.send_response(Fields::response(status.as_u16()), true);
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Unimplemented => StatusCode::NOT_FOUND,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Returns true if the caller understands a gRPC status.
fn speaks_grpc(request: &Request<()>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    request.method() == Method::POST && kind.is_none_or(|kind| kind.as_bytes().starts_with(GRPC))
}

/// A head as services know it, with what they look for.
fn request(head: &Fields, entrance: &ConnectionInfo) -> Option<Request<()>> {
    let mut request = Request::builder().method(head.method()).uri(head.path()?);
    for (name, value) in head.iter() {
        request = request.header(name, value);
    }
    let extensions = request.extensions_mut()?;
    extensions.insert(entrance.tcp.clone());
    if let Some(tls) = &entrance.tls {
        extensions.insert(tls.clone());
    }
    request.body(()).ok()
}

/// A call was refused by its head: nothing of its body is read.
pub(super) struct RefusedCall;

/// Begins to serve a call. The head of the call decides its route, and authenticates its caller.
pub(super) fn begin<D: Discovery, C: GrpcService>(
    shared: &Rc<ConnectionsState<D, C>>,
    entrance: &ConnectionInfo,
    head: &Fields,
    body: RecvStream,
    respond: SendResponse,
) -> Result<ServerCall, RefusedCall> {
    if head.is_cut() {
        refuse_http(respond, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        return Err(RefusedCall);
    }
    let Some(request) = request(head, entrance) else {
        refuse_http(respond, StatusCode::BAD_REQUEST);
        return Err(RefusedCall);
    };
    let speaks_grpc = speaks_grpc(&request);
    if Routes::<D, C>::is_discovery(&request) {
        return match shared.routes.discovery.open(request) {
            Ok(stream) => {
                entrance.standing.settle();
                follow(stream, body, respond).ok_or(RefusedCall)
            }
            Err(status) => {
                refuse(respond, status, speaks_grpc);
                Err(RefusedCall)
            }
        };
    }
    let request = match shared.routes.admit(request) {
        Ok(request) => request,
        Err(status) => {
            refuse(respond, status, speaks_grpc);
            return Err(RefusedCall);
        }
    };
    let (shared, entrance) = (shared.clone(), entrance.clone());
    Ok(ServerCall::Asking(Box::pin(async move {
        let text = match timeout(QUESTION_DEADLINE, question(body)).await {
            Ok(Some(text)) => text,
            Ok(None) => return,
            Err(_) => Err(Status::deadline_exceeded(format!(
                "the request did not arrive within {QUESTION_DEADLINE:?}"
            ))),
        };
        match text {
            Ok(text) => {
                let request = request.map(|()| Body::new(Full::new(text)));
                let answer = shared.routes.call(request).await;
                // A call that fails at once has its status in the head.
                if !answer.headers().contains_key(Status::GRPC_STATUS) {
                    entrance.standing.settle();
                }
                say(answer, respond).await;
            }
            Err(status) => refuse(respond, status, speaks_grpc),
        }
    })))
}

fn follow(
    stream: Box<dyn ServedStream>,
    body: RecvStream,
    mut respond: SendResponse,
) -> Option<ServerCall> {
    let mut head = respond.block();
    head.push_status(200);
    head.push("content-type", GRPC);
    let say = respond.send_response(head, false).ok()?;
    Some(ServerCall::Following(StreamingCall {
        body,
        say,
        stream,
        behind: 0,
        unread: 0,
    }))
}

/// All of a question; nothing when its caller is gone.
async fn question(mut body: RecvStream) -> Option<Result<Bytes, Status>> {
    let mut text = Vec::new();
    while let Some(bytes) = poll_fn(|context| body.poll_data(context)).await {
        let bytes = bytes.ok()?;
        body.release_capacity(bytes.len());
        if text.len() + bytes.len() > MAX_QUESTION {
            let reason = format!("the request is larger than {MAX_QUESTION} bytes");
            return Some(Err(Status::resource_exhausted(reason)));
        }
        text.extend_from_slice(&bytes);
    }
    Some(Ok(text.into()))
}

/// Says an answer; what a caller that is gone is told is lost.
async fn say(answer: http::Response<Body>, mut respond: SendResponse) {
    let (head, body) = answer.into_parts();
    let mut body = pin!(body);
    let end = body.is_end_stream();
    let block = fields(Fields::response(head.status.as_u16()), &head.headers);
    let Ok(mut say) = respond.send_response(block, end) else {
        return;
    };
    if end {
        return;
    }
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let Ok(frame) = frame else {
            return say.send_reset(ErrorCode::INTERNAL_ERROR);
        };
        let said = match frame.into_data() {
            Ok(data) => say.send_data(data, false),
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => {
                    let _ = say.send_trailers(fields(Fields::new(), &trailers));
                    return;
                }
                Err(_) => continue,
            },
        };
        if said.is_err() {
            return;
        }
    }
    let _ = say.send_data(Bytes::new(), true);
}

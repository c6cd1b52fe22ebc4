//! The HTTPS server of the webhooks.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::review;
use super::{
    BODY_TIMEOUT, HANDSHAKE_TIMEOUT, HEAD_TIMEOUT, InjectionSettings, MAX_BODIES, MAX_BODY_BYTES,
    MAX_CONNECTIONS, MAX_VALIDATED_BODIES, MAX_VALIDATED_VALUES, MAX_VALUES, STOP_TIMEOUT,
    Validator,
};

/// Pause after a failed accept: descriptors may be short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What all connections share.
struct Webhooks {
    settings: watch::Receiver<Arc<InjectionSettings>>,
    validator: Validator,
    /// Room for injection.
    pods: Room,
    /// Room for validation.
    validated: Room,
}

/// What bodies of one kind may take together.
struct Room {
    bodies: Semaphore,
    values: Semaphore,
    max_values: usize,
}

impl Room {
    fn new(bodies: usize, max_values: usize) -> Self {
        Self {
            bodies: Semaphore::new(bodies),
            values: Semaphore::new(max_values),
            max_values,
        }
    }
}

/// The share of a room that a body has until it is answered.
type Share<'a> = (SemaphorePermit<'a>, SemaphorePermit<'a>);

/// An open connection.
struct OpenConnection {
    abort: AbortHandle,
    /// True while a request is read or answered.
    busy: Arc<AtomicBool>,
}

/// Serves webhooks until `stop` is done, then finishes open requests. Each request is answered by the settings of its time.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: std::net::TcpListener,
    tls: Arc<ServerConfig>,
    settings: watch::Receiver<Arc<InjectionSettings>>,
    validator: Validator,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let acceptor = TlsAcceptor::from(tls);
    let webhooks = Arc::new(Webhooks {
        settings,
        validator,
        pods: Room::new(MAX_BODIES, MAX_VALUES),
        validated: Room::new(MAX_VALIDATED_BODIES, MAX_VALIDATED_VALUES),
    });
    let (ending, ended) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<OpenConnection> = VecDeque::new();
    tokio::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "webhook connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        while tasks.try_join_next().is_some() {}
        if !make_room(&mut open) {
            tracing::debug!("webhook connection refused: all others are busy");
            continue;
        }
        let busy = Arc::new(AtomicBool::new(false));
        let served = connection(
            stream,
            acceptor.clone(),
            Arc::clone(&webhooks),
            Arc::clone(&busy),
            ended.clone(),
        );
        let abort = tasks.spawn(served);
        open.push_back(OpenConnection { abort, busy });
    }
    drop(listener);
    // An error means that no connection is left.
    let _ = ending.send(true);
    let finish = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(STOP_TIMEOUT, finish).await;
    Ok(())
}

/// Forgets ended connections. At the limit, ends the oldest idle one; false if there is none.
fn make_room(open: &mut VecDeque<OpenConnection>) -> bool {
    if open.len() < MAX_CONNECTIONS {
        return true;
    }
    open.retain(|one| !one.abort.is_finished());
    if open.len() < MAX_CONNECTIONS {
        return true;
    }
    let idle = open
        .iter()
        .position(|one| !one.busy.load(Ordering::Relaxed));
    let Some(idle) = idle.and_then(|index| open.remove(index)) else {
        return false;
    };
    idle.abort.abort();
    true
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    webhooks: Arc<Webhooks>,
    busy: Arc<AtomicBool>,
    mut ended: watch::Receiver<bool>,
) {
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        _ = ended.wait_for(|ended| *ended) => return,
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "webhook handshake failed"),
        Err(_) => return tracing::debug!("webhook handshake timed out"),
    };
    let service = service_fn(move |request| {
        let (webhooks, busy) = (Arc::clone(&webhooks), Arc::clone(&busy));
        async move {
            busy.store(true, Ordering::Relaxed);
            let answer = webhooks.answer(request).await;
            busy.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    // A client that breaks off, or speaks no HTTP, is ignored.
    tokio::select! {
        _ = &mut served => return,
        _ = ended.wait_for(|ended| *ended) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}

impl Webhooks {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let is_review = matches!(&*path, "/inject" | "/validate") || path.starts_with("/inject/");
        match (request.method(), path.as_str()) {
            (&Method::GET | &Method::HEAD, "/ready") => text(StatusCode::OK, "ready\n"),
            (&Method::POST, "/validate") => self.validate(request).await,
            (&Method::POST, _) if is_review => self.inject(request, &path).await,
            (_, "/ready") => not_allowed("GET"),
            _ if is_review => not_allowed("POST"),
            _ => text(StatusCode::NOT_FOUND, "nothing here\n"),
        }
    }

    async fn inject(&self, request: Request<Incoming>, path: &str) -> Response<Full<Bytes>> {
        let (_share, body) = match read_body(request, &self.pods).await {
            Ok(read) => read,
            Err(refusal) => return *refusal,
        };
        let settings = Arc::clone(&self.settings.borrow());
        let review = review::answer(&body, path, &settings);
        respond(StatusCode::OK, JSON, review.to_string())
    }

    async fn validate(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (_share, body) = match read_body(request, &self.validated).await {
            Ok(read) => read,
            Err(refusal) => return *refusal,
        };
        match self.validator.answer(body).await {
            Ok(review) => respond(StatusCode::OK, JSON, review.to_string()),
            Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
        }
    }
}

/// The body of a review, while its share is held.
async fn read_body(
    request: Request<Incoming>,
    room: &Room,
) -> Result<(Share<'_>, Bytes), Box<Response<Full<Bytes>>>> {
    let content_type = request.headers().get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|text| text.split(';').next());
    let refuse = |status, message: String| Err(Box::new(text(status, message)));
    if media_type.map(str::trim) != Some("application/json") {
        let message = "invalid Content-Type, want `application/json`\n";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned());
    }
    let read = async {
        let permit = room.bodies.acquire().await;
        let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
        (permit, body.await)
    };
    let Ok((permit, body)) = tokio::time::timeout(BODY_TIMEOUT, read).await else {
        let message = "the body did not come in time\n";
        return refuse(StatusCode::REQUEST_TIMEOUT, message.to_owned());
    };
    let body = match body {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the body is larger than {MAX_BODY_BYTES} bytes\n");
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, message);
        }
        Err(error) => return refuse(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    if body.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "no body found\n".to_owned());
    }
    let values = values(&body);
    if values > room.max_values {
        let message = format!("the body has more than {} JSON values\n", room.max_values);
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, message);
    }
    let values = room
        .values
        .acquire_many(u32::try_from(values).unwrap_or(u32::MAX));
    let Ok(values) = tokio::time::timeout(BODY_TIMEOUT, values).await else {
        let message = "too many other bodies are answered\n";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, message.to_owned());
    };
    match (permit, values) {
        (Ok(permit), Ok(values)) => Ok(((permit, values), body)),
        // Nobody closes the semaphores.
        (Err(closed), _) | (_, Err(closed)) => {
            refuse(StatusCode::SERVICE_UNAVAILABLE, format!("{closed}\n"))
        }
    }
}

/// How many JSON values a text has at most.
fn values(text: &[u8]) -> usize {
    let is_structure = |byte: &&u8| matches!(byte, b'{' | b'[' | b',');
    1 + text.iter().filter(is_structure).count()
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, TEXT, body)
}

fn not_allowed(method: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "wrong method\n");
    let allowed = HeaderValue::from_static(method);
    response.headers_mut().insert(ALLOW, allowed);
    response
}

fn respond(
    status: StatusCode,
    content_type: HeaderValue,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

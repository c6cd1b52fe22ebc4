//! Calls to one callee: connections are kept and used again, at most so many, and none that a call was broken on.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use voile_graph::ServiceProtocol;

use crate::body::{Payload, PayloadBody};
use crate::grpc;
use crate::places::CalleeAddress;
use crate::server::Local;
use crate::trace;

/// Most connections of one thread to one callee; further calls wait for one.
const MAX_CONNECTIONS: usize = 1024;
/// Longest idle time of a connection that is still used. It is less than the idle time limit of servers (Go's, Envoy's,
/// ours), so that few are closed while a request is on its way.
const MAX_IDLE: Duration = Duration::from_secs(30);
/// Bytes of a bad answer that our answer repeats.
const MAX_REASON_BYTES: usize = 512;
/// Retries of a call whose kept connection was closed before anything was sent.
const MAX_STALE: usize = 3;

/// Reason why a call failed.
pub(crate) type Reason = String;

/// One callee, as one thread sees it.
pub(crate) struct Callee {
    name: String,
    place: CalleeAddress,
    protocol: ServiceProtocol,
    uri: Uri,
    timeout: Duration,
    turn: Cell<usize>,
    permits: Semaphore,
    idle: RefCell<Vec<(http1::SendRequest<PayloadBody>, Instant)>>,
    /// gRPC: one connection to each address, shared by all calls.
    shared: RefCell<Vec<(SocketAddr, http2::SendRequest<PayloadBody>)>>,
}

impl Callee {
    pub(crate) fn new(
        name: String,
        place: CalleeAddress,
        protocol: ServiceProtocol,
        authority: &str,
        timeout: Duration,
    ) -> Result<Self, String> {
        let uri = match protocol {
            ServiceProtocol::Http => Ok(Uri::from_static("/")),
            ServiceProtocol::Grpc => format!("http://{authority}{}", grpc::METHOD).parse(),
        };
        Ok(Self {
            uri: uri.map_err(|_| format!("`{authority}` is not a host"))?,
            name,
            place,
            protocol,
            timeout,
            turn: Cell::new(0),
            permits: Semaphore::new(MAX_CONNECTIONS),
            idle: RefCell::default(),
            shared: RefCell::default(),
        })
    }

    /// Headers of a request besides its payload's and the inherited ones.
    pub(crate) fn headers(
        &self,
        authority: &str,
        extra: &[(std::sync::Arc<str>, std::sync::Arc<str>)],
    ) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in extra {
            let name: header::HeaderName = name
                .parse()
                .map_err(|_| format!("`{name}` is not a header name"))?;
            let value: HeaderValue = value
                .parse()
                .map_err(|_| format!("`{value}` is not a header value"))?;
            headers.append(name, value);
        }
        match self.protocol {
            ServiceProtocol::Http => {
                let host = authority
                    .parse()
                    .map_err(|_| format!("`{authority}` is not a host"))?;
                headers.insert(header::HOST, host);
            }
            ServiceProtocol::Grpc => {
                headers.insert(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("application/grpc"),
                );
                headers.insert(header::TE, HeaderValue::from_static("trailers"));
            }
        }
        Ok(headers)
    }

    /// Calls, within the timeout.
    pub(crate) async fn call(
        &self,
        payload: &Payload,
        headers: &HeaderMap,
        inherited: &HeaderMap,
    ) -> Result<(), Reason> {
        let sent = async {
            let _permit = self.permits.acquire().await;
            match self.protocol {
                ServiceProtocol::Http => self.http(payload, headers, inherited).await,
                ServiceProtocol::Grpc => self.grpc(payload, headers, inherited).await,
            }
        };
        match tokio::time::timeout(self.timeout, sent).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!(
                "service {} did not answer within {:?}",
                self.name, self.timeout
            )),
        }
    }

    fn request(
        &self,
        payload: &Payload,
        headers: &HeaderMap,
        inherited: &HeaderMap,
    ) -> Request<PayloadBody> {
        let mut request = Request::new(PayloadBody::new(payload));
        let bare = self.protocol == ServiceProtocol::Http && payload.len() == 0;
        *request.method_mut() = if bare { Method::GET } else { Method::POST };
        *request.uri_mut() = self.uri.clone();
        let mut all = headers.clone();
        trace::pass_on(inherited, &mut all);
        *request.headers_mut() = all;
        request
    }

    async fn http(
        &self,
        payload: &Payload,
        headers: &HeaderMap,
        inherited: &HeaderMap,
    ) -> Result<(), Reason> {
        let mut request = self.request(payload, headers, inherited);
        for _ in 0..MAX_STALE {
            let kept = self.kept();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match connection.try_send_request(request).await {
                Ok(response) => {
                    self.read(response).await?;
                    // After the answer is read, the connection tells if it can be used again.
                    if connection.ready().await.is_ok() {
                        self.idle.borrow_mut().push((connection, Instant::now()));
                    }
                    return Ok(());
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(&failed.into_error())),
                },
            }
        }
        Err(format!("service {} closes every connection", self.name))
    }

    /// The connection that was used last and is still good: the others may fall idle.
    fn kept(&self) -> Option<http1::SendRequest<PayloadBody>> {
        let mut idle = self.idle.borrow_mut();
        let (connection, since) = idle.pop()?;
        if since.elapsed() > MAX_IDLE {
            // All below it lie longer.
            idle.clear();
            return None;
        }
        (!connection.is_closed()).then_some(connection)
    }

    /// Reads an answer to its end, so that its connection can be used again.
    async fn read(&self, response: Response<Incoming>) -> Result<(), Reason> {
        let status = response.status();
        let good = status == http::StatusCode::OK;
        let mut reason = Vec::new();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.broken(&error))?;
            if let (false, Some(data)) = (good, frame.data_ref()) {
                let room = MAX_REASON_BYTES.saturating_sub(reason.len());
                reason.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
        match good {
            true => Ok(()),
            false => Err(format!(
                "service {} responded with {status}: {}",
                self.name,
                String::from_utf8_lossy(&reason).trim_end()
            )),
        }
    }

    async fn grpc(
        &self,
        payload: &Payload,
        headers: &HeaderMap,
        inherited: &HeaderMap,
    ) -> Result<(), Reason> {
        let address = self.address().await?;
        let mut request = self.request(payload, headers, inherited);
        for _ in 0..MAX_STALE {
            let mut connection = self.shared(address).await?;
            // A connection at its limit of streams lets us wait here.
            if connection.ready().await.is_err() {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => return self.read_grpc(response).await,
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(&failed.into_error())),
                },
            }
        }
        Err(format!("service {} closes every connection", self.name))
    }

    async fn read_grpc(&self, response: Response<Incoming>) -> Result<(), Reason> {
        let status = response.status();
        let mut ended = grpc::status(response.headers());
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.broken(&error))?;
            if let Some(trailers) = frame.trailers_ref() {
                ended = grpc::status(trailers).or(ended);
            }
        }
        match ended {
            Some((0, _)) if status == http::StatusCode::OK => Ok(()),
            Some((code, mut message)) => {
                message.truncate(message.floor_char_boundary(MAX_REASON_BYTES));
                Err(format!(
                    "service {} responded with gRPC status {code}: {message}",
                    self.name
                ))
            }
            None => Err(format!(
                "service {} responded with {status} and no gRPC status",
                self.name
            )),
        }
    }

    fn broken(&self, error: &hyper::Error) -> Reason {
        let why = std::error::Error::source(error).map(|source| format!(": {source}"));
        format!(
            "the call to service {} failed: {error}{}",
            self.name,
            why.unwrap_or_default()
        )
    }

    /// The next address in turn.
    async fn address(&self) -> Result<SocketAddr, Reason> {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        let found: Vec<SocketAddr> = match &self.place {
            CalleeAddress::Fixed(addresses) => {
                return addresses
                    .get(turn % addresses.len().max(1))
                    .copied()
                    .ok_or_else(|| format!("service {} has no address", self.name));
            }
            CalleeAddress::Named(host, port) => tokio::net::lookup_host((host.as_str(), *port))
                .await
                .map_err(|error| format!("service {}: cannot resolve {host}: {error}", self.name))?
                .collect(),
        };
        let place = turn % found.len().max(1);
        found
            .get(place)
            .copied()
            .ok_or_else(|| format!("service {} has no address", self.name))
    }

    async fn stream(&self, address: SocketAddr) -> Result<TokioIo<TcpStream>, Reason> {
        let failed = |error| {
            format!(
                "service {}: cannot connect to {address}: {error}",
                self.name
            )
        };
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(TokioIo::new(stream))
    }

    async fn connect(&self) -> Result<http1::SendRequest<PayloadBody>, Reason> {
        let stream = self.stream(self.address().await?).await?;
        let (sender, connection) = http1::handshake(stream)
            .await
            .map_err(|error| self.broken(&error))?;
        // The call on the connection reports its end.
        tokio::task::spawn_local(connection);
        Ok(sender)
    }

    async fn shared(&self, address: SocketAddr) -> Result<http2::SendRequest<PayloadBody>, Reason> {
        let find = || {
            let mut shared = self.shared.borrow_mut();
            shared.retain(|(_, connection)| !connection.is_closed());
            let found = shared.iter().find(|(known, _)| *known == address);
            found.map(|(_, connection)| connection.clone())
        };
        if let Some(connection) = find() {
            return Ok(connection);
        }
        let stream = self.stream(address).await?;
        if let Some(connection) = find() {
            return Ok(connection); // another call was quicker
        }
        let (sender, connection) = http2::Builder::new(Local)
            .timer(TokioTimer::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .handshake(stream)
            .await
            .map_err(|error| self.broken(&error))?;
        tokio::task::spawn_local(connection);
        self.shared.borrow_mut().push((address, sender.clone()));
        Ok(sender)
    }
}

/// Reads a request's body to its end and forgets it. False when it broke off or is larger than allowed.
pub(crate) async fn drain(body: &mut Incoming, most: u64) -> Result<(), BodyReadError> {
    let mut total = 0u64;
    if body.size_hint().lower() > most {
        return Err(BodyReadError::TooLarge);
    }
    while let Some(frame) = body.frame().await {
        let frame: hyper::body::Frame<Bytes> = frame.map_err(|_| BodyReadError::Broken)?;
        total += frame.data_ref().map_or(0, |data| data.len() as u64);
        if total > most {
            return Err(BodyReadError::TooLarge);
        }
    }
    Ok(())
}

/// Why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyReadError {
    /// The connection or stream ended in the middle.
    Broken,
    /// It is larger than allowed.
    TooLarge,
}

/// Callees of one thread.
pub(crate) type Callees = Vec<Rc<Callee>>;

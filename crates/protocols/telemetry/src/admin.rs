//! A small HTTP server for people and scrapers: admin, metrics and readiness pages. Not on any data path; it serves
//! few connections at once and small requests only.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::logging::LogLevelHandle;

/// Connections served at once; the next one ends the oldest, so that a crowd of silent strangers cannot keep a probe
/// out. Scrapers need one.
pub const MAX_ADMIN_CONNECTIONS: usize = 64;

/// Time that a client gets to send its request head, and then its body.
pub const ADMIN_HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest body of a request; ours need none.
pub const MAX_ADMIN_BODY: usize = 64 * 1024;

/// Pause of accepting after a failure such as running out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Request to the admin server.
#[derive(Debug, Clone)]
pub struct PageRequest {
    /// GET, POST, …
    pub method: Method,
    /// The path, without query.
    pub path: String,
    /// The raw query, empty when there is none.
    pub query: String,
    /// True if the client prefers OpenMetrics.
    pub open_metrics: bool,
    /// The address of ours at which it was asked.
    pub local: Option<IpAddr>,
}

impl PageRequest {
    /// The value of a query parameter. Percent escapes are not needed by anything we ask for, and not decoded.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, v)| v)
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct PageResponse {
    /// Status code.
    pub status: StatusCode,
    /// `text/plain; charset=utf-8` unless it is JSON or metrics.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// Prometheus' text format.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// OpenMetrics' text format.
pub const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

impl PageResponse {
    /// Plain text.
    #[must_use]
    pub fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: TEXT,
            body: body.into(),
        }
    }

    /// JSON, already written.
    #[must_use]
    pub fn json(body: String) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: "application/json",
            body,
        }
    }

    /// A page of metrics, in the words the asker prefers.
    #[must_use]
    pub fn metrics(page: String, question: &PageRequest) -> Self {
        let (content_type, body) = match question.open_metrics {
            true => (OPEN_METRICS_TYPE, crate::open_metrics(&page)),
            false => (METRICS_TYPE, page),
        };
        Self {
            status: StatusCode::OK,
            content_type,
            body,
        }
    }

    /// 404 that says where help is.
    #[must_use]
    pub fn not_found(path: &str) -> Self {
        Self::text(
            StatusCode::NOT_FOUND,
            format!("no page {path}; GET /help lists the pages\n"),
        )
    }

    /// 405: there is such a page, by another method.
    #[must_use]
    pub fn wrong_method() -> Self {
        Self::text(
            StatusCode::METHOD_NOT_ALLOWED,
            "wrong method; GET /help lists the methods\n",
        )
    }

    /// Readiness: 200, or 503 with the reasons why not.
    #[must_use]
    pub fn readiness<T: Borrow<str>>(reasons: &[T]) -> Self {
        match reasons {
            [] => Self::text(StatusCode::OK, "ready\n"),
            reasons => Self::text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {}\n", reasons.join("; ")),
            ),
        }
    }

    /// The log level of the process, which PUT and POST set to `level`.
    #[must_use]
    pub fn log_level(log: Option<&LogLevelHandle>, question: &PageRequest) -> Self {
        let Some(log) = log else {
            return Self::text(
                StatusCode::NOT_FOUND,
                "the log level of this proxy cannot be changed here\n",
            );
        };
        match question.parameter("level") {
            None => Self::text(StatusCode::OK, format!("{}\n", log.current())),
            Some(level) if question.method == Method::GET => Self::text(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("PUT or POST /logging?level={level} to change it\n"),
            ),
            Some(level) => match log.set(level) {
                Ok(()) => Self::text(StatusCode::OK, format!("{}\n", log.current())),
                Err(error) => Self::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
            },
        }
    }
}

/// Serves pages for all clients until dropped, for scrapers and probes. Must run inside a `LocalSet`. `handler`
/// answers each request. A request that would change something on behalf of a page of another site is refused with
/// 403.
pub async fn serve<H, F>(listener: TcpListener, handler: H)
where
    H: Fn(PageRequest) -> F + 'static,
    F: Future<Output = PageResponse> + 'static,
{
    serve_private(listener, handler, |_| false).await;
}

/// The same for pages that hold the machine's secrets: a request by a host name is refused, unless it is `localhost`, and so is
/// one by which a page of another site loads or frames them.
pub async fn serve_local<H, F>(listener: TcpListener, handler: H)
where
    H: Fn(PageRequest) -> F + 'static,
    F: Future<Output = PageResponse> + 'static,
{
    serve_private(listener, handler, |_| true).await;
}

/// The same for pages of which those are secret to the machine whose paths `is_private` chooses.
pub async fn serve_private<H, F>(listener: TcpListener, handler: H, is_private: fn(&str) -> bool)
where
    H: Fn(PageRequest) -> F + 'static,
    F: Future<Output = PageResponse> + 'static,
{
    let handler = Rc::new(handler);
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept an admin connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if open.len() >= MAX_ADMIN_CONNECTIONS {
            open.retain(|connection| !connection.is_finished());
        }
        if open.len() >= MAX_ADMIN_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let local = stream.local_addr().ok().map(|address| address.ip());
        let asked = (local, is_private);
        let connection = tokio::task::spawn_local(connection(stream, asked, Rc::clone(&handler)));
        open.push_back(connection.abort_handle());
    }
}

/// The address at which is asked, and which paths are secret to the machine.
type Asked = (Option<IpAddr>, fn(&str) -> bool);

/// One client's connection, until it ends.
async fn connection<S, H, F>(stream: S, asked: Asked, handler: Rc<H>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(PageRequest) -> F,
    F: Future<Output = PageResponse>,
{
    let service = service_fn(move |request| answer(Rc::clone(&handler), asked, request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off, or speaks no HTTP, is ignored.
    let _ = served.await;
}

/// Returns the reason to refuse a request, if there is one. A browser sends requests on behalf of any page that its
/// user reads. The page is visible in `Sec-Fetch-Site` and `Origin`; a foreign name that resolves to this address
/// (DNS rebinding) is visible in `Host`. Other clients send neither `Sec-Fetch-Site` nor `Origin`. A page that
/// changes nothing and is not private is open under any name: scrapers and probes use their own.
fn refusal(request: &Parts, is_private: bool) -> Option<&'static str> {
    let text = |name| {
        request
            .headers
            .get(name)
            .map(|value: &HeaderValue| value.to_str())
    };
    let changes = !matches!(request.method, Method::GET | Method::HEAD);
    let hosts = request.headers.get_all(HOST).iter();
    let host = request.uri.authority().map(Authority::as_str);
    let mut hosts = hosts
        .map(|host| host.to_str().unwrap_or_default())
        .chain(host);
    if (changes || is_private) && !hosts.all(is_local_name) {
        return Some(
            "refused: the request names a foreign host (DNS rebinding); use an IP address or localhost",
        );
    }
    if !changes && !is_private {
        return None;
    }
    // A link may lead a person to a private page, but no other page may load or frame it.
    let is_link = !changes && matches!(text("sec-fetch-dest"), Some(Ok("document")));
    match text("sec-fetch-site") {
        None | Some(Ok("same-origin" | "none")) => {}
        Some(_) if is_link => {}
        Some(_) => {
            return Some("refused: the request comes from a page of another site (Sec-Fetch-Site)");
        }
    }
    let origin = text("origin")?;
    let host = text("host").and_then(Result::ok);
    let origin = origin.unwrap_or_default();
    let from = origin.split_once("://").map(|(_, authority)| authority);
    match from.is_some() && from == host {
        true => None,
        false => Some("refused: the request comes from a page of another origin (Origin)"),
    }
}

/// Returns true if a `Host` is an address or this machine's own name. No other site can make those lead here.
fn is_local_name(host: &str) -> bool {
    let bare = match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => bare,
        _ => host,
    };
    let inner = bare
        .strip_prefix('[')
        .and_then(|bare| bare.strip_suffix(']'));
    let is_address = inner.map_or_else(
        || bare.parse::<Ipv4Addr>().is_ok(),
        |inner| inner.parse::<Ipv6Addr>().is_ok(),
    );
    is_address || bare.eq_ignore_ascii_case("localhost")
}

async fn answer<H, F>(
    handler: Rc<H>,
    (local, is_private): Asked,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible>
where
    H: Fn(PageRequest) -> F,
    F: Future<Output = PageResponse>,
{
    let (parts, body) = request.into_parts();
    if let Some(why) = refusal(&parts, is_private(parts.uri.path())) {
        return Ok(response(PageResponse::text(
            StatusCode::FORBIDDEN,
            format!("{why}\n"),
        )));
    }
    let head_only = parts.method == Method::HEAD;
    let question = PageRequest {
        method: if head_only { Method::GET } else { parts.method },
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        open_metrics: prefers_open_metrics(&parts.headers),
        local,
    };
    let body = Limited::new(body, MAX_ADMIN_BODY).collect();
    let answer = match tokio::time::timeout(ADMIN_HEADER_TIMEOUT, body).await {
        Ok(Ok(_)) => handler(question).await,
        Ok(Err(_)) => PageResponse::text(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request body too large or incomplete\n",
        ),
        Err(_) => PageResponse::text(
            StatusCode::REQUEST_TIMEOUT,
            format!("the request body did not arrive within {ADMIN_HEADER_TIMEOUT:?}\n"),
        ),
    };
    Ok(response(answer))
}

fn response(answer: PageResponse) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.status;
    let content_type = HeaderValue::from_static(answer.content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Returns true if `Accept` names OpenMetrics, and ranks nothing above it.
fn prefers_open_metrics(headers: &http::HeaderMap) -> bool {
    let accepted = headers.get_all(http::header::ACCEPT).iter();
    let texts = accepted.filter_map(|value| value.to_str().ok());
    let weight = |range: &str| {
        let weight = range
            .split(';')
            .find_map(|part| part.trim().strip_prefix("q="));
        weight
            .and_then(|weight| weight.parse::<f32>().ok())
            .unwrap_or(1.0)
    };
    let (mut open, mut plain) = (0.0_f32, 0.0_f32);
    for range in texts.flat_map(|text| text.split(',')) {
        match range.split(';').next().unwrap_or_default().trim() {
            "application/openmetrics-text" => open = open.max(weight(range)),
            "text/plain" | "text/*" => plain = plain.max(weight(range)),
            _ => {}
        }
    }
    open > 0.0 && open >= plain
}

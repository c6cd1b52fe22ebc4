//! The interface between the HTTP engines and the proxy roles: inbound, outbound, gateway and waypoint.
//!
//! An engine moves bytes. A role routes requests, opens connections, and learns the end of each exchange.
//!
//! ```text
//! head read → role.route ─┬─ Refusal → local reply ───────────────┐
//!              │          └─ Route → pool, or role.connect → relay ┴→ role.record
//!              └─ Pending → role.ask → role.answered → Refusal or Route
//! ```

use std::borrow::Cow;
use std::future::Future;
use std::hash::Hash;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_traffic::{Attempt, RetryPolicy};

use super::external_check::{BodyPrefix, ExternalReply, HeadAmendment, Names, Pending};
use super::head::HttpHead;
use super::io::Io;

/// Timeout of opening an upstream connection, handshake included, unless a route says otherwise. Istio's default.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interface of a proxy role for the engine. One value per downstream connection; it may know the peer's
/// identity.
pub trait HttpRole: Sized {
    /// The stream to an upstream.
    type Upstream: Io + 'static;
    /// Key of interchangeable upstream connections: source identity, destination identity, address, TLS or not. Cloned
    /// once per request, so make it small (an interned number) or shared.
    type Key: Clone + Ord + Hash + 'static;
    /// State that the role gets back at the end of the exchange: its permit, its metric handle.
    type Ticket;
    /// Question of the role to an external service before it decides. A role without external services never
    /// makes one.
    type Question;

    /// Decides where a request goes, or that it goes nowhere. Runs on the request path: indexed lookups only.
    fn route(&self, head: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>>;

    /// Name whose meaning must be learned before [`Self::route`] can decide. `None` by default.
    fn unknown(&self, head: &HttpHead<'_>) -> Option<Rc<str>> {
        let _ = head;
        None
    }

    /// Learns it, or gives up; the request goes on either way.
    fn learn(&self, name: Rc<str>) -> impl Future<Output = ()> {
        let _ = name;
        std::future::ready(())
    }

    /// Puts the question of [`Refusal::pending`]; the answer is stored in the question. Dropping the future withdraws the
    /// question.
    fn ask(
        &self,
        question: &mut Self::Question,
        body: Option<BodyPrefix>,
    ) -> impl Future<Output = ()> {
        let _ = (question, body);
        std::future::ready(())
    }

    /// Decides by the external service's answer. The head is the one that [`Self::route`] saw.
    fn answered(
        &self,
        head: &HttpHead<'_>,
        question: Self::Question,
    ) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        let _ = (head, question);
        Err(RoleRefusal::new(403, ResponseFlag::Unauthorized, DENIED))
    }

    /// Opens a connection for a route, speaking what [`Route::upstream`] says. The engine bounds it by `route.connect_timeout`; dropping the future cancels it.
    fn connect(
        &self,
        route: &RequestRoute<Self>,
    ) -> impl Future<Output = Result<Self::Upstream, ConnectFailure>>;

    /// Decides if the request is sent again after `made` attempts; `last` is the last attempt's end. Points `route` at
    /// the next destination and returns the pause before. The engine asks only while it holds the whole request and the
    /// client has received nothing of an answer. Roles that never retry keep this default.
    fn again(&self, route: &mut RequestRoute<Self>, last: Attempt, made: u32) -> Option<Duration> {
        let _ = (route, last, made);
        None
    }

    /// Reports that an upstream answered, as soon as the final head is there. Does nothing by default.
    fn answers(&self, ticket: &Self::Ticket, answer: UpstreamResponse) {
        let _ = (ticket, answer);
    }

    /// Response and details of an exchange whose leave was revoked.
    const REVOCATION: Revocation = Revocation::CLIENT;

    /// Returns true if the leave of an exchange in flight was revoked. The engine asks whenever the exchange moves, and
    /// after [`super::Drain::judge_again`]. The exchange then ends; without an answer so far, the client is refused.
    fn is_revoked<'h>(&self, ticket: &Self::Ticket, head: impl FnOnce() -> HttpHead<'h>) -> bool {
        let _ = (ticket, head);
        false
    }

    /// Returns true if the client may no longer be connected at all, whatever it requests. The engine asks for
    /// waiting connections after [`super::Drain::judge_again`].
    fn is_unwelcome(&self) -> bool {
        false
    }

    /// Returns true if the client is a verified sidecar of the mesh, which understands that a request was not
    /// processed.
    fn serves_sidecar(&self) -> bool {
        false
    }

    /// Returns true if a proxy passed the request on. Fields that the proxy may have added are not counted
    /// against the client.
    fn serves_proxy(&self) -> bool {
        self.serves_sidecar()
    }

    /// Returns true if the client may be an application that a node proxy redirected here. An application does not understand the
    /// signals between sidecars. While it sends requests, a response tells it about the connection's end.
    fn may_serve_application(&self) -> bool {
        false
    }

    /// Number of the client's source: what one source may hold of a budget is bounded.
    fn source(&self) -> u64 {
        0
    }

    /// Field that every local reply has in addition. Most roles have none.
    fn adds_to_own(&self) -> Option<Arc<HeadAmendment>> {
        None
    }

    /// Learns how an exchange ended. Called after the response was written, off the request's latency.
    fn record(&self, exchange: Exchange<'_, Self>);
}

/// The head of an answer, as far as it says how the upstream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamResponse {
    /// Its status.
    pub status: u16,
    /// For how many seconds it asks to be left alone: `Retry-After` of a 429 or 503.
    pub retry_after: Option<u32>,
}

impl UpstreamResponse {
    /// Makes an answer of a status and a field lookup.
    pub(crate) fn new<'f>(
        status: u16,
        field: impl FnOnce(&'static str) -> Option<&'f [u8]>,
    ) -> Self {
        let said = || {
            std::str::from_utf8(field("retry-after")?)
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        Self {
            status,
            retry_after: matches!(status, 429 | 503).then(said).flatten(),
        }
    }
}

fn milliseconds(number: NonZeroU32) -> Duration {
    Duration::from_millis(number.get().into())
}

impl UpstreamTerms {
    /// See [`Self::idle`].
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        self.idle.map(milliseconds)
    }

    /// Time that a connection of this age may still serve, if that is limited.
    pub(crate) fn left(&self, age: Option<Duration>) -> Option<Duration> {
        Some(self.age.map(milliseconds)?.saturating_sub(age?))
    }

    /// The end of a connection that was opened then, if there is one.
    pub(crate) fn end(&self, opened: Instant) -> Option<Instant> {
        opened.checked_add(self.age.map(milliseconds)?)
    }
}

/// HTTP version of an upstream connection. Connections of the two kinds never share a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamHttp {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 by prior knowledge, or as ALPN says.
    Http2,
}

/// Destination of one request.
pub struct RequestRoute<R: HttpRole> {
    /// The pool key.
    pub key: R::Key,
    /// Given back in [`Exchange::ticket`].
    pub ticket: R::Ticket,
    /// Timeout of `connect`.
    pub connect_timeout: Duration,
    /// HTTP version to the upstream, independent of the client's.
    pub upstream: UpstreamHttp,
    /// The authority to send when the request names none, which only HTTP/1.0 allows.
    pub default_authority: Option<Rc<str>>,
    /// Rare settings; boxed, since every idle connection would pay for their size.
    pub besides: Option<Box<RequestOptions>>,
    /// Observer that edits and watches this request for logs and spans; `None` costs nothing.
    pub observer: Option<Rc<dyn HeadObserver>>,
    /// True if a verified sidecar answers. The engine believes it when it says that it did not process the
    /// request.
    pub to_sidecar: bool,
    /// Answers to be held back because [`HttpRole::again`] may wish for others.
    pub retry: Option<Rc<RetryPolicy>>,
    /// Limits of the upstream connection.
    pub terms: UpstreamTerms,
}

/// Limits of an upstream connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamTerms {
    /// Requests that it carries at most.
    pub requests: Option<NonZeroU32>,
    /// HTTP/2: streams that it carries at once, where the server and the engine allow more.
    pub streams: Option<NonZeroU32>,
    /// Milliseconds that it is kept while it carries none, where that is less than the engine keeps it.
    pub idle: Option<NonZeroU32>,
    /// Milliseconds after its opening from which it takes no request, and ends with its last one.
    pub age: Option<NonZeroU32>,
}

/// Rare settings of a request.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// The authority to send on instead of the one that came.
    pub authority: Option<Rc<str>>,
    /// Path and query to send on instead of those that came.
    pub path: Option<Box<str>>,
    /// Timeout of the answer, to its end and over all attempts, from when all of the request was received.
    pub timeout: Option<Duration>,
}

impl<R: HttpRole> RequestRoute<R> {
    /// A route with default timeouts that adds nothing.
    pub fn new(key: R::Key, ticket: R::Ticket) -> Self {
        Self {
            key,
            ticket,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            upstream: UpstreamHttp::Http1,
            default_authority: None,
            besides: None,
            observer: None,
            to_sidecar: false,
            retry: None,
            terms: UpstreamTerms::default(),
        }
    }
}

impl<R: HttpRole> RequestRoute<R> {
    /// Edits of the head's first line.
    pub(crate) fn edit(&self) -> HeadEdit<'_> {
        let besides = self.besides.as_deref();
        HeadEdit {
            authority: besides.and_then(|besides| besides.authority.as_deref()),
            default_authority: self.default_authority.as_deref(),
            path: besides.and_then(|besides| besides.path.as_deref()),
        }
    }

    /// Rare settings, for changes.
    pub(crate) fn besides(&mut self) -> &mut RequestOptions {
        self.besides.get_or_insert_default()
    }

    /// Timeout of the answer, if limited.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.besides.as_ref()?.timeout
    }
}

/// See [`Route::edit`].
#[derive(Clone, Copy, Default)]
pub(crate) struct HeadEdit<'a> {
    /// Instead of the one that came.
    pub(crate) authority: Option<&'a str>,
    /// Used if the request has no authority.
    pub(crate) default_authority: Option<&'a str>,
    /// Path and query instead of those that came.
    pub(crate) path: Option<&'a str>,
}

/// Edits one request's head, and receives facts for the record that only the engine sees. A retry reports again; the
/// later report replaces the earlier.
pub trait HeadObserver {
    /// Fields of the request that do not go on, in lower case.
    fn leaves_out(&self) -> &Names;

    /// Complete field lines (`name: value\r\n` each) that go on in their place.
    fn adds(&self) -> &[u8];

    /// Names, in lower case, that only we may write in this request, in its trailers too.
    fn keeps(&self) -> &Names {
        &[]
    }

    /// An attempt begins: the request needs a connection.
    fn seeks_connection(&self);

    /// The request goes out on this connection of ours.
    fn sends(&self, from: Option<SocketAddr>);

    /// All of the request was received.
    fn received(&self);

    /// Returns true if the engine must call [`Self::copy`].
    fn wants_copy(&self) -> bool {
        false
    }

    /// The whole request as it went on, in HTTP/1.1's words, when all of it was received; none where it was too long to be kept.
    /// May be told again.
    fn copy(&self, request: Option<Vec<u8>>) {
        let _ = request;
    }

    /// The final head of the response.
    fn response(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>);

    /// Amendments of the final head before the client gets it.
    fn amends(&self) -> &[HeadAmendment] {
        &[]
    }

    /// The response's trailers.
    fn trailers(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>);
}

/// A request the role will not forward.
pub struct RoleRefusal<R: HttpRole> {
    /// The status to answer, 200..=599.
    pub status: u16,
    /// One short line for the body, for a person.
    pub reason: Cow<'static, str>,
    /// Response flag, in Envoy's terms.
    pub flag: ResponseFlag,
    /// Given back in [`Exchange::ticket`].
    pub ticket: Option<R::Ticket>,
    /// Set if an external service must be asked first; an engine that cannot ask refuses.
    pub pending: Option<Box<Pending<R::Question>>>,
    /// Response for the client, in place of the reason.
    pub told: Option<Box<ExternalReply>>,
    /// For logs.
    pub details: &'static str,
}

impl<R: HttpRole> RoleRefusal<R> {
    /// A refusal without a ticket.
    pub fn new(status: u16, flag: ResponseFlag, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            reason: reason.into(),
            flag,
            ticket: None,
            pending: None,
            told: None,
            details: "refused_by_role",
        }
    }
}

/// Why no upstream connection could be had.
#[derive(Debug, Clone)]
pub struct ConnectFailure {
    /// HTTP status for the client: 503, or 501 if the upstream is there and cannot do what the request needs.
    pub status: u16,
    /// For logs and the local reply: the attempted action and its failure; no addresses that the client should not
    /// learn.
    pub reason: Cow<'static, str>,
    /// For logs and metrics.
    pub flag: ResponseFlag,
    /// For logs: [`UNREACHED`], and in braces why, if more is known.
    pub details: &'static str,
    /// None was opened, since one that is there may carry the request by now: the engine looks again.
    pub look_again: bool,
}

/// Response and details of an exchange whose leave was revoked.
#[derive(Debug, Clone, Copy)]
pub struct Revocation {
    /// HTTP status for the client, if nothing was answered yet.
    pub status: u16,
    /// For logs and metrics.
    pub flag: ResponseFlag,
    /// For logs.
    pub details: &'static str,
    /// The line for the client.
    pub told: &'static str,
}

impl Revocation {
    /// The client may not be here any more.
    pub const CLIENT: Self = Self {
        status: 403,
        flag: ResponseFlag::Unauthorized,
        details: REVOKED,
        told: DENIED,
    };
    /// The server's certificate is no longer trusted: no fault of the client's, which may try again.
    pub const SERVER: Self = Self {
        status: 503,
        flag: ResponseFlag::UpstreamConnectionTermination,
        details: "upstream_certificate_revoked",
        told: "upstream_certificate_revoked",
    };
}

/// Body for the client of a revoked exchange, and of every denial: Envoy's words.
pub const DENIED: &str = "RBAC: access denied";
/// Details of a revoked exchange, in the log.
pub(crate) const REVOKED: &str = "rbac_access_denied_permit_revoked";

/// Details of a request whose body is too long for the external service: Envoy's words.
pub(crate) const BODY_TOO_LARGE: &str = "request_payload_too_large";

/// Details of a request that a circuit breaker refused: Envoy's word.
pub(crate) const OVERFLOW: &str = "overflow";

/// Prefix of the details when no attempt reached an endpoint.
pub(crate) const UNREACHED: &str = "upstream_connection_failure";

impl ConnectFailure {
    /// A failure with its reason.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status: 503,
            reason: reason.into(),
            flag: ResponseFlag::UpstreamConnectionFailure,
            details: UNREACHED,
            look_again: false,
        }
    }

    /// It is there, and does not know what the request needs.
    pub fn incapable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status: 501,
            reason: reason.into(),
            flag: ResponseFlag::UpstreamProtocolError,
            details: UNREACHED,
            look_again: false,
        }
    }

    /// No more connections may be there, nor requests that wait for one.
    pub fn overflow() -> Self {
        Self {
            flag: ResponseFlag::UpstreamOverflow,
            details: OVERFLOW,
            ..Self::new("upstream overflow: the connection limit of this destination is reached")
        }
    }

    /// A connection has become free, perhaps ours.
    pub fn look_again() -> Self {
        Self {
            look_again: true,
            ..Self::overflow()
        }
    }

    /// The service has no endpoint.
    pub fn nobody(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status: 503,
            reason: reason.into(),
            flag: ResponseFlag::NoHealthyUpstream,
            details: UNREACHED,
            look_again: false,
        }
    }
}

/// Failure of an exchange, in Envoy's vocabulary (`%RESPONSE_FLAGS%`, Istio's `response_flags` label).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ResponseFlag {
    /// `-`: nothing went wrong.
    #[default]
    None,
    /// `NR`: no route.
    NoRoute,
    /// `NC`: the route's destination does not exist.
    NoCluster,
    /// `UH`: no healthy upstream.
    NoHealthyUpstream,
    /// `UF`: the upstream connection could not be opened.
    UpstreamConnectionFailure,
    /// `UO`: a circuit breaker is open.
    UpstreamOverflow,
    /// `UC`: the upstream connection ended during the exchange.
    UpstreamConnectionTermination,
    /// `UPE`: the upstream's response was not HTTP.
    UpstreamProtocolError,
    /// `UT`: the upstream took too long.
    UpstreamRequestTimeout,
    /// `DC`: the client went away.
    DownstreamConnectionTermination,
    /// `DPE`: the client's request was not HTTP.
    DownstreamProtocolError,
    /// `UR`: the upstream reset the stream.
    UpstreamRemoteReset,
    /// `DR`: the client reset the stream.
    DownstreamRemoteReset,
    /// `SI`: nothing moved for too long.
    StreamIdleTimeout,
    /// `UAEX`: denied by authorization.
    Unauthorized,
    /// `RL`: rate limited.
    RateLimited,
    /// `RLSE`: the rate limit service could not be asked.
    RateLimitService,
    /// `OM`: refused because memory is short.
    OverloadManager,
    /// `DI`: made to wait on purpose.
    DelayInjected,
    /// `FI`: answered with an error on purpose.
    FaultInjected,
}

impl ResponseFlag {
    /// Returns true if the proxy refused for want of room, so that another endpoint may take the request.
    pub fn is_overload(self) -> bool {
        matches!(self, Self::UpstreamOverflow | Self::OverloadManager)
    }

    /// Envoy's short code, `-` for none.
    pub fn code(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::NoRoute => "NR",
            Self::NoCluster => "NC",
            Self::NoHealthyUpstream => "UH",
            Self::UpstreamConnectionFailure => "UF",
            Self::UpstreamOverflow => "UO",
            Self::UpstreamConnectionTermination => "UC",
            Self::UpstreamProtocolError => "UPE",
            Self::UpstreamRequestTimeout => "UT",
            Self::DownstreamConnectionTermination => "DC",
            Self::DownstreamProtocolError => "DPE",
            Self::UpstreamRemoteReset => "UR",
            Self::DownstreamRemoteReset => "DR",
            Self::StreamIdleTimeout => "SI",
            Self::Unauthorized => "UAEX",
            Self::RateLimited => "RL",
            Self::RateLimitService => "RLSE",
            Self::OverloadManager => "OM",
            Self::DelayInjected => "DI",
            Self::FaultInjected => "FI",
        }
    }
}

/// One request at its end.
pub struct Exchange<'a, R: HttpRole> {
    /// The request head as it came; none when it could not be parsed.
    pub head: Option<HttpHead<'a>>,
    /// Ticket of the route or refusal; none when the request never reached the role.
    pub ticket: Option<&'a R::Ticket>,
    /// Its figures.
    pub record: &'a ExchangeRecord,
}

/// Figures of one request, for its record.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeRecord {
    /// The status sent to the client; 0 when none was.
    pub status: u16,
    /// Response flag.
    pub flag: ResponseFlag,
    /// One word on how it ended, `via_upstream` when all was well (Envoy's `%RESPONSE_CODE_DETAILS%`).
    pub details: &'static str,
    /// Bytes of the request head as received.
    pub request_head_bytes: u64,
    /// Bytes of the request body received, HTTP/1.1's chunk framing included; of a tunnel, bytes client → server.
    pub request_body_bytes: u64,
    /// Bytes of the response head as sent.
    pub response_head_bytes: u64,
    /// Bytes of the response body sent, HTTP/1.1's chunk framing included; of a tunnel, bytes server → client.
    pub response_body_bytes: u64,
    /// When the request head was complete.
    pub started: Instant,
    /// Time from then to the last byte of the response; zero until then.
    pub duration: Duration,
    /// True if the request used a pooled connection.
    pub upstream_reused: bool,
    /// Number of attempts; 0 for a refused request.
    pub attempts: u32,
    /// Facts of a gRPC call, if the request was one.
    pub grpc: Option<Grpc>,
}

impl ExchangeRecord {
    /// Of a request whose head is complete.
    pub(crate) fn begin(started: Instant, request_head_bytes: u64) -> Self {
        Self {
            status: 0,
            flag: ResponseFlag::None,
            details: "",
            request_head_bytes,
            request_body_bytes: 0,
            response_head_bytes: 0,
            response_body_bytes: 0,
            started,
            duration: Duration::ZERO,
            upstream_reused: false,
            attempts: 0,
            grpc: None,
        }
    }

    /// The last byte of the response was sent, now or when this was said first; returns that moment.
    pub(crate) fn finish(&mut self) -> Instant {
        if self.duration.is_zero() {
            self.duration = self.started.elapsed();
        }
        self.started + self.duration
    }
}

/// End of a gRPC call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grpc {
    /// `grpc-status` as the client got it; none when the call ended without one.
    pub status: Option<u16>,
    /// Messages of the request.
    pub request_messages: u64,
    /// Messages of the response.
    pub response_messages: u64,
}

//! Entry of a finished request or connection. Everything is borrowed: an entry that no log wants costs nothing.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use voile_model::log_format::HeaderSource;

/// Headers by name.
pub trait Fields {
    /// The first value of a field; the name is in lower case.
    fn field(&self, direction: HeaderSource, name: &str) -> Option<&[u8]>;
}

/// No headers at all.
#[derive(Debug, Clone, Copy)]
pub struct NoFields;

impl Fields for NoFields {
    fn field(&self, _: HeaderSource, _: &str) -> Option<&[u8]> {
        None
    }
}

/// The TLS session of the caller's side.
#[derive(Debug, Clone, Copy, Default)]
pub struct TlsFacts<'a> {
    /// `TLSv1.3`.
    pub version: &'a str,
    /// The suite's name.
    pub cipher: &'a str,
    /// Identity of the caller.
    pub peer: &'a str,
    /// The proxy's own identity.
    pub own: &'a str,
}

/// Attributes that only requests have.
#[derive(Clone, Copy)]
pub struct HttpLogFields<'a> {
    /// `GET`; empty when the head could not be read.
    pub method: &'a str,
    /// Path with query.
    pub path: &'a str,
    /// `Host` or `:authority`.
    pub authority: &'a str,
    /// `HTTP/1.1`.
    pub version: &'a str,
    /// 0 when none was sent.
    pub code: u16,
    /// Bytes of the request's head.
    pub request_head: u64,
    /// Bytes of the response's head.
    pub response_head: u64,
    /// gRPC status, if the request was gRPC and got one.
    pub grpc_status: Option<u16>,
    /// Headers and trailers.
    pub fields: &'a dyn Fields,
    /// Until the request's last byte was there.
    pub request_duration: Option<Duration>,
    /// Until the response's head was there.
    pub response_duration: Option<Duration>,
    /// Until it needed a connection to an endpoint.
    pub decision_duration: Option<Duration>,
    /// While the last attempt waited for that connection.
    pub queue_duration: Option<Duration>,
    /// From sending the last attempt to the response's head.
    pub upstream_duration: Option<Duration>,
    /// Times it was sent on.
    pub attempts: u32,
    /// Trace it belongs to; empty without one.
    pub trace_id: &'a str,
}

/// See the module. Empty texts are unknown or do not apply.
#[derive(Clone, Copy)]
pub struct AccessLogEntry<'a> {
    /// `None` for opaque connections.
    pub http: Option<HttpLogFields<'a>>,
    /// When it began.
    pub start: SystemTime,
    /// From begin to end.
    pub duration: Duration,
    /// Envoy's flags, `-` for none.
    pub flags: &'a str,
    /// One word on how it ended.
    pub details: &'a str,
    /// Why the proxy ended the connection.
    pub termination: &'a str,
    /// Why TLS or connecting upstream failed.
    pub upstream_failure: &'a str,
    /// Why TLS with the caller failed.
    pub downstream_failure: &'a str,
    /// Body bytes from the caller.
    pub received: u64,
    /// Body bytes to the caller.
    pub sent: u64,
    /// Endpoint called.
    pub upstream: Option<SocketAddr>,
    /// Our end of that connection.
    pub upstream_local: Option<SocketAddr>,
    /// `outbound|80||host` or `inbound|8080||`.
    pub cluster: &'a str,
    /// Destination address of the caller's connection.
    pub local: SocketAddr,
    /// Address of the caller.
    pub remote: SocketAddr,
    /// SNI.
    pub server_name: &'a str,
    /// Name of the route.
    pub route: &'a str,
    /// The TLS session of the caller's side.
    pub tls: Option<TlsFacts<'a>>,
    /// Results of policies that decide nothing.
    pub marks: PolicyMarks<'a>,
}

/// Results of policies that decide nothing: those with AUDIT, and those in dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyMarks<'a> {
    /// True if an AUDIT policy marks it.
    pub audited: bool,
    /// Result of the ALLOW policies in dry run.
    pub allow: Option<DryRunEntry<'a>>,
    /// Result of the DENY policies in dry run.
    pub deny: Option<DryRunEntry<'a>>,
}

/// Result of one action's policies in dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DryRunEntry<'a> {
    /// True if they would have allowed it.
    pub allowed: bool,
    /// The rule that matched; empty when none did.
    pub rule: &'a str,
}

impl<'a> AccessLogEntry<'a> {
    /// The value of a header, `:method` and the like included.
    pub(crate) fn header(&self, direction: HeaderSource, name: &str) -> Option<&'a [u8]> {
        let http = self.http?;
        let text = |text: &'a str| (!text.is_empty()).then_some(text.as_bytes());
        match (direction, name) {
            (HeaderSource::Request, ":method") => text(http.method),
            (HeaderSource::Request, ":path") => text(http.path),
            (HeaderSource::Request, ":authority" | "host") => text(http.authority),
            (HeaderSource::Request, ":scheme") => text(self.scheme()),
            (_, name) if name.starts_with(':') => None,
            (direction, name) => http.fields.field(direction, name),
        }
    }

    /// Scheme of the caller's request.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// A gRPC status as Envoy names it.
pub(crate) fn grpc_name(status: u16) -> Option<&'static str> {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    NAMES.get(usize::from(status)).copied()
}

/// Envoy's flags: short name, long name, bit.
pub(crate) const FLAGS: [(&str, &str, i64); 18] = [
    ("UH", "NoHealthyUpstream", 0x2),
    ("UF", "UpstreamConnectionFailure", 0x20),
    ("UO", "UpstreamOverflow", 0x80),
    ("NR", "NoRouteFound", 0x100),
    ("URX", "UpstreamRetryLimitExceeded", 0x8000),
    ("UC", "UpstreamConnectionTermination", 0x40),
    ("UT", "UpstreamRequestTimeout", 0x4),
    ("UR", "UpstreamRemoteReset", 0x10),
    ("LR", "LocalReset", 0x8),
    ("RL", "RateLimited", 0x800),
    ("RLSE", "RateLimitServiceError", 0x2000),
    ("UAEX", "UnauthorizedExternalService", 0x1000),
    ("DC", "DownstreamConnectionTermination", 0x4000),
    ("SI", "StreamIdleTimeout", 0x1_0000),
    ("DPE", "DownstreamProtocolError", 0x4_0000),
    ("UPE", "UpstreamProtocolError", 0x80_0000),
    ("OM", "OverloadManager", 0x200_0000),
    ("DR", "DownstreamRemoteReset", 0x800_0000),
];

//! Access log commands between percent signs: the existing commands, their arguments, and the commands of Envoy that
//! are refused, with reasons.

use std::sync::Arc;

use super::time::TimeLayout;
use super::{FormatError, shown};

/// Longest value a `:Z` may ask for, in bytes.
const MAX_CUT: usize = 65_536;

/// The headers or trailers that a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderSource {
    /// `REQ`.
    Request,
    /// `RESP`.
    Response,
    /// `TRAILER`.
    Trailer,
}

/// Something between percent signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatCommand {
    /// Its value.
    pub what: CommandValue,
    /// Longest value, in bytes.
    pub cut: Option<usize>,
}

/// The value of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandValue {
    /// When the request or connection began.
    StartTime(TimeLayout),
    /// When the line is made.
    EmitTime(TimeLayout),
    /// A header, or another if that is absent; names in lower case, with `:method` and the like.
    Header {
        /// Request, response or trailers.
        direction: HeaderSource,
        /// The first choice.
        name: Arc<str>,
        /// The second.
        or: Option<Arc<str>>,
        /// True if a query is cut off the value.
        without_query: bool,
    },
    /// A variable of the proxy's environment.
    Environment(Arc<str>),
    /// A parameter of the query.
    Query(Arc<str>),
    /// Anything else.
    Fact(Fact),
}

/// The type of a fact's value; it determines the form in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactKind {
    /// A JSON string.
    Text,
    /// A JSON number.
    Number,
}

macro_rules! facts {
    ($($(#[doc = $doc:literal])+ $variant:ident = $($name:literal)|+ , $kind:ident;)*) => {
        /// A command without arguments.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fact { $($(#[doc = $doc])+ $variant,)* }

        impl Fact {
            /// Every name, with its fact.
            pub const NAMES: &[(&str, Fact)] = &[$($(($name, Fact::$variant),)+)*];

            /// Its kind.
            #[must_use]
            pub fn kind(self) -> FactKind {
                match self { $(Self::$variant => FactKind::$kind,)* }
            }

            /// Its meaning, for the reference.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

facts! {
    /// The method.
    Method = "METHOD", Text;
    /// Path with query.
    Path = "PATH", Text;
    /// `HTTP/1.1`, `HTTP/2`; `-` for opaque connections.
    Protocol = "PROTOCOL", Text;
    /// Status answered; 0 when none was, and for opaque connections.
    ResponseCode = "RESPONSE_CODE", Number;
    /// How it ended, in one word (`via_upstream`).
    ResponseCodeDetails = "RESPONSE_CODE_DETAILS", Text;
    /// Envoy's flags (`UF`, `NR`, …), `-` when nothing went wrong.
    ResponseFlags = "RESPONSE_FLAGS", Text;
    /// The flag's long name.
    ResponseFlagsLong = "RESPONSE_FLAGS_LONG", Text;
    /// Why a connection was ended by the proxy.
    ConnectionTerminationDetails = "CONNECTION_TERMINATION_DETAILS", Text;
    /// Why connecting or TLS to the upstream failed.
    UpstreamFailure = "UPSTREAM_TRANSPORT_FAILURE_REASON", Text;
    /// Why TLS with the client failed.
    DownstreamFailure = "DOWNSTREAM_TRANSPORT_FAILURE_REASON", Text;
    /// Body bytes from the client.
    BytesReceived = "BYTES_RECEIVED", Number;
    /// Body bytes to the client.
    BytesSent = "BYTES_SENT", Number;
    /// Bytes of the request's head.
    RequestHeadBytes = "REQUEST_HEADERS_BYTES" | "DOWNSTREAM_HEADER_BYTES_RECEIVED", Number;
    /// Bytes of the response's head.
    ResponseHeadBytes = "RESPONSE_HEADERS_BYTES" | "DOWNSTREAM_HEADER_BYTES_SENT", Number;
    /// Head and body bytes from the client.
    WireReceived = "DOWNSTREAM_WIRE_BYTES_RECEIVED", Number;
    /// Head and body bytes to the client.
    WireSent = "DOWNSTREAM_WIRE_BYTES_SENT", Number;
    /// Milliseconds from begin to end.
    Duration = "DURATION", Number;
    /// Milliseconds until the request's last byte was there.
    RequestDuration = "REQUEST_DURATION", Number;
    /// Milliseconds until the response's head was there.
    ResponseDuration = "RESPONSE_DURATION", Number;
    /// Milliseconds from the response's head to its last byte.
    ResponseTxDuration = "RESPONSE_TX_DURATION", Number;
    /// Endpoint called.
    UpstreamHost = "UPSTREAM_HOST" | "UPSTREAM_REMOTE_ADDRESS", Text;
    /// Endpoint's address.
    UpstreamHostAddress = "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", Text;
    /// Endpoint's port.
    UpstreamHostPort = "UPSTREAM_REMOTE_PORT", Number;
    /// `outbound|80||host` or `inbound|8080||`.
    UpstreamCluster = "UPSTREAM_CLUSTER_RAW" | "UPSTREAM_CLUSTER", Text;
    /// Our end of the upstream connection.
    UpstreamLocal = "UPSTREAM_LOCAL_ADDRESS", Text;
    /// Its address.
    UpstreamLocalAddress = "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", Text;
    /// Its port.
    UpstreamLocalPort = "UPSTREAM_LOCAL_PORT", Number;
    /// Whom the client called.
    DownstreamLocal = "DOWNSTREAM_LOCAL_ADDRESS", Text;
    /// Its address.
    DownstreamLocalAddress = "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", Text;
    /// Its port.
    DownstreamLocalPort = "DOWNSTREAM_LOCAL_PORT", Number;
    /// Who called.
    DownstreamRemote = "DOWNSTREAM_REMOTE_ADDRESS" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS", Text;
    /// Its address.
    DownstreamRemoteAddress = "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", Text;
    /// Its port.
    DownstreamRemotePort = "DOWNSTREAM_REMOTE_PORT", Number;
    /// SNI.
    ServerName = "REQUESTED_SERVER_NAME", Text;
    /// `default`, as Istio names the route nobody configured.
    RouteName = "ROUTE_NAME", Text;
    /// gRPC status by name (`OK`, `NotFound`).
    GrpcStatus = "GRPC_STATUS", Text;
    /// gRPC status by number.
    GrpcStatusNumber = "GRPC_STATUS_NUMBER", Number;
    /// Verified identity of the caller.
    PeerUriSan = "DOWNSTREAM_PEER_URI_SAN", Text;
    /// Our own identity, when the caller's side was mutual TLS.
    LocalUriSan = "DOWNSTREAM_LOCAL_URI_SAN", Text;
    /// TLS version of the caller's side.
    TlsVersion = "DOWNSTREAM_TLS_VERSION", Text;
    /// Cipher suite of the caller's side.
    TlsCipher = "DOWNSTREAM_TLS_CIPHER", Text;
    /// Trace the request belongs to.
    TraceId = "TRACE_ID", Text;
    /// Name of this machine.
    Hostname = "HOSTNAME", Text;
    /// `Http` or `Tcp` and when: our lines are made at the end.
    AccessLogType = "ACCESS_LOG_TYPE", Text;
    /// Times the request was sent on.
    Attempts = "UPSTREAM_REQUEST_ATTEMPT_COUNT", Number;
    /// `true` for a request that an AUDIT policy marks.
    Audited = "DYNAMIC_METADATA(envoy.common:access_log_hint)", Text;
    /// What ALLOW policies in dry run would have done: `allowed` or `denied`.
    RehearsedAllow = "DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_allow_shadow_engine_result)", Text;
    /// The rule of theirs that matched.
    RehearsedAllowRule = "DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_allow_shadow_effective_policy_id)", Text;
    /// What DENY policies in dry run would have done: `allowed` or `denied`.
    RehearsedDeny = "DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_deny_shadow_engine_result)", Text;
    /// The rule of theirs that matched.
    RehearsedDenyRule = "DYNAMIC_METADATA(envoy.filters.http.rbac:istio_dry_run_deny_shadow_effective_policy_id)", Text;
}

/// Commands that take arguments.
const WITH_ARGUMENTS: [&str; 9] = [
    "START_TIME",
    "EMIT_TIME",
    "REQ",
    "RESP",
    "TRAILER",
    "REQ_WITHOUT_QUERY",
    "ENVIRONMENT",
    "QUERY_PARAM",
    "GRPC_STATUS",
];

/// Commands of Envoy that ask for what only Envoy has.
const REFUSED: [&str; 26] = [
    "CEL",
    "CLUSTER_METADATA",
    "COMMON_DURATION",
    "CONNECTION_ID",
    "DOWNSTREAM_PEER_CERT",
    "DOWNSTREAM_PEER_CERT_V_END",
    "DOWNSTREAM_PEER_CERT_V_START",
    "DOWNSTREAM_PEER_FINGERPRINT_1",
    "DOWNSTREAM_PEER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_ISSUER",
    "DOWNSTREAM_PEER_SERIAL",
    "DOWNSTREAM_PEER_SUBJECT",
    "DOWNSTREAM_TLS_SESSION_ID",
    "DYNAMIC_METADATA",
    "FILTER_CHAIN_NAME",
    "FILTER_STATE",
    "LOCAL_REPLY_BODY",
    "METADATA",
    "START_TIME_LOCAL",
    "STREAM_ID",
    "UNIQUE_ID",
    "UPSTREAM_FILTER_STATE",
    "UPSTREAM_METADATA",
    "UPSTREAM_WIRE_BYTES_RECEIVED",
    "UPSTREAM_WIRE_BYTES_SENT",
    "VIRTUAL_CLUSTER_NAME",
];

/// Reads one command, which begins after its percent sign. Returns it with the text after its last one.
pub(super) fn parse(text: &str) -> Result<(FormatCommand, &str), FormatError> {
    let name_end = text
        .find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(name_end);
    let unclosed = || {
        let message = format!("`%{}` is not closed", shown(text));
        FormatError::new(
            message,
            "a command is written %NAME%, %NAME(ARGUMENT)% or %NAME(ARGUMENT):LENGTH%; a percent sign is %%",
        )
    };
    // Arguments may hold percent signs, so they end at the bracket.
    let (argument, rest) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (argument, rest) = rest.split_once(')').ok_or_else(unclosed)?;
            (Some(argument), rest)
        }
        None => (None, rest),
    };
    let (length, rest) = match rest.strip_prefix(':') {
        Some(rest) => {
            let (length, rest) = rest.split_once('%').ok_or_else(unclosed)?;
            (Some(length), rest)
        }
        None => (None, rest.strip_prefix('%').ok_or_else(unclosed)?),
    };
    let cut = length.map(|length| cut(name, length)).transpose()?;
    let what = what(name, argument)?;
    Ok((FormatCommand { what, cut }, rest))
}

fn cut(name: &str, length: &str) -> Result<usize, FormatError> {
    let length_of = length
        .parse()
        .ok()
        .filter(|length| (1..=MAX_CUT).contains(length));
    length_of.ok_or_else(|| {
        let message = format!("`{}` is no length for `%{}%`", shown(length), shown(name));
        FormatError::new(message, format!("a number of bytes from 1 to {MAX_CUT}"))
    })
}

fn what(name: &str, argument: Option<&str>) -> Result<CommandValue, FormatError> {
    match (name, argument) {
        ("START_TIME", None) => Ok(CommandValue::StartTime(TimeLayout::DEFAULT)),
        ("EMIT_TIME", None) => Ok(CommandValue::EmitTime(TimeLayout::DEFAULT)),
        ("START_TIME", Some(layout)) => {
            Ok(CommandValue::StartTime(TimeLayout::parse(name, layout)?))
        }
        ("EMIT_TIME", Some(layout)) => Ok(CommandValue::EmitTime(TimeLayout::parse(name, layout)?)),
        ("REQ", Some(names)) => header(name, HeaderSource::Request, names, false),
        ("REQ_WITHOUT_QUERY", Some(names)) => header(name, HeaderSource::Request, names, true),
        ("RESP", Some(names)) => header(name, HeaderSource::Response, names, false),
        ("TRAILER", Some(names)) => header(name, HeaderSource::Trailer, names, false),
        ("ENVIRONMENT", Some(variable)) if !variable.is_empty() => {
            Ok(CommandValue::Environment(variable.into()))
        }
        ("QUERY_PARAM", Some(parameter)) if !parameter.is_empty() => {
            Ok(CommandValue::Query(parameter.into()))
        }
        ("GRPC_STATUS", Some("CAMEL_STRING")) => Ok(CommandValue::Fact(Fact::GrpcStatus)),
        ("GRPC_STATUS", Some("NUMBER")) => Ok(CommandValue::Fact(Fact::GrpcStatusNumber)),
        _ => fact(name, argument),
    }
}

fn fact(name: &str, argument: Option<&str>) -> Result<CommandValue, FormatError> {
    // Some are known with their argument only.
    let whole = argument.map(|argument| format!("{name}({argument})"));
    let known = |known: &&(&str, Fact)| whole.as_deref() == Some(known.0);
    if let Some((_, fact)) = Fact::NAMES.iter().find(known) {
        return Ok(CommandValue::Fact(*fact));
    }
    if let Some((_, fact)) = Fact::NAMES.iter().find(|(known, _)| *known == name) {
        return match argument {
            None => Ok(CommandValue::Fact(*fact)),
            Some(argument) => {
                let message = format!("`%{name}%` does not take `({})`", shown(argument));
                Err(FormatError::new(message, format!("write %{name}%")))
            }
        };
    }
    if WITH_ARGUMENTS.contains(&name) {
        let message = format!("`%{name}%` needs an argument");
        return Err(FormatError::new(message, format!("write %{name}(NAME)%")));
    }
    if REFUSED.contains(&name) {
        let message = format!("`%{name}%` reads internal data of Envoy, which Voile does not have");
        return Err(FormatError::new(message, "remove it from the format"));
    }
    let known = Fact::NAMES
        .iter()
        .map(|(name, _)| *name)
        .chain(WITH_ARGUMENTS);
    let help = crate::text::nearest(name, known).map_or_else(
        || "docs/reference/telemetry.md lists the supported commands".to_owned(),
        |near| format!("did you mean %{near}%?"),
    );
    Err(FormatError::new(
        format!("unknown command `%{}%`", shown(name)),
        help,
    ))
}

fn header(
    command: &str,
    direction: HeaderSource,
    names: &str,
    without_query: bool,
) -> Result<CommandValue, FormatError> {
    let name = |name: &str| -> Result<Arc<str>, FormatError> {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
        let plain = name.strip_prefix(':').unwrap_or(name);
        if plain.is_empty() || !plain.bytes().all(token) {
            let message = format!(
                "`{}` in `%{command}({})%` is no header",
                shown(name),
                shown(names)
            );
            return Err(FormatError::new(
                message,
                format!("write %{command}(NAME)% or %{command}(NAME?OTHER)%"),
            ));
        }
        Ok(name.to_ascii_lowercase().into())
    };
    let (first, second) = match names.split_once('?') {
        Some((first, second)) => (name(first)?, Some(name(second)?)),
        None => (name(names)?, None),
    };
    Ok(CommandValue::Header {
        direction,
        name: first,
        or: second,
        without_query,
    })
}

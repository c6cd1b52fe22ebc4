//! The attributes a filter may ask for, each with its type.

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeType {
    /// Text.
    Text,
    /// A whole number.
    Number,
    /// True or false.
    Bool,
    /// A span of time.
    Duration,
}

impl AttributeType {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "a number",
            Self::Bool => "true or false",
            Self::Duration => "a duration",
        }
    }
}

macro_rules! attributes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal , $kind:ident;)*) => {
        /// Something of the request or connection.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Attribute { $($(#[doc = $doc])+ $variant,)* }

        impl Attribute {
            /// Every name, with its attribute.
            pub const NAMES: &[(&str, Attribute)] = &[$(($name, Attribute::$variant),)*];

            /// Its type.
            #[must_use]
            pub fn kind(self) -> AttributeType {
                match self { $(Self::$variant => AttributeType::$kind,)* }
            }

            /// Its meaning, for the reference.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

attributes! {
    /// Path with query.
    RequestPath = "request.path", Text;
    /// Path without query.
    RequestUrlPath = "request.url_path", Text;
    /// Query without `?`.
    RequestQuery = "request.query", Text;
    /// Authority.
    RequestHost = "request.host", Text;
    /// Method.
    RequestMethod = "request.method", Text;
    /// `http`, or `https` when the caller's side was mutual TLS.
    RequestScheme = "request.scheme", Text;
    /// `HTTP/1.1` and the like.
    RequestProtocol = "request.protocol", Text;
    /// `x-request-id`.
    RequestId = "request.id", Text;
    /// `referer`.
    RequestReferer = "request.referer", Text;
    /// `user-agent`.
    RequestUserAgent = "request.useragent", Text;
    /// Body bytes from the client.
    RequestSize = "request.size", Number;
    /// Head and body bytes from the client.
    RequestTotalSize = "request.total_size", Number;
    /// From begin to end.
    RequestDuration = "request.duration", Duration;
    /// Status answered; absent for opaque connections.
    ResponseCode = "response.code", Number;
    /// How it ended, in one word.
    ResponseCodeDetails = "response.code_details", Text;
    /// Envoy's flags as bits; 0 when nothing went wrong.
    ResponseFlags = "response.flags", Number;
    /// gRPC status by number; absent when there is none.
    ResponseGrpcStatus = "response.grpc_status", Number;
    /// Body bytes to the client.
    ResponseSize = "response.size", Number;
    /// Head and body bytes to the client.
    ResponseTotalSize = "response.total_size", Number;
    /// Until the response's head was there.
    ResponseBackendLatency = "response.backend_latency", Duration;
    /// Whether the caller's side was mutual TLS.
    ConnectionMtls = "connection.mtls", Bool;
    /// SNI.
    ConnectionServerName = "connection.requested_server_name", Text;
    /// TLS version of the caller's side.
    ConnectionTlsVersion = "connection.tls_version", Text;
    /// Why a connection was ended by the proxy.
    ConnectionTermination = "connection.termination_details", Text;
    /// Verified identity of the caller.
    ConnectionPeer = "connection.uri_san_peer_certificate", Text;
    /// Our own identity.
    ConnectionLocal = "connection.uri_san_local_certificate", Text;
    /// Address and port of the caller.
    SourceAddress = "source.address", Text;
    /// Port of the caller.
    SourcePort = "source.port", Number;
    /// Address and port that was called.
    DestinationAddress = "destination.address", Text;
    /// Port that was called.
    DestinationPort = "destination.port", Number;
    /// Address and port of the endpoint; absent when none was called.
    UpstreamAddress = "upstream.address", Text;
    /// Port of the endpoint.
    UpstreamPort = "upstream.port", Number;
    /// Why connecting or TLS to the upstream failed.
    UpstreamFailure = "upstream.transport_failure_reason", Text;
    /// `outbound|80||host` or `inbound|8080||`.
    ClusterName = "xds.cluster_name", Text;
    /// The route.
    RouteName = "xds.route_name", Text;
}

//! Messages of package `envoy.service.accesslog.v3`, generated from `crates/protocols/proto/proto/envoy/access_log.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StreamAccessLogsResponse {}
impl ::prost::Name for StreamAccessLogsResponse {
    const NAME: &'static str = "StreamAccessLogsResponse";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.StreamAccessLogsResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.StreamAccessLogsResponse".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamAccessLogsMessage {
    /// Sent with the first message of a stream.
    #[prost(message, optional, tag = "1")]
    pub identifier: ::core::option::Option<Identifier>,
    #[prost(oneof = "stream_access_logs_message::LogEntries", tags = "2, 3")]
    pub log_entries: ::core::option::Option<stream_access_logs_message::LogEntries>,
}
/// Nested message and enum types in `StreamAccessLogsMessage`.
pub mod stream_access_logs_message {
    #[derive(Clone, PartialEq, ::prost::Oneof)]
    pub enum LogEntries {
        #[prost(message, tag = "2")]
        HttpLogs(super::HttpAccessLogEntries),
        #[prost(message, tag = "3")]
        TcpLogs(super::TcpAccessLogEntries),
    }
}
impl ::prost::Name for StreamAccessLogsMessage {
    const NAME: &'static str = "StreamAccessLogsMessage";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.StreamAccessLogsMessage".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.StreamAccessLogsMessage".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Identifier {
    #[prost(message, optional, tag = "1")]
    pub node: ::core::option::Option<Node>,
    #[prost(string, tag = "2")]
    pub log_name: ::prost::alloc::string::String,
}
impl ::prost::Name for Identifier {
    const NAME: &'static str = "Identifier";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.Identifier".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.Identifier".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Node {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub cluster: ::prost::alloc::string::String,
}
impl ::prost::Name for Node {
    const NAME: &'static str = "Node";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.Node".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.Node".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HttpAccessLogEntries {
    #[prost(message, repeated, tag = "1")]
    pub log_entry: ::prost::alloc::vec::Vec<HttpAccessLogEntry>,
}
impl ::prost::Name for HttpAccessLogEntries {
    const NAME: &'static str = "HttpAccessLogEntries";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.HttpAccessLogEntries".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.HttpAccessLogEntries".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct TcpAccessLogEntries {
    #[prost(message, repeated, tag = "1")]
    pub log_entry: ::prost::alloc::vec::Vec<TcpAccessLogEntry>,
}
impl ::prost::Name for TcpAccessLogEntries {
    const NAME: &'static str = "TcpAccessLogEntries";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.TcpAccessLogEntries".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.TcpAccessLogEntries".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct TcpAccessLogEntry {
    #[prost(message, optional, tag = "1")]
    pub common_properties: ::core::option::Option<AccessLogCommon>,
    #[prost(message, optional, tag = "2")]
    pub connection_properties: ::core::option::Option<ConnectionProperties>,
}
impl ::prost::Name for TcpAccessLogEntry {
    const NAME: &'static str = "TcpAccessLogEntry";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.TcpAccessLogEntry".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.TcpAccessLogEntry".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ConnectionProperties {
    #[prost(uint64, tag = "1")]
    pub received_bytes: u64,
    #[prost(uint64, tag = "2")]
    pub sent_bytes: u64,
}
impl ::prost::Name for ConnectionProperties {
    const NAME: &'static str = "ConnectionProperties";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.ConnectionProperties".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.ConnectionProperties".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HttpAccessLogEntry {
    #[prost(message, optional, tag = "1")]
    pub common_properties: ::core::option::Option<AccessLogCommon>,
    #[prost(enumeration = "HttpVersion", tag = "2")]
    pub protocol_version: i32,
    #[prost(message, optional, tag = "3")]
    pub request: ::core::option::Option<HttpRequestProperties>,
    #[prost(message, optional, tag = "4")]
    pub response: ::core::option::Option<HttpResponseProperties>,
}
impl ::prost::Name for HttpAccessLogEntry {
    const NAME: &'static str = "HttpAccessLogEntry";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.HttpAccessLogEntry".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.HttpAccessLogEntry".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AccessLogCommon {
    #[prost(double, tag = "1")]
    pub sample_rate: f64,
    #[prost(message, optional, tag = "2")]
    pub downstream_remote_address: ::core::option::Option<Address>,
    #[prost(message, optional, tag = "3")]
    pub downstream_local_address: ::core::option::Option<Address>,
    #[prost(message, optional, tag = "4")]
    pub tls_properties: ::core::option::Option<TlsProperties>,
    #[prost(message, optional, tag = "5")]
    pub start_time: ::core::option::Option<::prost_types::Timestamp>,
    #[prost(message, optional, tag = "6")]
    pub time_to_last_rx_byte: ::core::option::Option<::prost_types::Duration>,
    #[prost(message, optional, tag = "9")]
    pub time_to_first_upstream_rx_byte: ::core::option::Option<::prost_types::Duration>,
    #[prost(message, optional, tag = "12")]
    pub time_to_last_downstream_tx_byte: ::core::option::Option<::prost_types::Duration>,
    #[prost(message, optional, tag = "13")]
    pub upstream_remote_address: ::core::option::Option<Address>,
    #[prost(message, optional, tag = "14")]
    pub upstream_local_address: ::core::option::Option<Address>,
    #[prost(string, tag = "15")]
    pub upstream_cluster: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "16")]
    pub response_flags: ::core::option::Option<ResponseFlags>,
    #[prost(string, tag = "18")]
    pub upstream_transport_failure_reason: ::prost::alloc::string::String,
    #[prost(string, tag = "19")]
    pub route_name: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "20")]
    pub downstream_direct_remote_address: ::core::option::Option<Address>,
    #[prost(btree_map = "string, string", tag = "22")]
    pub custom_tags: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        ::prost::alloc::string::String,
    >,
    #[prost(message, optional, tag = "23")]
    pub duration: ::core::option::Option<::prost_types::Duration>,
    #[prost(uint32, tag = "24")]
    pub upstream_request_attempt_count: u32,
    #[prost(string, tag = "25")]
    pub connection_termination_details: ::prost::alloc::string::String,
}
impl ::prost::Name for AccessLogCommon {
    const NAME: &'static str = "AccessLogCommon";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.AccessLogCommon".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.AccessLogCommon".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Address {
    #[prost(message, optional, tag = "1")]
    pub socket_address: ::core::option::Option<SocketAddress>,
}
impl ::prost::Name for Address {
    const NAME: &'static str = "Address";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.Address".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.Address".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SocketAddress {
    #[prost(string, tag = "2")]
    pub address: ::prost::alloc::string::String,
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}
impl ::prost::Name for SocketAddress {
    const NAME: &'static str = "SocketAddress";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.SocketAddress".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.SocketAddress".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ResponseFlags {
    #[prost(bool, tag = "2")]
    pub no_healthy_upstream: bool,
    #[prost(bool, tag = "3")]
    pub upstream_request_timeout: bool,
    #[prost(bool, tag = "6")]
    pub upstream_connection_failure: bool,
    #[prost(bool, tag = "7")]
    pub upstream_connection_termination: bool,
    #[prost(bool, tag = "8")]
    pub upstream_overflow: bool,
    #[prost(bool, tag = "9")]
    pub no_route_found: bool,
    #[prost(bool, tag = "12")]
    pub rate_limited: bool,
    #[prost(bool, tag = "14")]
    pub rate_limit_service_error: bool,
    #[prost(message, optional, tag = "13")]
    pub unauthorized_details: ::core::option::Option<Unauthorized>,
    #[prost(bool, tag = "15")]
    pub downstream_connection_termination: bool,
    #[prost(bool, tag = "16")]
    pub upstream_retry_limit_exceeded: bool,
    #[prost(bool, tag = "17")]
    pub stream_idle_timeout: bool,
    #[prost(bool, tag = "19")]
    pub downstream_protocol_error: bool,
    #[prost(bool, tag = "24")]
    pub upstream_protocol_error: bool,
    #[prost(bool, tag = "26")]
    pub overload_manager: bool,
}
impl ::prost::Name for ResponseFlags {
    const NAME: &'static str = "ResponseFlags";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.ResponseFlags".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.ResponseFlags".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Unauthorized {
    #[prost(enumeration = "unauthorized::Reason", tag = "1")]
    pub reason: i32,
}
/// Nested message and enum types in `Unauthorized`.
pub mod unauthorized {
    #[derive(
        Clone,
        Copy,
        Debug,
        PartialEq,
        Eq,
        Hash,
        PartialOrd,
        Ord,
        ::prost::Enumeration
    )]
    #[repr(i32)]
    pub enum Reason {
        Unspecified = 0,
        ExternalService = 1,
    }
    impl Reason {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::Unspecified => "REASON_UNSPECIFIED",
                Self::ExternalService => "EXTERNAL_SERVICE",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "REASON_UNSPECIFIED" => Some(Self::Unspecified),
                "EXTERNAL_SERVICE" => Some(Self::ExternalService),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for Unauthorized {
    const NAME: &'static str = "Unauthorized";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.Unauthorized".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.Unauthorized".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct TlsProperties {
    #[prost(enumeration = "tls_properties::TlsVersion", tag = "1")]
    pub tls_version: i32,
    #[prost(string, tag = "3")]
    pub tls_sni_hostname: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "4")]
    pub local_certificate_properties: ::core::option::Option<CertificateProperties>,
    #[prost(message, optional, tag = "5")]
    pub peer_certificate_properties: ::core::option::Option<CertificateProperties>,
}
/// Nested message and enum types in `TlsProperties`.
pub mod tls_properties {
    #[derive(
        Clone,
        Copy,
        Debug,
        PartialEq,
        Eq,
        Hash,
        PartialOrd,
        Ord,
        ::prost::Enumeration
    )]
    #[repr(i32)]
    pub enum TlsVersion {
        VersionUnspecified = 0,
        Tlsv1 = 1,
        Tlsv11 = 2,
        Tlsv12 = 3,
        Tlsv13 = 4,
    }
    impl TlsVersion {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::VersionUnspecified => "VERSION_UNSPECIFIED",
                Self::Tlsv1 => "TLSV1",
                Self::Tlsv11 => "TLSV1_1",
                Self::Tlsv12 => "TLSV1_2",
                Self::Tlsv13 => "TLSV1_3",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "VERSION_UNSPECIFIED" => Some(Self::VersionUnspecified),
                "TLSV1" => Some(Self::Tlsv1),
                "TLSV1_1" => Some(Self::Tlsv11),
                "TLSV1_2" => Some(Self::Tlsv12),
                "TLSV1_3" => Some(Self::Tlsv13),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for TlsProperties {
    const NAME: &'static str = "TlsProperties";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.TlsProperties".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.TlsProperties".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CertificateProperties {
    #[prost(message, repeated, tag = "1")]
    pub subject_alt_name: ::prost::alloc::vec::Vec<
        certificate_properties::SubjectAltName,
    >,
}
/// Nested message and enum types in `CertificateProperties`.
pub mod certificate_properties {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct SubjectAltName {
        #[prost(oneof = "subject_alt_name::San", tags = "1, 2")]
        pub san: ::core::option::Option<subject_alt_name::San>,
    }
    /// Nested message and enum types in `SubjectAltName`.
    pub mod subject_alt_name {
        #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
        pub enum San {
            #[prost(string, tag = "1")]
            Uri(::prost::alloc::string::String),
            #[prost(string, tag = "2")]
            Dns(::prost::alloc::string::String),
        }
    }
    impl ::prost::Name for SubjectAltName {
        const NAME: &'static str = "SubjectAltName";
        const PACKAGE: &'static str = "envoy.service.accesslog.v3";
        fn full_name() -> ::prost::alloc::string::String {
            "envoy.service.accesslog.v3.CertificateProperties.SubjectAltName".into()
        }
        fn type_url() -> ::prost::alloc::string::String {
            "type.googleapis.com/envoy.service.accesslog.v3.CertificateProperties.SubjectAltName"
                .into()
        }
    }
}
impl ::prost::Name for CertificateProperties {
    const NAME: &'static str = "CertificateProperties";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.CertificateProperties".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.CertificateProperties".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HttpRequestProperties {
    #[prost(enumeration = "RequestMethod", tag = "1")]
    pub request_method: i32,
    #[prost(string, tag = "2")]
    pub scheme: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub authority: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "4")]
    pub port: ::core::option::Option<u32>,
    #[prost(string, tag = "5")]
    pub path: ::prost::alloc::string::String,
    #[prost(string, tag = "6")]
    pub user_agent: ::prost::alloc::string::String,
    #[prost(string, tag = "7")]
    pub referer: ::prost::alloc::string::String,
    #[prost(string, tag = "8")]
    pub forwarded_for: ::prost::alloc::string::String,
    #[prost(string, tag = "9")]
    pub request_id: ::prost::alloc::string::String,
    #[prost(string, tag = "10")]
    pub original_path: ::prost::alloc::string::String,
    #[prost(uint64, tag = "11")]
    pub request_headers_bytes: u64,
    #[prost(uint64, tag = "12")]
    pub request_body_bytes: u64,
    #[prost(btree_map = "string, string", tag = "13")]
    pub request_headers: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        ::prost::alloc::string::String,
    >,
}
impl ::prost::Name for HttpRequestProperties {
    const NAME: &'static str = "HttpRequestProperties";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.HttpRequestProperties".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.HttpRequestProperties".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HttpResponseProperties {
    #[prost(message, optional, tag = "1")]
    pub response_code: ::core::option::Option<u32>,
    #[prost(uint64, tag = "2")]
    pub response_headers_bytes: u64,
    #[prost(uint64, tag = "3")]
    pub response_body_bytes: u64,
    #[prost(btree_map = "string, string", tag = "4")]
    pub response_headers: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        ::prost::alloc::string::String,
    >,
    #[prost(btree_map = "string, string", tag = "5")]
    pub response_trailers: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        ::prost::alloc::string::String,
    >,
    #[prost(string, tag = "6")]
    pub response_code_details: ::prost::alloc::string::String,
}
impl ::prost::Name for HttpResponseProperties {
    const NAME: &'static str = "HttpResponseProperties";
    const PACKAGE: &'static str = "envoy.service.accesslog.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.accesslog.v3.HttpResponseProperties".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.accesslog.v3.HttpResponseProperties".into()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum HttpVersion {
    ProtocolUnspecified = 0,
    Http10 = 1,
    Http11 = 2,
    Http2 = 3,
    Http3 = 4,
}
impl HttpVersion {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::ProtocolUnspecified => "PROTOCOL_UNSPECIFIED",
            Self::Http10 => "HTTP10",
            Self::Http11 => "HTTP11",
            Self::Http2 => "HTTP2",
            Self::Http3 => "HTTP3",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "PROTOCOL_UNSPECIFIED" => Some(Self::ProtocolUnspecified),
            "HTTP10" => Some(Self::Http10),
            "HTTP11" => Some(Self::Http11),
            "HTTP2" => Some(Self::Http2),
            "HTTP3" => Some(Self::Http3),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum RequestMethod {
    MethodUnspecified = 0,
    Get = 1,
    Head = 2,
    Post = 3,
    Put = 4,
    Delete = 5,
    Connect = 6,
    Options = 7,
    Trace = 8,
    Patch = 9,
}
impl RequestMethod {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::MethodUnspecified => "METHOD_UNSPECIFIED",
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "METHOD_UNSPECIFIED" => Some(Self::MethodUnspecified),
            "GET" => Some(Self::Get),
            "HEAD" => Some(Self::Head),
            "POST" => Some(Self::Post),
            "PUT" => Some(Self::Put),
            "DELETE" => Some(Self::Delete),
            "CONNECT" => Some(Self::Connect),
            "OPTIONS" => Some(Self::Options),
            "TRACE" => Some(Self::Trace),
            "PATCH" => Some(Self::Patch),
            _ => None,
        }
    }
}

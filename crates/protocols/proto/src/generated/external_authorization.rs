//! Messages of package `envoy.service.auth.v3`, generated from `crates/protocols/proto/proto/envoy/external_authorization.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub attributes: ::core::option::Option<AttributeContext>,
}
impl ::prost::Name for CheckRequest {
    const NAME: &'static str = "CheckRequest";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.CheckRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.CheckRequest".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub source: ::core::option::Option<Peer>,
    #[prost(message, optional, tag = "2")]
    pub destination: ::core::option::Option<Peer>,
    /// Absent for opaque connections.
    #[prost(message, optional, tag = "4")]
    pub request: ::core::option::Option<Request>,
    #[prost(message, optional, tag = "12")]
    pub tls_session: ::core::option::Option<TlsSession>,
}
impl ::prost::Name for AttributeContext {
    const NAME: &'static str = "AttributeContext";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.AttributeContext".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.AttributeContext".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Peer {
    #[prost(message, optional, tag = "1")]
    pub address: ::core::option::Option<Address>,
    /// The verified identity.
    #[prost(string, tag = "4")]
    pub principal: ::prost::alloc::string::String,
}
impl ::prost::Name for Peer {
    const NAME: &'static str = "Peer";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.Peer".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.Peer".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Address {
    #[prost(message, optional, tag = "1")]
    pub socket_address: ::core::option::Option<SocketAddress>,
}
impl ::prost::Name for Address {
    const NAME: &'static str = "Address";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.Address".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.Address".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SocketAddress {
    #[prost(string, tag = "2")]
    pub address: ::prost::alloc::string::String,
    #[prost(uint32, tag = "4")]
    pub port_value: u32,
}
impl ::prost::Name for SocketAddress {
    const NAME: &'static str = "SocketAddress";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.SocketAddress".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.SocketAddress".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TlsSession {
    #[prost(string, tag = "1")]
    pub sni: ::prost::alloc::string::String,
}
impl ::prost::Name for TlsSession {
    const NAME: &'static str = "TlsSession";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.TlsSession".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.TlsSession".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Request {
    #[prost(message, optional, tag = "1")]
    pub time: ::core::option::Option<::prost_types::Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub http: ::core::option::Option<HttpRequest>,
}
impl ::prost::Name for Request {
    const NAME: &'static str = "Request";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.Request".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.Request".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HttpRequest {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub method: ::prost::alloc::string::String,
    /// Names in lower case, pseudo-header fields among them; several lines of one name are one value.
    #[prost(btree_map = "string, string", tag = "3")]
    pub headers: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        ::prost::alloc::string::String,
    >,
    #[prost(string, tag = "4")]
    pub path: ::prost::alloc::string::String,
    #[prost(string, tag = "5")]
    pub host: ::prost::alloc::string::String,
    #[prost(string, tag = "6")]
    pub scheme: ::prost::alloc::string::String,
    /// Bytes of the body; -1 is unknown.
    #[prost(int64, tag = "9")]
    pub size: i64,
    #[prost(string, tag = "10")]
    pub protocol: ::prost::alloc::string::String,
    #[prost(string, tag = "11")]
    pub body: ::prost::alloc::string::String,
    #[prost(bytes = "vec", tag = "12")]
    pub raw_body: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for HttpRequest {
    const NAME: &'static str = "HttpRequest";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.HttpRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.HttpRequest".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub status: ::core::option::Option<Status>,
    #[prost(oneof = "check_response::HttpResponse", tags = "2, 3, 5")]
    pub http_response: ::core::option::Option<check_response::HttpResponse>,
}
/// Nested message and enum types in `CheckResponse`.
pub mod check_response {
    #[derive(Clone, PartialEq, ::prost::Oneof)]
    pub enum HttpResponse {
        #[prost(message, tag = "2")]
        DeniedResponse(super::DeniedHttpResponse),
        #[prost(message, tag = "3")]
        OkResponse(super::OkHttpResponse),
        /// It could not decide.
        #[prost(message, tag = "5")]
        ErrorResponse(super::DeniedHttpResponse),
    }
}
impl ::prost::Name for CheckResponse {
    const NAME: &'static str = "CheckResponse";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.CheckResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.CheckResponse".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Status {
    /// 0 lets pass.
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: ::prost::alloc::string::String,
}
impl ::prost::Name for Status {
    const NAME: &'static str = "Status";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.Status".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.Status".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}
impl ::prost::Name for HttpStatus {
    const NAME: &'static str = "HttpStatus";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.HttpStatus".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.HttpStatus".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub status: ::core::option::Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub headers: ::prost::alloc::vec::Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    pub body: ::prost::alloc::string::String,
}
impl ::prost::Name for DeniedHttpResponse {
    const NAME: &'static str = "DeniedHttpResponse";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.DeniedHttpResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.DeniedHttpResponse".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct OkHttpResponse {
    #[prost(message, repeated, tag = "2")]
    pub headers: ::prost::alloc::vec::Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: ::prost::alloc::vec::Vec<HeaderValueOption>,
    #[prost(message, repeated, tag = "7")]
    pub query_parameters_to_set: ::prost::alloc::vec::Vec<QueryParameter>,
    #[prost(string, repeated, tag = "8")]
    pub query_parameters_to_remove: ::prost::alloc::vec::Vec<
        ::prost::alloc::string::String,
    >,
}
impl ::prost::Name for OkHttpResponse {
    const NAME: &'static str = "OkHttpResponse";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.OkHttpResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.OkHttpResponse".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct QueryParameter {
    #[prost(string, tag = "1")]
    pub key: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
}
impl ::prost::Name for QueryParameter {
    const NAME: &'static str = "QueryParameter";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.QueryParameter".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.QueryParameter".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: ::core::option::Option<HeaderValue>,
    #[prost(message, optional, tag = "2")]
    pub append: ::core::option::Option<bool>,
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}
impl ::prost::Name for HeaderValueOption {
    const NAME: &'static str = "HeaderValueOption";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.HeaderValueOption".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.HeaderValueOption".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
    /// Instead of `value`.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for HeaderValue {
    const NAME: &'static str = "HeaderValue";
    const PACKAGE: &'static str = "envoy.service.auth.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.auth.v3.HeaderValue".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.auth.v3.HeaderValue".into()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    AppendIfExistsOrAdd = 0,
    AddIfAbsent = 1,
    OverwriteIfExistsOrAdd = 2,
    OverwriteIfExists = 3,
}
impl AppendAction {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::AppendIfExistsOrAdd => "APPEND_IF_EXISTS_OR_ADD",
            Self::AddIfAbsent => "ADD_IF_ABSENT",
            Self::OverwriteIfExistsOrAdd => "OVERWRITE_IF_EXISTS_OR_ADD",
            Self::OverwriteIfExists => "OVERWRITE_IF_EXISTS",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "APPEND_IF_EXISTS_OR_ADD" => Some(Self::AppendIfExistsOrAdd),
            "ADD_IF_ABSENT" => Some(Self::AddIfAbsent),
            "OVERWRITE_IF_EXISTS_OR_ADD" => Some(Self::OverwriteIfExistsOrAdd),
            "OVERWRITE_IF_EXISTS" => Some(Self::OverwriteIfExists),
            _ => None,
        }
    }
}

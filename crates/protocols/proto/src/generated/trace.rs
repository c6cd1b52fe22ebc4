//! Messages of package `opentelemetry.proto.collector.trace.v1`, generated from `crates/protocols/proto/proto/opentelemetry/trace.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: ::prost::alloc::vec::Vec<ResourceSpans>,
}
impl ::prost::Name for ExportTraceServiceRequest {
    const NAME: &'static str = "ExportTraceServiceRequest";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest"
            .into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub partial_success: ::core::option::Option<ExportTracePartialSuccess>,
}
impl ::prost::Name for ExportTraceServiceResponse {
    const NAME: &'static str = "ExportTraceServiceResponse";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.ExportTraceServiceResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.ExportTraceServiceResponse"
            .into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub error_message: ::prost::alloc::string::String,
}
impl ::prost::Name for ExportTracePartialSuccess {
    const NAME: &'static str = "ExportTracePartialSuccess";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.ExportTracePartialSuccess".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.ExportTracePartialSuccess"
            .into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: ::core::option::Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: ::prost::alloc::vec::Vec<ScopeSpans>,
}
impl ::prost::Name for ResourceSpans {
    const NAME: &'static str = "ResourceSpans";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.ResourceSpans".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.ResourceSpans".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: ::prost::alloc::vec::Vec<KeyValue>,
}
impl ::prost::Name for Resource {
    const NAME: &'static str = "Resource";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.Resource".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.Resource".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: ::core::option::Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: ::prost::alloc::vec::Vec<Span>,
}
impl ::prost::Name for ScopeSpans {
    const NAME: &'static str = "ScopeSpans";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.ScopeSpans".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.ScopeSpans".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub version: ::prost::alloc::string::String,
}
impl ::prost::Name for InstrumentationScope {
    const NAME: &'static str = "InstrumentationScope";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.InstrumentationScope".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.InstrumentationScope"
            .into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Span {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: ::prost::alloc::vec::Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: ::prost::alloc::vec::Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: ::prost::alloc::string::String,
    /// 8 bytes; empty for a root.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: ::prost::alloc::vec::Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: ::prost::alloc::string::String,
    #[prost(enumeration = "span::SpanKind", tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: ::prost::alloc::vec::Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: ::core::option::Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}
/// Nested message and enum types in `Span`.
pub mod span {
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
    pub enum SpanKind {
        Unspecified = 0,
        Internal = 1,
        Server = 2,
        Client = 3,
    }
    impl SpanKind {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::Unspecified => "SPAN_KIND_UNSPECIFIED",
                Self::Internal => "SPAN_KIND_INTERNAL",
                Self::Server => "SPAN_KIND_SERVER",
                Self::Client => "SPAN_KIND_CLIENT",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "SPAN_KIND_UNSPECIFIED" => Some(Self::Unspecified),
                "SPAN_KIND_INTERNAL" => Some(Self::Internal),
                "SPAN_KIND_SERVER" => Some(Self::Server),
                "SPAN_KIND_CLIENT" => Some(Self::Client),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for Span {
    const NAME: &'static str = "Span";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.Span".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.Span".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: ::prost::alloc::string::String,
    #[prost(enumeration = "status::StatusCode", tag = "3")]
    pub code: i32,
}
/// Nested message and enum types in `Status`.
pub mod status {
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
    pub enum StatusCode {
        Unset = 0,
        Ok = 1,
        Error = 2,
    }
    impl StatusCode {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::Unset => "STATUS_CODE_UNSET",
                Self::Ok => "STATUS_CODE_OK",
                Self::Error => "STATUS_CODE_ERROR",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "STATUS_CODE_UNSET" => Some(Self::Unset),
                "STATUS_CODE_OK" => Some(Self::Ok),
                "STATUS_CODE_ERROR" => Some(Self::Error),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for Status {
    const NAME: &'static str = "Status";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.Status".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.Status".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub value: ::core::option::Option<AnyValue>,
}
impl ::prost::Name for KeyValue {
    const NAME: &'static str = "KeyValue";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.KeyValue".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.KeyValue".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AnyValue {
    #[prost(oneof = "any_value::Value", tags = "1, 2, 3, 4")]
    pub value: ::core::option::Option<any_value::Value>,
}
/// Nested message and enum types in `AnyValue`.
pub mod any_value {
    #[derive(Clone, PartialEq, ::prost::Oneof)]
    pub enum Value {
        #[prost(string, tag = "1")]
        StringValue(::prost::alloc::string::String),
        #[prost(bool, tag = "2")]
        BoolValue(bool),
        #[prost(int64, tag = "3")]
        IntValue(i64),
        #[prost(double, tag = "4")]
        DoubleValue(f64),
    }
}
impl ::prost::Name for AnyValue {
    const NAME: &'static str = "AnyValue";
    const PACKAGE: &'static str = "opentelemetry.proto.collector.trace.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "opentelemetry.proto.collector.trace.v1.AnyValue".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/opentelemetry.proto.collector.trace.v1.AnyValue".into()
    }
}

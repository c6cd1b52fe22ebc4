//! Messages of package `envoy.service.ratelimit.v3`, generated from `crates/protocols/proto/proto/envoy/rate_limit.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub domain: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: ::prost::alloc::vec::Vec<RateLimitDescriptor>,
    /// How much the request counts; 0 is 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}
impl ::prost::Name for RateLimitRequest {
    const NAME: &'static str = "RateLimitRequest";
    const PACKAGE: &'static str = "envoy.service.ratelimit.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.ratelimit.v3.RateLimitRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.ratelimit.v3.RateLimitRequest".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: ::prost::alloc::vec::Vec<rate_limit_descriptor::Entry>,
}
/// Nested message and enum types in `RateLimitDescriptor`.
pub mod rate_limit_descriptor {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct Entry {
        #[prost(string, tag = "1")]
        pub key: ::prost::alloc::string::String,
        #[prost(string, tag = "2")]
        pub value: ::prost::alloc::string::String,
    }
    impl ::prost::Name for Entry {
        const NAME: &'static str = "Entry";
        const PACKAGE: &'static str = "envoy.service.ratelimit.v3";
        fn full_name() -> ::prost::alloc::string::String {
            "envoy.service.ratelimit.v3.RateLimitDescriptor.Entry".into()
        }
        fn type_url() -> ::prost::alloc::string::String {
            "type.googleapis.com/envoy.service.ratelimit.v3.RateLimitDescriptor.Entry"
                .into()
        }
    }
}
impl ::prost::Name for RateLimitDescriptor {
    const NAME: &'static str = "RateLimitDescriptor";
    const PACKAGE: &'static str = "envoy.service.ratelimit.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.ratelimit.v3.RateLimitDescriptor".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.ratelimit.v3.RateLimitDescriptor".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RateLimitResponse {
    #[prost(enumeration = "rate_limit_response::Code", tag = "1")]
    pub overall_code: i32,
    /// In the order of the descriptors.
    #[prost(message, repeated, tag = "2")]
    pub statuses: ::prost::alloc::vec::Vec<rate_limit_response::DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: ::prost::alloc::vec::Vec<HeaderValue>,
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: ::prost::alloc::vec::Vec<HeaderValue>,
    /// Of the answer to who comes too often.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: ::prost::alloc::vec::Vec<u8>,
}
/// Nested message and enum types in `RateLimitResponse`.
pub mod rate_limit_response {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct RateLimit {
        #[prost(uint32, tag = "1")]
        pub requests_per_unit: u32,
        #[prost(enumeration = "rate_limit::Unit", tag = "2")]
        pub unit: i32,
        #[prost(string, tag = "3")]
        pub name: ::prost::alloc::string::String,
    }
    /// Nested message and enum types in `RateLimit`.
    pub mod rate_limit {
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
        pub enum Unit {
            Unknown = 0,
            Second = 1,
            Minute = 2,
            Hour = 3,
            Day = 4,
            Month = 5,
            Year = 6,
            Week = 7,
        }
        impl Unit {
            /// String value of the enum field names used in the ProtoBuf definition.
            ///
            /// The values are not transformed in any way and thus are considered stable
            /// (if the ProtoBuf definition does not change) and safe for programmatic use.
            pub fn as_str_name(&self) -> &'static str {
                match self {
                    Self::Unknown => "UNKNOWN",
                    Self::Second => "SECOND",
                    Self::Minute => "MINUTE",
                    Self::Hour => "HOUR",
                    Self::Day => "DAY",
                    Self::Month => "MONTH",
                    Self::Year => "YEAR",
                    Self::Week => "WEEK",
                }
            }
            /// Creates an enum from field names used in the ProtoBuf definition.
            pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
                match value {
                    "UNKNOWN" => Some(Self::Unknown),
                    "SECOND" => Some(Self::Second),
                    "MINUTE" => Some(Self::Minute),
                    "HOUR" => Some(Self::Hour),
                    "DAY" => Some(Self::Day),
                    "MONTH" => Some(Self::Month),
                    "YEAR" => Some(Self::Year),
                    "WEEK" => Some(Self::Week),
                    _ => None,
                }
            }
        }
    }
    impl ::prost::Name for RateLimit {
        const NAME: &'static str = "RateLimit";
        const PACKAGE: &'static str = "envoy.service.ratelimit.v3";
        fn full_name() -> ::prost::alloc::string::String {
            "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit".into()
        }
        fn type_url() -> ::prost::alloc::string::String {
            "type.googleapis.com/envoy.service.ratelimit.v3.RateLimitResponse.RateLimit"
                .into()
        }
    }
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
    pub struct DescriptorStatus {
        #[prost(enumeration = "Code", tag = "1")]
        pub code: i32,
        #[prost(message, optional, tag = "2")]
        pub current_limit: ::core::option::Option<RateLimit>,
        #[prost(uint32, tag = "3")]
        pub limit_remaining: u32,
        #[prost(message, optional, tag = "4")]
        pub duration_until_reset: ::core::option::Option<::prost_types::Duration>,
    }
    impl ::prost::Name for DescriptorStatus {
        const NAME: &'static str = "DescriptorStatus";
        const PACKAGE: &'static str = "envoy.service.ratelimit.v3";
        fn full_name() -> ::prost::alloc::string::String {
            "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus".into()
        }
        fn type_url() -> ::prost::alloc::string::String {
            "type.googleapis.com/envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus"
                .into()
        }
    }
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
    pub enum Code {
        Unknown = 0,
        Ok = 1,
        OverLimit = 2,
    }
    impl Code {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::Unknown => "UNKNOWN",
                Self::Ok => "OK",
                Self::OverLimit => "OVER_LIMIT",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "UNKNOWN" => Some(Self::Unknown),
                "OK" => Some(Self::Ok),
                "OVER_LIMIT" => Some(Self::OverLimit),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for RateLimitResponse {
    const NAME: &'static str = "RateLimitResponse";
    const PACKAGE: &'static str = "envoy.service.ratelimit.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.ratelimit.v3.RateLimitResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.ratelimit.v3.RateLimitResponse".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for HeaderValue {
    const NAME: &'static str = "HeaderValue";
    const PACKAGE: &'static str = "envoy.service.ratelimit.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.ratelimit.v3.HeaderValue".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.ratelimit.v3.HeaderValue".into()
    }
}

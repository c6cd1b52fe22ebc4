//! Messages of package `istio.security`, generated from `crates/protocols/proto/proto/istio/authorization.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Authorization {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(enumeration = "Scope", tag = "3")]
    pub scope: i32,
    #[prost(enumeration = "Action", tag = "4")]
    pub action: i32,
    /// One of these; none never match.
    #[prost(message, repeated, tag = "5")]
    pub rules: ::prost::alloc::vec::Vec<Rule>,
    /// Only logged.
    #[prost(bool, tag = "6")]
    pub dry_run: bool,
}
impl ::prost::Name for Authorization {
    const NAME: &'static str = "Authorization";
    const PACKAGE: &'static str = "istio.security";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.security.Authorization".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.security.Authorization".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Rule {
    /// All of these; none always match.
    #[prost(message, repeated, tag = "1")]
    pub clauses: ::prost::alloc::vec::Vec<Clause>,
}
impl ::prost::Name for Rule {
    const NAME: &'static str = "Rule";
    const PACKAGE: &'static str = "istio.security";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.security.Rule".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.security.Rule".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Clause {
    /// One of these. A match that says nothing never matches.
    #[prost(message, repeated, tag = "2")]
    pub matches: ::prost::alloc::vec::Vec<Match>,
}
impl ::prost::Name for Clause {
    const NAME: &'static str = "Clause";
    const PACKAGE: &'static str = "istio.security";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.security.Clause".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.security.Clause".into()
    }
}
/// One of the values of each list that has any, and none of the values of each `not_` list.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Match {
    #[prost(message, repeated, tag = "1")]
    pub namespaces: ::prost::alloc::vec::Vec<StringMatch>,
    #[prost(message, repeated, tag = "2")]
    pub not_namespaces: ::prost::alloc::vec::Vec<StringMatch>,
    /// Without `spiffe://`.
    #[prost(message, repeated, tag = "3")]
    pub principals: ::prost::alloc::vec::Vec<StringMatch>,
    #[prost(message, repeated, tag = "4")]
    pub not_principals: ::prost::alloc::vec::Vec<StringMatch>,
    #[prost(message, repeated, tag = "5")]
    pub source_ips: ::prost::alloc::vec::Vec<Address>,
    #[prost(message, repeated, tag = "6")]
    pub not_source_ips: ::prost::alloc::vec::Vec<Address>,
    #[prost(message, repeated, tag = "7")]
    pub destination_ips: ::prost::alloc::vec::Vec<Address>,
    #[prost(message, repeated, tag = "8")]
    pub not_destination_ips: ::prost::alloc::vec::Vec<Address>,
    #[prost(uint32, repeated, tag = "9")]
    pub destination_ports: ::prost::alloc::vec::Vec<u32>,
    #[prost(uint32, repeated, tag = "10")]
    pub not_destination_ports: ::prost::alloc::vec::Vec<u32>,
    #[prost(message, repeated, tag = "11")]
    pub service_accounts: ::prost::alloc::vec::Vec<ServiceAccountMatch>,
    #[prost(message, repeated, tag = "12")]
    pub not_service_accounts: ::prost::alloc::vec::Vec<ServiceAccountMatch>,
}
impl ::prost::Name for Match {
    const NAME: &'static str = "Match";
    const PACKAGE: &'static str = "istio.security";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.security.Match".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.security.Match".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Address {
    #[prost(bytes = "vec", tag = "1")]
    pub address: ::prost::alloc::vec::Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub length: u32,
}
impl ::prost::Name for Address {
    const NAME: &'static str = "Address";
    const PACKAGE: &'static str = "istio.security";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.security.Address".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.security.Address".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ServiceAccountMatch {
    #[prost(string, tag = "1")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub service_account: ::prost::alloc::string::String,
}
impl ::prost::Name for ServiceAccountMatch {
    const NAME: &'static str = "ServiceAccountMatch";
    const PACKAGE: &'static str = "istio.security";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.security.ServiceAccountMatch".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.security.ServiceAccountMatch".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StringMatch {
    #[prost(oneof = "string_match::MatchType", tags = "1, 2, 3, 4")]
    pub match_type: ::core::option::Option<string_match::MatchType>,
}
/// Nested message and enum types in `StringMatch`.
pub mod string_match {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum MatchType {
        #[prost(string, tag = "1")]
        Exact(::prost::alloc::string::String),
        #[prost(string, tag = "2")]
        Prefix(::prost::alloc::string::String),
        #[prost(string, tag = "3")]
        Suffix(::prost::alloc::string::String),
        #[prost(message, tag = "4")]
        Presence(()),
    }
}
impl ::prost::Name for StringMatch {
    const NAME: &'static str = "StringMatch";
    const PACKAGE: &'static str = "istio.security";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.security.StringMatch".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.security.StringMatch".into()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Scope {
    Global = 0,
    Namespace = 1,
    /// Holds where a workload names it.
    WorkloadSelector = 2,
}
impl Scope {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Global => "GLOBAL",
            Self::Namespace => "NAMESPACE",
            Self::WorkloadSelector => "WORKLOAD_SELECTOR",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "GLOBAL" => Some(Self::Global),
            "NAMESPACE" => Some(Self::Namespace),
            "WORKLOAD_SELECTOR" => Some(Self::WorkloadSelector),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Action {
    Allow = 0,
    Deny = 1,
}
impl Action {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "ALLOW" => Some(Self::Allow),
            "DENY" => Some(Self::Deny),
            _ => None,
        }
    }
}

//! Messages of package `envoy.service.discovery.v3`, generated from `crates/protocols/proto/proto/envoy/discovery.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

/// google.rpc.Status, wire-equal.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "3")]
    pub details: ::prost::alloc::vec::Vec<::prost_types::Any>,
}
impl ::prost::Name for Status {
    const NAME: &'static str = "Status";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.Status".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.Status".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Locality {
    #[prost(string, tag = "1")]
    pub region: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub zone: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub sub_zone: ::prost::alloc::string::String,
}
impl ::prost::Name for Locality {
    const NAME: &'static str = "Locality";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.Locality".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.Locality".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Node {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub cluster: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "3")]
    pub metadata: ::core::option::Option<::prost_types::Struct>,
    #[prost(message, optional, tag = "4")]
    pub locality: ::core::option::Option<Locality>,
    #[prost(string, tag = "6")]
    pub user_agent_name: ::prost::alloc::string::String,
}
impl ::prost::Name for Node {
    const NAME: &'static str = "Node";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.Node".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.Node".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub version_info: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub node: ::core::option::Option<Node>,
    #[prost(string, repeated, tag = "3")]
    pub resource_names: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, tag = "4")]
    pub type_url: ::prost::alloc::string::String,
    #[prost(string, tag = "5")]
    pub response_nonce: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "6")]
    pub error_detail: ::core::option::Option<Status>,
}
impl ::prost::Name for DiscoveryRequest {
    const NAME: &'static str = "DiscoveryRequest";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.DiscoveryRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.DiscoveryRequest".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub version_info: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub resources: ::prost::alloc::vec::Vec<::prost_types::Any>,
    #[prost(string, tag = "4")]
    pub type_url: ::prost::alloc::string::String,
    #[prost(string, tag = "5")]
    pub nonce: ::prost::alloc::string::String,
}
impl ::prost::Name for DiscoveryResponse {
    const NAME: &'static str = "DiscoveryResponse";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.DiscoveryResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.DiscoveryResponse".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct DeltaDiscoveryRequest {
    #[prost(message, optional, tag = "1")]
    pub node: ::core::option::Option<Node>,
    #[prost(string, tag = "2")]
    pub type_url: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "3")]
    pub resource_names_subscribe: ::prost::alloc::vec::Vec<
        ::prost::alloc::string::String,
    >,
    #[prost(string, repeated, tag = "4")]
    pub resource_names_unsubscribe: ::prost::alloc::vec::Vec<
        ::prost::alloc::string::String,
    >,
    #[prost(btree_map = "string, string", tag = "5")]
    pub initial_resource_versions: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        ::prost::alloc::string::String,
    >,
    #[prost(string, tag = "6")]
    pub response_nonce: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "7")]
    pub error_detail: ::core::option::Option<Status>,
}
impl ::prost::Name for DeltaDiscoveryRequest {
    const NAME: &'static str = "DeltaDiscoveryRequest";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.DeltaDiscoveryRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.DeltaDiscoveryRequest".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct DeltaDiscoveryResponse {
    #[prost(string, tag = "1")]
    pub system_version_info: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub resources: ::prost::alloc::vec::Vec<Resource>,
    #[prost(string, tag = "4")]
    pub type_url: ::prost::alloc::string::String,
    #[prost(string, tag = "5")]
    pub nonce: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "6")]
    pub removed_resources: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for DeltaDiscoveryResponse {
    const NAME: &'static str = "DeltaDiscoveryResponse";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.DeltaDiscoveryResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.DeltaDiscoveryResponse".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Resource {
    #[prost(string, tag = "1")]
    pub version: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub resource: ::core::option::Option<::prost_types::Any>,
    #[prost(string, tag = "3")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "4")]
    pub aliases: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(message, optional, tag = "6")]
    pub ttl: ::core::option::Option<::prost_types::Duration>,
}
impl ::prost::Name for Resource {
    const NAME: &'static str = "Resource";
    const PACKAGE: &'static str = "envoy.service.discovery.v3";
    fn full_name() -> ::prost::alloc::string::String {
        "envoy.service.discovery.v3.Resource".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/envoy.service.discovery.v3.Resource".into()
    }
}

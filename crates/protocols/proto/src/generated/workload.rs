//! Messages of package `istio.workload`, generated from `crates/protocols/proto/proto/istio/workload.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Address {
    #[prost(oneof = "address::Type", tags = "1, 2")]
    pub r#type: ::core::option::Option<address::Type>,
}
/// Nested message and enum types in `Address`.
pub mod address {
    #[derive(Clone, PartialEq, ::prost::Oneof)]
    pub enum Type {
        #[prost(message, tag = "1")]
        Workload(super::Workload),
        #[prost(message, tag = "2")]
        Service(super::Service),
    }
}
impl ::prost::Name for Address {
    const NAME: &'static str = "Address";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.Address".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.Address".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Service {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub hostname: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "4")]
    pub addresses: ::prost::alloc::vec::Vec<NetworkAddress>,
    #[prost(message, repeated, tag = "5")]
    pub ports: ::prost::alloc::vec::Vec<Port>,
    #[prost(string, repeated, tag = "6")]
    pub subject_alt_names: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(message, optional, tag = "7")]
    pub waypoint: ::core::option::Option<GatewayAddress>,
    #[prost(message, optional, tag = "8")]
    pub load_balancing: ::core::option::Option<LoadBalancing>,
    #[prost(enumeration = "IpFamilies", tag = "9")]
    pub ip_families: i32,
    #[prost(message, repeated, tag = "10")]
    pub extensions: ::prost::alloc::vec::Vec<Extension>,
    #[prost(bool, tag = "11")]
    pub canonical: bool,
    #[prost(bool, tag = "12")]
    pub ingress_use_waypoint: bool,
    #[prost(message, repeated, tag = "13")]
    pub weighted_waypoints: ::prost::alloc::vec::Vec<WeightedWaypoint>,
    #[prost(enumeration = "service::Visibility", tag = "14")]
    pub visibility: i32,
}
/// Nested message and enum types in `Service`.
pub mod service {
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
    pub enum Visibility {
        Public = 0,
        Namespace = 1,
    }
    impl Visibility {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::Public => "PUBLIC",
                Self::Namespace => "NAMESPACE",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "PUBLIC" => Some(Self::Public),
                "NAMESPACE" => Some(Self::Namespace),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for Service {
    const NAME: &'static str = "Service";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.Service".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.Service".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct LoadBalancing {
    #[prost(enumeration = "load_balancing::Scope", repeated, tag = "1")]
    pub routing_preference: ::prost::alloc::vec::Vec<i32>,
    #[prost(enumeration = "load_balancing::Mode", tag = "2")]
    pub mode: i32,
    #[prost(enumeration = "load_balancing::HealthPolicy", tag = "3")]
    pub health_policy: i32,
}
/// Nested message and enum types in `LoadBalancing`.
pub mod load_balancing {
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
    pub enum Scope {
        UnspecifiedScope = 0,
        Region = 1,
        Zone = 2,
        Subzone = 3,
        Node = 4,
        Cluster = 5,
        Network = 6,
    }
    impl Scope {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::UnspecifiedScope => "UNSPECIFIED_SCOPE",
                Self::Region => "REGION",
                Self::Zone => "ZONE",
                Self::Subzone => "SUBZONE",
                Self::Node => "NODE",
                Self::Cluster => "CLUSTER",
                Self::Network => "NETWORK",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "UNSPECIFIED_SCOPE" => Some(Self::UnspecifiedScope),
                "REGION" => Some(Self::Region),
                "ZONE" => Some(Self::Zone),
                "SUBZONE" => Some(Self::Subzone),
                "NODE" => Some(Self::Node),
                "CLUSTER" => Some(Self::Cluster),
                "NETWORK" => Some(Self::Network),
                _ => None,
            }
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
    pub enum Mode {
        UnspecifiedMode = 0,
        Strict = 1,
        Failover = 2,
        Passthrough = 3,
    }
    impl Mode {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::UnspecifiedMode => "UNSPECIFIED_MODE",
                Self::Strict => "STRICT",
                Self::Failover => "FAILOVER",
                Self::Passthrough => "PASSTHROUGH",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "UNSPECIFIED_MODE" => Some(Self::UnspecifiedMode),
                "STRICT" => Some(Self::Strict),
                "FAILOVER" => Some(Self::Failover),
                "PASSTHROUGH" => Some(Self::Passthrough),
                _ => None,
            }
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
    pub enum HealthPolicy {
        OnlyHealthy = 0,
        AllowAll = 1,
    }
    impl HealthPolicy {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::OnlyHealthy => "ONLY_HEALTHY",
                Self::AllowAll => "ALLOW_ALL",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "ONLY_HEALTHY" => Some(Self::OnlyHealthy),
                "ALLOW_ALL" => Some(Self::AllowAll),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for LoadBalancing {
    const NAME: &'static str = "LoadBalancing";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.LoadBalancing".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.LoadBalancing".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Workload {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub addresses: ::prost::alloc::vec::Vec<::prost::alloc::vec::Vec<u8>>,
    #[prost(string, tag = "4")]
    pub network: ::prost::alloc::string::String,
    #[prost(enumeration = "TunnelProtocol", tag = "5")]
    pub tunnel_protocol: i32,
    #[prost(string, tag = "6")]
    pub trust_domain: ::prost::alloc::string::String,
    #[prost(string, tag = "7")]
    pub service_account: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "8")]
    pub waypoint: ::core::option::Option<GatewayAddress>,
    #[prost(string, tag = "9")]
    pub node: ::prost::alloc::string::String,
    #[prost(string, tag = "10")]
    pub canonical_name: ::prost::alloc::string::String,
    #[prost(string, tag = "11")]
    pub canonical_revision: ::prost::alloc::string::String,
    #[prost(enumeration = "WorkloadType", tag = "12")]
    pub workload_type: i32,
    #[prost(string, tag = "13")]
    pub workload_name: ::prost::alloc::string::String,
    #[prost(bool, tag = "14")]
    pub native_tunnel: bool,
    #[prost(string, repeated, tag = "16")]
    pub authorization_policies: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(enumeration = "WorkloadStatus", tag = "17")]
    pub status: i32,
    #[prost(string, tag = "18")]
    pub cluster_id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "19")]
    pub network_gateway: ::core::option::Option<GatewayAddress>,
    #[prost(string, tag = "20")]
    pub uid: ::prost::alloc::string::String,
    #[prost(string, tag = "21")]
    pub hostname: ::prost::alloc::string::String,
    #[prost(btree_map = "string, message", tag = "22")]
    pub services: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        PortList,
    >,
    #[prost(message, optional, tag = "23")]
    pub application_tunnel: ::core::option::Option<ApplicationTunnel>,
    #[prost(message, optional, tag = "24")]
    pub locality: ::core::option::Option<Locality>,
    #[prost(enumeration = "NetworkMode", tag = "25")]
    pub network_mode: i32,
    #[prost(message, repeated, tag = "26")]
    pub extensions: ::prost::alloc::vec::Vec<Extension>,
    #[prost(message, optional, tag = "27")]
    pub capacity: ::core::option::Option<u32>,
}
impl ::prost::Name for Workload {
    const NAME: &'static str = "Workload";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.Workload".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.Workload".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Locality {
    #[prost(string, tag = "1")]
    pub region: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub zone: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub subzone: ::prost::alloc::string::String,
}
impl ::prost::Name for Locality {
    const NAME: &'static str = "Locality";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.Locality".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.Locality".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PortList {
    #[prost(message, repeated, tag = "1")]
    pub ports: ::prost::alloc::vec::Vec<Port>,
}
impl ::prost::Name for PortList {
    const NAME: &'static str = "PortList";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.PortList".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.PortList".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Port {
    #[prost(uint32, tag = "1")]
    pub service_port: u32,
    #[prost(uint32, tag = "2")]
    pub target_port: u32,
    #[prost(enumeration = "AppProtocol", tag = "3")]
    pub app_protocol: i32,
}
impl ::prost::Name for Port {
    const NAME: &'static str = "Port";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.Port".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.Port".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ApplicationTunnel {
    #[prost(enumeration = "application_tunnel::Protocol", tag = "1")]
    pub protocol: i32,
    #[prost(uint32, tag = "2")]
    pub port: u32,
}
/// Nested message and enum types in `ApplicationTunnel`.
pub mod application_tunnel {
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
    pub enum Protocol {
        None = 0,
        Proxy = 1,
    }
    impl Protocol {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::None => "NONE",
                Self::Proxy => "PROXY",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "NONE" => Some(Self::None),
                "PROXY" => Some(Self::Proxy),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for ApplicationTunnel {
    const NAME: &'static str = "ApplicationTunnel";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.ApplicationTunnel".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.ApplicationTunnel".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct GatewayAddress {
    #[prost(uint32, tag = "3")]
    pub hbone_mtls_port: u32,
    #[prost(oneof = "gateway_address::Destination", tags = "1, 2")]
    pub destination: ::core::option::Option<gateway_address::Destination>,
}
/// Nested message and enum types in `GatewayAddress`.
pub mod gateway_address {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Destination {
        #[prost(message, tag = "1")]
        Hostname(super::NamespacedHostname),
        #[prost(message, tag = "2")]
        Address(super::NetworkAddress),
    }
}
impl ::prost::Name for GatewayAddress {
    const NAME: &'static str = "GatewayAddress";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.GatewayAddress".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.GatewayAddress".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WeightedWaypoint {
    #[prost(message, optional, tag = "1")]
    pub destination: ::core::option::Option<GatewayAddress>,
    #[prost(uint32, tag = "2")]
    pub weight: u32,
}
impl ::prost::Name for WeightedWaypoint {
    const NAME: &'static str = "WeightedWaypoint";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.WeightedWaypoint".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.WeightedWaypoint".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct NetworkAddress {
    #[prost(string, tag = "1")]
    pub network: ::prost::alloc::string::String,
    #[prost(bytes = "vec", tag = "2")]
    pub address: ::prost::alloc::vec::Vec<u8>,
    #[prost(uint32, optional, tag = "3")]
    pub length: ::core::option::Option<u32>,
}
impl ::prost::Name for NetworkAddress {
    const NAME: &'static str = "NetworkAddress";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.NetworkAddress".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.NetworkAddress".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct NamespacedHostname {
    #[prost(string, tag = "1")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub hostname: ::prost::alloc::string::String,
}
impl ::prost::Name for NamespacedHostname {
    const NAME: &'static str = "NamespacedHostname";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.NamespacedHostname".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.NamespacedHostname".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Extension {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub config: ::core::option::Option<::prost_types::Any>,
}
impl ::prost::Name for Extension {
    const NAME: &'static str = "Extension";
    const PACKAGE: &'static str = "istio.workload";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.Extension".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.Extension".into()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum IpFamilies {
    Automatic = 0,
    Ipv4Only = 1,
    Ipv6Only = 2,
    Dual = 3,
}
impl IpFamilies {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Automatic => "AUTOMATIC",
            Self::Ipv4Only => "IPV4_ONLY",
            Self::Ipv6Only => "IPV6_ONLY",
            Self::Dual => "DUAL",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "AUTOMATIC" => Some(Self::Automatic),
            "IPV4_ONLY" => Some(Self::Ipv4Only),
            "IPV6_ONLY" => Some(Self::Ipv6Only),
            "DUAL" => Some(Self::Dual),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum NetworkMode {
    Standard = 0,
    HostNetwork = 1,
}
impl NetworkMode {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Standard => "STANDARD",
            Self::HostNetwork => "HOST_NETWORK",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "STANDARD" => Some(Self::Standard),
            "HOST_NETWORK" => Some(Self::HostNetwork),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum WorkloadStatus {
    Healthy = 0,
    Unhealthy = 1,
}
impl WorkloadStatus {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Healthy => "HEALTHY",
            Self::Unhealthy => "UNHEALTHY",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "HEALTHY" => Some(Self::Healthy),
            "UNHEALTHY" => Some(Self::Unhealthy),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum WorkloadType {
    Deployment = 0,
    Cronjob = 1,
    Pod = 2,
    Job = 3,
}
impl WorkloadType {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Deployment => "DEPLOYMENT",
            Self::Cronjob => "CRONJOB",
            Self::Pod => "POD",
            Self::Job => "JOB",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "DEPLOYMENT" => Some(Self::Deployment),
            "CRONJOB" => Some(Self::Cronjob),
            "POD" => Some(Self::Pod),
            "JOB" => Some(Self::Job),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum AppProtocol {
    Unknown = 0,
    Http11 = 1,
    Http2 = 2,
    Grpc = 3,
    Tcp = 4,
    Tls = 5,
}
impl AppProtocol {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Http11 => "HTTP11",
            Self::Http2 => "HTTP2",
            Self::Grpc => "GRPC",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "UNKNOWN" => Some(Self::Unknown),
            "HTTP11" => Some(Self::Http11),
            "HTTP2" => Some(Self::Http2),
            "GRPC" => Some(Self::Grpc),
            "TCP" => Some(Self::Tcp),
            "TLS" => Some(Self::Tls),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum TunnelProtocol {
    None = 0,
    Hbone = 1,
    LegacyIstioMtls = 2,
}
impl TunnelProtocol {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Hbone => "HBONE",
            Self::LegacyIstioMtls => "LEGACY_ISTIO_MTLS",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "NONE" => Some(Self::None),
            "HBONE" => Some(Self::Hbone),
            "LEGACY_ISTIO_MTLS" => Some(Self::LegacyIstioMtls),
            _ => None,
        }
    }
}

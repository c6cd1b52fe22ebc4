//! Messages of package `istio.workload.zds`, generated from `crates/protocols/proto/proto/istio/zds.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

/// The proxy's first word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ZdsHello {
    #[prost(enumeration = "Version", tag = "1")]
    pub version: i32,
}
impl ::prost::Name for ZdsHello {
    const NAME: &'static str = "ZdsHello";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.ZdsHello".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.ZdsHello".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WorkloadInfo {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub service_account: ::prost::alloc::string::String,
}
impl ::prost::Name for WorkloadInfo {
    const NAME: &'static str = "WorkloadInfo";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.WorkloadInfo".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.WorkloadInfo".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AddWorkload {
    #[prost(string, tag = "1")]
    pub uid: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub workload_info: ::core::option::Option<WorkloadInfo>,
}
impl ::prost::Name for AddWorkload {
    const NAME: &'static str = "AddWorkload";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.AddWorkload".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.AddWorkload".into()
    }
}
/// The agent no longer has the namespace's descriptor; whoever serves the workload goes on.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct KeepWorkload {
    #[prost(string, tag = "1")]
    pub uid: ::prost::alloc::string::String,
}
impl ::prost::Name for KeepWorkload {
    const NAME: &'static str = "KeepWorkload";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.KeepWorkload".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.KeepWorkload".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct DelWorkload {
    #[prost(string, tag = "2")]
    pub uid: ::prost::alloc::string::String,
}
impl ::prost::Name for DelWorkload {
    const NAME: &'static str = "DelWorkload";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.DelWorkload".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.DelWorkload".into()
    }
}
/// Everything there is was said: what was not named is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SnapshotSent {}
impl ::prost::Name for SnapshotSent {
    const NAME: &'static str = "SnapshotSent";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.SnapshotSent".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.SnapshotSent".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WorkloadRequest {
    #[prost(oneof = "workload_request::Payload", tags = "1, 5, 2, 3")]
    pub payload: ::core::option::Option<workload_request::Payload>,
}
/// Nested message and enum types in `WorkloadRequest`.
pub mod workload_request {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Payload {
        #[prost(message, tag = "1")]
        Add(super::AddWorkload),
        #[prost(message, tag = "5")]
        Keep(super::KeepWorkload),
        #[prost(message, tag = "2")]
        Del(super::DelWorkload),
        #[prost(message, tag = "3")]
        SnapshotSent(super::SnapshotSent),
    }
}
impl ::prost::Name for WorkloadRequest {
    const NAME: &'static str = "WorkloadRequest";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.WorkloadRequest".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.WorkloadRequest".into()
    }
}
/// An empty error is a yes.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Ack {
    #[prost(string, tag = "1")]
    pub error: ::prost::alloc::string::String,
}
impl ::prost::Name for Ack {
    const NAME: &'static str = "Ack";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.Ack".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.Ack".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WorkloadResponse {
    #[prost(oneof = "workload_response::Payload", tags = "1")]
    pub payload: ::core::option::Option<workload_response::Payload>,
}
/// Nested message and enum types in `WorkloadResponse`.
pub mod workload_response {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Payload {
        #[prost(message, tag = "1")]
        Ack(super::Ack),
    }
}
impl ::prost::Name for WorkloadResponse {
    const NAME: &'static str = "WorkloadResponse";
    const PACKAGE: &'static str = "istio.workload.zds";
    fn full_name() -> ::prost::alloc::string::String {
        "istio.workload.zds.WorkloadResponse".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/istio.workload.zds.WorkloadResponse".into()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Version {
    NotUsed = 0,
    V1 = 1,
}
impl Version {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::NotUsed => "NOT_USED",
            Self::V1 => "V1",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "NOT_USED" => Some(Self::NotUsed),
            "V1" => Some(Self::V1),
            _ => None,
        }
    }
}

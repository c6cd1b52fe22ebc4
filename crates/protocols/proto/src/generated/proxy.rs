//! Messages of package `voile.proxy.v1`, generated from `crates/protocols/proto/proto/voile/proxy.proto`.
//! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,
//! and the test `generated_code_is_fresh` keeps it true.

/// Everything one sidecar must listen on and obey. Resource name: `namespace/workload-name` of the
/// workload the proxy stands for; the caller's identity must be that workload's.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ProxyConfiguration {
    /// uid of this workload's istio.workload.Workload; the proxy subscribes to it for its own labels.
    #[prost(string, tag = "1")]
    pub workload_uid: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub trust_domain: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "3")]
    pub trust_domain_aliases: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(message, repeated, tag = "4")]
    pub inbound: ::prost::alloc::vec::Vec<InboundListener>,
    #[prost(message, repeated, tag = "5")]
    pub outbound: ::prost::alloc::vec::Vec<OutboundListener>,
    #[prost(enumeration = "OutboundPolicy", tag = "6")]
    pub outbound_policy: i32,
    #[prost(message, optional, tag = "7")]
    pub connection: ::core::option::Option<ConnectionSettings>,
    /// Address upstream sockets bind (the pod's), 4 or 16 bytes; empty = the kernel chooses.
    #[prost(bytes = "vec", tag = "9")]
    pub source_address: ::prost::alloc::vec::Vec<u8>,
    /// What to do with connections that the kernel redirects here; obeyed by proxies that capture.
    #[prost(message, optional, tag = "10")]
    pub capture: ::core::option::Option<Capture>,
    /// Absent: metrics, and neither logs nor spans.
    #[prost(message, optional, tag = "12")]
    pub telemetry: ::core::option::Option<Telemetry>,
    /// What the proxy carries at most, where its command line does not say.
    #[prost(message, optional, tag = "13")]
    pub limits: ::core::option::Option<Limits>,
    /// Every AuthorizationPolicy that holds for this workload, with the version that belongs to this configuration: a proxy
    /// obeys neither before it holds them all.
    #[prost(message, repeated, tag = "14")]
    pub authorization_policies: ::prost::alloc::vec::Vec<PolicyReference>,
    #[prost(enumeration = "PathNormalization", tag = "15")]
    pub path_normalization: i32,
    /// Proxies in front of this one whose word in `x-forwarded-for` is believed; 0 believes nobody's.
    #[prost(uint32, tag = "16")]
    pub trusted_proxies: u32,
    /// Every RequestAuthentication that holds for this workload, as for AuthorizationPolicies.
    #[prost(message, repeated, tag = "17")]
    pub request_authentications: ::prost::alloc::vec::Vec<PolicyReference>,
    /// The key sets that those name: a proxy obeys nothing before it holds them, too.
    #[prost(string, repeated, tag = "18")]
    pub key_sets: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Whom the CUSTOM policies above ask. One that cannot be asked at all is missing: what would ask it is denied.
    #[prost(message, repeated, tag = "20")]
    pub authorizers: ::prost::alloc::vec::Vec<Authorizer>,
    /// Whoever connects in plaintext says by a PROXY header for whom.
    #[prost(bool, tag = "30")]
    pub proxy_protocol: bool,
    /// What becomes of `x-forwarded-client-cert`.
    #[prost(enumeration = "ForwardClientCertificate", tag = "33")]
    pub forward_client_certificate: i32,
    /// What of a client's certificate is told, where it is. Absent: its hash alone.
    #[prost(message, optional, tag = "34")]
    pub client_certificate_details: ::core::option::Option<ClientCertificateDetails>,
    /// The workload's own: routes may hold for callers with certain labels only.
    #[prost(message, repeated, tag = "31")]
    pub labels: ::prost::alloc::vec::Vec<Label>,
    /// How the application is asked whether it is well; what comes of it is told to the control plane. Absent: it is not asked.
    #[prost(message, optional, tag = "32")]
    pub health_probe: ::core::option::Option<HealthProbe>,
    /// The workload is a gateway: these are its listeners, and it has no others. Refused by proxies of other roles, as is a
    /// configuration without it by gateways.
    #[prost(message, optional, tag = "40")]
    pub gateway: ::core::option::Option<Gateway>,
    /// How many requests the workload takes: every RateLimit that holds for it.
    #[prost(message, repeated, tag = "50")]
    pub rate_limits: ::prost::alloc::vec::Vec<RateLimit>,
    /// How the endpoints of what is called are asked whether they are well: every HealthCheck by which this proxy asks. Of those that
    /// are for one destination the first holds.
    #[prost(message, repeated, tag = "51")]
    pub health_checks: ::prost::alloc::vec::Vec<HealthCheck>,
    /// The workload is a waypoint: this is what it takes, and it takes nothing else. Refused by proxies of other roles, as is a
    /// configuration without it by waypoints.
    #[prost(message, optional, tag = "60")]
    pub waypoint: ::core::option::Option<Waypoint>,
}
impl ::prost::Name for ProxyConfiguration {
    const NAME: &'static str = "ProxyConfiguration";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ProxyConfiguration".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ProxyConfiguration".into()
    }
}
/// A RateLimit: the first of its rules that takes a request counts.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RateLimit {
    /// `namespace/name`.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub rules: ::prost::alloc::vec::Vec<LimitRule>,
    /// Who counts what rules describe, for several proxies together. Absent: no rule describes anything.
    #[prost(message, optional, tag = "3")]
    pub global: ::core::option::Option<GlobalLimits>,
    /// Of a waypoint's: hosts of the services whose requests it counts. None: all that the proxy takes.
    #[prost(string, repeated, tag = "4")]
    pub hosts: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for RateLimit {
    const NAME: &'static str = "RateLimit";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RateLimit".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RateLimit".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct GlobalLimits {
    /// `namespace/hostname`. Empty: there is no such service, and nobody can be asked.
    #[prost(string, tag = "1")]
    pub service: ::prost::alloc::string::String,
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// Whose limits it is asked for.
    #[prost(string, tag = "3")]
    pub domain: ::prost::alloc::string::String,
    /// Milliseconds; never 0.
    #[prost(uint32, tag = "4")]
    pub timeout_ms: u32,
    /// What it would have been asked about passes while it cannot be.
    #[prost(bool, tag = "5")]
    pub fail_open: bool,
}
impl ::prost::Name for GlobalLimits {
    const NAME: &'static str = "GlobalLimits";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GlobalLimits".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GlobalLimits".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LimitRule {
    /// What clients read it is called.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// One of these; none matches everything. Neither ports nor labels of callers are asked.
    #[prost(message, repeated, tag = "2")]
    pub matches: ::prost::alloc::vec::Vec<RequestMatch>,
    /// All of them hold; none lets everything pass.
    #[prost(message, repeated, tag = "3")]
    pub limits: ::prost::alloc::vec::Vec<RequestLimit>,
    /// What the service that counts for all is told of a request that the limits let pass; nothing: it is not asked.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: ::prost::alloc::vec::Vec<LimitDescriptor>,
    /// How much each request counts there; 0 is 1.
    #[prost(uint32, tag = "5")]
    pub hits: u32,
}
impl ::prost::Name for LimitRule {
    const NAME: &'static str = "LimitRule";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.LimitRule".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.LimitRule".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: ::prost::alloc::vec::Vec<LimitEntry>,
}
impl ::prost::Name for LimitDescriptor {
    const NAME: &'static str = "LimitDescriptor";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.LimitDescriptor".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.LimitDescriptor".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct LimitEntry {
    #[prost(string, tag = "1")]
    pub key: ::prost::alloc::string::String,
    #[prost(oneof = "limit_entry::Says", tags = "2, 3, 4")]
    pub says: ::core::option::Option<limit_entry::Says>,
}
/// Nested message and enum types in `LimitEntry`.
pub mod limit_entry {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Says {
        #[prost(string, tag = "2")]
        Text(::prost::alloc::string::String),
        /// Its name, in lower case.
        #[prost(string, tag = "3")]
        Header(::prost::alloc::string::String),
        #[prost(enumeration = "super::RequestSubject", tag = "4")]
        Subject(i32),
    }
}
impl ::prost::Name for LimitEntry {
    const NAME: &'static str = "LimitEntry";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.LimitEntry".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.LimitEntry".into()
    }
}
/// A bucket of tokens, or one for each key.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RequestLimit {
    /// So many requests in each time, in nanoseconds, and so many at once; none is 0.
    #[prost(uint32, tag = "1")]
    pub requests: u32,
    #[prost(uint64, tag = "2")]
    pub per_ns: u64,
    #[prost(uint32, tag = "3")]
    pub burst: u32,
    /// What requests are told apart by; by none of these, they have one bucket together. Names of headers in lower case.
    #[prost(bool, tag = "4")]
    pub by_identity: bool,
    #[prost(bool, tag = "5")]
    pub by_address: bool,
    #[prost(string, repeated, tag = "6")]
    pub by_headers: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Keys that are told apart.
    #[prost(uint32, tag = "7")]
    pub keys: u32,
}
impl ::prost::Name for RequestLimit {
    const NAME: &'static str = "RequestLimit";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RequestLimit".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RequestLimit".into()
    }
}
/// How a proxy asks the endpoints that it balances to. Exactly one of http, grpc and tcp.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HealthCheck {
    /// `namespace/name`.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// The host whose endpoints are asked.
    #[prost(string, tag = "2")]
    pub host: ::prost::alloc::string::String,
    /// Of its ports this one; 0 is each.
    #[prost(uint32, tag = "3")]
    pub port: u32,
    /// For services of this namespace; empty is any.
    #[prost(string, tag = "4")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "5")]
    pub http: ::core::option::Option<HttpCheck>,
    #[prost(message, optional, tag = "6")]
    pub grpc: ::core::option::Option<GrpcCheck>,
    #[prost(message, optional, tag = "7")]
    pub tcp: ::core::option::Option<TcpCheck>,
    /// Milliseconds; never 0, and the timeout never longer than the interval.
    #[prost(uint32, tag = "8")]
    pub interval_ms: u32,
    #[prost(uint32, tag = "9")]
    pub timeout_ms: u32,
    /// In hundredths of the interval; at most 100.
    #[prost(uint32, tag = "10")]
    pub jitter_percent: u32,
    /// Answers in a row; never 0.
    #[prost(uint32, tag = "11")]
    pub healthy_threshold: u32,
    #[prost(uint32, tag = "12")]
    pub unhealthy_threshold: u32,
    /// While fewer than these in 100 are well, all take traffic; 0: never.
    #[prost(uint32, tag = "13")]
    pub panic_percent: u32,
}
impl ::prost::Name for HealthCheck {
    const NAME: &'static str = "HealthCheck";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HealthCheck".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HealthCheck".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HttpCheck {
    #[prost(string, tag = "1")]
    pub path: ::prost::alloc::string::String,
    /// What the request names; empty is the destination's own host.
    #[prost(string, tag = "2")]
    pub host: ::prost::alloc::string::String,
    /// Statuses that are good; at least one range.
    #[prost(message, repeated, tag = "3")]
    pub expected: ::prost::alloc::vec::Vec<StatusRange>,
}
impl ::prost::Name for HttpCheck {
    const NAME: &'static str = "HttpCheck";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HttpCheck".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HttpCheck".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StatusRange {
    #[prost(uint32, tag = "1")]
    pub start: u32,
    /// Not itself among them.
    #[prost(uint32, tag = "2")]
    pub end: u32,
}
impl ::prost::Name for StatusRange {
    const NAME: &'static str = "StatusRange";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.StatusRange".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.StatusRange".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct GrpcCheck {
    /// The service that is asked about; empty is the server as a whole.
    #[prost(string, tag = "1")]
    pub service: ::prost::alloc::string::String,
}
impl ::prost::Name for GrpcCheck {
    const NAME: &'static str = "GrpcCheck";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GrpcCheck".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GrpcCheck".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TcpCheck {}
impl ::prost::Name for TcpCheck {
    const NAME: &'static str = "TcpCheck";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TcpCheck".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TcpCheck".into()
    }
}
/// The probe of a WorkloadGroup.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HealthProbe {
    /// Where the application is asked, 4 or 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub address: ::prost::alloc::vec::Vec<u8>,
    /// Exactly one of the four.
    #[prost(message, optional, tag = "2")]
    pub http: ::core::option::Option<HttpProbe>,
    #[prost(message, optional, tag = "3")]
    pub tcp: ::core::option::Option<TcpProbe>,
    #[prost(message, optional, tag = "4")]
    pub grpc: ::core::option::Option<GrpcProbe>,
    #[prost(message, optional, tag = "5")]
    pub exec: ::core::option::Option<ExecProbe>,
    #[prost(uint32, tag = "6")]
    pub initial_delay_ms: u32,
    /// Never 0.
    #[prost(uint32, tag = "7")]
    pub period_ms: u32,
    #[prost(uint32, tag = "8")]
    pub timeout_ms: u32,
    #[prost(uint32, tag = "9")]
    pub success_threshold: u32,
    #[prost(uint32, tag = "10")]
    pub failure_threshold: u32,
}
impl ::prost::Name for HealthProbe {
    const NAME: &'static str = "HealthProbe";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HealthProbe".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HealthProbe".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HttpProbe {
    #[prost(uint32, tag = "1")]
    pub port: u32,
    #[prost(bool, tag = "2")]
    pub tls: bool,
    #[prost(string, tag = "3")]
    pub path: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "4")]
    pub headers: ::prost::alloc::vec::Vec<ProbeHeader>,
}
impl ::prost::Name for HttpProbe {
    const NAME: &'static str = "HttpProbe";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HttpProbe".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HttpProbe".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ProbeHeader {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
}
impl ::prost::Name for ProbeHeader {
    const NAME: &'static str = "ProbeHeader";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ProbeHeader".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ProbeHeader".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TcpProbe {
    #[prost(uint32, tag = "1")]
    pub port: u32,
}
impl ::prost::Name for TcpProbe {
    const NAME: &'static str = "TcpProbe";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TcpProbe".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TcpProbe".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct GrpcProbe {
    #[prost(uint32, tag = "1")]
    pub port: u32,
    #[prost(string, tag = "2")]
    pub service: ::prost::alloc::string::String,
}
impl ::prost::Name for GrpcProbe {
    const NAME: &'static str = "GrpcProbe";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GrpcProbe".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GrpcProbe".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ExecProbe {
    #[prost(string, repeated, tag = "1")]
    pub command: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for ExecProbe {
    const NAME: &'static str = "ExecProbe";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ExecProbe".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ExecProbe".into()
    }
}
/// An external service that decides about requests and connections: one of the mesh, reached as the application's own calls
/// are.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Authorizer {
    /// The provider's name, as policies say it.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// `namespace/hostname`.
    #[prost(string, tag = "2")]
    pub service: ::prost::alloc::string::String,
    #[prost(uint32, tag = "3")]
    pub port: u32,
    /// Milliseconds; 0 = the named default.
    #[prost(uint32, tag = "4")]
    pub timeout_ms: u32,
    /// What would have been asked passes while it cannot be.
    #[prost(bool, tag = "5")]
    pub fail_open: bool,
    /// What clients are told when it cannot be asked; 0 = 403.
    #[prost(uint32, tag = "6")]
    pub status_on_error: u32,
    /// Absent: it is not shown bodies.
    #[prost(message, optional, tag = "7")]
    pub body: ::core::option::Option<AuthorizerBody>,
    /// Absent: it is asked over gRPC.
    #[prost(message, optional, tag = "8")]
    pub http: ::core::option::Option<AuthorizerHttp>,
}
impl ::prost::Name for Authorizer {
    const NAME: &'static str = "Authorizer";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Authorizer".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Authorizer".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AuthorizerBody {
    /// Most bytes of a body that are held and shown; never 0.
    #[prost(uint32, tag = "1")]
    pub max_bytes: u32,
    /// A longer body is shown in part, and not refused.
    #[prost(bool, tag = "2")]
    pub allow_partial: bool,
    /// gRPC: as bytes, not as text.
    #[prost(bool, tag = "3")]
    pub pack_as_bytes: bool,
}
impl ::prost::Name for AuthorizerBody {
    const NAME: &'static str = "AuthorizerBody";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizerBody".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizerBody".into()
    }
}
/// Names are in lower case and may begin or end with `*`.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AuthorizerHttp {
    /// Before the request's own path.
    #[prost(string, tag = "1")]
    pub path_prefix: ::prost::alloc::string::String,
    /// Headers of the request that it is told.
    #[prost(string, repeated, tag = "2")]
    pub request_headers: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Headers that it is told whatever the request says.
    #[prost(message, repeated, tag = "3")]
    pub additional_headers: ::prost::alloc::vec::Vec<AuthorizerHeader>,
    /// Headers of its yes that the application is told, in place of the request's.
    #[prost(string, repeated, tag = "4")]
    pub upstream_on_allow: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Headers of its no that the client is told; none: all of them.
    #[prost(string, repeated, tag = "5")]
    pub downstream_on_deny: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Headers of its yes that the client is told.
    #[prost(string, repeated, tag = "6")]
    pub downstream_on_allow: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for AuthorizerHttp {
    const NAME: &'static str = "AuthorizerHttp";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizerHttp".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizerHttp".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AuthorizerHeader {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
}
impl ::prost::Name for AuthorizerHeader {
    const NAME: &'static str = "AuthorizerHeader";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizerHeader".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizerHeader".into()
    }
}
/// The certificates of this mesh's authorities that are taken back, and the authorities themselves. There is one, named `mesh`; a
/// proxy obeys nothing before it holds it or knows that there is none.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RevocationLists {
    /// X.509 CRLs in DER.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub lists: ::prost::alloc::vec::Vec<::prost::alloc::vec::Vec<u8>>,
    /// Roots of the mesh in DER, trusted beside those that came with the certificate.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub roots: ::prost::alloc::vec::Vec<::prost::alloc::vec::Vec<u8>>,
    /// Key identifier of the authority that signs now, as in the certificates that it signs. A proxy whose certificate has another
    /// one renews it soon.
    #[prost(bytes = "vec", tag = "3")]
    pub issuer_key_id: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for RevocationLists {
    const NAME: &'static str = "RevocationLists";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RevocationLists".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RevocationLists".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PolicyReference {
    /// `namespace/name`, the resource name of the AuthorizationPolicy.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// The version of that resource.
    #[prost(string, tag = "2")]
    pub version: ::prost::alloc::string::String,
}
impl ::prost::Name for PolicyReference {
    const NAME: &'static str = "PolicyReference";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.PolicyReference".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.PolicyReference".into()
    }
}
/// One policy, for every proxy that obeys it. Resource name: `namespace/name`. Texts are Istio's own (`abc*`, `*abc`, `*`);
/// a service account has its namespace. A policy that a proxy cannot read denies everything there.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AuthorizationPolicy {
    #[prost(enumeration = "AuthorizationAction", tag = "1")]
    pub action: i32,
    /// It is counted and logged, and decides nothing.
    #[prost(bool, tag = "2")]
    pub dry_run: bool,
    /// Of CUSTOM: the name of the external service.
    #[prost(string, tag = "3")]
    pub provider: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "4")]
    pub rules: ::prost::alloc::vec::Vec<AuthorizationRule>,
}
impl ::prost::Name for AuthorizationPolicy {
    const NAME: &'static str = "AuthorizationPolicy";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizationPolicy".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizationPolicy".into()
    }
}
/// Whose tokens are believed. Resource name: `namespace/name`. Rules of several of these count together. One that a proxy
/// cannot read refuses every request there.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RequestAuthentication {
    #[prost(message, repeated, tag = "1")]
    pub rules: ::prost::alloc::vec::Vec<TokenRule>,
}
impl ::prost::Name for RequestAuthentication {
    const NAME: &'static str = "RequestAuthentication";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RequestAuthentication".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RequestAuthentication".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct TokenRule {
    /// Empty: anybody's.
    #[prost(string, tag = "1")]
    pub issuer: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "2")]
    pub audiences: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Name of a KeySet. Empty: the keys are not known yet, and tokens of the issuer are refused.
    #[prost(string, tag = "3")]
    pub key_set: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "4")]
    pub from_headers: ::prost::alloc::vec::Vec<TokenHeader>,
    #[prost(string, repeated, tag = "5")]
    pub from_params: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "6")]
    pub from_cookies: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(bool, tag = "7")]
    pub forward_original: bool,
    /// Empty: none.
    #[prost(string, tag = "8")]
    pub output_payload_to_header: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "9")]
    pub output_claims: ::prost::alloc::vec::Vec<ClaimHeader>,
    /// Besides `scope` and `permission`.
    #[prost(string, repeated, tag = "10")]
    pub space_delimited_claims: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// A request without a good token of this rule is refused, whatever other tokens it has.
    #[prost(bool, tag = "11")]
    pub required: bool,
}
impl ::prost::Name for TokenRule {
    const NAME: &'static str = "TokenRule";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TokenRule".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TokenRule".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TokenHeader {
    /// Lower case.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub prefix: ::prost::alloc::string::String,
}
impl ::prost::Name for TokenHeader {
    const NAME: &'static str = "TokenHeader";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TokenHeader".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TokenHeader".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ClaimHeader {
    /// Lower case.
    #[prost(string, tag = "1")]
    pub header: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub claim: ::prost::alloc::string::String,
}
impl ::prost::Name for ClaimHeader {
    const NAME: &'static str = "ClaimHeader";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ClaimHeader".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ClaimHeader".into()
    }
}
/// A JSON Web Key Set of public keys. Resource name: a hash of its text, so that what has a name never changes.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct KeySet {
    #[prost(string, tag = "1")]
    pub jwks: ::prost::alloc::string::String,
}
impl ::prost::Name for KeySet {
    const NAME: &'static str = "KeySet";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.KeySet".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.KeySet".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AuthorizationRule {
    #[prost(message, repeated, tag = "1")]
    pub from: ::prost::alloc::vec::Vec<AuthorizationSource>,
    #[prost(message, repeated, tag = "2")]
    pub to: ::prost::alloc::vec::Vec<AuthorizationOperation>,
    #[prost(message, repeated, tag = "3")]
    pub when: ::prost::alloc::vec::Vec<AuthorizationCondition>,
}
impl ::prost::Name for AuthorizationRule {
    const NAME: &'static str = "AuthorizationRule";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizationRule".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizationRule".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Matches {
    #[prost(string, repeated, tag = "1")]
    pub values: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "2")]
    pub not_values: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for Matches {
    const NAME: &'static str = "Matches";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Matches".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Matches".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AuthorizationSource {
    #[prost(message, optional, tag = "1")]
    pub principals: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "2")]
    pub request_principals: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "3")]
    pub namespaces: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "4")]
    pub service_accounts: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "5")]
    pub trust_domains: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "6")]
    pub ip_blocks: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "7")]
    pub remote_ip_blocks: ::core::option::Option<Matches>,
}
impl ::prost::Name for AuthorizationSource {
    const NAME: &'static str = "AuthorizationSource";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizationSource".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizationSource".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AuthorizationOperation {
    #[prost(message, optional, tag = "1")]
    pub hosts: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "2")]
    pub ports: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "3")]
    pub methods: ::core::option::Option<Matches>,
    #[prost(message, optional, tag = "4")]
    pub paths: ::core::option::Option<Matches>,
}
impl ::prost::Name for AuthorizationOperation {
    const NAME: &'static str = "AuthorizationOperation";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizationOperation".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizationOperation".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AuthorizationCondition {
    #[prost(string, tag = "1")]
    pub key: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub matches: ::core::option::Option<Matches>,
}
impl ::prost::Name for AuthorizationCondition {
    const NAME: &'static str = "AuthorizationCondition";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AuthorizationCondition".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AuthorizationCondition".into()
    }
}
/// 0 = none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Limits {
    /// Downstream connections.
    #[prost(uint32, tag = "1")]
    pub connections: u32,
    /// Requests in flight, of all clients to all destinations.
    #[prost(uint32, tag = "2")]
    pub requests: u32,
    /// Requests in flight to one port of one service.
    #[prost(uint32, tag = "3")]
    pub requests_per_destination: u32,
    /// Resident memory in bytes. 0 = the cgroup's.
    #[prost(uint64, tag = "4")]
    pub memory_bytes: u64,
    /// How long a service that is not used any more is followed. 0 = the proxy's own.
    #[prost(uint32, tag = "5")]
    pub service_idle_ms: u32,
}
impl ::prost::Name for Limits {
    const NAME: &'static str = "Limits";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Limits".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Limits".into()
    }
}
/// Inbound half of transparent capture. Outbound destinations are asked for one by one, as they are called.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Capture {
    /// Mode of workload ports that are not listed.
    #[prost(enumeration = "MutualTls", tag = "1")]
    pub mutual_tls: i32,
    #[prost(message, repeated, tag = "2")]
    pub ports: ::prost::alloc::vec::Vec<CapturedPort>,
    /// Where workloads with sidecars and virtual addresses are, in broad strokes: what is unknown there while nobody can be
    /// asked may need mutual TLS, and is not called in plaintext.
    #[prost(message, repeated, tag = "3")]
    pub mesh_ranges: ::prost::alloc::vec::Vec<AddressRange>,
    /// Whether only these services exist for this workload (a Sidecar's `egress.hosts`); none of them may be none at all.
    #[prost(bool, tag = "4")]
    pub limited: bool,
    #[prost(message, repeated, tag = "5")]
    pub reachable: ::prost::alloc::vec::Vec<ReachableHosts>,
}
impl ::prost::Name for Capture {
    const NAME: &'static str = "Capture";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Capture".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Capture".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ReachableHosts {
    /// Empty is any.
    #[prost(string, tag = "1")]
    pub namespace: ::prost::alloc::string::String,
    /// May begin with `*.`, or be `*`.
    #[prost(string, tag = "2")]
    pub host: ::prost::alloc::string::String,
}
impl ::prost::Name for ReachableHosts {
    const NAME: &'static str = "ReachableHosts";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ReachableHosts".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ReachableHosts".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AddressRange {
    /// 4 or 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub address: ::prost::alloc::vec::Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub prefix: u32,
}
impl ::prost::Name for AddressRange {
    const NAME: &'static str = "AddressRange";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AddressRange".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AddressRange".into()
    }
}
/// One port of the workload, as callers name it.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CapturedPort {
    #[prost(uint32, tag = "1")]
    pub port: u32,
    #[prost(enumeration = "Protocol", tag = "2")]
    pub protocol: i32,
    #[prost(enumeration = "MutualTls", tag = "3")]
    pub mutual_tls: i32,
    /// The service whose target port this is, for metrics; may be empty. `namespace/hostname`.
    #[prost(string, tag = "4")]
    pub service: ::prost::alloc::string::String,
    #[prost(uint32, tag = "5")]
    pub service_port: u32,
    /// Where the application listens, when that is not where the caller called.
    #[prost(message, optional, tag = "6")]
    pub endpoint: ::core::option::Option<SocketAddress>,
}
impl ::prost::Name for CapturedPort {
    const NAME: &'static str = "CapturedPort";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.CapturedPort".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.CapturedPort".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SocketAddress {
    /// 4 or 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub address: ::prost::alloc::vec::Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub port: u32,
}
impl ::prost::Name for SocketAddress {
    const NAME: &'static str = "SocketAddress";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.SocketAddress".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.SocketAddress".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct InboundListener {
    #[prost(message, optional, tag = "1")]
    pub bind: ::core::option::Option<SocketAddress>,
    #[prost(enumeration = "Protocol", tag = "2")]
    pub protocol: i32,
    #[prost(enumeration = "MutualTls", tag = "3")]
    pub mutual_tls: i32,
    /// Where the application listens.
    #[prost(message, optional, tag = "4")]
    pub endpoint: ::core::option::Option<SocketAddress>,
    /// The service whose target port this is, for metrics; may be empty. `namespace/hostname`.
    #[prost(string, tag = "5")]
    pub service: ::prost::alloc::string::String,
    #[prost(uint32, tag = "6")]
    pub service_port: u32,
    /// Name of the listener, unique in this message and stable over edits.
    #[prost(string, tag = "7")]
    pub name: ::prost::alloc::string::String,
    /// Bound by a proxy that captures, too (`captureMode: NONE`). The others stand in for capture where there is none.
    #[prost(bool, tag = "8")]
    pub beside_capture: bool,
}
impl ::prost::Name for InboundListener {
    const NAME: &'static str = "InboundListener";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.InboundListener".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.InboundListener".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct OutboundListener {
    #[prost(message, optional, tag = "1")]
    pub bind: ::core::option::Option<SocketAddress>,
    #[prost(enumeration = "Protocol", tag = "2")]
    pub protocol: i32,
    /// The services reachable here. HTTP picks by authority; TCP (and a lone service) takes the first.
    #[prost(message, repeated, tag = "3")]
    pub services: ::prost::alloc::vec::Vec<ServicePort>,
    #[prost(string, tag = "4")]
    pub name: ::prost::alloc::string::String,
}
impl ::prost::Name for OutboundListener {
    const NAME: &'static str = "OutboundListener";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.OutboundListener".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.OutboundListener".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ServicePort {
    /// `namespace/hostname`, the resource name of both its Address and its ServicePolicy.
    #[prost(string, tag = "1")]
    pub service: ::prost::alloc::string::String,
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// Authorities that select this service on a shared HTTP listener (hostname and its short forms), lower case, without port.
    #[prost(string, repeated, tag = "3")]
    pub authorities: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for ServicePort {
    const NAME: &'static str = "ServicePort";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ServicePort".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ServicePort".into()
    }
}
/// Milliseconds; 0 = Voile's named default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ConnectionSettings {
    #[prost(uint32, tag = "1")]
    pub connect_timeout_ms: u32,
    #[prost(uint32, tag = "2")]
    pub detection_timeout_ms: u32,
    #[prost(uint32, tag = "3")]
    pub idle_timeout_ms: u32,
    #[prost(uint32, tag = "4")]
    pub header_timeout_ms: u32,
    #[prost(uint32, tag = "5")]
    pub drain_timeout_ms: u32,
}
impl ::prost::Name for ConnectionSettings {
    const NAME: &'static str = "ConnectionSettings";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ConnectionSettings".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ConnectionSettings".into()
    }
}
/// What holds for one workload after Telemetry's inheritance.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Telemetry {
    #[prost(message, repeated, tag = "1")]
    pub access_logs: ::prost::alloc::vec::Vec<AccessLog>,
    /// At most one a side.
    #[prost(message, repeated, tag = "2")]
    pub tracing: ::prost::alloc::vec::Vec<Tracing>,
    /// In order; later ones win.
    #[prost(message, repeated, tag = "3")]
    pub metrics: ::prost::alloc::vec::Vec<MetricOverride>,
}
impl ::prost::Name for Telemetry {
    const NAME: &'static str = "Telemetry";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Telemetry".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Telemetry".into()
    }
}
/// Labels of a workload that Istio's Workload cannot say: `config` of its extension `voile.labels`, sent only where they
/// are not the canonical names, or there are others. Subsets of services are chosen by them.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WorkloadLabels {
    #[prost(string, tag = "1")]
    pub app: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub version: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "3")]
    pub others: ::prost::alloc::vec::Vec<Label>,
}
impl ::prost::Name for WorkloadLabels {
    const NAME: &'static str = "WorkloadLabels";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.WorkloadLabels".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.WorkloadLabels".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Label {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
}
impl ::prost::Name for Label {
    const NAME: &'static str = "Label";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Label".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Label".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AccessLog {
    /// Refused when unset.
    #[prost(enumeration = "Side", tag = "1")]
    pub side: i32,
    /// The provider's name, for people.
    #[prost(string, tag = "2")]
    pub provider: ::prost::alloc::string::String,
    /// Expression; empty is everything.
    #[prost(string, tag = "3")]
    pub filter: ::prost::alloc::string::String,
    #[prost(oneof = "access_log::Sink", tags = "4, 5")]
    pub sink: ::core::option::Option<access_log::Sink>,
}
/// Nested message and enum types in `AccessLog`.
pub mod access_log {
    #[derive(Clone, PartialEq, ::prost::Oneof)]
    pub enum Sink {
        #[prost(message, tag = "4")]
        File(super::FileLog),
        #[prost(message, tag = "5")]
        Grpc(super::GrpcLog),
    }
}
impl ::prost::Name for AccessLog {
    const NAME: &'static str = "AccessLog";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.AccessLog".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.AccessLog".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct FileLog {
    /// `/dev/stdout` or a file.
    #[prost(string, tag = "1")]
    pub path: ::prost::alloc::string::String,
    #[prost(bool, tag = "4")]
    pub omit_empty: bool,
    #[prost(oneof = "file_log::Format", tags = "2, 3")]
    pub format: ::core::option::Option<file_log::Format>,
}
/// Nested message and enum types in `FileLog`.
pub mod file_log {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Format {
        #[prost(string, tag = "2")]
        Text(::prost::alloc::string::String),
        #[prost(string, tag = "3")]
        Json(::prost::alloc::string::String),
    }
}
impl ::prost::Name for FileLog {
    const NAME: &'static str = "FileLog";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.FileLog".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.FileLog".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GrpcLog {
    #[prost(message, optional, tag = "1")]
    pub collector: ::core::option::Option<Collector>,
    #[prost(string, tag = "2")]
    pub log_name: ::prost::alloc::string::String,
    /// Requests, or else opaque connections.
    #[prost(bool, tag = "3")]
    pub requests: bool,
    #[prost(string, repeated, tag = "4")]
    pub request_headers: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "5")]
    pub response_headers: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "6")]
    pub response_trailers: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for GrpcLog {
    const NAME: &'static str = "GrpcLog";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GrpcLog".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GrpcLog".into()
    }
}
/// Who takes telemetry: a service of the mesh, reached as the application's own calls are.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Collector {
    /// `namespace/hostname`.
    #[prost(string, tag = "1")]
    pub service: ::prost::alloc::string::String,
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// Milliseconds; 0 = the named default.
    #[prost(uint32, tag = "3")]
    pub timeout_ms: u32,
    #[prost(message, repeated, tag = "4")]
    pub headers: ::prost::alloc::vec::Vec<CollectorHeader>,
}
impl ::prost::Name for Collector {
    const NAME: &'static str = "Collector";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Collector".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Collector".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CollectorHeader {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
    /// The value is the name of a variable of the proxy's environment.
    #[prost(bool, tag = "3")]
    pub from_environment: bool,
}
impl ::prost::Name for CollectorHeader {
    const NAME: &'static str = "CollectorHeader";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.CollectorHeader".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.CollectorHeader".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Tracing {
    /// Refused when unset.
    #[prost(enumeration = "Side", tag = "1")]
    pub side: i32,
    #[prost(message, optional, tag = "2")]
    pub collector: ::core::option::Option<Collector>,
    /// Path of OTLP over HTTP; empty is gRPC.
    #[prost(string, tag = "3")]
    pub http_path: ::prost::alloc::string::String,
    /// Of requests whose caller decided nothing.
    #[prost(uint32, tag = "4")]
    pub sampling_millionths: u32,
    /// False: trace context is passed on and continued, no span is sent.
    #[prost(bool, tag = "5")]
    pub report: bool,
    #[prost(message, repeated, tag = "6")]
    pub custom_tags: ::prost::alloc::vec::Vec<CustomTag>,
    /// `x-request-id` carries the decision, as Envoy's does.
    #[prost(bool, tag = "7")]
    pub use_request_id: bool,
    /// Bytes; 0 = the named default.
    #[prost(uint32, tag = "8")]
    pub max_path_length: u32,
    #[prost(bool, tag = "9")]
    pub istio_tags: bool,
    /// `OTEL_RESOURCE_ATTRIBUTES` of the proxy's environment is part of the resource.
    #[prost(bool, tag = "10")]
    pub environment_resource: bool,
}
impl ::prost::Name for Tracing {
    const NAME: &'static str = "Tracing";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Tracing".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Tracing".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CustomTag {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// Where the source has none; absent: no tag.
    #[prost(string, optional, tag = "5")]
    pub default_value: ::core::option::Option<::prost::alloc::string::String>,
    #[prost(oneof = "custom_tag::Source", tags = "2, 3, 4")]
    pub source: ::core::option::Option<custom_tag::Source>,
}
/// Nested message and enum types in `CustomTag`.
pub mod custom_tag {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Source {
        #[prost(string, tag = "2")]
        Literal(::prost::alloc::string::String),
        #[prost(string, tag = "3")]
        Environment(::prost::alloc::string::String),
        #[prost(string, tag = "4")]
        Header(::prost::alloc::string::String),
    }
}
impl ::prost::Name for CustomTag {
    const NAME: &'static str = "CustomTag";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.CustomTag".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.CustomTag".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct MetricOverride {
    /// Exposed name; empty is all.
    #[prost(string, tag = "1")]
    pub metric: ::prost::alloc::string::String,
    #[prost(enumeration = "Side", tag = "2")]
    pub side: i32,
    #[prost(bool, optional, tag = "3")]
    pub disabled: ::core::option::Option<bool>,
    #[prost(message, repeated, tag = "4")]
    pub tags: ::prost::alloc::vec::Vec<TagOverride>,
}
impl ::prost::Name for MetricOverride {
    const NAME: &'static str = "MetricOverride";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.MetricOverride".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.MetricOverride".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TagOverride {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// Absent, as computed: the label goes.
    #[prost(string, optional, tag = "2")]
    pub value: ::core::option::Option<::prost::alloc::string::String>,
    /// A value of each request, in CEL's words: request.host.
    #[prost(string, optional, tag = "3")]
    pub computed: ::core::option::Option<::prost::alloc::string::String>,
}
impl ::prost::Name for TagOverride {
    const NAME: &'static str = "TagOverride";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TagOverride".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TagOverride".into()
    }
}
/// How clients must speak to a service (resource name `namespace/hostname`), or to a workload called by its own address
/// (resource name: its uid; ports are its own then).
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ServicePolicy {
    #[prost(message, repeated, tag = "1")]
    pub ports: ::prost::alloc::vec::Vec<PortPolicy>,
    /// Of a workload: whether the ports that are not listed take plaintext only, although it has a sidecar.
    #[prost(bool, tag = "2")]
    pub plaintext: bool,
    /// Of a DNS name's addresses only the first is used for new connections, and open ones stay (resolution DNS_ROUND_ROBIN).
    #[prost(bool, tag = "3")]
    pub first_address_only: bool,
    /// Parts of the service that routes may lead to.
    #[prost(message, repeated, tag = "4")]
    pub subsets: ::prost::alloc::vec::Vec<Subset>,
    /// What some clients of the namespace that is told obey in the place of all the rest. The first whose labels a client has counts.
    #[prost(message, repeated, tag = "5")]
    pub for_clients: ::prost::alloc::vec::Vec<ClientPolicy>,
}
impl ::prost::Name for ServicePolicy {
    const NAME: &'static str = "ServicePolicy";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ServicePolicy".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ServicePolicy".into()
    }
}
/// How a service is called by workloads that a DestinationRule selects.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ClientPolicy {
    /// Its clients have all of these.
    #[prost(message, repeated, tag = "1")]
    pub labels: ::prost::alloc::vec::Vec<Label>,
    /// Refused if unset, or if it tells clients apart in turn.
    #[prost(message, optional, tag = "2")]
    pub policy: ::core::option::Option<ServicePolicy>,
}
impl ::prost::Name for ClientPolicy {
    const NAME: &'static str = "ClientPolicy";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ClientPolicy".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ClientPolicy".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Subset {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// Its workloads have all of these.
    #[prost(message, repeated, tag = "2")]
    pub labels: ::prost::alloc::vec::Vec<Label>,
    #[prost(message, repeated, tag = "3")]
    pub ports: ::prost::alloc::vec::Vec<SubsetPort>,
}
impl ::prost::Name for Subset {
    const NAME: &'static str = "Subset";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Subset".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Subset".into()
    }
}
/// What differs on a port for a subset.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct SubsetPort {
    #[prost(uint32, tag = "1")]
    pub port: u32,
    #[prost(bool, tag = "2")]
    pub http2_upgrade: bool,
    #[prost(bool, tag = "3")]
    pub client_protocol: bool,
    #[prost(message, optional, tag = "4")]
    pub traffic: ::core::option::Option<TrafficPolicy>,
}
impl ::prost::Name for SubsetPort {
    const NAME: &'static str = "SubsetPort";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.SubsetPort".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.SubsetPort".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PortPolicy {
    #[prost(uint32, tag = "1")]
    pub port: u32,
    #[prost(enumeration = "Protocol", tag = "2")]
    pub protocol: i32,
    /// Workloads (uid) that must be spoken to in plaintext on this port although they have a sidecar,
    /// because PeerAuthentication disables mutual TLS there. Everything else follows the Workload's tunnel_protocol.
    #[prost(string, repeated, tag = "3")]
    pub plaintext_workloads: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// HTTP/1.1 travels to this port's sidecars as HTTP/2 (h2UpgradePolicy), and comes out as HTTP/1.1. Only of HTTP ports.
    #[prost(bool, tag = "4")]
    pub http2_upgrade: bool,
    /// Absent: a proxy's own default, which repeats only what provably was not processed.
    #[prost(message, optional, tag = "5")]
    pub retry: ::core::option::Option<RetryPolicy>,
    /// What a client speaks is spoken on to this port, whatever is declared (useClientProtocol).
    #[prost(bool, tag = "6")]
    pub client_protocol: bool,
    /// Absent: nothing is said.
    #[prost(message, optional, tag = "7")]
    pub traffic: ::core::option::Option<TrafficPolicy>,
}
impl ::prost::Name for PortPolicy {
    const NAME: &'static str = "PortPolicy";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.PortPolicy".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.PortPolicy".into()
    }
}
/// What a DestinationRule says of calls to one port, after Istio's precedence of levels. What is absent is the proxy's default.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct TrafficPolicy {
    #[prost(message, optional, tag = "1")]
    pub load_balancer: ::core::option::Option<LoadBalancer>,
    /// Absent: nobody is put out.
    #[prost(message, optional, tag = "2")]
    pub outlier_detection: ::core::option::Option<OutlierDetection>,
    #[prost(message, optional, tag = "3")]
    pub connection_pool: ::core::option::Option<ConnectionPool>,
    #[prost(message, optional, tag = "4")]
    pub retry_budget: ::core::option::Option<RetryBudget>,
    #[prost(enumeration = "ClientTls", tag = "5")]
    pub tls: i32,
    /// Of ORIGINATE.
    #[prost(message, optional, tag = "20")]
    pub tls_origin: ::core::option::Option<TlsOrigin>,
    /// Of MESH_MUTUAL: the name that is asked for. Empty: none.
    #[prost(string, tag = "21")]
    pub mesh_server_name: ::prost::alloc::string::String,
    /// The version of the PROXY protocol's header that connections begin with, before TLS; 0: none.
    #[prost(uint32, tag = "22")]
    pub proxy_protocol: u32,
}
impl ::prost::Name for TrafficPolicy {
    const NAME: &'static str = "TrafficPolicy";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TrafficPolicy".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TrafficPolicy".into()
    }
}
/// TLS that a proxy makes of what comes to it in plaintext.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TlsOrigin {
    /// The client shows a certificate, too.
    #[prost(bool, tag = "1")]
    pub mutual: bool,
    /// A Secret, by its name; the gateways that may have it hold it among their `credentials`, and nobody else does.
    #[prost(string, tag = "2")]
    pub credential: ::prost::alloc::string::String,
    /// PEM of whom is believed.
    #[prost(bytes = "vec", tag = "3")]
    pub authorities: ::prost::alloc::vec::Vec<u8>,
    /// The name that is asked for, and that the server's certificate must have. Empty: the host's.
    #[prost(string, tag = "4")]
    pub server_name: ::prost::alloc::string::String,
    /// Instead of it the certificate must have one of these.
    #[prost(string, repeated, tag = "5")]
    pub subject_alt_names: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// The server's certificate is not looked at.
    #[prost(bool, tag = "6")]
    pub unverified: bool,
    /// Files of the proxy's own, in PEM.
    #[prost(string, tag = "7")]
    pub authorities_file: ::prost::alloc::string::String,
    #[prost(string, tag = "8")]
    pub certificate_file: ::prost::alloc::string::String,
    #[prost(string, tag = "9")]
    pub key_file: ::prost::alloc::string::String,
    /// Lists of certificates that are revoked. Empty: nobody looks.
    #[prost(string, tag = "10")]
    pub revocations_file: ::prost::alloc::string::String,
}
impl ::prost::Name for TlsOrigin {
    const NAME: &'static str = "TlsOrigin";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TlsOrigin".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TlsOrigin".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RetryBudget {
    #[prost(uint32, tag = "1")]
    pub percent_thousandths: u32,
    #[prost(uint32, tag = "2")]
    pub min: u32,
}
impl ::prost::Name for RetryBudget {
    const NAME: &'static str = "RetryBudget";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RetryBudget".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RetryBudget".into()
    }
}
/// Who is near whom. Absent: the nearest come first where outliers are put out.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LocalitySetting {
    #[prost(bool, tag = "1")]
    pub disabled: bool,
    #[prost(message, repeated, tag = "2")]
    pub distribute: ::prost::alloc::vec::Vec<Distribute>,
    #[prost(message, repeated, tag = "3")]
    pub failover: ::prost::alloc::vec::Vec<Failover>,
    /// Labels, `name` or `name=value`.
    #[prost(string, repeated, tag = "4")]
    pub priority: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Also where nobody is put out.
    #[prost(bool, tag = "5")]
    pub always: bool,
    /// In the caller's region requests stay in their zone as far as its part of the endpoints allows for its part of the callers, where
    /// so many endpoints are well; other regions come after it. 0: zones are not told apart so.
    #[prost(uint32, tag = "6")]
    pub zone_aware: u32,
}
impl ::prost::Name for LocalitySetting {
    const NAME: &'static str = "LocalitySetting";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.LocalitySetting".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.LocalitySetting".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Distribute {
    /// `region/zone/subzone`, or its beginning and `*`.
    #[prost(string, tag = "1")]
    pub from: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub to: ::prost::alloc::vec::Vec<LocalityShare>,
}
impl ::prost::Name for Distribute {
    const NAME: &'static str = "Distribute";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Distribute".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Distribute".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct LocalityShare {
    #[prost(string, tag = "1")]
    pub locality: ::prost::alloc::string::String,
    #[prost(uint32, tag = "2")]
    pub percent: u32,
}
impl ::prost::Name for LocalityShare {
    const NAME: &'static str = "LocalityShare";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.LocalityShare".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.LocalityShare".into()
    }
}
/// From a region, which one comes first after it.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Failover {
    #[prost(string, tag = "1")]
    pub from: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub to: ::prost::alloc::string::String,
}
impl ::prost::Name for Failover {
    const NAME: &'static str = "Failover";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Failover".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Failover".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LoadBalancer {
    #[prost(enumeration = "LoadBalancerAlgorithm", tag = "1")]
    pub algorithm: i32,
    /// RING_HASH: places of four endpoints, at least. MAGLEV: places, a prime.
    #[prost(uint32, tag = "2")]
    pub size: u32,
    /// By what requests keep together; absent: by nothing.
    #[prost(message, optional, tag = "3")]
    pub key: ::core::option::Option<HashKey>,
    #[prost(message, optional, tag = "4")]
    pub warmup: ::core::option::Option<Warmup>,
    #[prost(message, optional, tag = "5")]
    pub locality: ::core::option::Option<LocalitySetting>,
}
impl ::prost::Name for LoadBalancer {
    const NAME: &'static str = "LoadBalancer";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.LoadBalancer".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.LoadBalancer".into()
    }
}
/// None of these is refused.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HashKey {
    #[prost(oneof = "hash_key::From", tags = "1, 2, 3, 4")]
    pub from: ::core::option::Option<hash_key::From>,
}
/// Nested message and enum types in `HashKey`.
pub mod hash_key {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum From {
        /// Name in lower case.
        #[prost(string, tag = "1")]
        Header(::prost::alloc::string::String),
        #[prost(message, tag = "2")]
        Cookie(super::HashCookie),
        #[prost(bool, tag = "3")]
        SourceIp(bool),
        #[prost(string, tag = "4")]
        Query(::prost::alloc::string::String),
    }
}
impl ::prost::Name for HashKey {
    const NAME: &'static str = "HashKey";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HashKey".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HashKey".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HashCookie {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// Empty: `/`.
    #[prost(string, tag = "2")]
    pub path: ::prost::alloc::string::String,
    /// Absent: nobody is given one. 0: until the browser is closed.
    #[prost(uint32, optional, tag = "3")]
    pub ttl_ms: ::core::option::Option<u32>,
    #[prost(string, repeated, tag = "4")]
    pub attributes: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
impl ::prost::Name for HashCookie {
    const NAME: &'static str = "HashCookie";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HashCookie".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HashCookie".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Warmup {
    #[prost(uint32, tag = "1")]
    pub duration_ms: u32,
    #[prost(uint32, tag = "2")]
    pub minimum_percent: u32,
    #[prost(uint32, tag = "3")]
    pub aggression_thousandths: u32,
}
impl ::prost::Name for Warmup {
    const NAME: &'static str = "Warmup";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Warmup".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Warmup".into()
    }
}
/// A number of 0 turns a rule off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct OutlierDetection {
    #[prost(uint32, tag = "1")]
    pub consecutive_5xx: u32,
    #[prost(uint32, tag = "2")]
    pub consecutive_gateway: u32,
    /// Present: failures without an answer are counted apart.
    #[prost(uint32, optional, tag = "3")]
    pub consecutive_local: ::core::option::Option<u32>,
    #[prost(uint32, tag = "4")]
    pub interval_ms: u32,
    #[prost(uint32, tag = "5")]
    pub base_ejection_ms: u32,
    #[prost(uint32, tag = "6")]
    pub max_ejection_percent: u32,
    #[prost(uint32, tag = "7")]
    pub min_health_percent: u32,
    /// Absent: success rates are not compared.
    #[prost(message, optional, tag = "8")]
    pub success_rate: ::core::option::Option<SuccessRate>,
}
impl ::prost::Name for OutlierDetection {
    const NAME: &'static str = "OutlierDetection";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.OutlierDetection".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.OutlierDetection".into()
    }
}
/// Who succeeds less often than the others is an outlier, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SuccessRate {
    #[prost(uint32, tag = "1")]
    pub minimum_hosts: u32,
    #[prost(uint32, tag = "2")]
    pub request_volume: u32,
    /// In thousandths of a standard deviation.
    #[prost(uint32, tag = "3")]
    pub stdev_factor: u32,
    #[prost(uint32, tag = "4")]
    pub enforcing_percent: u32,
}
impl ::prost::Name for SuccessRate {
    const NAME: &'static str = "SuccessRate";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.SuccessRate".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.SuccessRate".into()
    }
}
/// 0 = no limit, or the proxy's default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ConnectionPool {
    #[prost(uint32, tag = "1")]
    pub max_connections: u32,
    #[prost(uint32, tag = "2")]
    pub connect_timeout_ms: u32,
    #[prost(uint32, tag = "3")]
    pub tcp_idle_ms: u32,
    #[prost(message, optional, tag = "4")]
    pub keep_alive: ::core::option::Option<TcpKeepAlive>,
    #[prost(uint32, tag = "5")]
    pub max_pending: u32,
    #[prost(uint32, tag = "6")]
    pub max_requests: u32,
    #[prost(uint32, tag = "7")]
    pub max_retries: u32,
    #[prost(uint32, tag = "8")]
    pub requests_per_connection: u32,
    #[prost(uint32, tag = "9")]
    pub http_idle_ms: u32,
    #[prost(uint32, tag = "10")]
    pub max_streams: u32,
    #[prost(uint32, tag = "11")]
    pub max_duration_ms: u32,
}
impl ::prost::Name for ConnectionPool {
    const NAME: &'static str = "ConnectionPool";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ConnectionPool".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ConnectionPool".into()
    }
}
/// 0 = the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TcpKeepAlive {
    #[prost(uint32, tag = "1")]
    pub probes: u32,
    #[prost(uint32, tag = "2")]
    pub time_ms: u32,
    #[prost(uint32, tag = "3")]
    pub interval_ms: u32,
}
impl ::prost::Name for TcpKeepAlive {
    const NAME: &'static str = "TcpKeepAlive";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TcpKeepAlive".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TcpKeepAlive".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RetryPolicy {
    /// Attempts after the first; 0 turns retries off.
    #[prost(uint32, tag = "1")]
    pub retries: u32,
    /// Envoy's names of conditions, and status codes. Unknown ones are passed over.
    #[prost(string, repeated, tag = "2")]
    pub on: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Milliseconds that one attempt may take to bring the head of an answer; 0 = as long as the request may.
    #[prost(uint32, tag = "3")]
    pub per_try_timeout_ms: u32,
    /// Milliseconds of the first backoff; 0 = the default.
    #[prost(uint32, tag = "4")]
    pub backoff_ms: u32,
}
impl ::prost::Name for RetryPolicy {
    const NAME: &'static str = "RetryPolicy";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RetryPolicy".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RetryPolicy".into()
    }
}
/// Where requests to one service go, as a VirtualService says. Resource name: `namespace/hostname` of the service that is called.
/// A proxy obeys it when it holds every service and subset that it names; a service without one takes its requests itself.
/// A proxy that cannot read it goes on with the one before, and where there was none refuses every request to the service.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Routes {
    /// The first that matches counts; a request that matches none is answered 404. None where there are connections: requests go to
    /// the service itself.
    #[prost(message, repeated, tag = "1")]
    pub routes: ::prost::alloc::vec::Vec<Route>,
    /// Of what is no HTTP: the closest counts.
    #[prost(message, repeated, tag = "20")]
    pub connections: ::prost::alloc::vec::Vec<ConnectionRoute>,
}
impl ::prost::Name for Routes {
    const NAME: &'static str = "Routes";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Routes".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Routes".into()
    }
}
/// `Routes` of which each is still bytes, for who reads one at a time.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PackedRoutes {
    /// Each a `Route`.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub routes: ::prost::alloc::vec::Vec<::prost::bytes::Bytes>,
    /// Each a `ConnectionRoute`.
    #[prost(bytes = "bytes", repeated, tag = "20")]
    pub connections: ::prost::alloc::vec::Vec<::prost::bytes::Bytes>,
}
impl ::prost::Name for PackedRoutes {
    const NAME: &'static str = "PackedRoutes";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.PackedRoutes".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.PackedRoutes".into()
    }
}
/// Where connections go of which nothing is known but the name that TLS asks for and the address that was called.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ConnectionRoute {
    /// One of these; none matches everything.
    #[prost(message, repeated, tag = "1")]
    pub matches: ::prost::alloc::vec::Vec<ConnectionMatch>,
    /// Without headers; never empty.
    #[prost(message, repeated, tag = "2")]
    pub destinations: ::prost::alloc::vec::Vec<RouteDestination>,
}
impl ::prost::Name for ConnectionRoute {
    const NAME: &'static str = "ConnectionRoute";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ConnectionRoute".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ConnectionRoute".into()
    }
}
/// All of it must hold.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ConnectionMatch {
    /// The client speaks TLS and asks for one of these; lower case, may begin with `*.`, or be `*`, which is also for who asks for none.
    #[prost(string, repeated, tag = "1")]
    pub server_names: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Of the address that was called.
    #[prost(message, repeated, tag = "2")]
    pub destinations: ::prost::alloc::vec::Vec<AddressRange>,
    /// The port that was called; 0 is any.
    #[prost(uint32, tag = "3")]
    pub port: u32,
    /// The caller has all of these.
    #[prost(message, repeated, tag = "4")]
    pub source_labels: ::prost::alloc::vec::Vec<Label>,
}
impl ::prost::Name for ConnectionMatch {
    const NAME: &'static str = "ConnectionMatch";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ConnectionMatch".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ConnectionMatch".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Route {
    /// For logs and spans; may be empty.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// One of these; none matches everything.
    #[prost(message, repeated, tag = "2")]
    pub matches: ::prost::alloc::vec::Vec<RequestMatch>,
    /// Empty only where there is an answer.
    #[prost(message, repeated, tag = "3")]
    pub destinations: ::prost::alloc::vec::Vec<RouteDestination>,
    /// Milliseconds that an answer may take to its end, over all attempts, from when all of the request was received;
    /// 0 = as long as it does.
    #[prost(uint32, tag = "4")]
    pub timeout_ms: u32,
    /// Absent: the destination's.
    #[prost(message, optional, tag = "5")]
    pub retry: ::core::option::Option<RetryPolicy>,
    /// What is answered without asking anybody.
    #[prost(message, optional, tag = "6")]
    pub answer: ::core::option::Option<RouteAnswer>,
    #[prost(message, optional, tag = "7")]
    pub rewrite: ::core::option::Option<Rewrite>,
    /// After those of the destination.
    #[prost(message, optional, tag = "8")]
    pub headers: ::core::option::Option<HeaderRules>,
    #[prost(message, optional, tag = "9")]
    pub fault: ::core::option::Option<Fault>,
    #[prost(message, optional, tag = "10")]
    pub cors: ::core::option::Option<Cors>,
    #[prost(message, repeated, tag = "11")]
    pub mirrors: ::prost::alloc::vec::Vec<Mirror>,
    /// What requests are answered that come to a destination which is not there; 0 = 503.
    #[prost(uint32, tag = "12")]
    pub missing_status: u32,
}
impl ::prost::Name for Route {
    const NAME: &'static str = "Route";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Route".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Route".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RouteAnswer {
    #[prost(uint32, tag = "1")]
    pub status: u32,
    /// Absent: the body is all there is.
    #[prost(message, optional, tag = "2")]
    pub redirect: ::core::option::Option<Redirect>,
    #[prost(bytes = "vec", tag = "3")]
    pub body: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for RouteAnswer {
    const NAME: &'static str = "RouteAnswer";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RouteAnswer".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RouteAnswer".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Redirect {
    /// Empty: the request's.
    #[prost(string, tag = "1")]
    pub scheme: ::prost::alloc::string::String,
    /// Empty: the request's.
    #[prost(string, tag = "2")]
    pub host: ::prost::alloc::string::String,
    /// Absent: the request's.
    #[prost(message, optional, tag = "3")]
    pub path: ::core::option::Option<PathRewrite>,
    /// 0 = as `port_of` says.
    #[prost(uint32, tag = "4")]
    pub port: u32,
    #[prost(enumeration = "redirect::PortOf", tag = "5")]
    pub port_of: i32,
}
/// Nested message and enum types in `Redirect`.
pub mod redirect {
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
    pub enum PortOf {
        /// The one that the request named, unless it was its scheme's own and the scheme changes.
        Request = 0,
        /// The one that was called.
        Listener = 1,
        /// The one that the scheme implies.
        Scheme = 2,
    }
    impl PortOf {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::Request => "REQUEST",
                Self::Listener => "LISTENER",
                Self::Scheme => "SCHEME",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "REQUEST" => Some(Self::Request),
                "LISTENER" => Some(Self::Listener),
                "SCHEME" => Some(Self::Scheme),
                _ => None,
            }
        }
    }
}
impl ::prost::Name for Redirect {
    const NAME: &'static str = "Redirect";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Redirect".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Redirect".into()
    }
}
/// None of these is refused.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PathRewrite {
    #[prost(oneof = "path_rewrite::Path", tags = "1, 2, 3, 4")]
    pub path: ::core::option::Option<path_rewrite::Path>,
}
/// Nested message and enum types in `PathRewrite`.
pub mod path_rewrite {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Path {
        #[prost(string, tag = "1")]
        Full(::prost::alloc::string::String),
        /// Instead of the bytes that matched; of all of the path where it was matched whole.
        #[prost(string, tag = "2")]
        Prefix(::prost::alloc::string::String),
        /// Instead of the segments that matched.
        #[prost(string, tag = "3")]
        Segments(::prost::alloc::string::String),
        #[prost(message, tag = "4")]
        Regex(super::RegexRewrite),
    }
}
impl ::prost::Name for PathRewrite {
    const NAME: &'static str = "PathRewrite";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.PathRewrite".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.PathRewrite".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RegexRewrite {
    #[prost(string, tag = "1")]
    pub pattern: ::prost::alloc::string::String,
    /// \\0 is the match, \1 to \9 are its groups.
    #[prost(string, tag = "2")]
    pub substitution: ::prost::alloc::string::String,
}
impl ::prost::Name for RegexRewrite {
    const NAME: &'static str = "RegexRewrite";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RegexRewrite".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RegexRewrite".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Rewrite {
    /// Absent: the path stays.
    #[prost(message, optional, tag = "1")]
    pub path: ::core::option::Option<PathRewrite>,
    /// Empty: the authority stays.
    #[prost(string, tag = "2")]
    pub authority: ::prost::alloc::string::String,
}
impl ::prost::Name for Rewrite {
    const NAME: &'static str = "Rewrite";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Rewrite".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Rewrite".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HeaderRules {
    #[prost(message, optional, tag = "1")]
    pub request: ::core::option::Option<HeaderEdits>,
    #[prost(message, optional, tag = "2")]
    pub response: ::core::option::Option<HeaderEdits>,
}
impl ::prost::Name for HeaderRules {
    const NAME: &'static str = "HeaderRules";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HeaderRules".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HeaderRules".into()
    }
}
/// In this order.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HeaderEdits {
    #[prost(string, repeated, tag = "1")]
    pub remove: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(message, repeated, tag = "2")]
    pub set: ::prost::alloc::vec::Vec<HeaderField>,
    #[prost(message, repeated, tag = "3")]
    pub add: ::prost::alloc::vec::Vec<HeaderField>,
}
impl ::prost::Name for HeaderEdits {
    const NAME: &'static str = "HeaderEdits";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HeaderEdits".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HeaderEdits".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HeaderField {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub value: ::prost::alloc::string::String,
}
impl ::prost::Name for HeaderField {
    const NAME: &'static str = "HeaderField";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HeaderField".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HeaderField".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Fault {
    #[prost(message, optional, tag = "1")]
    pub delay: ::core::option::Option<FaultDelay>,
    #[prost(message, optional, tag = "2")]
    pub abort: ::core::option::Option<FaultAbort>,
}
impl ::prost::Name for Fault {
    const NAME: &'static str = "Fault";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Fault".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Fault".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct FaultDelay {
    #[prost(uint32, tag = "1")]
    pub fixed_ms: u32,
    /// Share of the requests.
    #[prost(uint32, tag = "2")]
    pub millionths: u32,
}
impl ::prost::Name for FaultDelay {
    const NAME: &'static str = "FaultDelay";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.FaultDelay".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.FaultDelay".into()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct FaultAbort {
    /// Share of the requests.
    #[prost(uint32, tag = "3")]
    pub millionths: u32,
    /// None of these is refused.
    #[prost(oneof = "fault_abort::With", tags = "1, 2")]
    pub with: ::core::option::Option<fault_abort::With>,
}
/// Nested message and enum types in `FaultAbort`.
pub mod fault_abort {
    /// None of these is refused.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum With {
        #[prost(uint32, tag = "1")]
        HttpStatus(u32),
        #[prost(uint32, tag = "2")]
        GrpcStatus(u32),
    }
}
impl ::prost::Name for FaultAbort {
    const NAME: &'static str = "FaultAbort";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.FaultAbort".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.FaultAbort".into()
    }
}
/// `*` in a list is all.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Cors {
    #[prost(message, repeated, tag = "1")]
    pub origins: ::prost::alloc::vec::Vec<Origin>,
    #[prost(string, repeated, tag = "2")]
    pub methods: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "3")]
    pub headers: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "4")]
    pub expose: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Seconds.
    #[prost(uint64, optional, tag = "5")]
    pub max_age: ::core::option::Option<u64>,
    #[prost(bool, tag = "6")]
    pub credentials: bool,
    /// A preflight from elsewhere goes on, instead of being answered without leave.
    #[prost(bool, tag = "7")]
    pub forward_unmatched: bool,
}
impl ::prost::Name for Cors {
    const NAME: &'static str = "Cors";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Cors".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Cors".into()
    }
}
/// None of these is refused.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Origin {
    #[prost(oneof = "origin::Origin", tags = "1, 2, 3, 4, 5, 6")]
    pub origin: ::core::option::Option<origin::Origin>,
}
/// Nested message and enum types in `Origin`.
pub mod origin {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Origin {
        #[prost(bool, tag = "1")]
        Any(bool),
        #[prost(string, tag = "2")]
        Exact(::prost::alloc::string::String),
        #[prost(string, tag = "3")]
        Prefix(::prost::alloc::string::String),
        #[prost(string, tag = "4")]
        Suffix(::prost::alloc::string::String),
        #[prost(string, tag = "5")]
        Regex(::prost::alloc::string::String),
        #[prost(message, tag = "6")]
        Within(super::OriginWithin),
    }
}
impl ::prost::Name for Origin {
    const NAME: &'static str = "Origin";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Origin".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Origin".into()
    }
}
/// What stands before and after a star.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct OriginWithin {
    #[prost(string, tag = "1")]
    pub before: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub after: ::prost::alloc::string::String,
}
impl ::prost::Name for OriginWithin {
    const NAME: &'static str = "OriginWithin";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.OriginWithin".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.OriginWithin".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Mirror {
    #[prost(message, optional, tag = "1")]
    pub to: ::core::option::Option<RouteDestination>,
    /// Share of the requests.
    #[prost(uint32, tag = "2")]
    pub millionths: u32,
}
impl ::prost::Name for Mirror {
    const NAME: &'static str = "Mirror";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Mirror".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Mirror".into()
    }
}
/// All of it must hold.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RequestMatch {
    /// Path and query.
    #[prost(message, optional, tag = "1")]
    pub uri: ::core::option::Option<TextMatch>,
    /// Letters' case means nothing in `uri`.
    #[prost(bool, tag = "2")]
    pub any_case: bool,
    #[prost(message, optional, tag = "3")]
    pub scheme: ::core::option::Option<TextMatch>,
    #[prost(message, optional, tag = "4")]
    pub method: ::core::option::Option<TextMatch>,
    #[prost(message, optional, tag = "5")]
    pub authority: ::core::option::Option<TextMatch>,
    /// Names in lower case.
    #[prost(message, repeated, tag = "6")]
    pub headers: ::prost::alloc::vec::Vec<NamedMatch>,
    #[prost(message, repeated, tag = "7")]
    pub without_headers: ::prost::alloc::vec::Vec<NamedMatch>,
    #[prost(message, repeated, tag = "8")]
    pub query: ::prost::alloc::vec::Vec<NamedMatch>,
    /// The port that was called; 0 is any.
    #[prost(uint32, tag = "9")]
    pub port: u32,
    /// The caller has all of these.
    #[prost(message, repeated, tag = "10")]
    pub source_labels: ::prost::alloc::vec::Vec<Label>,
}
impl ::prost::Name for RequestMatch {
    const NAME: &'static str = "RequestMatch";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RequestMatch".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RequestMatch".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct NamedMatch {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub text: ::core::option::Option<TextMatch>,
}
impl ::prost::Name for NamedMatch {
    const NAME: &'static str = "NamedMatch";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.NamedMatch".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.NamedMatch".into()
    }
}
/// None of these is refused.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TextMatch {
    #[prost(oneof = "text_match::Text", tags = "1, 2, 3, 4, 5")]
    pub text: ::core::option::Option<text_match::Text>,
}
/// Nested message and enum types in `TextMatch`.
pub mod text_match {
    #[derive(Clone, PartialEq, Eq, Hash, ::prost::Oneof)]
    pub enum Text {
        #[prost(string, tag = "1")]
        Exact(::prost::alloc::string::String),
        #[prost(string, tag = "2")]
        Prefix(::prost::alloc::string::String),
        /// All of the text must match.
        #[prost(string, tag = "3")]
        Regex(::prost::alloc::string::String),
        /// It is there, whatever it is.
        #[prost(bool, tag = "4")]
        Present(bool),
        /// Of a path: these segments, and what is below them.
        #[prost(string, tag = "5")]
        Segments(::prost::alloc::string::String),
    }
}
impl ::prost::Name for TextMatch {
    const NAME: &'static str = "TextMatch";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.TextMatch".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.TextMatch".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RouteDestination {
    /// `namespace/hostname`. Empty: there is no such service, subset or port.
    #[prost(string, tag = "1")]
    pub service: ::prost::alloc::string::String,
    /// Empty is the whole service.
    #[prost(string, tag = "2")]
    pub subset: ::prost::alloc::string::String,
    /// 0 = the port that was called.
    #[prost(uint32, tag = "3")]
    pub port: u32,
    /// Share of the requests; those of one route are not all 0.
    #[prost(uint32, tag = "4")]
    pub weight: u32,
    /// Where `service` is empty: what is missing. Requests that come here are answered as the route says.
    #[prost(string, tag = "5")]
    pub missing: ::prost::alloc::string::String,
    /// Of requests that go here, before those of the route.
    #[prost(message, optional, tag = "6")]
    pub headers: ::core::option::Option<HeaderRules>,
}
impl ::prost::Name for RouteDestination {
    const NAME: &'static str = "RouteDestination";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.RouteDestination".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.RouteDestination".into()
    }
}
/// What a gateway takes from outside. All that its routes name is asked for and answered before any of it is obeyed.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Gateway {
    #[prost(message, repeated, tag = "1")]
    pub listeners: ::prost::alloc::vec::Vec<GatewayListener>,
    /// Of TLS that it makes itself. They are told to nobody but the gateway.
    #[prost(message, repeated, tag = "20")]
    pub credentials: ::prost::alloc::vec::Vec<Credential>,
}
impl ::prost::Name for Gateway {
    const NAME: &'static str = "Gateway";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Gateway".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Gateway".into()
    }
}
/// A Secret, as far as TLS towards servers needs it.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Credential {
    /// As DestinationRules name it.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// Not empty: why there is none.
    #[prost(string, tag = "2")]
    pub missing: ::prost::alloc::string::String,
    /// PEM; may be empty.
    #[prost(bytes = "vec", tag = "3")]
    pub certificates: ::prost::alloc::vec::Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub private_key: ::prost::alloc::vec::Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub authorities: ::prost::alloc::vec::Vec<u8>,
    /// PEM of lists of certificates that these took back. Empty: nobody looks.
    #[prost(bytes = "vec", tag = "6")]
    pub revocations: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for Credential {
    const NAME: &'static str = "Credential";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Credential".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Credential".into()
    }
}
/// Endpoints that HealthChecks of a proxy found to be unwell, all of them each time. A proxy tells it on its stream, in the details of
/// a request's error; nothing is asked for by it, and nothing is answered.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct HealthFindings {
    #[prost(message, repeated, tag = "1")]
    pub findings: ::prost::alloc::vec::Vec<HealthFinding>,
    /// Those that are not told.
    #[prost(uint32, tag = "2")]
    pub more: u32,
}
impl ::prost::Name for HealthFindings {
    const NAME: &'static str = "HealthFindings";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HealthFindings".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HealthFindings".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HealthFinding {
    /// `namespace/name` of the HealthCheck.
    #[prost(string, tag = "1")]
    pub check: ::prost::alloc::string::String,
    /// As access logs name it.
    #[prost(string, tag = "2")]
    pub cluster: ::prost::alloc::string::String,
    /// Address and port.
    #[prost(string, tag = "3")]
    pub endpoint: ::prost::alloc::string::String,
    /// What was wrong, for people.
    #[prost(string, tag = "4")]
    pub why: ::prost::alloc::string::String,
}
impl ::prost::Name for HealthFinding {
    const NAME: &'static str = "HealthFinding";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.HealthFinding".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.HealthFinding".into()
    }
}
/// What a waypoint takes: tunnels in the mesh's mutual TLS (HBONE), each for one of these.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Waypoint {
    #[prost(message, optional, tag = "1")]
    pub bind: ::core::option::Option<SocketAddress>,
    #[prost(message, repeated, tag = "2")]
    pub destinations: ::prost::alloc::vec::Vec<WaypointDestination>,
    /// What is told of destinations of which not the same is told as of all others.
    #[prost(message, repeated, tag = "3")]
    pub telemetries: ::prost::alloc::vec::Vec<Telemetry>,
}
impl ::prost::Name for Waypoint {
    const NAME: &'static str = "Waypoint";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.Waypoint".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.Waypoint".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WaypointDestination {
    /// Unique in this message and stable over edits.
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    /// What tunnels ask for. None of one that is known by its host alone.
    #[prost(message, repeated, tag = "2")]
    pub called: ::prost::alloc::vec::Vec<SocketAddress>,
    #[prost(enumeration = "Protocol", tag = "3")]
    pub protocol: i32,
    /// A port of a service; absent: a workload by its own address.
    #[prost(message, optional, tag = "4")]
    pub service: ::core::option::Option<ServicePort>,
    /// The workload's uid, where there is no service.
    #[prost(string, tag = "5")]
    pub workload: ::prost::alloc::string::String,
    /// Every AuthorizationPolicy that holds for it, as for those of the whole configuration, which do not.
    #[prost(message, repeated, tag = "6")]
    pub authorization_policies: ::prost::alloc::vec::Vec<PolicyReference>,
    /// Every RequestAuthentication that does. The configuration's key sets are of all of them.
    #[prost(message, repeated, tag = "7")]
    pub request_authentications: ::prost::alloc::vec::Vec<PolicyReference>,
    /// What comes is a tunnel of HBONE itself, which is led on, unread, to where a workload of the service takes tunnels.
    #[prost(bool, tag = "8")]
    pub forward: bool,
    /// Which of the waypoint's telemetries holds for it, counted from 1; 0: the configuration's. Of either, the server's side.
    #[prost(uint32, tag = "9")]
    pub telemetry: u32,
}
impl ::prost::Name for WaypointDestination {
    const NAME: &'static str = "WaypointDestination";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.WaypointDestination".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.WaypointDestination".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GatewayListener {
    #[prost(message, optional, tag = "1")]
    pub bind: ::core::option::Option<SocketAddress>,
    /// Unique in this message and stable over edits.
    #[prost(string, tag = "2")]
    pub name: ::prost::alloc::string::String,
    /// The port that Gateways call it by; routes may hold for some ports only.
    #[prost(uint32, tag = "3")]
    pub port: u32,
    /// In plaintext there is one; of several, all speak TLS and are told apart by the name that clients ask for. Never empty.
    #[prost(message, repeated, tag = "4")]
    pub servers: ::prost::alloc::vec::Vec<GatewayServer>,
    /// Not 0: servers of HTTPS are served in HTTP/3 as well, over UDP at the same address, and this is the port that clients call for it.
    #[prost(uint32, tag = "25")]
    pub http3: u32,
}
impl ::prost::Name for GatewayListener {
    const NAME: &'static str = "GatewayListener";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GatewayListener".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GatewayListener".into()
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GatewayServer {
    /// Names that clients of TLS ask for; may begin with `*.`, or be `*`, which is also for who asks for none. Lower case.
    #[prost(string, repeated, tag = "1")]
    pub names: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Absent: plaintext.
    #[prost(message, optional, tag = "2")]
    pub tls: ::core::option::Option<GatewayTls>,
    /// What requests may ask for, by their authority; those that ask for none of these are answered 404.
    #[prost(message, repeated, tag = "3")]
    pub hosts: ::prost::alloc::vec::Vec<VirtualHost>,
    #[prost(enumeration = "ServerKind", tag = "20")]
    pub kind: i32,
    /// Where connections go, of the kinds that are no HTTP: a `Routes`.
    #[prost(bytes = "vec", tag = "21")]
    pub connections: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for GatewayServer {
    const NAME: &'static str = "GatewayServer";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GatewayServer".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GatewayServer".into()
    }
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct VirtualHost {
    /// Lower case, without port; may begin with `*.`, or be `*`. The exact one counts, then the longest.
    #[prost(string, tag = "1")]
    pub host: ::prost::alloc::string::String,
    /// A `Routes`, not read with the rest: it may have ten thousand. Absent: 404.
    #[prost(bytes = "vec", tag = "2")]
    pub routes: ::prost::alloc::vec::Vec<u8>,
    /// Who comes in plaintext is sent to `https` (301), whatever the routes say.
    #[prost(bool, tag = "3")]
    pub https_redirect: bool,
}
impl ::prost::Name for VirtualHost {
    const NAME: &'static str = "VirtualHost";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.VirtualHost".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.VirtualHost".into()
    }
}
/// What of a client's certificate is told beside its hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ClientCertificateDetails {
    #[prost(bool, tag = "1")]
    pub subject: bool,
    #[prost(bool, tag = "2")]
    pub certificate: bool,
    #[prost(bool, tag = "3")]
    pub chain: bool,
    #[prost(bool, tag = "4")]
    pub dns: bool,
    #[prost(bool, tag = "5")]
    pub uri: bool,
}
impl ::prost::Name for ClientCertificateDetails {
    const NAME: &'static str = "ClientCertificateDetails";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.ClientCertificateDetails".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.ClientCertificateDetails".into()
    }
}
/// One more certificate of a server.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct GatewayCertificate {
    /// Where it comes from, for people.
    #[prost(string, tag = "1")]
    pub credential: ::prost::alloc::string::String,
    /// PEM, the server's own first.
    #[prost(bytes = "vec", tag = "2")]
    pub certificates: ::prost::alloc::vec::Vec<u8>,
    /// PEM.
    #[prost(bytes = "vec", tag = "3")]
    pub private_key: ::prost::alloc::vec::Vec<u8>,
}
impl ::prost::Name for GatewayCertificate {
    const NAME: &'static str = "GatewayCertificate";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GatewayCertificate".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GatewayCertificate".into()
    }
}
/// How TLS ends at a gateway. It is told to nobody but the gateway.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GatewayTls {
    /// Where the certificate comes from, for people.
    #[prost(string, tag = "1")]
    pub credential: ::prost::alloc::string::String,
    /// Not empty: why there is none; nobody is let in.
    #[prost(string, tag = "2")]
    pub missing: ::prost::alloc::string::String,
    /// PEM, the server's own first.
    #[prost(bytes = "vec", tag = "3")]
    pub certificates: ::prost::alloc::vec::Vec<u8>,
    /// PEM.
    #[prost(bytes = "vec", tag = "4")]
    pub private_key: ::prost::alloc::vec::Vec<u8>,
    /// PEM. Empty: clients show no certificate.
    #[prost(bytes = "vec", tag = "5")]
    pub authorities: ::prost::alloc::vec::Vec<u8>,
    /// Clients may come without one.
    #[prost(bool, tag = "6")]
    pub anonymous: bool,
    #[prost(bool, tag = "7")]
    pub tls12: bool,
    #[prost(bool, tag = "8")]
    pub tls13: bool,
    /// Suites of TLS 1.2 by OpenSSL's names; none is all.
    #[prost(string, repeated, tag = "9")]
    pub suites: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    /// Files of the gateway's own machine, in place of all the PEM above: absolute paths, read by the gateway itself.
    #[prost(string, tag = "11")]
    pub certificate_file: ::prost::alloc::string::String,
    #[prost(string, tag = "12")]
    pub key_file: ::prost::alloc::string::String,
    /// Not empty: clients are asked for a certificate.
    #[prost(string, tag = "13")]
    pub authorities_file: ::prost::alloc::string::String,
    /// Certificates beside that one, for clients that cannot verify its kind of key.
    #[prost(message, repeated, tag = "14")]
    pub more: ::prost::alloc::vec::Vec<GatewayCertificate>,
    /// PEM of lists of certificates that the authorities took back. Empty: nobody looks.
    #[prost(bytes = "vec", tag = "15")]
    pub revocations: ::prost::alloc::vec::Vec<u8>,
    /// A file of them in place of that, beside the files above.
    #[prost(string, tag = "16")]
    pub revocations_file: ::prost::alloc::string::String,
    /// Clients whose certificate cannot be verified are served as those that show none. Beside `anonymous`.
    #[prost(bool, tag = "17")]
    pub unverified: bool,
    /// The mesh's own mutual TLS, by the proxy's own certificate; nothing of the above is said then.
    #[prost(bool, tag = "20")]
    pub mesh: bool,
}
impl ::prost::Name for GatewayTls {
    const NAME: &'static str = "GatewayTls";
    const PACKAGE: &'static str = "voile.proxy.v1";
    fn full_name() -> ::prost::alloc::string::String {
        "voile.proxy.v1.GatewayTls".into()
    }
    fn type_url() -> ::prost::alloc::string::String {
        "type.googleapis.com/voile.proxy.v1.GatewayTls".into()
    }
}
/// What else of a request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum RequestSubject {
    Unspecified = 0,
    Identity = 1,
    Address = 2,
    Method = 3,
    Path = 4,
}
impl RequestSubject {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Unspecified => "REQUEST_SUBJECT_UNSPECIFIED",
            Self::Identity => "REQUEST_SUBJECT_IDENTITY",
            Self::Address => "REQUEST_SUBJECT_ADDRESS",
            Self::Method => "REQUEST_SUBJECT_METHOD",
            Self::Path => "REQUEST_SUBJECT_PATH",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "REQUEST_SUBJECT_UNSPECIFIED" => Some(Self::Unspecified),
            "REQUEST_SUBJECT_IDENTITY" => Some(Self::Identity),
            "REQUEST_SUBJECT_ADDRESS" => Some(Self::Address),
            "REQUEST_SUBJECT_METHOD" => Some(Self::Method),
            "REQUEST_SUBJECT_PATH" => Some(Self::Path),
            _ => None,
        }
    }
}
/// How the path of a request is written before it is compared, and on its way to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum PathNormalization {
    /// RFC 3986: `.` and `..` removed, unreserved characters decoded, `\` is `/`.
    Base = 0,
    /// As it came.
    None = 1,
    /// BASE, and several `/` are one.
    MergeSlashes = 2,
    /// Before that, `%2F` and `%5C` are decoded.
    DecodeAndMergeSlashes = 3,
}
impl PathNormalization {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Base => "BASE",
            Self::None => "NONE",
            Self::MergeSlashes => "MERGE_SLASHES",
            Self::DecodeAndMergeSlashes => "DECODE_AND_MERGE_SLASHES",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "BASE" => Some(Self::Base),
            "NONE" => Some(Self::None),
            "MERGE_SLASHES" => Some(Self::MergeSlashes),
            "DECODE_AND_MERGE_SLASHES" => Some(Self::DecodeAndMergeSlashes),
            _ => None,
        }
    }
}
/// 0 is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum AuthorizationAction {
    NoAction = 0,
    Allow = 1,
    Deny = 2,
    Audit = 3,
    Custom = 4,
}
impl AuthorizationAction {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::NoAction => "NO_ACTION",
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::Audit => "AUDIT",
            Self::Custom => "CUSTOM",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "NO_ACTION" => Some(Self::NoAction),
            "ALLOW" => Some(Self::Allow),
            "DENY" => Some(Self::Deny),
            "AUDIT" => Some(Self::Audit),
            "CUSTOM" => Some(Self::Custom),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Protocol {
    Auto = 0,
    Http = 1,
    Http2 = 2,
    Grpc = 3,
    Tcp = 4,
    Tls = 5,
}
impl Protocol {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Auto => "AUTO",
            Self::Http => "HTTP",
            Self::Http2 => "HTTP2",
            Self::Grpc => "GRPC",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "AUTO" => Some(Self::Auto),
            "HTTP" => Some(Self::Http),
            "HTTP2" => Some(Self::Http2),
            "GRPC" => Some(Self::Grpc),
            "TCP" => Some(Self::Tcp),
            "TLS" => Some(Self::Tls),
            _ => None,
        }
    }
}
/// PeerAuthentication's mode after inheritance; never unset on the wire: 0 is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum MutualTls {
    Unspecified = 0,
    Disable = 1,
    Permissive = 2,
    Strict = 3,
}
impl MutualTls {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Unspecified => "UNSPECIFIED",
            Self::Disable => "DISABLE",
            Self::Permissive => "PERMISSIVE",
            Self::Strict => "STRICT",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "UNSPECIFIED" => Some(Self::Unspecified),
            "DISABLE" => Some(Self::Disable),
            "PERMISSIVE" => Some(Self::Permissive),
            "STRICT" => Some(Self::Strict),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum OutboundPolicy {
    AllowAny = 0,
    RegistryOnly = 1,
}
impl OutboundPolicy {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::AllowAny => "ALLOW_ANY",
            Self::RegistryOnly => "REGISTRY_ONLY",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "ALLOW_ANY" => Some(Self::AllowAny),
            "REGISTRY_ONLY" => Some(Self::RegistryOnly),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Side {
    /// Refused.
    NoSide = 0,
    /// Outbound.
    Client = 1,
    /// Inbound.
    Server = 2,
}
impl Side {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::NoSide => "NO_SIDE",
            Self::Client => "CLIENT",
            Self::Server => "SERVER",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "NO_SIDE" => Some(Self::NoSide),
            "CLIENT" => Some(Self::Client),
            "SERVER" => Some(Self::Server),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ClientTls {
    /// In mutual TLS to whoever has a sidecar.
    Automatic = 0,
    /// In plaintext, whoever is called.
    Plaintext = 1,
    /// In the mesh's mutual TLS or not at all.
    MeshMutual = 2,
    /// In TLS of the world's, as `tls_origin` says, or not at all.
    Originate = 3,
}
impl ClientTls {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Automatic => "AUTOMATIC",
            Self::Plaintext => "PLAINTEXT",
            Self::MeshMutual => "MESH_MUTUAL",
            Self::Originate => "ORIGINATE",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "AUTOMATIC" => Some(Self::Automatic),
            "PLAINTEXT" => Some(Self::Plaintext),
            "MESH_MUTUAL" => Some(Self::MeshMutual),
            "ORIGINATE" => Some(Self::Originate),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum LoadBalancerAlgorithm {
    LeastCost = 0,
    LeastRequest = 1,
    RoundRobin = 2,
    Random = 3,
    RingHash = 4,
    Maglev = 5,
}
impl LoadBalancerAlgorithm {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::LeastCost => "LEAST_COST",
            Self::LeastRequest => "LEAST_REQUEST",
            Self::RoundRobin => "ROUND_ROBIN",
            Self::Random => "RANDOM",
            Self::RingHash => "RING_HASH",
            Self::Maglev => "MAGLEV",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "LEAST_COST" => Some(Self::LeastCost),
            "LEAST_REQUEST" => Some(Self::LeastRequest),
            "ROUND_ROBIN" => Some(Self::RoundRobin),
            "RANDOM" => Some(Self::Random),
            "RING_HASH" => Some(Self::RingHash),
            "MAGLEV" => Some(Self::Maglev),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ServerKind {
    /// Requests of HTTP.
    Requests = 0,
    /// Bytes, after TLS ended here if there is `tls`.
    Bytes = 1,
    /// TLS that ends behind us: its name alone is looked at. There is no `tls`.
    Passthrough = 2,
    /// The mesh's own TLS, which goes on unread to who takes it: its names say which service. There is no `tls`.
    AutoPassthrough = 3,
}
impl ServerKind {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Requests => "REQUESTS",
            Self::Bytes => "BYTES",
            Self::Passthrough => "PASSTHROUGH",
            Self::AutoPassthrough => "AUTO_PASSTHROUGH",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "REQUESTS" => Some(Self::Requests),
            "BYTES" => Some(Self::Bytes),
            "PASSTHROUGH" => Some(Self::Passthrough),
            "AUTO_PASSTHROUGH" => Some(Self::AutoPassthrough),
            _ => None,
        }
    }
}
/// What a proxy makes of `x-forwarded-client-cert`. A client without a verified certificate is believed by none but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ForwardClientCertificate {
    Sanitize = 0,
    ForwardOnly = 1,
    AppendForward = 2,
    SanitizeSet = 3,
    AlwaysForwardOnly = 4,
}
impl ForwardClientCertificate {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Sanitize => "SANITIZE",
            Self::ForwardOnly => "FORWARD_ONLY",
            Self::AppendForward => "APPEND_FORWARD",
            Self::SanitizeSet => "SANITIZE_SET",
            Self::AlwaysForwardOnly => "ALWAYS_FORWARD_ONLY",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "SANITIZE" => Some(Self::Sanitize),
            "FORWARD_ONLY" => Some(Self::ForwardOnly),
            "APPEND_FORWARD" => Some(Self::AppendForward),
            "SANITIZE_SET" => Some(Self::SanitizeSet),
            "ALWAYS_FORWARD_ONLY" => Some(Self::AlwaysForwardOnly),
            _ => None,
        }
    }
}

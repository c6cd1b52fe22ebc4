//! The checked mesh as configuration of a stock Envoy, in the JSON that Envoy reads: what a sidecar of ours would do for a
//! workload (`translate`), and the filters that Istio would generate from its policies. For foreign proxies that our control
//! plane serves, for the laboratory's peers, and for the test that holds our own engine to Envoy's.

mod bootstrap;
mod custom;
mod filters;
pub mod grpc;
mod json;
mod limit;
mod matchers;
mod matching;
mod proxy;
mod rbac;
mod token;

pub use bootstrap::{
    CERTIFICATES, ControlPlaneAddress, EnvoyIdentity, GATEWAY_NODE, INTERCEPTION_MODE,
    SIDECAR_NODE, secret_files,
};
pub use custom::{CUSTOM_PREFIX, custom_filter};
pub use filters::{WorkloadFilters, cluster_of};
pub use limit::{Limit, LimitName};
pub use proxy::{
    Callee, Configuration, DependencyScope, IDENTITY, InterceptMode, Keys, ROOT, Translator,
    WrittenKeys, identity_secret, root_secret, translate,
};
pub use rbac::{Layer, PeerIdentity, Translation};
pub use token::token_filter;

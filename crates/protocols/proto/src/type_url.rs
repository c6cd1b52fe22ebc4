//! The type URLs under which resources travel in discovery requests and responses. docs/decisions/0001-wire.md lists
//! their purposes.

use std::sync::{Arc, LazyLock};

/// Istio's workloads and services ([`crate::workload::Address`]).
pub const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";

/// Authorization policy for workloads behind a node proxy ([`crate::authorization::Authorization`]); subscribed to as
/// `*`.
pub const AUTHORIZATION: &str = "type.googleapis.com/istio.security.Authorization";

/// Listeners and settings of one sidecar ([`crate::proxy::ProxyConfiguration`]).
pub const PROXY_CONFIGURATION: &str = "type.googleapis.com/voile.proxy.v1.ProxyConfiguration";

/// Client settings for a service ([`crate::proxy::ServicePolicy`]).
pub const SERVICE_POLICY: &str = "type.googleapis.com/voile.proxy.v1.ServicePolicy";

/// Routes of requests to a service ([`crate::proxy::Routes`]).
pub const SERVICE_ROUTES: &str = "type.googleapis.com/voile.proxy.v1.Routes";

/// Authorization policy of the workloads that obey it ([`crate::proxy::AuthorizationPolicy`]).
pub const AUTHORIZATION_POLICY: &str = "type.googleapis.com/voile.proxy.v1.AuthorizationPolicy";

/// Token issuers that the workloads that obey it trust ([`crate::proxy::RequestAuthentication`]).
pub const REQUEST_AUTHENTICATION: &str = "type.googleapis.com/voile.proxy.v1.RequestAuthentication";

/// Public keys of token issuers ([`crate::proxy::KeySet`]).
pub const KEY_SET: &str = "type.googleapis.com/voile.proxy.v1.KeySet";

/// Certificates that are taken back ([`crate::proxy::RevocationLists`]).
pub const REVOCATION_LISTS: &str = "type.googleapis.com/voile.proxy.v1.RevocationLists";

/// The name of the only resource of that type.
pub const REVOCATIONS: &str = "mesh";

/// Health of a workload's application. Its proxy reports it; an error names the complaint. No resource is requested by
/// this type.
pub const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// Endpoints that a proxy's HealthChecks found to be unwell ([`crate::proxy::HealthFindings`]), which it tells in the details of an
/// error. Nothing is asked for by it.
pub const HEALTH_FINDINGS: &str = "type.googleapis.com/voile.proxy.v1.HealthFindings";

/// Envoy's listeners, as strangers ask for them.
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";

/// Envoy's routes.
pub const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

/// Envoy's clusters.
pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// Envoy's secrets: where certificates are.
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

/// Envoy's endpoints.
pub const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

/// All of them.
const ALL: [&str; 15] = [
    ADDRESS,
    AUTHORIZATION,
    PROXY_CONFIGURATION,
    SERVICE_POLICY,
    SERVICE_ROUTES,
    AUTHORIZATION_POLICY,
    REQUEST_AUTHENTICATION,
    KEY_SET,
    REVOCATION_LISTS,
    HEALTH,
    LISTENER,
    ROUTES,
    CLUSTER,
    SECRET,
    ENDPOINTS,
];

/// The one copy of a type's name in this process; a new one of a type that is none of ours. Thousands of streams know a few types each,
/// and compare them at every turn: names that lie in one place are read from near.
#[must_use]
pub fn shared(type_url: &str) -> Arc<str> {
    static SHARED: LazyLock<[Arc<str>; ALL.len()]> = LazyLock::new(|| ALL.map(Arc::from));
    let known = SHARED.iter().find(|known| ***known == *type_url);
    known.map_or_else(|| type_url.into(), Arc::clone)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Name;

    use crate::{authorization, proxy, workload};

    #[test]
    fn one_copy_of_each_name_is_shared_and_no_stranger_is_kept() {
        for url in super::ALL {
            let read = String::from(url);
            let (one, other) = (super::shared(url), super::shared(&read));
            assert!(Arc::ptr_eq(&one, &other) && *one == *url, "{url}");
        }
        let (one, other) = (super::shared("another"), super::shared("another"));
        assert!(!Arc::ptr_eq(&one, &other) && one == other);
    }

    #[test]
    fn type_urls_name_their_messages() {
        for (url, wanted) in [
            (super::ADDRESS, workload::Address::type_url()),
            (
                super::AUTHORIZATION,
                authorization::Authorization::type_url(),
            ),
            (
                super::PROXY_CONFIGURATION,
                proxy::ProxyConfiguration::type_url(),
            ),
            (super::SERVICE_POLICY, proxy::ServicePolicy::type_url()),
            (super::SERVICE_ROUTES, proxy::Routes::type_url()),
            (
                super::AUTHORIZATION_POLICY,
                proxy::AuthorizationPolicy::type_url(),
            ),
            (
                super::REQUEST_AUTHENTICATION,
                proxy::RequestAuthentication::type_url(),
            ),
            (super::KEY_SET, proxy::KeySet::type_url()),
            (super::REVOCATION_LISTS, proxy::RevocationLists::type_url()),
        ] {
            assert_eq!(url, wanted);
        }
    }
}

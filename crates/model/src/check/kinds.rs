//! The kinds we know, those we do not know yet, and those we never will.

/// Where resources of a kind live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Namespaced,
    Cluster,
}

/// A kind that is read.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// What it is remembered by: its name, but for the second kind of one name.
    pub(super) id: &'static str,
    pub(super) api_versions: &'static [&'static str],
    pub(super) scope: Scope,
}

/// Istio's kind; Gateway API has one of the same name.
pub(super) const GATEWAY: &str = "Gateway";

/// Gateway API's kind of that name.
pub(super) const API_GATEWAY: &str = "Gateway.gateway.networking.k8s.io";

const GATEWAY_API: &[&str] = &[
    "gateway.networking.k8s.io/v1",
    "gateway.networking.k8s.io/v1beta1",
];
/// Kinds that are younger in the API are still written in the versions that they had first.
const TLS_ROUTE: &[&str] = &[
    "gateway.networking.k8s.io/v1",
    "gateway.networking.k8s.io/v1alpha3",
    "gateway.networking.k8s.io/v1alpha2",
];
const TCP_ROUTE: &[&str] = &[
    "gateway.networking.k8s.io/v1",
    "gateway.networking.k8s.io/v1alpha2",
];
const BACKEND_TLS: &[&str] = &[
    "gateway.networking.k8s.io/v1",
    "gateway.networking.k8s.io/v1alpha3",
];
const CORE: &[&str] = &["v1"];
const NETWORKING: &[&str] = &[
    "networking.istio.io/v1",
    "networking.istio.io/v1beta1",
    "networking.istio.io/v1alpha3",
];

const fn kind(name: &'static str, api_versions: &'static [&'static str]) -> Kind {
    Kind {
        name,
        id: name,
        api_versions,
        scope: Scope::Namespaced,
    }
}

/// Every kind that is read.
pub(super) const KINDS: &[Kind] = &[
    kind(
        "AuthorizationPolicy",
        &["security.istio.io/v1", "security.istio.io/v1beta1"],
    ),
    kind("BackendTLSPolicy", BACKEND_TLS),
    kind("ConfigMap", CORE),
    kind("Deployment", &["apps/v1"]),
    kind("DestinationRule", NETWORKING),
    kind("EndpointSlice", &["discovery.k8s.io/v1"]),
    kind("Endpoints", CORE),
    kind(GATEWAY, NETWORKING),
    Kind {
        id: API_GATEWAY,
        ..kind(GATEWAY, GATEWAY_API)
    },
    Kind {
        scope: Scope::Cluster,
        ..kind("GatewayClass", GATEWAY_API)
    },
    kind("GRPCRoute", GATEWAY_API),
    kind("HealthCheck", &["voile.dev/v1"]),
    kind("HTTPRoute", GATEWAY_API),
    Kind {
        name: "IPAddress",
        id: "IPAddress",
        api_versions: &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"],
        scope: Scope::Cluster,
    },
    kind("ListenerSet", GATEWAY_API),
    Kind {
        name: "Namespace",
        id: "Namespace",
        api_versions: CORE,
        scope: Scope::Cluster,
    },
    kind(
        "PeerAuthentication",
        &["security.istio.io/v1", "security.istio.io/v1beta1"],
    ),
    kind("Pod", CORE),
    kind("ProxyConfig", &["networking.istio.io/v1beta1"]),
    kind("RateLimit", &["voile.dev/v1"]),
    kind("ReferenceGrant", GATEWAY_API),
    kind(
        "RequestAuthentication",
        &["security.istio.io/v1", "security.istio.io/v1beta1"],
    ),
    kind("Secret", CORE),
    kind("Service", CORE),
    kind("ServiceAccount", CORE),
    kind("ServiceEntry", NETWORKING),
    kind("Sidecar", NETWORKING),
    kind("TCPRoute", TCP_ROUTE),
    kind(
        "Telemetry",
        &["telemetry.istio.io/v1", "telemetry.istio.io/v1alpha1"],
    ),
    kind("TLSRoute", TLS_ROUTE),
    kind("VirtualService", NETWORKING),
    kind("WorkloadEntry", NETWORKING),
    kind("WorkloadGroup", NETWORKING),
];

/// Why a kind is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// Later work adds it.
    NotYet,
    /// Later work adds it; until then something is open that its author wants shut.
    NotYetSecurity,
    /// Never.
    Refused,
    /// It means nothing to the mesh.
    NoMeaning,
}

/// Every kind that is known and not read.
pub(super) const UNREAD: &[(&str, Unread)] = &[
    ("NetworkPolicy", Unread::NotYetSecurity),
    ("TrafficExtension", Unread::NotYet),
    ("UDPRoute", Unread::NotYet),
    ("XBackend", Unread::NotYet),
    ("XBackendTrafficPolicy", Unread::NotYet),
    ("XMesh", Unread::NotYet),
    ("CronJob", Unread::NotYet),
    ("DaemonSet", Unread::NotYet),
    ("Ingress", Unread::NotYet),
    ("IngressClass", Unread::NotYet),
    ("Job", Unread::NotYet),
    ("Node", Unread::NotYet),
    ("ReplicaSet", Unread::NotYet),
    ("ReplicationController", Unread::NotYet),
    ("StatefulSet", Unread::NotYet),
    ("EnvoyFilter", Unread::Refused),
    ("WasmPlugin", Unread::Refused),
    ("ClusterRole", Unread::NoMeaning),
    ("ClusterRoleBinding", Unread::NoMeaning),
    ("CustomResourceDefinition", Unread::NoMeaning),
    ("HorizontalPodAutoscaler", Unread::NoMeaning),
    ("LimitRange", Unread::NoMeaning),
    ("MutatingWebhookConfiguration", Unread::NoMeaning),
    ("PersistentVolume", Unread::NoMeaning),
    ("PersistentVolumeClaim", Unread::NoMeaning),
    ("PodDisruptionBudget", Unread::NoMeaning),
    ("PriorityClass", Unread::NoMeaning),
    ("ResourceQuota", Unread::NoMeaning),
    ("Role", Unread::NoMeaning),
    ("RoleBinding", Unread::NoMeaning),
    ("StorageClass", Unread::NoMeaning),
    ("ValidatingWebhookConfiguration", Unread::NoMeaning),
];

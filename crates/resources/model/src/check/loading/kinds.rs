//! The kinds we know, those we do not know yet, and those we never will.

/// Scope of resources of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceScope {
    /// In a namespace.
    Namespaced,
    /// In none.
    Cluster,
}

/// A kind that is read.
#[derive(Debug)]
pub struct ResourceKind {
    /// `kind`.
    pub name: &'static str,
    /// Identifier: the kind's name, except for the second kind of one name.
    pub(in crate::check) id: &'static str,
    /// `apiVersion`s that are read, the best first.
    pub api_versions: &'static [&'static str],
    /// Its scope.
    pub scope: ResourceScope,
}

/// Every kind that is read.
pub fn kinds() -> &'static [ResourceKind] {
    KINDS
}

/// Group and name of kinds of Istio and Gateway API that are not supported: whoever has applied one believes it in force.
pub fn unsupported_kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    let meant = UNREAD.iter().filter(|(group, _, reason)| {
        let is_of_mesh = group.ends_with(".istio.io") || group.starts_with("gateway.networking.");
        is_of_mesh && matches!(reason, UnreadReason::Refused | UnreadReason::NotYet)
    });
    meant.map(|(group, name, _)| (*group, *name))
}

/// Istio's kind; Gateway API has one of the same name.
pub(in crate::check) const GATEWAY: &str = "Gateway";

/// Gateway API's kind of that name.
pub(in crate::check) const API_GATEWAY: &str = "Gateway.gateway.networking.k8s.io";

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

const fn kind(name: &'static str, api_versions: &'static [&'static str]) -> ResourceKind {
    ResourceKind {
        name,
        id: name,
        api_versions,
        scope: ResourceScope::Namespaced,
    }
}

/// Every kind that is read.
pub(in crate::check) const KINDS: &[ResourceKind] = &[
    kind(
        "AuthorizationPolicy",
        &["security.istio.io/v1", "security.istio.io/v1beta1"],
    ),
    kind("BackendTLSPolicy", BACKEND_TLS),
    kind("ConfigMap", CORE),
    kind("DaemonSet", &["apps/v1"]),
    kind("Deployment", &["apps/v1"]),
    kind("DestinationRule", NETWORKING),
    kind("EndpointSlice", &["discovery.k8s.io/v1"]),
    kind("Endpoints", CORE),
    kind(GATEWAY, NETWORKING),
    ResourceKind {
        id: API_GATEWAY,
        ..kind(GATEWAY, GATEWAY_API)
    },
    ResourceKind {
        scope: ResourceScope::Cluster,
        ..kind("GatewayClass", GATEWAY_API)
    },
    kind("GRPCRoute", GATEWAY_API),
    kind("HealthCheck", &["voile.dev/v1"]),
    kind("HTTPRoute", GATEWAY_API),
    kind("Job", &["batch/v1"]),
    ResourceKind {
        name: "IPAddress",
        id: "IPAddress",
        api_versions: &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"],
        scope: ResourceScope::Cluster,
    },
    kind("ListenerSet", GATEWAY_API),
    ResourceKind {
        name: "Namespace",
        id: "Namespace",
        api_versions: CORE,
        scope: ResourceScope::Cluster,
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
    kind("StatefulSet", &["apps/v1"]),
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
pub(in crate::check) enum UnreadReason {
    /// Later work adds it.
    NotYet,
    /// Its Pods run on a cluster only.
    NotRun,
    /// It forbids something, and others than the mesh enforce it.
    Elsewhere,
    /// It says how Istio is installed.
    Installation,
    /// Never.
    Refused,
    /// It means nothing to the mesh.
    NoMeaning,
}

/// Every kind of these groups that is known and not read, with its group.
pub(in crate::check) const UNREAD: &[(&str, &str, UnreadReason)] = &[
    (
        "networking.k8s.io",
        "NetworkPolicy",
        UnreadReason::Elsewhere,
    ),
    (
        "extensions.istio.io",
        "TrafficExtension",
        UnreadReason::NotYet,
    ),
    (
        "gateway.networking.k8s.io",
        "UDPRoute",
        UnreadReason::NotYet,
    ),
    (
        "gateway.networking.x-k8s.io",
        "XBackend",
        UnreadReason::NotYet,
    ),
    (
        "gateway.networking.x-k8s.io",
        "XBackendTrafficPolicy",
        UnreadReason::NotYet,
    ),
    (
        "gateway.networking.x-k8s.io",
        "XListenerSet",
        UnreadReason::NotYet,
    ),
    ("gateway.networking.x-k8s.io", "XMesh", UnreadReason::NotYet),
    ("batch", "CronJob", UnreadReason::NotRun),
    ("networking.k8s.io", "Ingress", UnreadReason::NotYet),
    ("", "Node", UnreadReason::NotYet),
    ("apps", "ReplicaSet", UnreadReason::NotYet),
    ("", "ReplicationController", UnreadReason::NotYet),
    ("networking.istio.io", "EnvoyFilter", UnreadReason::Refused),
    ("extensions.istio.io", "WasmPlugin", UnreadReason::Refused),
    ("apps", "ControllerRevision", UnreadReason::NoMeaning),
    ("", "Binding", UnreadReason::NoMeaning),
    ("", "ComponentStatus", UnreadReason::NoMeaning),
    // A kubeconfig.
    ("", "Config", UnreadReason::NoMeaning),
    ("", "Event", UnreadReason::NoMeaning),
    ("", "LimitRange", UnreadReason::NoMeaning),
    ("", "PersistentVolume", UnreadReason::NoMeaning),
    ("", "PersistentVolumeClaim", UnreadReason::NoMeaning),
    ("", "PodTemplate", UnreadReason::NoMeaning),
    ("", "ResourceQuota", UnreadReason::NoMeaning),
    ("networking.k8s.io", "IngressClass", UnreadReason::NoMeaning),
    ("networking.k8s.io", "ServiceCIDR", UnreadReason::NoMeaning),
    (
        "gateway.networking.k8s.io",
        "ConformanceReport",
        UnreadReason::NoMeaning,
    ),
    (
        "install.istio.io",
        "IstioOperator",
        UnreadReason::Installation,
    ),
];

/// The group of the security kinds, which decide about callers.
pub(in crate::check) const SECURITY: &str = "security.istio.io";

/// Kinds whose loss would permit more.
pub(in crate::check) const SECURITY_KINDS: [&str; 3] = [
    "PeerAuthentication",
    "AuthorizationPolicy",
    "RequestAuthentication",
];

/// Number of wrong letters in a group's name that still count as a typing error.
const SLIPS: usize = 2;

/// The group of an apiVersion; empty for the core group. A text that is neither a group nor a core version (`builtin`)
/// is returned unchanged.
pub(in crate::check) fn group(api_version: &str) -> &str {
    let is_version = |text: &str| {
        let digits = text.strip_prefix('v');
        digits.is_some_and(|digits| digits.starts_with(|one: char| one.is_ascii_digit()))
    };
    match api_version.rsplit_once('/') {
        Some((group, _)) => group,
        None if is_version(api_version) || api_version.is_empty() => "",
        None => api_version,
    }
}

impl ResourceKind {
    pub(in crate::check) fn group(&self) -> &'static str {
        self.api_versions
            .first()
            .map_or("", |version| group(version))
    }
}

/// Returns true if kinds of this group concern the mesh. Removed kinds of Istio count too: their authors believe them
/// in force.
pub(in crate::check) fn is_ours(group: &str) -> bool {
    let read = KINDS.iter().any(|kind| kind.group() == group);
    read || UNREAD.iter().any(|(known, ..)| *known == group) || group.ends_with(".istio.io")
}

/// A kind that is read, by its group and name. Without a group, or with one that differs by a slip, the name decides.
pub(in crate::check) fn known(
    api_version: Option<&str>,
    name: &str,
) -> Option<&'static ResourceKind> {
    let mut named = KINDS.iter().filter(|kind| kind.name == name);
    let Some(group) = api_version.map(group) else {
        return named.next();
    };
    let exact = KINDS
        .iter()
        .find(|kind| kind.name == name && kind.group() == group);
    exact.or_else(|| {
        named.find(|kind| {
            let slip = !group.is_empty()
                && !kind.group().is_empty()
                && strsim::damerau_levenshtein(kind.group(), group) <= SLIPS;
            is_ours(group) || slip
        })
    })
}

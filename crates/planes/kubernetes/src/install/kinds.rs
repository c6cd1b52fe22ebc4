//! The kinds of objects that the chart installs.

use kube::api::ApiResource;

/// A kind of the chart.
#[derive(Debug)]
pub(super) struct InstalledKind {
    group: &'static str,
    pub(super) kind: &'static str,
    plural: &'static str,
    pub(super) namespaced: bool,
}

const fn namespaced(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> InstalledKind {
    InstalledKind {
        group,
        kind,
        plural,
        namespaced: true,
    }
}

const fn cluster(group: &'static str, kind: &'static str, plural: &'static str) -> InstalledKind {
    InstalledKind {
        namespaced: false,
        ..namespaced(group, kind, plural)
    }
}

/// The kind of the definitions of kinds.
pub(super) const DEFINITION: &str = "CustomResourceDefinition";

/// The kind of the Prometheus operator. Only installations whose values want it need the kind and permissions for it.
pub(super) const POD_MONITOR: &str = "PodMonitor";

/// All of them in the order of their installation. Webhooks come last: without a control plane they stop pods.
pub(super) const KINDS: [InstalledKind; 16] = [
    cluster(
        "apiextensions.k8s.io",
        DEFINITION,
        "customresourcedefinitions",
    ),
    // Before all that changes the cluster: it may lack the kind.
    namespaced("monitoring.coreos.com", POD_MONITOR, "podmonitors"),
    namespaced("", "ServiceAccount", "serviceaccounts"),
    cluster("rbac.authorization.k8s.io", "ClusterRole", "clusterroles"),
    cluster(
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        "clusterrolebindings",
    ),
    namespaced("rbac.authorization.k8s.io", "Role", "roles"),
    namespaced("rbac.authorization.k8s.io", "RoleBinding", "rolebindings"),
    namespaced("", "ConfigMap", "configmaps"),
    namespaced("", "Service", "services"),
    namespaced("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
    namespaced("apps", "Deployment", "deployments"),
    namespaced("apps", "DaemonSet", "daemonsets"),
    namespaced(
        "autoscaling",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
    cluster(
        "gateway.networking.k8s.io",
        "GatewayClass",
        "gatewayclasses",
    ),
    cluster(
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    cluster(
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
];

impl InstalledKind {
    /// The kind as the API has it.
    pub(super) fn resource(&self) -> ApiResource {
        let version = if self.group == "autoscaling" {
            "v2"
        } else {
            "v1"
        };
        ApiResource {
            group: self.group.to_owned(),
            version: version.to_owned(),
            api_version: match self.group {
                "" => version.to_owned(),
                group => format!("{group}/{version}"),
            },
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
        }
    }

    /// Returns true if the API server answers a question for objects so because there can be none of ours.
    pub(super) fn is_absent(&self, code: u16) -> bool {
        matches!(code, 404 | 405) || code == 403 && self.kind == POD_MONITOR
    }

    /// `PLURAL.GROUP`, as in messages about permissions.
    pub(super) fn name(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

/// The place of a kind in the order of installation.
pub(super) fn rank(kind: &str) -> usize {
    let mut kinds = KINDS.iter();
    kinds
        .position(|one| one.kind == kind)
        .unwrap_or(KINDS.len())
}

/// A kind by its name.
pub(super) fn find(kind: &str) -> Option<&'static InstalledKind> {
    KINDS.iter().find(|one| one.kind == kind)
}

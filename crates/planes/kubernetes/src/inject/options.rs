//! Settings of the injector, which a control plane has from its own options and the cluster.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use crate::inject::request;

/// Settings of an injector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectorOptions {
    /// Image of `voile`, for both containers.
    pub image: String,
    /// `imagePullPolicy` of both containers; `None` is Kubernetes' default.
    pub image_pull_policy: Option<String>,
    /// Secrets by which the image is pulled.
    pub image_pull_secrets: Vec<String>,
    /// Revision of the control plane (`istio.io/rev`).
    pub revision: String,
    /// Tags of the revision. The tag `default` answers for namespaces with `istio-injection: enabled`.
    pub tags: Vec<String>,
    /// `host:port` of the control plane, unless MeshConfig or the Pod names another.
    pub discovery_address: String,
    /// `host:port` of an authority that proxies ask for certificates in place of the control plane.
    pub ca_address: Option<String>,
    /// True if the mesh's root is in a ClusterTrustBundle in place of ConfigMaps.
    pub trust_bundle: bool,
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the Pods' network; empty if there is one network.
    pub network: String,
    /// True if a CNI plugin sets the redirect rules: Pods then have no `istio-init`.
    pub cni: bool,
    /// True if sidecars answer the DNS questions of their applications.
    pub dns: bool,
    /// The unspecified address of the family that Pods have; proxies serve metrics and readiness there.
    pub listen: IpAddr,
    /// Pods with such labels are never injected, unless they ask for it.
    pub never_inject: Vec<LabelSelector>,
    /// Pods with such labels are injected, unless they refuse. Matters only if `inject_by_default` is false.
    pub always_inject: Vec<LabelSelector>,
    /// True if Pods that say nothing are injected (Istio's `policy: enabled`).
    pub inject_by_default: bool,
    /// True if probes are rewritten for Pods that say nothing.
    pub rewrite_probes: bool,
    /// Default level of the proxies' logs.
    pub log_level: String,
}

impl Default for InjectorOptions {
    /// One revision, `default`, in `istio-system`.
    fn default() -> Self {
        Self {
            image: "voile:latest".to_owned(),
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            revision: "default".to_owned(),
            tags: Vec::new(),
            discovery_address: "istiod.istio-system.svc:15012".to_owned(),
            ca_address: None,
            trust_bundle: false,
            cluster: "Kubernetes".to_owned(),
            network: String::new(),
            cni: false,
            dns: true,
            listen: Ipv4Addr::UNSPECIFIED.into(),
            never_inject: Vec::new(),
            always_inject: Vec::new(),
            inject_by_default: true,
            rewrite_probes: true,
            log_level: "info".to_owned(),
        }
    }
}

impl InjectorOptions {
    /// Returns true if the injector answers for this revision or tag.
    #[must_use]
    pub fn answers_for(&self, revision: &str) -> bool {
        self.revision == revision || self.tags.iter().any(|tag| tag == revision)
    }
}

/// A selector of Kubernetes (`metav1.LabelSelector`). All parts must hold. An empty selector matches nothing here, as in
/// Istio's injector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    /// Labels with their values.
    pub labels: BTreeMap<String, String>,
    /// Conditions on labels.
    pub expressions: Vec<LabelExpression>,
}

/// A condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelExpression {
    /// The label.
    pub key: String,
    /// Relation of its value to the values.
    pub operator: LabelOperator,
    /// The values.
    pub values: Vec<String>,
}

/// Relation of a label's value to a list of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelOperator {
    /// The value is in the list.
    In,
    /// It is not, or there is no such label.
    NotIn,
    /// There is such a label.
    Exists,
    /// There is none.
    DoesNotExist,
}

impl LabelSelector {
    /// Reads one from JSON; `None` if it is not one.
    #[must_use]
    pub fn read(written: &Value) -> Option<Self> {
        let mut selector = Self::default();
        for (key, value) in written["matchLabels"].as_object().into_iter().flatten() {
            let value = value.as_str()?.to_owned();
            selector.labels.insert(key.clone(), value);
        }
        for expression in request::items(written, "matchExpressions") {
            let operator = match expression["operator"].as_str()? {
                "In" => LabelOperator::In,
                "NotIn" => LabelOperator::NotIn,
                "Exists" => LabelOperator::Exists,
                "DoesNotExist" => LabelOperator::DoesNotExist,
                _ => return None,
            };
            let values = request::items(expression, "values");
            let values = values.map(|value| value.as_str().map(str::to_owned));
            selector.expressions.push(LabelExpression {
                key: expression["key"].as_str()?.to_owned(),
                operator,
                values: values.collect::<Option<_>>()?,
            });
        }
        Some(selector)
    }

    /// Returns true if it selects an object with these labels.
    #[must_use]
    pub fn selects(&self, labels: &Value) -> bool {
        let value = |key: &str| labels[key].as_str();
        let is_empty = self.labels.is_empty() && self.expressions.is_empty();
        let has_labels = self
            .labels
            .iter()
            .all(|(key, wanted)| value(key) == Some(wanted));
        let holds = |expression: &LabelExpression| {
            let found = value(&expression.key);
            let is_listed = found.is_some_and(|found| expression.values.iter().any(|v| v == found));
            match expression.operator {
                LabelOperator::In => is_listed,
                LabelOperator::NotIn => !is_listed,
                LabelOperator::Exists => found.is_some(),
                LabelOperator::DoesNotExist => found.is_none(),
            }
        };
        !is_empty && has_labels && self.expressions.iter().all(holds)
    }
}

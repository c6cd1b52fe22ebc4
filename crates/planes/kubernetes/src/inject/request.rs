//! A Pod that is about to be created, and what every step of its injection reads of it.

use std::collections::BTreeMap;

use serde_json::Value;

/// Container of the proxy.
pub(crate) const PROXY_CONTAINER: &str = "istio-proxy";
/// Init container that sets the redirect rules.
pub(crate) const INIT_CONTAINER: &str = "istio-init";
/// Argument of a sidecar that others redirect connections to.
pub(crate) const CAPTURE_ARGUMENT: &str = "--capture=redirect-by-user";
/// Begins the argument with the address at which a sidecar answers DNS questions.
pub(crate) const DNS_ARGUMENT: &str = "--dns=";

/// A Pod that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct InjectionRequest<'a> {
    /// The Pod as JSON, or an object with `metadata` and `spec` of one.
    pub pod: &'a Value,
    /// Its namespace; the Pod need not have it.
    pub namespace: &'a str,
    /// Labels of its namespace. `None` if the selectors of the webhook have chosen the Pod already: then the labels of the
    /// namespace decide nothing, since a cache of them may be older than the API server's decision.
    pub namespace_labels: Option<&'a BTreeMap<String, String>>,
    /// Name of the controller that owns the Pod, where its owner references do not say it (`voile inject`).
    pub workload: Option<&'a str>,
    /// Cluster and network that the webhook's path names; they replace those of the options.
    pub path_settings: &'a PathSettings,
}

/// Settings in the path of a webhook: `/inject/cluster/NAME/net/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathSettings {
    /// Name of the cluster.
    pub cluster: Option<String>,
    /// Name of the network.
    pub network: Option<String>,
    /// Further variables of the proxy.
    pub variables: BTreeMap<String, String>,
}

impl PathSettings {
    /// Reads the path of a request. A `/` in a value is written `--slash--`, as in Istio. A last key without a value is
    /// ignored.
    #[must_use]
    pub fn parse(path: &str) -> Self {
        let mut read = Self::default();
        let rest = path.strip_prefix("/inject").unwrap_or_default();
        let mut words = rest.trim_matches('/').split('/');
        while let (Some(key), Some(value)) = (words.next(), words.next()) {
            let value = value.replace("--slash--", "/");
            match key {
                "cluster" => read.cluster = Some(value),
                "net" => read.network = Some(value),
                "" => {}
                _ => drop(read.variables.insert(key.to_uppercase(), value)),
            }
        }
        read
    }
}

/// The text of a label or annotation of the Pod.
pub(crate) fn text_of<'a>(pod: &'a Value, group: &str, key: &str) -> Option<&'a str> {
    pod["metadata"][group][key].as_str()
}

/// The elements of a list; none if the field is not there.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

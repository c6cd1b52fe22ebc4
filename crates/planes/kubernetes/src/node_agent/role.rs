//! What the mesh does for a pod: pure.

use k8s_openapi::api::core::v1::Pod;
use voile_model::check::{DATAPLANE_MODE, asks_for_node_proxy};

use crate::inject::PROXY_CONTAINER;

/// What a node's agent does for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodRole {
    /// Nothing.
    Outside,
    /// The node proxy takes its connections.
    Ambient,
}

impl PodRole {
    /// The role of a pod, in a namespace whose label `istio.io/dataplane-mode` is `mode`.
    pub(crate) fn of(pod: &Pod, mode: Option<&str>) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::Outside;
        };
        if spec.host_network == Some(true) {
            return Self::Outside;
        }
        let first = spec.init_containers.iter().flatten();
        let mut all = first.chain(&spec.containers);
        if all.any(|container| container.name == PROXY_CONTAINER) {
            return Self::Outside;
        }
        let labels = pod.metadata.labels.as_ref();
        let own = labels.and_then(|labels| labels.get(DATAPLANE_MODE));
        match asks_for_node_proxy(own.map(String::as_str), mode) {
            true => Self::Ambient,
            false => Self::Outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_pods_label_wins_and_sidecars_and_node_networks_are_never_ambient() {
        let plain = json!({"containers": [{"name": "app"}]});
        let host = json!({"hostNetwork": true, "containers": [{"name": "app"}]});
        let sidecar =
            json!({"containers": [{"name": "app"}], "initContainers": [{"name": "istio-proxy"}]});
        let old_sidecar = json!({"containers": [{"name": "app"}, {"name": "istio-proxy"}]});
        use PodRole::{Ambient, Outside};
        for (spec, own, mode, role) in [
            (&plain, None, None, Outside),
            (&plain, None, Some("ambient"), Ambient),
            (&plain, Some("ambient"), None, Ambient),
            (&plain, Some("none"), Some("ambient"), Outside),
            (&plain, Some("ambient"), Some("none"), Ambient),
            (&plain, Some("sidecar"), Some("ambient"), Outside),
            (&host, Some("ambient"), Some("ambient"), Outside),
            (&sidecar, Some("ambient"), Some("ambient"), Outside),
            (&old_sidecar, None, Some("ambient"), Outside),
        ] {
            let labels = own.map_or(Value::Null, |own| json!({DATAPLANE_MODE: own}));
            let pod = json!({"metadata": {"labels": labels}, "spec": spec});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            assert_eq!(PodRole::of(&pod, mode), role, "{spec} {own:?} {mode:?}");
        }
    }
}

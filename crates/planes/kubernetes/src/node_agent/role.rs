//! What the mesh does for a pod: pure.

use k8s_openapi::api::core::v1::{Container, Pod};
use voile_model::check::{DATAPLANE_MODE, asks_for_node_proxy};

use crate::inject::request::{CAPTURE_ARGUMENT, INIT_CONTAINER, PROXY_CONTAINER};

/// What a node's agent does for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodRole {
    /// Nothing.
    Outside,
    /// The node proxy takes its connections.
    Ambient,
    /// Its own sidecar takes its connections, and the pod has no init container that redirects them.
    Sidecar,
}

impl PodRole {
    /// The role of a pod, in a namespace whose label `istio.io/dataplane-mode` is `mode`, on a node with or without a node proxy.
    pub(crate) fn of(pod: &Pod, mode: Option<&str>, has_node_proxy: bool) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::Outside;
        };
        if spec.host_network == Some(true) {
            return Self::Outside;
        }
        if sidecar(pod).is_some() {
            return Self::Sidecar;
        }
        if containers(pod).any(|container| container.name == PROXY_CONTAINER) {
            return Self::Outside;
        }
        let labels = pod.metadata.labels.as_ref();
        let own = labels.and_then(|labels| labels.get(DATAPLANE_MODE));
        match has_node_proxy && asks_for_node_proxy(own.map(String::as_str), mode) {
            true => Self::Ambient,
            false => Self::Outside,
        }
    }
}

/// The pod's sidecar, if it waits for others to redirect the pod's connections. Gateways, Istio's sidecars and pods with the init
/// container `istio-init` have none.
pub(super) fn sidecar(pod: &Pod) -> Option<&Container> {
    if containers(pod).any(|container| container.name == INIT_CONTAINER) {
        return None;
    }
    containers(pod).find(|container| {
        let mut arguments = container.args.iter().flatten();
        container.name == PROXY_CONTAINER && arguments.any(|argument| argument == CAPTURE_ARGUMENT)
    })
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    })
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
        let captured = json!({"containers": [{"name": "app"}], "initContainers": [{"name": "istio-proxy", "args": [CAPTURE_ARGUMENT]}]});
        let by_init = json!({"containers": [{"name": "app"}],
            "initContainers": [{"name": "istio-init"}, {"name": "istio-proxy", "args": [CAPTURE_ARGUMENT]}]});
        let captured_host = json!({"hostNetwork": true, "containers": [{"name": "istio-proxy", "args": [CAPTURE_ARGUMENT]}]});
        use PodRole::{Ambient, Outside, Sidecar};
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
            (&captured, None, None, Sidecar),
            (&captured, Some("ambient"), Some("ambient"), Sidecar),
            (&by_init, None, Some("ambient"), Outside),
            (&captured_host, None, None, Outside),
        ] {
            let labels = own.map_or(Value::Null, |own| json!({DATAPLANE_MODE: own}));
            let pod = json!({"metadata": {"labels": labels}, "spec": spec});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let case = format!("{spec} {own:?} {mode:?}");
            assert_eq!(PodRole::of(&pod, mode, true), role, "{case}");
            let alone = if role == Ambient { Outside } else { role };
            assert_eq!(PodRole::of(&pod, mode, false), alone, "{case}");
        }
    }
}

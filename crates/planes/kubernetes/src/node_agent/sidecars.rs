//! Redirect rules of pods with a sidecar, for pods that have no init container for it: the rules of `voile redirect`. A new pod
//! gets them by the plugin's call, before it starts. A pod that started without the plugin gets them while its sidecar waits.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use voile_host::netns::rules::{PodCapture, Rules, SidecarMatch, Tool, apply};
use voile_host::netns::{Namespace, link};
use voile_local::pod_network::pod_capture;
use voile_model::check::capture_scope;
use voile_model::{Labels, Severity};

use super::networks;
use super::role::{PodRole, sidecar};
use super::view::NodeView;
use crate::inject::PROXY_USER;
use crate::inject::request::DNS_ARGUMENT;

/// Time that the plugin has to call for a new pod, and between two looks at pods that wait.
const REPAIR_INTERVAL: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct SidecarCapture {
    tool: Tool,
    /// The node's `/proc`.
    proc: PathBuf,
    /// Uids of pods that have their rules of this agent.
    captured: Mutex<BTreeSet<String>>,
}

impl SidecarCapture {
    pub(super) fn new(tool: Tool, proc: PathBuf) -> Self {
        Self {
            tool,
            proc,
            captured: Mutex::default(),
        }
    }

    /// Sets the rules of a pod. Fails with a reason and a cure, for the pod's events.
    pub(super) async fn capture(
        &self,
        uid: &str,
        pod: &Pod,
        network: Namespace,
    ) -> Result<(), String> {
        let rules = rules(pod)?;
        let tool = self.tool.clone();
        let work = move || apply(&tool, &network, &rules, link::has_v6());
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.map_err(|error| error.to_string());
        done.and_then(|done| done.map_err(|error| error.to_string()))
            .map_err(|error| {
                format!(
                    "the pod's connections cannot be redirected to its sidecar: {error}; cure: see the log of the node agent, \
                     or inject the pod without the plugin (pilot.cni.enabled=false)"
                )
            })?;
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        captured.insert(uid.to_owned());
        Ok(())
    }

    /// Captures pods that started without the plugin, for ever. Their sidecars are not ready before.
    pub(super) async fn repair(&self, mut views: watch::Receiver<NodeView>) {
        loop {
            let waiting = self.waiting(&views.borrow_and_update());
            let uids = waiting.iter().map(|(uid, _)| uid.as_str()).collect();
            let mut found = networks::find(&self.proc, &uids);
            for (uid, pod) in &waiting {
                let Some(network) = found.remove(uid) else {
                    continue;
                };
                let name = pod.metadata.name.as_deref();
                let namespace = pod.metadata.namespace.as_deref();
                match self.capture(uid, pod, network).await {
                    Ok(()) => tracing::info!(
                        uid,
                        name,
                        namespace,
                        "a pod that started without the CNI plugin is captured"
                    ),
                    Err(reason) => tracing::warn!(uid, name, namespace, "{reason}"),
                }
            }
            if waiting.is_empty() && views.changed().await.is_err() {
                return;
            }
            tokio::time::sleep(REPAIR_INTERVAL).await;
        }
    }

    /// Pods whose sidecar is not ready and whose rules are not of this agent.
    fn waiting(&self, view: &NodeView) -> Vec<(String, Pod)> {
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        captured.retain(|uid| view.pods.contains_key(uid));
        let sidecars = view.of_role(PodRole::Sidecar);
        let waiting =
            sidecars.filter(|(uid, pod)| !pod.has_ready_sidecar && !captured.contains(*uid));
        waiting
            .map(|(uid, pod)| (uid.clone(), pod.object.clone()))
            .collect()
    }
}

/// The rules that the pod's annotations and the arguments of its sidecar ask for.
fn rules(pod: &Pod) -> Result<Rules, String> {
    let Some(proxy) = sidecar(pod) else {
        return Ok(Rules::default());
    };
    let of_container = proxy.security_context.as_ref();
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let user = of_container
        .and_then(|context| context.run_as_user)
        .or(of_pod.and_then(|context| context.run_as_user))
        .unwrap_or(PROXY_USER.into());
    let user = u32::try_from(user).ok().filter(|user| *user > 0);
    let user = user.ok_or(
        "the container istio-proxy runs as root, whose connections the redirect rules cannot leave alone; cure: give it another \
         `securityContext.runAsUser`, such as 1337",
    )?;
    let annotations: Labels = pod
        .metadata
        .annotations
        .iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    let (scope, diagnostics) = capture_scope(&annotations);
    if let Some(fault) = diagnostics
        .iter()
        .find(|one| one.severity == Severity::Error)
    {
        return Err(format!("{}; cure: {}", fault.message, fault.help));
    }
    let arguments = proxy.args.iter().flatten();
    let dns = arguments
        .filter_map(|argument| argument.strip_prefix(DNS_ARGUMENT))
        .find_map(|address| address.parse::<std::net::SocketAddr>().ok());
    Ok(Rules {
        capture: Some(PodCapture {
            dns: dns.map(|address| address.port()),
            sidecar: SidecarMatch::User(user),
            // An unprivileged sidecar cannot call in a client's name.
            keeps_source: false,
            ..pod_capture(&scope)
        }),
        ..Rules::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use voile_host::netns::rules::script;
    use voile_model::mesh::MeshConfig;

    use super::*;
    use crate::inject::{
        InjectionOutcome, InjectionRequest, InjectorOptions, PathSettings, inject,
    };

    /// A Pod as the injector makes it for the plugin.
    fn injected(annotations: Value, proxy: Value) -> Pod {
        let mut containers = vec![json!({"name": "app"})];
        if !proxy.is_null() {
            containers
                .push(json!({"name": "istio-proxy", "image": "auto", "securityContext": proxy}));
        }
        let pod =
            json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers}});
        let request = InjectionRequest {
            pod: &pod,
            namespace: "shop",
            namespace_labels: None,
            workload: None,
            path_settings: &PathSettings::default(),
        };
        let options = InjectorOptions {
            cni: true,
            ..InjectorOptions::default()
        };
        match inject(&request, &options, &MeshConfig::default()) {
            Ok(InjectionOutcome::Injected(pod)) => serde_json::from_value(pod.pod).expect("a pod"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_rules_follow_the_annotations_and_the_sidecar_that_the_injector_wrote() {
        let plain = injected(json!({}), Value::Null);
        let text = script(&rules(&plain).expect("rules"), false);
        for part in [
            "meta skuid 1337 return",
            "udp dport 53 redirect to :15053",
            "redirect to :15001",
            "redirect to :15006",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let asked = json!({
            "traffic.sidecar.istio.io/includeInboundPorts": "8080",
            "traffic.sidecar.istio.io/excludeOutboundIPRanges": "10.1.0.0/16",
            "sidecar.istio.io/interceptionMode": "TPROXY",
            "proxy.istio.io/config": "proxyMetadata: {ISTIO_META_DNS_CAPTURE: \"false\"}",
        });
        let asked = injected(asked, json!({"runAsUser": 2000}));
        let text = script(&rules(&asked).expect("rules"), false);
        for part in [
            "meta skuid 2000 return",
            "ip daddr 10.1.0.0/16 return",
            "tcp dport 8080 redirect to :15006",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains(":15053") && !text.contains("mark"), "{text}");
    }

    #[test]
    fn a_pod_whose_rules_cannot_hold_is_refused_with_a_cure() {
        let root = injected(json!({}), json!({"runAsUser": 0, "runAsNonRoot": false}));
        let mut edited = injected(json!({}), Value::Null);
        let annotations = edited.metadata.annotations.get_or_insert_default();
        let ports = "traffic.sidecar.istio.io/includeInboundPorts";
        annotations.insert(ports.to_owned(), "many".to_owned());
        for (pod, reason) in [(root, "runs as root"), (edited, ports)] {
            let refused = rules(&pod).expect_err(reason);
            assert!(
                refused.contains(reason) && refused.contains("cure: "),
                "{refused}"
            );
        }
    }
}

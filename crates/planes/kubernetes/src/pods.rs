//! Pods that commands name as kubectl does, and streams to their ports through the API server. Port forwarding reaches pages
//! that listen on loopback addresses only, and needs no route from the API server to the pods.

use std::fmt;
use std::str::FromStr;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersionKind, Selector};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::io::DuplexStream;

use crate::error::{ClusterError, FORBIDDEN, NOT_FOUND, explain};
use crate::inject::request::PROXY_CONTAINER;
use crate::revision::REVISION;

/// Port of the control plane's monitoring pages; the chart has it, too.
const MONITORING_PORT: u16 = 15014;
/// Port of a proxy's administration page, on a loopback address.
const ADMIN_PORT: u16 = 15000;
/// Container of the control plane.
const CONTROL_CONTAINER: &str = "discovery";

/// Container of the node proxy, in the pods of the DaemonSet; the chart has it, too.
const NODE_PROXY_CONTAINER: &str = "proxy";
/// Label of all pods of an installation.
const PART_OF: &str = "app.kubernetes.io/part-of";

/// Kinds that stand for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodOwner {
    /// A Pod itself.
    Pod,
    /// A Service, for the Pods that it selects.
    Service,
    /// A Deployment.
    Deployment,
    /// A StatefulSet.
    StatefulSet,
    /// A DaemonSet.
    DaemonSet,
    /// A ReplicaSet.
    ReplicaSet,
    /// A Job.
    Job,
}

impl PodOwner {
    /// The kind that kubectl calls so.
    fn called(word: &str) -> Option<Self> {
        Some(match &*word.to_ascii_lowercase() {
            "pod" | "pods" | "po" => Self::Pod,
            "service" | "services" | "svc" => Self::Service,
            "deployment" | "deployments" | "deploy" => Self::Deployment,
            "statefulset" | "statefulsets" | "sts" => Self::StatefulSet,
            "daemonset" | "daemonsets" | "ds" => Self::DaemonSet,
            "replicaset" | "replicasets" | "rs" => Self::ReplicaSet,
            "job" | "jobs" => Self::Job,
            _ => return None,
        })
    }

    fn resource(self) -> ApiResource {
        let group = match self {
            Self::Pod | Self::Service => "",
            Self::Deployment | Self::StatefulSet | Self::DaemonSet | Self::ReplicaSet => "apps",
            Self::Job => "batch",
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", &self.to_string()))
    }
}

impl fmt::Display for PodOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "Pod",
            Self::Service => "Service",
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::ReplicaSet => "ReplicaSet",
            Self::Job => "Job",
        })
    }
}

/// A name that a person gives: `web-1`, `web-1.shop`, `shop/web-1`, `deploy/web`, `svc/web.shop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReference {
    /// The kind; none where only a name is given.
    pub owner: Option<PodOwner>,
    /// The namespace, where the name has it.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl FromStr for PodReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (owner, rest) = match text.split_once('/') {
            Some((word, rest)) => (PodOwner::called(word), rest),
            None => (None, text),
        };
        let (namespace, name) = match (text.split_once('/'), rest.split_once('.')) {
            // A namespace before the slash.
            (Some((namespace, name)), _) if owner.is_none() => (Some(namespace), name),
            (_, Some((name, namespace))) => (Some(namespace), name),
            (_, None) => (None, rest),
        };
        let good = |part: &str| {
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
            !part.is_empty() && part.bytes().all(is_good)
        };
        if !good(name) || !namespace.is_none_or(good) {
            return Err(format!(
                "`{text}` is not the name of a pod: write POD, POD.NAMESPACE, NAMESPACE/POD, deploy/NAME or svc/NAME"
            ));
        }
        Ok(Self {
            owner,
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

/// A port of a container of a running pod.
#[derive(Clone)]
pub struct PodPort {
    client: Client,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    container: &'static str,
    port: u16,
}

impl fmt::Debug for PodPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodPort({self})")
    }
}

impl fmt::Display for PodPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.pod)
    }
}

/// A stream to a port of a pod.
pub struct PodStream {
    /// Its bytes.
    pub stream: DuplexStream,
    failure: BoxFuture<'static, Option<String>>,
    source: PodPort,
}

impl fmt::Debug for PodStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodStream({})", self.source)
    }
}

impl PodStream {
    /// Why the stream ended, after it has: the node's words and a cure, or none.
    pub async fn failure(self) -> Option<ClusterError> {
        drop(self.stream);
        let PodPort {
            namespace,
            pod,
            container,
            ..
        } = &self.source;
        let reason = self.failure.await?;
        Some(self.source.error(format!(
            "{}; cure: see whether the container serves: kubectl -n {namespace} logs {pod} -c {container}",
            reason.trim()
        )))
    }
}

impl PodPort {
    /// Returns true if the pod is a node proxy.
    #[must_use]
    pub fn is_node_proxy(&self) -> bool {
        self.container == NODE_PROXY_CONTAINER
    }

    /// Forwards the port.
    ///
    /// # Errors
    /// The container does not run, or the API server does not let this user forward ports.
    pub fn open<'a>(&'a self) -> BoxFuture<'a, Result<PodStream, ClusterError>> {
        Box::pin(async move {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
            let pod = pods.get(&self.pod).await;
            let pod = pod.map_err(|error| self.refused("get pods", &error))?;
            self.check_running(&pod)?;
            let forwarder = pods.portforward(&self.pod, &[self.port]).await;
            let mut forwarder = forwarder
                .map_err(|error| self.refused("get and create pods/portforward", &error))?;
            let parts = (
                forwarder.take_stream(self.port),
                forwarder.take_error(self.port),
            );
            match parts {
                (Some(stream), Some(failure)) => Ok(PodStream {
                    stream,
                    failure: failure.boxed(),
                    source: self.clone(),
                }),
                _ => Err(self.error("the port was not forwarded")),
            }
        })
    }

    fn error(&self, reason: impl Into<String>) -> ClusterError {
        ClusterError::Object {
            object: format!(
                "pod {self}, container {}, port {}",
                self.container, self.port
            ),
            reason: reason.into(),
        }
    }

    fn refused(&self, verbs: &str, error: &kube::Error) -> ClusterError {
        let namespace = &self.namespace;
        let code = match error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        };
        let cure = match code {
            FORBIDDEN => format!("; cure: a Role in {namespace} that lets this user {verbs}"),
            NOT_FOUND => format!("; cure: kubectl -n {namespace} get pods lists the names"),
            _ => String::new(),
        };
        self.error(format!("{}{cure}", explain(error)))
    }

    /// A pod that is not ready may still have pages that say why; its container must run.
    fn check_running(&self, pod: &Pod) -> Result<(), ClusterError> {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.into_iter().flatten();
        let sidecars = status.init_container_statuses.into_iter().flatten();
        let mut all = containers.chain(sidecars);
        let Some(container) = all.find(|one| one.name == self.container) else {
            let phase = status.phase.unwrap_or_default();
            return Err(self.error(match has_container(pod, self.container) {
                true => format!(
                    "the pod is {phase}; cure: kubectl -n {} describe pod {}",
                    self.namespace, self.pod
                ),
                false => "the pod has no such container: it is not in the mesh by a sidecar; cure: kubectl label namespace \
                          NAMESPACE istio-injection=enabled, and restart the pod"
                    .replace("NAMESPACE", &self.namespace),
            }));
        };
        match not_running(&container) {
            None => Ok(()),
            Some(state) => Err(self.error(format!(
                "{state}; cure: kubectl -n {} logs {} -c {}",
                self.namespace, self.pod, self.container
            ))),
        }
    }
}

/// Why a container does not run.
fn not_running(container: &ContainerStatus) -> Option<String> {
    let state = container.state.clone().unwrap_or_default();
    if state.running.is_some() {
        return None;
    }
    let waiting = state.waiting.map(|one| (one.reason, one.message));
    let ended = state.terminated.map(|one| (one.reason, one.message));
    let (reason, message) = waiting.or(ended).unwrap_or_default();
    let parts = [
        Some("the container does not run".to_owned()),
        reason,
        message,
    ];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join(": "))
}

fn has_container(pod: &Pod, name: &str) -> bool {
    pod.spec.as_ref().is_some_and(|spec| {
        let sidecars = spec.init_containers.iter().flatten();
        let mut all = spec.containers.iter().chain(sidecars);
        all.any(|one| one.name == name)
    })
}

/// The monitoring pages of every replica of a control plane, by the names of their pods.
///
/// # Errors
/// There is none, or there are several revisions and none is named.
pub fn control_planes<'a>(
    client: &'a Client,
    namespace: &'a str,
    revision: Option<&'a str>,
) -> BoxFuture<'a, Result<Vec<PodPort>, ClusterError>> {
    Box::pin(async move {
        let mut selector = "app=istiod,app.kubernetes.io/part-of=voile".to_owned();
        if let Some(revision) = revision {
            selector += &format!(",{REVISION}={revision}");
        }
        let found = list(client, namespace, ListParams::default().labels(&selector)).await?;
        let revision_of = |pod: &Pod| pod.labels().get(REVISION).cloned();
        let mut revisions: Vec<String> = found.iter().filter_map(revision_of).collect();
        revisions.sort();
        revisions.dedup();
        let failed = |reason: String| ClusterError::Object {
            object: format!("control plane in the namespace {namespace}"),
            reason,
        };
        match &*revisions {
        [] => Err(failed(
            "there is no pod of it; cure: voile install, or name its place: --istio-namespace, --revision".to_owned(),
        )),
        [_] => Ok(found
            .iter()
            .map(|pod| PodPort {
                client: client.clone(),
                namespace: namespace.to_owned(),
                pod: pod.name_any(),
                container: CONTROL_CONTAINER,
                port: MONITORING_PORT,
            })
            .collect()),
        several => Err(failed(format!(
            "there are several revisions: {}; cure: choose one: --revision NAME",
            several.join(", ")
        ))),
    }
    })
}

/// The administration page of the proxy of a pod. Of several pods, the first that runs. `namespace` is that of a name without
/// one.
///
/// # Errors
/// There is no such object, or it has no pods.
pub fn proxy<'a>(
    client: &'a Client,
    reference: &'a PodReference,
    namespace: &'a str,
) -> BoxFuture<'a, Result<PodPort, ClusterError>> {
    Box::pin(async move {
        let namespace = reference.namespace.as_deref().unwrap_or(namespace);
        let pod = match reference.owner {
            None | Some(PodOwner::Pod) => reference.name.clone(),
            Some(owner) => pod_of(client, owner, namespace, &reference.name).await?,
        };
        Ok(PodPort {
            client: client.clone(),
            namespace: namespace.to_owned(),
            pod,
            container: PROXY_CONTAINER,
            port: ADMIN_PORT,
        })
    })
}

/// The administration pages of all proxies that run: sidecars, gateways, waypoints and node proxies.
///
/// # Errors
/// The API server does not let this user list pods of all namespaces.
pub fn proxies<'a>(client: &'a Client) -> BoxFuture<'a, Result<Vec<PodPort>, ClusterError>> {
    Box::pin(async move {
        let pods: Api<Pod> = Api::all(client.clone());
        let running = ListParams::default().fields("status.phase=Running");
        let listed = pods.list(&running).await;
        let listed = listed
            .map_err(|error| ClusterError::api("list pods of all namespaces".to_owned(), &error))?;
        let container = |pod: &Pod| {
            let is_node_proxy = pod.labels().get(PART_OF).is_some_and(|of| of == "voile")
                && has_container(pod, NODE_PROXY_CONTAINER);
            if has_container(pod, PROXY_CONTAINER) {
                Some(PROXY_CONTAINER)
            } else {
                is_node_proxy.then_some(NODE_PROXY_CONTAINER)
            }
        };
        let proxies = listed.items.iter().filter_map(|pod| {
            Some(PodPort {
                client: client.clone(),
                namespace: pod.namespace()?,
                pod: pod.name_any(),
                container: container(pod)?,
                port: ADMIN_PORT,
            })
        });
        Ok(proxies.collect())
    })
}

async fn pod_of(
    client: &Client,
    owner: PodOwner,
    namespace: &str,
    name: &str,
) -> Result<String, ClusterError> {
    let resource = owner.resource();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let kind = &resource.kind;
    let object = api.get(name).await;
    let object = object
        .map_err(|error| ClusterError::api(format!("get {kind} {namespace}/{name}"), &error))?;
    let failed = |reason: String| ClusterError::Object {
        object: format!("{kind} {namespace}/{name}"),
        reason,
    };
    let selector = selector(&object.data["spec"]["selector"])
        .ok_or_else(|| failed("it has no selector, and so no pods of its own".to_owned()))?;
    let found = list(
        client,
        namespace,
        ListParams::default().labels_from(&selector),
    )
    .await?;
    let runs = |pod: &&Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let pod = found.iter().find(runs).or_else(|| found.first());
    pod.map(ResourceExt::name_any).ok_or_else(|| {
        failed(format!(
            "it has no pods; cure: kubectl -n {namespace} describe {kind} {name}"
        ))
    })
}

/// Selector of a Service, or of a controller of pods.
fn selector(value: &Value) -> Option<Selector> {
    let selector: LabelSelector = match value.get("matchLabels").or(value.get("matchExpressions")) {
        Some(_) => serde_json::from_value(value.clone()).ok()?,
        None => LabelSelector {
            match_labels: Some(serde_json::from_value(value.clone()).ok()?),
            match_expressions: None,
        },
    };
    let selector = Selector::try_from(selector).ok()?;
    (!selector.selects_all()).then_some(selector)
}

async fn list(
    client: &Client,
    namespace: &str,
    parameters: ListParams,
) -> Result<Vec<Pod>, ClusterError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let listed = pods.list(&parameters).await;
    let listed =
        listed.map_err(|error| ClusterError::api(format!("list pods in {namespace}"), &error));
    Ok(listed?.items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_named_as_kubectl_and_istioctl_do() {
        let reference = |owner, namespace: Option<&str>, name: &str| PodReference {
            owner,
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        for (text, expected) in [
            ("web-1", reference(None, None, "web-1")),
            ("web-1.shop", reference(None, Some("shop"), "web-1")),
            ("shop/web-1", reference(None, Some("shop"), "web-1")),
            ("pod/web-1", reference(Some(PodOwner::Pod), None, "web-1")),
            (
                "deploy/web",
                reference(Some(PodOwner::Deployment), None, "web"),
            ),
            (
                "svc/web.shop",
                reference(Some(PodOwner::Service), Some("shop"), "web"),
            ),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "web/", "/web", "a b", "deploy/a/b", "web?x=1", "web."] {
            assert!(text.parse::<PodReference>().is_err(), "{text}");
        }
    }
}

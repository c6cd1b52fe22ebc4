//! The pods of this node and the namespaces, as the API server tells: what the agent needs of them.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;
use voile_model::check::{DATAPLANE_MODE, REDIRECTION};
use voile_model::with_causes;

use super::role::PodRole;
use crate::inject::request::PROXY_CONTAINER;
use crate::source::backoff::WatchBackoff;

/// Account of a pod that names none.
const DEFAULT_ACCOUNT: &str = "default";

/// A pod of this node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LocalPod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) account: String,
    /// True if the record of an earlier enrolment is there.
    pub(super) is_recorded: bool,
    /// True once it has an address, and so a network.
    pub(super) has_network: bool,
    /// True once its containers have ended for good: its network may be gone.
    ended: bool,
    /// True once its sidecar is ready.
    pub(super) has_ready_sidecar: bool,
    pub(super) object: Pod,
}

/// Pods of this node by uid, and the labels `istio.io/dataplane-mode` of namespaces.
#[derive(Debug, Default)]
pub(super) struct NodeView {
    pub(super) pods: BTreeMap<String, LocalPod>,
    modes: BTreeMap<String, String>,
    has_node_proxy: bool,
    has_pods: bool,
    has_namespaces: bool,
}

impl NodeView {
    /// The view before the lists have come, of a node with or without a node proxy.
    pub(super) fn new(has_node_proxy: bool) -> Self {
        Self {
            has_node_proxy,
            ..Self::default()
        }
    }

    /// Returns true once both lists have come.
    pub(super) fn is_complete(&self) -> bool {
        self.has_pods && self.has_namespaces
    }

    pub(super) fn role(&self, pod: &LocalPod) -> PodRole {
        let mode = self.modes.get(&pod.namespace).map(String::as_str);
        match pod.ended {
            true => PodRole::Outside,
            false => PodRole::of(&pod.object, mode, self.has_node_proxy),
        }
    }

    /// The pods of a role, by uid.
    pub(super) fn of_role(&self, role: PodRole) -> impl Iterator<Item = (&String, &LocalPod)> {
        let pods = self.pods.iter();
        pods.filter(move |(_, pod)| self.role(pod) == role)
    }
}

impl LocalPod {
    fn read(mut pod: Pod) -> Self {
        pod.metadata.managed_fields = None;
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.clone());
        let has_network = status.is_some_and(|status| status.pod_ip.is_some());
        let account = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.clone());
        let record = pod.annotations().get(REDIRECTION);
        let started = status.and_then(|status| status.init_container_statuses.as_ref());
        let has_ready_sidecar = started
            .into_iter()
            .flatten()
            .any(|container| container.name == PROXY_CONTAINER && container.ready);
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            account: account.unwrap_or_else(|| DEFAULT_ACCOUNT.to_owned()),
            is_recorded: record.is_some_and(|record| record == "enabled"),
            has_network,
            ended: matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
            has_ready_sidecar,
            object: pod,
        }
    }
}

/// Follows the pods of `node` and all namespaces, for ever.
pub(super) async fn follow(client: Client, node: String, view: &watch::Sender<NodeView>) {
    tokio::join!(
        follow_pods(client.clone(), &node, view),
        follow_namespaces(client, view),
    );
}

async fn follow_pods(client: Client, node: &str, view: &watch::Sender<NodeView>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let pods: Api<Pod> = Api::all(client);
    let mut events = watch_objects(pods, config)
        .backoff(WatchBackoff::default())
        .boxed();
    let mut listed = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.insert(pod.uid().unwrap_or_default(), LocalPod::read(pod));
            }
            Ok(Event::InitDone) => {
                let pods = std::mem::take(&mut listed);
                view.send_modify(|view| {
                    view.pods = pods;
                    view.has_pods = true;
                });
            }
            Ok(Event::Apply(pod)) => {
                let uid = pod.uid().unwrap_or_default();
                let pod = LocalPod::read(pod);
                view.send_modify(|view| drop(view.pods.insert(uid, pod)));
            }
            Ok(Event::Delete(pod)) => {
                let uid = pod.uid().unwrap_or_default();
                view.send_modify(|view| drop(view.pods.remove(&uid)));
            }
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!("the pods of {node} cannot be watched: {error}");
            }
        }
    }
}

async fn follow_namespaces(client: Client, view: &watch::Sender<NodeView>) {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client);
    let config = watcher::Config::default();
    let mut events = watch_objects(namespaces, config)
        .backoff(WatchBackoff::default())
        .boxed();
    let mut listed = BTreeMap::new();
    let mode = |object: &PartialObjectMeta<Namespace>| object.labels().get(DATAPLANE_MODE).cloned();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.extend(mode(&object).map(|mode| (object.name_any(), mode)));
            }
            Ok(Event::InitDone) => {
                let modes = std::mem::take(&mut listed);
                view.send_modify(|view| {
                    view.modes = modes;
                    view.has_namespaces = true;
                });
            }
            Ok(Event::Apply(object)) => view.send_modify(|view| match mode(&object) {
                Some(mode) => drop(view.modes.insert(object.name_any(), mode)),
                None => drop(view.modes.remove(&object.name_any())),
            }),
            Ok(Event::Delete(object)) => {
                view.send_modify(|view| drop(view.modes.remove(&object.name_any())));
            }
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!("namespaces cannot be watched: {error}");
            }
        }
    }
}

//! Brings the mesh's root certificate to where others look for it: a ConfigMap in every namespace, and the webhooks' `caBundle`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::select;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::error::explain;
use crate::install::MANAGER;
use crate::source::backoff::WatchBackoff;

/// Name of the ConfigMap, and its only key; pods of the mesh mount it.
pub(crate) const CONFIG_MAP: &str = "istio-ca-root-cert";
pub(crate) const ROOT: &str = "root-cert.pem";
/// Namespaces of the cluster's own parts. Their pods are never injected. Istio leaves out the same.
pub(crate) const SYSTEM_NAMESPACES: [&str; 4] = [
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "local-path-storage",
];
/// Time after which a refused write is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(2);

fn writer() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

enum Seen {
    /// A namespace is there, or it is gone.
    Namespace(String, bool),
    /// The root that a namespace's ConfigMap holds, if there is one.
    Held(String, Option<String>),
    /// The list of namespaces begins anew.
    NamespacesAnew,
    /// The list of ConfigMaps begins anew.
    ConfigMapsAnew,
    /// Nothing new.
    Nothing,
}

/// Keeps the ConfigMap of every namespace, for ever.
pub(crate) async fn keep_config_maps(client: Client, root: String) {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::all(client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
    let namespaces = watch(namespaces, watcher::Config::default()).backoff(WatchBackoff::default());
    let namespaces = namespaces.filter_map(async |event| match event.ok()? {
        Event::Apply(one) | Event::InitApply(one) => {
            let stays = one.metadata.deletion_timestamp.is_none();
            Some(Seen::Namespace(one.name_any(), stays))
        }
        Event::Delete(one) => Some(Seen::Namespace(one.name_any(), false)),
        Event::Init => Some(Seen::NamespacesAnew),
        Event::InitDone => Some(Seen::Nothing),
    });
    let maps = watch(maps, only)
        .backoff(WatchBackoff::default())
        .filter_map(async |event| match event.ok()? {
            Event::Apply(one) | Event::InitApply(one) => {
                let namespace = one.namespace()?;
                Some(Seen::Held(
                    namespace,
                    one.data.and_then(|mut data| data.remove(ROOT)),
                ))
            }
            Event::Delete(one) => Some(Seen::Held(one.namespace()?, None)),
            Event::Init => Some(Seen::ConfigMapsAnew),
            Event::InitDone => Some(Seen::Nothing),
        });
    let mut changes = select(namespaces.boxed(), maps.boxed());
    let mut state = ConfigMaps::default();
    loop {
        let refused = state.write(&client, &root).await;
        tokio::select! {
            next = changes.next() => match next {
                Some(seen) => state.see(seen, &root),
                None => return,
            },
            () = tokio::time::sleep(RETRY), if refused => {}
        }
    }
}

/// Namespaces, and what their ConfigMaps hold.
#[derive(Default)]
struct ConfigMaps {
    wanted: BTreeSet<String>,
    /// Namespaces whose ConfigMap holds the root, or another text.
    right: BTreeMap<String, bool>,
    failed: BTreeMap<String, String>,
}

impl ConfigMaps {
    fn see(&mut self, seen: Seen, root: &str) {
        match seen {
            Seen::Namespace(name, true) if !SYSTEM_NAMESPACES.contains(&&*name) => {
                self.wanted.insert(name);
            }
            Seen::Namespace(name, _) => {
                self.wanted.remove(&name);
                self.right.remove(&name);
                self.failed.remove(&name);
            }
            Seen::Held(namespace, held) => {
                self.right.insert(namespace, held.as_deref() == Some(root));
            }
            Seen::NamespacesAnew => self.wanted.clear(),
            Seen::ConfigMapsAnew => self.right.clear(),
            Seen::Nothing => {}
        }
    }

    /// Writes what is missing or wrong. Returns true if a write was refused.
    async fn write(&mut self, client: &Client, root: &str) -> bool {
        let is_right = |one: &String| self.right.get(one) == Some(&true);
        let wanted = self.wanted.iter();
        let lacking: Vec<_> = wanted.filter(|one| !is_right(one)).cloned().collect();
        let mut refused = false;
        for namespace in lacking {
            match write_config_map(client, &namespace, root).await {
                Ok(()) => {
                    self.failed.remove(&namespace);
                    self.right.insert(namespace, true);
                }
                Err(error) => {
                    refused = true;
                    let error = explain(&error);
                    let before = self.failed.insert(namespace.clone(), error.clone());
                    if before.as_ref() != Some(&error) {
                        tracing::warn!(
                            "configmaps/{namespace}/{CONFIG_MAP} cannot be written: {error}; pods of the namespace cannot start without it"
                        );
                    }
                }
            }
        }
        refused
    }
}

async fn write_config_map(client: &Client, namespace: &str, root: &str) -> Result<(), kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": namespace, "labels": {"istio.io/config": "true"}},
        "data": {ROOT: root},
    });
    maps.patch(CONFIG_MAP, &writer(), &Patch::Apply(map))
        .await
        .map(drop)
}

/// A kind of webhook configurations.
pub(crate) trait WebhookConfiguration: Resource<DynamicType = ()> {
    /// Label `app` of those of a control plane, as Istio's have it.
    const APP: &'static str;
    /// The clients of its webhooks.
    fn clients(&self) -> Vec<&WebhookClientConfig>;
}

impl WebhookConfiguration for MutatingWebhookConfiguration {
    const APP: &'static str = "sidecar-injector";
    fn clients(&self) -> Vec<&WebhookClientConfig> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks.map(|one| &one.client_config).collect()
    }
}

impl WebhookConfiguration for ValidatingWebhookConfiguration {
    const APP: &'static str = "istiod";
    fn clients(&self) -> Vec<&WebhookClientConfig> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks.map(|one| &one.client_config).collect()
    }
}

/// Keeps the `caBundle` of the revision's webhooks of one kind, for ever.
pub(crate) async fn keep_webhooks<K>(client: Client, root: String, revision: String)
where
    K: WebhookConfiguration + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let all: Api<K> = Api::all(client);
    let ours = format!("app={},istio.io/rev={revision}", K::APP);
    let config = watcher::Config::default().labels(&ours);
    let mut changes = watch(all.clone(), config)
        .backoff(WatchBackoff::default())
        .boxed();
    let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let again = !waiting.is_empty();
        let next = tokio::select! {
            next = changes.next() => next,
            () = tokio::time::sleep(RETRY), if again => Some(Ok(Event::InitDone)),
        };
        match next {
            Some(Ok(Event::Apply(one) | Event::InitApply(one))) => {
                let bundle = ByteString(root.as_bytes().to_vec());
                let webhooks = one.clients();
                let is_right =
                    |client: &&WebhookClientConfig| client.ca_bundle.as_ref() == Some(&bundle);
                if webhooks.iter().all(is_right) {
                    waiting.remove(&one.name_any());
                } else {
                    waiting.insert(one.name_any(), webhooks.len());
                }
            }
            Some(Ok(Event::Delete(one))) => drop(waiting.remove(&one.name_any())),
            Some(Ok(Event::Init | Event::InitDone) | Err(_)) => {}
            None => return,
        }
        for (name, webhooks) in std::mem::take(&mut waiting) {
            let operations: Vec<_> = (0..webhooks)
                .map(|number| {
                    let path = format!("/webhooks/{number}/clientConfig/caBundle");
                    json!({"op": "add", "path": path, "value": ByteString(root.as_bytes().to_vec())})
                })
                .collect();
            let operations = match serde_json::from_value(json!(operations)) {
                Ok(operations) => operations,
                Err(error) => return tracing::error!(%error, "the patch of a webhook"),
            };
            let patch: Patch<()> = Patch::Json(operations);
            if let Err(error) = all.patch(&name, &PatchParams::default(), &patch).await {
                tracing::warn!(
                    "{}/{name} cannot be written: {}",
                    K::plural(&()),
                    explain(&error)
                );
                waiting.insert(name, webhooks);
            }
        }
    }
}

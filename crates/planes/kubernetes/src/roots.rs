//! Brings the mesh's root certificate to where others look for it: a ConfigMap in every namespace, and the webhooks' `caBundle`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::select;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use crate::error::explain;

/// Name of the ConfigMap, and its only key; pods of the mesh mount it.
const CONFIG_MAP: &str = "istio-ca-root-cert";
const ROOT: &str = "root-cert.pem";
/// Namespaces of the cluster's own parts, which have no pods of the mesh. Istio leaves out the same.
pub(crate) const SYSTEM_NAMESPACES: [&str; 4] = [
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "local-path-storage",
];
/// Who writes, as the API server records it.
pub(crate) const FIELD_MANAGER: &str = "voile";
/// Time after which a refused write is tried again.
const RETRY: Duration = Duration::from_secs(2);

fn writer() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

enum Seen {
    /// A namespace is there, or it is gone.
    Namespace(String, bool),
    /// The root that a namespace's ConfigMap holds, if there is one.
    Held(String, Option<String>),
    /// A list begins anew.
    Nothing,
}

/// Keeps the ConfigMap of every namespace, for ever.
pub(crate) async fn keep_config_maps(client: Client, root: String) {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::all(client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
    let namespaces = watch(namespaces, watcher::Config::default()).default_backoff();
    let namespaces = namespaces.filter_map(async |event| match event.ok()? {
        Event::Apply(one) | Event::InitApply(one) => {
            let stays = one.metadata.deletion_timestamp.is_none();
            Some(Seen::Namespace(one.name_any(), stays))
        }
        Event::Delete(one) => Some(Seen::Namespace(one.name_any(), false)),
        Event::Init | Event::InitDone => Some(Seen::Nothing),
    });
    let maps = watch(maps, only)
        .default_backoff()
        .filter_map(async |event| match event.ok()? {
            Event::Apply(one) | Event::InitApply(one) => {
                let namespace = one.namespace()?;
                Some(Seen::Held(
                    namespace,
                    one.data.and_then(|mut data| data.remove(ROOT)),
                ))
            }
            Event::Delete(one) => Some(Seen::Held(one.namespace()?, None)),
            Event::Init | Event::InitDone => Some(Seen::Nothing),
        });
    let mut changes = select(namespaces.boxed(), maps.boxed());
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    let mut right: BTreeMap<String, bool> = BTreeMap::new();
    let mut failed: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let lacking: Vec<_> = wanted
            .iter()
            .filter(|one| right.get(*one) != Some(&true))
            .cloned()
            .collect();
        let mut refused = false;
        for namespace in lacking {
            match write_config_map(&client, &namespace, &root).await {
                Ok(()) => {
                    failed.remove(&namespace);
                    right.insert(namespace, true);
                }
                Err(error) => {
                    refused = true;
                    let error = explain(&error);
                    if failed.insert(namespace.clone(), error.clone()).as_ref() != Some(&error) {
                        tracing::warn!(
                            "configmaps/{namespace}/{CONFIG_MAP} cannot be written: {error}; pods of the namespace cannot start without it"
                        );
                    }
                }
            }
        }
        let next = tokio::select! {
            next = changes.next() => next,
            () = tokio::time::sleep(RETRY), if refused => Some(Seen::Nothing),
        };
        match next {
            Some(Seen::Namespace(name, true)) if !SYSTEM_NAMESPACES.contains(&&*name) => {
                drop(wanted.insert(name))
            }
            Some(Seen::Namespace(name, _)) => {
                wanted.remove(&name);
                right.remove(&name);
                failed.remove(&name);
            }
            Some(Seen::Held(namespace, held)) => {
                drop(right.insert(namespace, held.as_ref() == Some(&root)))
            }
            Some(Seen::Nothing) => {}
            None => return,
        }
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

/// Keeps the `caBundle` of the revision's injection webhooks, for ever.
pub(crate) async fn keep_webhooks(client: Client, root: String, revision: String) {
    let all: Api<MutatingWebhookConfiguration> = Api::all(client);
    let ours = format!("app=sidecar-injector,istio.io/rev={revision}");
    let config = watcher::Config::default().labels(&ours);
    let mut changes = watch(all.clone(), config).default_backoff().boxed();
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
                let webhooks = one.webhooks.as_deref().unwrap_or_default();
                let is_right = |bundles: Option<&ByteString>| bundles == Some(&bundle);
                if webhooks
                    .iter()
                    .all(|hook| is_right(hook.client_config.ca_bundle.as_ref()))
                {
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
                    "mutatingwebhookconfigurations/{name} cannot be written: {}",
                    explain(&error)
                );
                waiting.insert(name, webhooks);
            }
        }
    }
}

//! Watches of the kinds that the mesh reads. A kind whose CRD is not installed is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::{GroupVersion, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};
use voile_model::check::{kinds, unsupported_kinds};
use voile_model::mesh::gateway_api::{GATEWAY_NAME, GROUP as GATEWAY_API};
use voile_model::with_causes;

use super::scope::{Scope, named_by};
use super::store::{ObjectStore, ReportedObject};
use super::trim;
use crate::error::{ClusterError, explain};
use crate::revision::REVISION;
use crate::source::backoff::WatchBackoff;

/// Kinds of a folder that the cluster's source does not watch. Controllers make Pods, which are watched; Endpoints have their
/// EndpointSlices; ConfigMaps and Secrets are read by name only.
const NOT_WATCHED: [&str; 8] = [
    "ConfigMap",
    "DaemonSet",
    "Deployment",
    "Endpoints",
    "IPAddress",
    "Job",
    "Secret",
    "StatefulSet",
];
/// Pods that have ended take no traffic.
const LIVING_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Slices of Services with a selector are left out: the mesh finds those endpoints by their Pods.
const OTHER_SLICES: &str =
    "endpointslice.kubernetes.io/managed-by notin (endpointslice-controller.k8s.io)";
/// Name of the kind of definitions.
const CRDS: &str = "customresourcedefinitions";
/// Time between the change of a CRD and the question what the cluster serves: CRDs come in dozens.
const CRD_DEBOUNCE: Duration = Duration::from_millis(100);
/// An API server may serve a kind a moment after its CRD says that it is established, and nothing tells when. So discovery is
/// repeated so long after the last change.
const LATE_DISCOVERIES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// Time after which discovery is tried again when the API server does not answer.
const DISCOVERY_RETRY: Duration = Duration::from_secs(1);

/// Objects that one watch brings.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    pub(crate) scope: Scope,
    pub(crate) resource: ApiResource,
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<&'static str>,
    /// The name that the object has for the mesh, where that is another one.
    pub(crate) alias: Option<&'static str>,
}

impl Selection {
    pub(super) fn of_kind(resource: ApiResource) -> Self {
        let (fields, labels) = match &*resource.kind {
            "Pod" => (Some(LIVING_PODS.to_owned()), None),
            "EndpointSlice" => (None, Some(OTHER_SLICES)),
            _ => (None, None),
        };
        Self {
            scope: Scope::kind(kind_of(&resource)),
            resource,
            fields,
            labels,
            alias: None,
        }
    }

    /// Secrets or ConfigMaps by name.
    pub(crate) fn named(scope: Scope) -> Self {
        let resource = match &*scope.kind {
            "secrets" => ApiResource::erase::<Secret>(&()),
            _ => ApiResource::erase::<ConfigMap>(&()),
        };
        Self {
            fields: scope
                .name
                .as_ref()
                .map(|name| format!("metadata.name={name}")),
            scope,
            resource,
            labels: None,
            alias: None,
        }
    }

    /// The mesh's settings: those of a revision are settings of the mesh for that revision's control plane.
    pub(crate) fn mesh_config(namespace: &str, name: &str) -> Self {
        Self {
            alias: Some("istio"),
            ..Self::named(Scope {
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                ..Scope::kind("configmaps")
            })
        }
    }

    pub(super) fn api(&self, client: Client) -> Api<DynamicObject> {
        match &self.scope.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource),
            None => Api::all_with(client, &self.resource),
        }
    }

    fn file(&self, object: &DynamicObject) -> Arc<str> {
        let (kind, name) = (&self.scope.kind, object.name_any());
        match object.namespace() {
            Some(namespace) => format!("{kind}/{namespace}/{name}").into(),
            None => format!("{kind}/{name}").into(),
        }
    }
}

/// `PLURAL.GROUP`, or `PLURAL` in the core group.
fn kind_of(resource: &ApiResource) -> String {
    match &*resource.group {
        "" => resource.plural.clone(),
        group => format!("{}.{group}", resource.plural),
    }
}

/// Keeps what `selection` selects in the store, for ever.
pub(crate) async fn follow(client: Client, selection: Selection, store: Arc<ObjectStore>) {
    let api = selection.api(client);
    let mut config = watcher::Config::default().streaming_lists();
    if let Some(fields) = &selection.fields {
        config = config.fields(fields);
    }
    if let Some(labels) = selection.labels {
        config = config.labels(labels);
    }
    let mut events = watch(api, config).backoff(WatchBackoff::default()).boxed();
    let mut listed = BTreeSet::new();
    let mut problem = Problem::default();
    while let Some(event) = events.next().await {
        if event.is_ok() {
            problem.over(&selection.scope);
        }
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.insert(take(&selection, object, &store));
            }
            Ok(Event::InitDone) => {
                store.keep_only(&selection.scope, &listed);
                listed = BTreeSet::new();
            }
            Ok(Event::Apply(object)) => drop(take(&selection, object, &store)),
            Ok(Event::Delete(object)) => store.remove(&selection.file(&object)),
            Err(error) => problem.say(&selection.scope, &with_causes(&error)),
        }
    }
}

pub(super) fn take(selection: &Selection, object: DynamicObject, store: &ObjectStore) -> Arc<str> {
    let name = selection.file(&object);
    let resource = &selection.resource;
    match serde_json::to_value(object) {
        Ok(mut object) => {
            if let Some(alias) = selection.alias {
                object["metadata"]["name"] = alias.into();
            }
            let names = named_by(&resource.kind, &object);
            let report = report(&selection.scope.kind, &object);
            let text = trim::text(&resource.kind, &resource.api_version, object);
            store.put(&name, text, names, report);
        }
        Err(error) => tracing::error!(object = %name, %error, "the object cannot be read"),
    }
    name
}

/// What a writer of statuses needs of an object: Services, Istio's kinds and Gateway API's have statuses that we write.
fn report(kind: &str, object: &Value) -> Option<ReportedObject> {
    let group = kind.split_once('.').map_or("", |(_, group)| group);
    if kind != "services" && group != GATEWAY_API && !group.ends_with(".istio.io") {
        return None;
    }
    let metadata = &object["metadata"];
    let label = |name: &str| metadata["labels"][name].as_str().map(Into::into);
    Some(ReportedObject {
        resource_version: metadata["resourceVersion"].as_str()?.to_owned(),
        generation: metadata["generation"].as_i64(),
        revision: label(REVISION),
        gateway: label(GATEWAY_NAME),
        status: object["status"].clone(),
    })
}

/// A watch's last error: a new one is logged once, and its end too.
#[derive(Debug, Default)]
struct Problem(Option<String>);

impl Problem {
    fn say(&mut self, what: &dyn fmt::Display, error: &str) {
        if self.0.as_deref() != Some(error) {
            tracing::warn!("{what} cannot be watched: {error}; what is known stays in force");
            self.0 = Some(error.to_owned());
        }
    }

    fn over(&mut self, what: &dyn fmt::Display) {
        if self.0.take().is_some() {
            tracing::info!("{what} is watched again");
        }
    }
}

/// Watches all kinds that the cluster serves, and those whose CRDs come later.
pub(crate) struct KindWatches {
    client: Client,
    store: Arc<ObjectStore>,
    running: BTreeMap<Scope, (ApiResource, AbortHandle)>,
    tasks: JoinSet<()>,
}

impl fmt::Debug for KindWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KindWatches")
            .field("running", &self.running.keys())
            .finish_non_exhaustive()
    }
}

impl KindWatches {
    pub(crate) fn new(client: Client, store: Arc<ObjectStore>) -> Self {
        Self {
            client,
            store,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Starts and ends watches as the cluster's kinds say.
    ///
    /// # Errors
    /// The API server does not answer; the watches stay as they are.
    pub(crate) async fn discover(&mut self) -> Result<(), ClusterError> {
        let served = served(&self.client, false).await?;
        let scope_of = |resource: &ApiResource| Scope::kind(kind_of(resource));
        let scopes: BTreeSet<_> = served.iter().map(scope_of).collect();
        let running = self.running.keys();
        let gone: Vec<_> = running
            .filter(|one| !scopes.contains(one))
            .cloned()
            .collect();
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for kind in gone {
            // An API server that starts may not serve a kind yet. Policies must not go for that: only when the CRD is gone.
            let definition = crds.get_metadata_opt(&kind.kind).await;
            match definition
                .map_err(|error| ClusterError::api(format!("get {CRDS}/{kind}"), &error))?
            {
                Some(definition) if definition.metadata.deletion_timestamp.is_none() => continue,
                _ => {}
            }
            if let Some((_, task)) = self.running.remove(&kind) {
                task.abort();
            }
            tracing::info!("{kind} is no longer served; its objects are gone");
            self.store.forget(&kind);
        }
        for resource in served {
            let kind = scope_of(&resource);
            if let Some((running, task)) = self.running.get(&kind) {
                if *running == resource {
                    continue;
                }
                // Another version is served now: the list that comes replaces the objects.
                task.abort();
            }
            self.store.expect(&kind);
            let selection = Selection::of_kind(resource.clone());
            let task = self
                .tasks
                .spawn(follow(self.client.clone(), selection, self.store.clone()));
            self.running.insert(kind, (resource, task));
        }
        Ok(())
    }

    /// Discovers again whenever a CRD changes, for ever.
    pub(crate) async fn run(mut self) {
        let crds: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(self.client.clone());
        let mut changes = watch(crds, watcher::Config::default())
            .backoff(WatchBackoff::default())
            .boxed();
        let mut problem = Problem::default();
        let mut late = LATE_DISCOVERIES.iter();
        loop {
            let next = late.clone().next();
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(_)) => {
                        problem.over(&CRDS);
                        late = LATE_DISCOVERIES.iter();
                    }
                    Some(Err(error)) => {
                        problem.say(&CRDS, &with_causes(&error));
                        continue;
                    }
                    None => return,
                },
                () = tokio::time::sleep(next.copied().unwrap_or_default()), if next.is_some() => {
                    late.next();
                }
            }
            // Whatever comes within the debounce time is answered by the same discovery.
            let debounce = tokio::time::sleep(CRD_DEBOUNCE);
            tokio::pin!(debounce);
            loop {
                tokio::select! {
                    () = &mut debounce => break,
                    more = changes.next() => if more.is_none() { return },
                }
            }
            while let Err(error) = self.discover().await {
                tracing::warn!("{error}; discovery is tried again");
                tokio::time::sleep(DISCOVERY_RETRY).await;
            }
        }
    }
}

/// Returns true if a kind is one that its author believes in force and we do not support.
pub(super) fn is_unsupported(resource: &ApiResource) -> bool {
    unsupported_kinds().any(|(group, kind)| group == resource.group && kind == resource.kind)
}

/// The resources of the kinds that we read, each in the best version that the cluster serves; and of those that are not supported,
/// for who reports them.
pub(super) async fn served(
    client: &Client,
    with_unsupported: bool,
) -> Result<Vec<ApiResource>, ClusterError> {
    let failed = |error: kube::Error| ClusterError::Api {
        what: "discovery of the cluster's kinds".to_owned(),
        reason: explain(&error),
    };
    let groups = client.list_api_groups().await.map_err(failed)?.groups;
    let offered: BTreeSet<&str> = groups
        .iter()
        .flat_map(|group| &group.versions)
        .map(|version| &*version.group_version)
        .chain(["v1"])
        .collect();
    let read = kinds().iter();
    let read = read.filter(|kind| !NOT_WATCHED.contains(&kind.name));
    let mut wanted: Vec<(&str, Vec<&str>)> = Vec::new();
    for kind in read {
        let versions = kind.api_versions.iter().copied();
        wanted.push((
            kind.name,
            versions.filter(|one| offered.contains(one)).collect(),
        ));
    }
    for (group, name) in unsupported_kinds().filter(|_| with_unsupported) {
        let is_of_group = |version: &&str| version.split('/').next() == Some(group);
        let versions = offered.iter().copied();
        wanted.push((name, versions.filter(is_of_group).collect()));
    }
    let mut lists = BTreeMap::new();
    let mut found = Vec::new();
    for (kind, versions) in &wanted {
        for api_version in versions {
            if !lists.contains_key(api_version) {
                let list = match *api_version {
                    "v1" => client.list_core_api_resources("v1").await,
                    other => client.list_api_group_resources(other).await,
                };
                lists.insert(*api_version, list.map_err(failed)?.resources);
            }
            // A subresource has a slash in its name.
            let is_ours = |name: &str, of: &str| of == *kind && !name.contains('/');
            let list = lists.get(api_version).into_iter().flatten();
            if let Some(resource) = list.into_iter().find(|one| is_ours(&one.name, &one.kind)) {
                let version: GroupVersion = api_version.parse().map_err(|_| {
                    ClusterError::Config(format!("`{api_version}` is not an apiVersion"))
                })?;
                found.push(ApiResource::from_gvk_with_plural(
                    &version.with_kind(kind),
                    &resource.name,
                ));
                break;
            }
        }
    }
    Ok(found)
}

/// Watches the Secrets and ConfigMaps that objects name, and no others, for ever.
pub(crate) async fn follow_named(client: Client, store: Arc<ObjectStore>) {
    let mut tasks = JoinSet::new();
    let mut running: BTreeMap<Scope, AbortHandle> = BTreeMap::new();
    loop {
        let named = store.named();
        let gone: Vec<_> = running
            .keys()
            .filter(|one| !named.contains(one))
            .cloned()
            .collect();
        for scope in gone {
            if let Some(task) = running.remove(&scope) {
                task.abort();
            }
            store.forget(&scope);
        }
        for scope in named {
            running.entry(scope.clone()).or_insert_with(|| {
                store.expect(&scope);
                tasks.spawn(follow(
                    client.clone(),
                    Selection::named(scope),
                    store.clone(),
                ))
            });
        }
        store.named.notified().await;
    }
}

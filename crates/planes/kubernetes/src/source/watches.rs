//! Watches of the kinds that the mesh reads. A kind whose CRD is not installed is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::{GroupVersion, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Client, ResourceExt as _};
use tokio::task::JoinSet;
use voile_model::check::kinds;

use super::store::ObjectStore;
use super::trim;
use crate::error::{ClusterError, explain, with_causes};

/// Kinds of a folder that the cluster's source does not watch. Controllers make Pods, which are watched; Endpoints have their
/// EndpointSlices; ConfigMaps and Secrets are read by name only.
const NOT_WATCHED: [&str; 9] = [
    "ConfigMap",
    "DaemonSet",
    "Deployment",
    "Endpoints",
    "IPAddress",
    "Job",
    "Secret",
    "StatefulSet",
    "GatewayClass",
];
/// Pods that have ended take no traffic.
const LIVING_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Slices of Services with a selector are left out: the mesh finds those endpoints by their Pods.
const OTHER_SLICES: &str =
    "endpointslice.kubernetes.io/managed-by notin (endpointslice-controller.k8s.io)";
/// Time between the change of a CRD and the question what the cluster serves: CRDs come in dozens.
const CRD_DEBOUNCE: Duration = Duration::from_millis(100);
/// Time after which discovery is tried again when the API server does not answer.
const DISCOVERY_RETRY: Duration = Duration::from_secs(1);

/// Objects that one watch brings.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    /// `PLURAL.GROUP`, the first part of the names of files.
    pub(crate) prefix: Arc<str>,
    pub(crate) resource: ApiResource,
    /// The only namespace, or all.
    pub(crate) namespace: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<&'static str>,
    /// The name that the object has for the mesh, where that is another one.
    pub(crate) alias: Option<&'static str>,
}

impl Selection {
    fn of_kind(resource: ApiResource) -> Self {
        let (fields, labels) = match &*resource.kind {
            "Pod" => (Some(LIVING_PODS.to_owned()), None),
            "EndpointSlice" => (None, Some(OTHER_SLICES)),
            _ => (None, None),
        };
        Self {
            prefix: prefix(&resource),
            resource,
            namespace: None,
            fields,
            labels,
            alias: None,
        }
    }

    /// One object.
    pub(crate) fn one(resource: ApiResource, namespace: &str, name: &str) -> Self {
        Self {
            prefix: format!("{}/{namespace}/{name}", prefix(&resource)).into(),
            resource,
            namespace: Some(namespace.to_owned()),
            fields: Some(format!("metadata.name={name}")),
            labels: None,
            alias: None,
        }
    }

    fn file(&self, object: &DynamicObject) -> Arc<str> {
        let name = object.name_any();
        let kind = prefix(&self.resource);
        match object.namespace() {
            Some(namespace) => format!("{kind}/{namespace}/{name}").into(),
            None => format!("{kind}/{name}").into(),
        }
    }
}

/// `PLURAL.GROUP`, or `PLURAL` in the core group, as kubectl names kinds.
fn prefix(resource: &ApiResource) -> Arc<str> {
    match &*resource.group {
        "" => resource.plural.clone().into(),
        group => format!("{}.{group}", resource.plural).into(),
    }
}

/// Keeps what `selection` selects in the store, for ever.
pub(crate) async fn follow(client: Client, selection: Selection, store: Arc<ObjectStore>) {
    let api: Api<DynamicObject> = match &selection.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &selection.resource),
        None => Api::all_with(client, &selection.resource),
    };
    let mut config = watcher::Config::default().streaming_lists();
    if let Some(fields) = &selection.fields {
        config = config.fields(fields);
    }
    if let Some(labels) = selection.labels {
        config = config.labels(labels);
    }
    let mut events = watch(api, config).default_backoff().boxed();
    let mut listed = BTreeSet::new();
    let mut problem = Problem::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.insert(take(&selection, object, &store));
            }
            Ok(Event::InitDone) => {
                problem.over(&selection.prefix);
                store.keep_only(&selection.prefix, &listed);
                listed = BTreeSet::new();
            }
            Ok(Event::Apply(object)) => drop(take(&selection, object, &store)),
            Ok(Event::Delete(object)) => store.remove(&selection.file(&object)),
            Err(error) => problem.say(&selection.prefix, &with_causes(&error)),
        }
    }
}

fn take(selection: &Selection, object: DynamicObject, store: &ObjectStore) -> Arc<str> {
    let name = selection.file(&object);
    let resource = &selection.resource;
    match serde_json::to_value(object) {
        Ok(mut object) => {
            if let Some(alias) = selection.alias {
                object["metadata"]["name"] = alias.into();
            }
            store.put(
                &name,
                trim::text(&resource.kind, &resource.api_version, object),
            );
        }
        Err(error) => tracing::error!(object = %name, %error, "the object cannot be read"),
    }
    name
}

/// A watch's last error: a new one is logged once, and its end too.
#[derive(Debug, Default)]
struct Problem(Option<String>);

impl Problem {
    fn say(&mut self, what: &str, error: &str) {
        if self.0.as_deref() != Some(error) {
            tracing::warn!("{what} cannot be watched: {error}; what is known stays in force");
            self.0 = Some(error.to_owned());
        }
    }

    fn over(&mut self, what: &str) {
        if self.0.take().is_some() {
            tracing::info!("{what} is watched again");
        }
    }
}

/// Watches all kinds that the cluster serves, and those whose CRDs come later.
pub(crate) struct KindWatches {
    client: Client,
    store: Arc<ObjectStore>,
    running: BTreeMap<Arc<str>, (ApiResource, tokio::task::AbortHandle)>,
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
        let served = served(&self.client).await?;
        let prefixes: BTreeSet<_> = served.iter().map(prefix).collect();
        let gone = |running: &Arc<str>| !prefixes.contains(running);
        let gone: Vec<_> = self
            .running
            .keys()
            .filter(|one| gone(one))
            .cloned()
            .collect();
        for kind in gone {
            if let Some((_, task)) = self.running.remove(&kind) {
                task.abort();
            }
            tracing::info!("{kind} is no longer served; its objects are gone");
            self.store.forget(&kind);
        }
        for resource in served {
            let kind = prefix(&resource);
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
            .default_backoff()
            .boxed();
        let mut problem = Problem::default();
        loop {
            match changes.next().await {
                Some(Ok(_)) => problem.over("customresourcedefinitions"),
                Some(Err(error)) => {
                    problem.say("customresourcedefinitions", &with_causes(&error));
                    continue;
                }
                None => return,
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

/// The resources of the kinds that we read, each in the best version that the cluster serves.
async fn served(client: &Client) -> Result<Vec<ApiResource>, ClusterError> {
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
    let mut lists = BTreeMap::new();
    let mut found = Vec::new();
    for kind in kinds()
        .iter()
        .filter(|kind| !NOT_WATCHED.contains(&kind.name))
    {
        for api_version in kind
            .api_versions
            .iter()
            .filter(|version| offered.contains(*version))
        {
            if !lists.contains_key(api_version) {
                let list = match *api_version {
                    "v1" => client.list_core_api_resources("v1").await,
                    other => client.list_api_group_resources(other).await,
                };
                lists.insert(*api_version, list.map_err(failed)?.resources);
            }
            // A subresource has a slash in its name.
            let is_ours = |name: &str, of: &str| of == kind.name && !name.contains('/');
            let list = lists.get(api_version).into_iter().flatten();
            if let Some(resource) = list.into_iter().find(|one| is_ours(&one.name, &one.kind)) {
                let version: GroupVersion = api_version.parse().map_err(|_| {
                    ClusterError::Config(format!("`{api_version}` is not an apiVersion"))
                })?;
                found.push(ApiResource::from_gvk_with_plural(
                    &version.with_kind(kind.name),
                    &resource.name,
                ));
                break;
            }
        }
    }
    Ok(found)
}

//! Applies the objects of Gateways, and removes those that a Gateway no longer has. What a deleted Gateway leaves is collected by
//! the cluster, since the Gateway owns it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, select_all};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use voile_model::SourceFile;
use voile_model::names::ResourceName;

use super::manifests::{MANAGED, managers};
use super::{FILES, gateway_objects};
use crate::error::explain;
use crate::inject::InjectorOptions;
use crate::injection::mesh_config;
use crate::install::MANAGER;
use crate::revision::{CurrentNames, RevisionNames};
use crate::source::ObjectStore;
use crate::source::backoff::WatchBackoff;

/// Time after which a refused write is tried again, and between two writes of an object: somebody else may change it back each time.
const RETRY: Duration = Duration::from_secs(2);
/// Changes come in groups; the Gateways are read once for those that come within this time.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Kinds of a Gateway's objects: group, version, kind and plural.
const KINDS: [(&str, &str, &str, &str); 5] = [
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    ("apps", "v1", "Deployment", "deployments"),
    ("", "v1", "Service", "services"),
    (
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
    (
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    ),
];

/// An object: the number of its kind, its namespace and its name.
type ObjectKey = (usize, String, String);

/// A change of an object that the cluster has, of the kind with this number.
type Seen = (usize, Event<DynamicObject>);

/// Deploys Gateways.
pub(crate) struct Deployer {
    client: Client,
    store: Arc<ObjectStore>,
    options: InjectorOptions,
    /// The file of the mesh's settings.
    settings: String,
    names: CurrentNames,
    /// The files and names that were read last, and the objects that they ask for.
    read: (Vec<Arc<SourceFile>>, Option<RevisionNames>),
    wanted: BTreeMap<ObjectKey, Value>,
    /// UIDs of the Gateways that have objects.
    owners: BTreeSet<String>,
    /// Objects that are as wanted.
    applied: BTreeMap<ObjectKey, Value>,
    /// When each object was written.
    written: BTreeMap<ObjectKey, Instant>,
    /// Our objects in the cluster, with the UIDs of their Gateways.
    present: BTreeMap<ObjectKey, String>,
    /// What was said last about each Gateway or object that cannot be made.
    problems: BTreeMap<String, String>,
}

impl Deployer {
    pub(crate) fn new(
        client: Client,
        store: Arc<ObjectStore>,
        options: InjectorOptions,
        settings: String,
        names: CurrentNames,
    ) -> Self {
        Self {
            client,
            store,
            options,
            settings,
            names,
            read: (Vec::new(), None),
            wanted: BTreeMap::new(),
            owners: BTreeSet::new(),
            applied: BTreeMap::new(),
            written: BTreeMap::new(),
            present: BTreeMap::new(),
            problems: BTreeMap::new(),
        }
    }

    /// Keeps the objects of all Gateways, for ever.
    pub(crate) async fn run(mut self) {
        let mut changes = self.store.changes();
        let mut events = self.events();
        loop {
            changes.mark_unchanged();
            self.plan();
            let waits = self.write().await;
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(DEBOUNCE).await;
                }
                changed = self.names.changed() => if changed.is_err() {
                    return;
                },
                event = events.next() => match event {
                    Some((kind, event)) => self.see(kind, event),
                    None => return,
                },
                () = tokio::time::sleep(RETRY), if waits => {}
            }
        }
    }

    fn api(&self, kind: usize, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version, kind, plural) = KINDS[kind];
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: [group, version]
                .join("/")
                .trim_start_matches('/')
                .to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Changes of our objects.
    fn events(&self) -> BoxStream<'static, Seen> {
        let ours = format!("{MANAGED} in ({})", managers().join(", "));
        let streams = (0..KINDS.len()).map(|kind| {
            let config = watcher::Config::default().labels(&ours);
            let events = watch(self.api(kind, None), config).backoff(WatchBackoff::default());
            // The watcher logs nothing; an error is tried again.
            let events = events.filter_map(|event| std::future::ready(event.ok()));
            events.map(move |event| (kind, event)).boxed()
        });
        select_all(streams).boxed()
    }

    fn see(&mut self, kind: usize, event: Event<DynamicObject>) {
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                let key = key_of(kind, &object);
                let owner = object.owner_references().first();
                let owner = owner.map(|one| one.uid.clone()).unwrap_or_default();
                self.present.insert(key.clone(), owner);
                let applied = self.applied.get(&key);
                // Somebody has changed it.
                if let Some(applied) = applied
                    && let Ok(found) = serde_json::to_value(&object)
                    && !covers(&found, applied)
                {
                    self.applied.remove(&key);
                }
            }
            Event::Delete(object) => {
                let key = key_of(kind, &object);
                self.present.remove(&key);
                self.applied.remove(&key);
            }
            // An object that went while nobody watched is not in the list that comes.
            Event::Init => {
                self.present.retain(|(one, ..), _| *one != kind);
            }
            Event::InitDone => {
                let present = &self.present;
                self.applied
                    .retain(|key, _| key.0 != kind || present.contains_key(key));
            }
        }
    }

    /// Reads the Gateways anew if something has changed that decides about them.
    fn plan(&mut self) {
        if !self.store.missing().is_empty() {
            return;
        }
        let mut files = self.store.of_kinds(&FILES);
        files.extend(self.store.of_kinds(&["configmaps"]));
        let current = self.names.borrow_and_update().clone();
        let Some(names) = current else {
            return;
        };
        let (read, read_names) = &self.read;
        let is_same = files.len() == read.len()
            && files.iter().zip(read).all(|(a, b)| Arc::ptr_eq(a, b))
            && read_names.as_ref() == Some(&names);
        if is_same {
            return;
        }
        let mesh = mesh_config(&self.store, &self.settings);
        let made = gateway_objects(&files, &names, &self.options, &mesh);
        self.read = (files, Some(names));
        let before = std::mem::take(&mut self.wanted);
        self.owners.clear();
        let mut problems = BTreeMap::new();
        for (name, objects) in made {
            match objects {
                Ok(objects) => self.want(objects),
                Err(error) => {
                    problems.insert(gateway_name(&name), error.to_string());
                    // What it has stays.
                    let is_its = |object: &Value| is_of(object, &name);
                    let kept = before.iter().filter(|(_, object)| is_its(object));
                    self.wanted
                        .extend(kept.map(|(key, object)| (key.clone(), object.clone())));
                }
            }
        }
        self.problems.retain(|what, _| problems.contains_key(what));
        for (what, why) in problems {
            self.say(what, why);
        }
        let wanted = &self.wanted;
        self.applied.retain(|key, _| wanted.contains_key(key));
    }

    fn want(&mut self, objects: Vec<Value>) {
        for object in objects {
            let kind = KINDS.iter().position(|one| object["kind"] == one.2);
            let metadata = &object["metadata"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if let Some(kind) = kind {
                self.owners.insert(owner_of(&object));
                let key = (kind, text(&metadata["namespace"]), text(&metadata["name"]));
                self.wanted.insert(key, object);
            }
        }
    }

    fn say(&mut self, what: String, why: String) {
        if self.problems.get(&what) != Some(&why) {
            tracing::warn!("{what} is not deployed: {why}");
            self.problems.insert(what, why);
        }
    }

    /// Writes what differs. Returns true if something was refused, or was written a moment ago and waits.
    async fn write(&mut self) -> bool {
        let mut left_over = false;
        self.written.retain(|_, at| at.elapsed() < RETRY);
        let is_right =
            |(key, object): &(&ObjectKey, &Value)| self.applied.get(*key) == Some(*object);
        let differing = self.wanted.iter().filter(|one| !is_right(one));
        let differing: Vec<_> = differing
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        for (key, object) in differing {
            if self.written.contains_key(&key) {
                left_over = true;
                continue;
            }
            self.written.insert(key.clone(), Instant::now());
            let what = name_of(&key);
            match self.apply(&key, &object).await {
                Ok(()) => {
                    self.problems.remove(&what);
                    self.applied.insert(key, object);
                }
                Err(why) => {
                    left_over = true;
                    self.say(what, why);
                }
            }
        }
        let is_left = |(key, owner): &(&ObjectKey, &String)| {
            self.owners.contains(*owner) && !self.wanted.contains_key(*key)
        };
        let left = self.present.iter().filter(is_left);
        let left: Vec<ObjectKey> = left.map(|(key, _)| key.clone()).collect();
        for key in left {
            let api = self.api(key.0, Some(&key.1));
            match api.delete(&key.2, &DeleteParams::default()).await {
                Ok(_) => drop(self.present.remove(&key)),
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    self.present.remove(&key);
                }
                Err(error) => {
                    left_over = true;
                    self.say(name_of(&key), explain(&error));
                }
            }
        }
        left_over
    }

    async fn apply(&self, key: &ObjectKey, object: &Value) -> Result<(), String> {
        let api = self.api(key.0, Some(&key.1));
        let found = api.get_opt(&key.2).await;
        let found = found.map_err(|error| explain(&error))?;
        if let Some(found) = found {
            let manager = found.labels().get(MANAGED);
            let is_ours = manager.is_some_and(|manager| managers().contains(manager));
            if !is_ours && KINDS[key.0].2 == "ServiceAccount" {
                // The user's own account is used as it is.
                return Ok(());
            }
            if !is_ours {
                return Err(format!(
                    "an object of this name that Voile did not make is there; remove it, or rename the Gateway of {}",
                    key.1
                ));
            }
        }
        let parameters = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&key.2, &parameters, &Patch::Apply(object)).await;
        applied.map(drop).map_err(|error| explain(&error))
    }
}

fn key_of(kind: usize, object: &DynamicObject) -> ObjectKey {
    (
        kind,
        object.namespace().unwrap_or_default(),
        object.name_any(),
    )
}

fn name_of((kind, namespace, name): &ObjectKey) -> String {
    format!("{}/{namespace}/{name}", KINDS[*kind].3)
}

fn gateway_name(name: &ResourceName) -> String {
    format!("{}/{}/{}", FILES[0], name.namespace, name.name)
}

fn owner_of(object: &Value) -> String {
    let owner = &object["metadata"]["ownerReferences"][0]["uid"];
    owner.as_str().unwrap_or_default().to_owned()
}

fn is_of(object: &Value, gateway: &ResourceName) -> bool {
    let metadata = &object["metadata"];
    metadata["namespace"] == gateway.namespace.as_str()
        && metadata["ownerReferences"][0]["name"] == *gateway.name
}

/// Returns true if an object has every field that we wrote. Others may have added fields.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            let is_empty = wanted.as_object().is_some_and(serde_json::Map::is_empty);
            found
                .get(name)
                .map_or(is_empty || wanted.is_null(), |found| covers(found, wanted))
        }),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| covers(found, wanted))
        }
        (found, wanted) => found == wanted,
    }
}

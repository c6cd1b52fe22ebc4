//! The objects of the cluster as source files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use voile_model::SourceFile;

use super::discovery::DiscoverySelectors;
use super::scope::Scope;

#[derive(Deserialize)]
struct Identified {
    metadata: Uid,
}

#[derive(Deserialize)]
struct Uid {
    uid: String,
}

/// What the source's texts leave out, and a writer of statuses needs.
#[derive(Debug, PartialEq)]
pub(crate) struct ReportedObject {
    /// `metadata.resourceVersion`.
    pub(crate) resource_version: String,
    /// `metadata.generation`; core kinds have none.
    pub(crate) generation: Option<i64>,
    /// The label `istio.io/rev`.
    pub(crate) revision: Option<Box<str>>,
    /// Of a Service: the label with the name of its Gateway.
    pub(crate) gateway: Option<Box<str>>,
    /// `status`.
    pub(crate) status: Value,
}

/// Objects by the names of their files, and who waits for a change.
#[derive(Debug, Default)]
pub(crate) struct ObjectStore {
    objects: Mutex<Objects>,
    /// Counts changes.
    changes: watch::Sender<u64>,
    /// Counts changes of reported objects, statuses included.
    reports: watch::Sender<u64>,
    /// Name of the file with the mesh's settings, which select namespaces.
    settings: Arc<str>,
    /// Woken when objects name other Secrets and ConfigMaps than before.
    pub(crate) named: Notify,
}

#[derive(Debug, Default)]
struct Objects {
    files: BTreeMap<Arc<str>, Arc<SourceFile>>,
    reported: BTreeMap<Arc<str>, Arc<ReportedObject>>,
    /// Scopes whose objects are all there, or not yet.
    complete: BTreeMap<Scope, bool>,
    /// Scopes that the object of a file names.
    names: BTreeMap<Arc<str>, BTreeSet<Scope>>,
    changed_at: Option<Instant>,
    /// The selectors of namespaces that were read last.
    selectors: DiscoverySelectors,
    /// Why newer ones cannot be used.
    unusable: Option<String>,
}

impl ObjectStore {
    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// An empty store. `settings` is the name of the file with the mesh's settings.
    pub(crate) fn new(settings: String) -> Self {
        Self {
            settings: settings.into(),
            ..Self::default()
        }
    }

    /// The files of the mesh, in the order of the names: those of the namespaces that its settings select, and the settings.
    pub(crate) fn files(&self) -> Vec<Arc<SourceFile>> {
        let mut objects = self.lock();
        objects.changed_at = None;
        let settings = objects.files.get(&self.settings);
        let read = settings.map_or(Ok(DiscoverySelectors::default()), |file| {
            DiscoverySelectors::read(file)
        });
        let unusable = match read {
            Ok(selectors) => {
                objects.selectors = selectors;
                None
            }
            Err(error) => Some(error),
        };
        if let Some(error) = unusable.as_ref().filter(|_| unusable != objects.unusable) {
            let settings = &self.settings;
            tracing::error!(
                "{settings}: discoverySelectors: {error}; the last that could be used stay"
            );
        }
        objects.unusable = unusable;
        let files = objects.files.values();
        objects.selectors.select(files, &self.settings)
    }

    /// When the first change since the last `files` came.
    pub(crate) fn changed_at(&self) -> Option<Instant> {
        self.lock().changed_at
    }

    /// The text of one object.
    pub(crate) fn text(&self, name: &str) -> Option<Arc<SourceFile>> {
        self.lock().files.get(name).cloned()
    }

    /// The files of these kinds, kind by kind.
    pub(crate) fn of_kinds(&self, kinds: &[&str]) -> Vec<Arc<SourceFile>> {
        let objects = self.lock();
        let of_kind = |kind: &&str| {
            let prefix = format!("{kind}/");
            let first: Arc<str> = prefix.as_str().into();
            let files = objects.files.range(first..);
            let files = files.take_while(move |(name, _)| name.starts_with(&prefix));
            files.map(|(_, file)| file.clone()).collect::<Vec<_>>()
        };
        kinds.iter().flat_map(of_kind).collect()
    }

    /// Returns true if all objects of a scope are there.
    pub(crate) fn is_complete(&self, scope: &Scope) -> bool {
        self.lock().complete.get(scope) == Some(&true)
    }

    /// `metadata.uid` of one object.
    pub(crate) fn uid(&self, name: &str) -> Option<String> {
        let file = self.text(name)?;
        let object: Identified = serde_json::from_str(file.text.as_ref().ok()?).ok()?;
        Some(object.metadata.uid)
    }

    /// A scope is watched from now on; until its list has come, `missing` names it.
    pub(crate) fn expect(&self, scope: &Scope) {
        self.lock().complete.entry(scope.clone()).or_insert(false);
    }

    /// Scopes whose objects are not all there.
    pub(crate) fn missing(&self) -> Vec<String> {
        let objects = self.lock();
        let missing = objects.complete.iter().filter(|(_, complete)| !**complete);
        missing.map(|(scope, _)| scope.to_string()).collect()
    }

    /// Scopes that objects name.
    pub(crate) fn named(&self) -> BTreeSet<Scope> {
        self.lock().names.values().flatten().cloned().collect()
    }

    /// Tells of changes of reported objects from now on.
    pub(crate) fn reports(&self) -> watch::Receiver<u64> {
        self.reports.subscribe()
    }

    /// The status of an object, if this is its newest text.
    pub(crate) fn reported(&self, file: &Arc<SourceFile>) -> Option<Arc<ReportedObject>> {
        let objects = self.lock();
        let newest = objects.files.get(&file.name)?;
        let object = objects.reported.get(&file.name)?;
        Arc::ptr_eq(newest, file).then(|| object.clone())
    }

    /// Services of a Gateway, with their specs: those with its label, else the one with this name.
    pub(crate) fn services_of_gateway(
        &self,
        namespace: &str,
        gateway: &str,
        service: Option<&str>,
    ) -> Vec<(Value, Arc<ReportedObject>)> {
        let objects = self.lock();
        let prefix = format!("services/{namespace}/");
        let first: Arc<str> = prefix.as_str().into();
        let all = objects.reported.range(first..);
        let all = all.take_while(|(name, _)| name.starts_with(&prefix));
        let labelled = all.filter(|(_, one)| one.gateway.as_deref() == Some(gateway));
        let mut found: Vec<_> = labelled.collect();
        if let (true, Some(service)) = (found.is_empty(), service) {
            let name = format!("{prefix}{service}");
            found.extend(objects.reported.get_key_value(&*name));
        }
        let read = found.into_iter().filter_map(|(name, one)| {
            let text = objects.files.get(name)?.text.as_ref().ok()?;
            let mut object: Value = serde_json::from_str(text).ok()?;
            Some((object["spec"].take(), one.clone()))
        });
        read.collect()
    }

    /// Takes one object, the scopes that it names, and what is reported of it. An equal one stays the same allocation.
    pub(crate) fn put(
        &self,
        name: &Arc<str>,
        text: String,
        names: BTreeSet<Scope>,
        report: Option<ReportedObject>,
    ) {
        let mut objects = self.lock();
        if let Some(report) = report
            && objects
                .reported
                .get(name)
                .is_none_or(|known| **known != report)
        {
            objects.reported.insert(name.clone(), report.into());
            self.reports.send_modify(|count| *count += 1);
        }
        let known = objects.files.get(name);
        if known.is_some_and(|known| known.text.as_deref() == Ok(&*text)) {
            return;
        }
        for scope in &names {
            objects.complete.entry(scope.clone()).or_insert(false);
        }
        let before = match names.is_empty() {
            true => objects.names.remove(name).unwrap_or_default(),
            false => objects
                .names
                .insert(name.clone(), names.clone())
                .unwrap_or_default(),
        };
        let file = SourceFile::object(name.clone(), text);
        objects.files.insert(name.clone(), Arc::new(file));
        self.news(objects);
        if before != names {
            self.named.notify_one();
        }
    }

    /// Removes one object.
    pub(crate) fn remove(&self, name: &str) {
        let mut objects = self.lock();
        let named = objects.names.remove(name).is_some();
        objects.reported.remove(name);
        if objects.files.remove(name).is_some() {
            self.news(objects);
        }
        if named {
            self.named.notify_one();
        }
    }

    /// The list of a scope has come whole: its other objects are gone.
    pub(crate) fn keep_only(&self, scope: &Scope, listed: &BTreeSet<Arc<str>>) {
        let gone: Vec<_> = {
            let objects = self.lock();
            let files = objects.files.keys();
            files
                .filter(|file| scope.holds(file) && !listed.contains(*file))
                .cloned()
                .collect()
        };
        gone.iter().for_each(|file| self.remove(file));
        let mut objects = self.lock();
        if objects.complete.insert(scope.clone(), true) != Some(true) {
            self.news(objects);
        }
    }

    /// A scope is no longer watched: its objects are gone, but for those of other scopes.
    pub(crate) fn forget(&self, scope: &Scope) {
        let gone: Vec<_> = {
            let mut objects = self.lock();
            objects.complete.remove(scope);
            let others = |file: &str| objects.complete.keys().any(|other| other.holds(file));
            let files = objects.files.keys();
            files
                .filter(|file| scope.holds(file) && !others(file))
                .cloned()
                .collect()
        };
        gone.iter().for_each(|file| self.remove(file));
    }

    fn news(&self, mut objects: MutexGuard<'_, Objects>) {
        objects.changed_at.get_or_insert_with(Instant::now);
        drop(objects);
        self.changes.send_modify(|count| *count += 1);
    }
}

//! The objects of the cluster as source files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use tokio::sync::{Notify, watch};
use voile_model::SourceFile;

use super::scope::Scope;

#[derive(Deserialize)]
struct Identified {
    metadata: Uid,
}

#[derive(Deserialize)]
struct Uid {
    uid: String,
}

/// Objects by the names of their files, and who waits for a change.
#[derive(Debug, Default)]
pub(crate) struct ObjectStore {
    objects: Mutex<Objects>,
    /// Counts changes.
    changes: watch::Sender<u64>,
    /// Woken when objects name other Secrets and ConfigMaps than before.
    pub(crate) named: Notify,
}

#[derive(Debug, Default)]
struct Objects {
    files: BTreeMap<Arc<str>, Arc<SourceFile>>,
    /// Scopes whose objects are all there, or not yet.
    complete: BTreeMap<Scope, bool>,
    /// Scopes that the object of a file names.
    names: BTreeMap<Arc<str>, BTreeSet<Scope>>,
    changed_at: Option<Instant>,
}

impl ObjectStore {
    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Every file, in the order of the names.
    pub(crate) fn files(&self) -> Vec<Arc<SourceFile>> {
        let mut objects = self.lock();
        objects.changed_at = None;
        objects.files.values().cloned().collect()
    }

    /// When the first change since the last `files` came.
    pub(crate) fn changed_at(&self) -> Option<Instant> {
        self.lock().changed_at
    }

    /// The text of one object.
    pub(crate) fn text(&self, name: &str) -> Option<Arc<SourceFile>> {
        self.lock().files.get(name).cloned()
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

    /// Takes one object, and the scopes that it names. An equal one stays the same allocation.
    pub(crate) fn put(&self, name: &Arc<str>, text: String, names: BTreeSet<Scope>) {
        let mut objects = self.lock();
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

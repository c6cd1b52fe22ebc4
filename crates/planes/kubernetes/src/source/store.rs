//! The objects of the cluster as source files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use tokio::sync::Notify;
use voile_model::SourceFile;

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
    /// Woken by each change.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct Objects {
    files: BTreeMap<Arc<str>, Arc<SourceFile>>,
    /// Kinds, as prefixes of file names, whose objects are all there, or not yet.
    complete: BTreeMap<Arc<str>, bool>,
    changed_at: Option<Instant>,
}

impl ObjectStore {
    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A kind is watched from now on; until its list has come, `missing` names it.
    pub(crate) fn expect(&self, kind: &Arc<str>) {
        self.lock().complete.entry(kind.clone()).or_insert(false);
    }

    /// Kinds whose objects are not all there.
    pub(crate) fn missing(&self) -> Vec<Arc<str>> {
        let objects = self.lock();
        let missing = objects.complete.iter().filter(|(_, complete)| !**complete);
        missing.map(|(kind, _)| kind.clone()).collect()
    }

    /// Takes one object. An equal one stays the same allocation.
    pub(crate) fn put(&self, name: &Arc<str>, text: String) {
        let mut objects = self.lock();
        let known = objects.files.get(name);
        if known.is_some_and(|known| known.text.as_deref() == Ok(&*text)) {
            return;
        }
        let file = SourceFile::new(name.clone(), text);
        objects.files.insert(name.clone(), Arc::new(file));
        self.news(objects);
    }

    /// Removes one object.
    pub(crate) fn remove(&self, name: &str) {
        let mut objects = self.lock();
        if objects.files.remove(name).is_some() {
            self.news(objects);
        }
    }

    /// The list of a kind has come whole: other objects of this kind are gone.
    pub(crate) fn keep_only(&self, kind: &Arc<str>, listed: &BTreeSet<Arc<str>>) {
        let mut objects = self.lock();
        let was = objects.complete.insert(kind.clone(), true);
        let before = objects.files.len();
        let of_kind = |name: &str| {
            name.strip_prefix(&**kind)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        objects
            .files
            .retain(|name, _| !of_kind(name) || listed.contains(name));
        if objects.files.len() != before || was != Some(true) {
            self.news(objects);
        }
    }

    /// The cluster no longer serves a kind: its objects are gone.
    pub(crate) fn forget(&self, kind: &Arc<str>) {
        self.keep_only(kind, &BTreeSet::new());
        self.lock().complete.remove(kind);
    }

    fn news(&self, mut objects: MutexGuard<'_, Objects>) {
        objects.changed_at.get_or_insert_with(Instant::now);
        drop(objects);
        self.changed.notify_one();
    }
}

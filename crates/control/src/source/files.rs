//! Folders of YAML, watched. Nothing ticks: the kernel tells. Each folder and its parent are watched, so that a folder
//! which is renamed away and replaced is found again; swap files and our own reading are no news.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use voile_model::SourceFile;

use super::Source;
use super::settle::{Burst, Happening};
use crate::error::ControlError;

/// Watched folders.
pub struct FilesSource {
    folders: Vec<Folder>,
    watcher: RecommendedWatcher,
    shared: Arc<Shared>,
}

struct Folder {
    path: PathBuf,
    /// Device and inode that are watched; others at the same path mean that it was replaced.
    watched: Option<(u64, u64)>,
}

#[derive(Default)]
struct Shared {
    /// What is news when it changes, with all that is below it.
    roots: Mutex<Vec<PathBuf>>,
    burst: Mutex<Burst>,
    news: Notify,
}

impl FilesSource {
    /// Watches the folders; they must exist.
    ///
    /// # Errors
    /// A folder is missing, or the kernel has no watches left.
    pub fn new(folders: &[PathBuf]) -> Result<Self, ControlError> {
        let shared = Arc::new(Shared::default());
        let folders: Vec<Folder> = folders
            .iter()
            .map(|path| Folder {
                path: std::path::absolute(path).unwrap_or_else(|_| path.clone()),
                watched: None,
            })
            .collect();
        let roots = folders.iter().map(|folder| folder.path.clone()).collect();
        *shared.roots() = roots;
        let told = shared.clone();
        let watcher = notify::recommended_watcher(move |event| tell(&told, event));
        let first = folders
            .first()
            .map(|folder| folder.path.clone())
            .unwrap_or_default();
        let watcher = watcher.map_err(|error| cannot_watch(&first, &error))?;
        let mut source = Self {
            folders,
            watcher,
            shared,
        };
        for index in 0..source.folders.len() {
            source.watch_parent(index)?;
            source.watch(index)?;
        }
        Ok(source)
    }

    fn watch_parent(&mut self, index: usize) -> Result<(), ControlError> {
        let path = &self.folders[index].path;
        match path.parent() {
            Some(parent) => self
                .watcher
                .watch(parent, RecursiveMode::NonRecursive)
                .map_err(|error| cannot_watch(path, &error)),
            None => Ok(()),
        }
    }

    /// Watches what is at the folder's path now, if that is not what is watched already.
    fn watch(&mut self, index: usize) -> Result<(), ControlError> {
        let folder = &mut self.folders[index];
        let metadata = std::fs::metadata(&folder.path).map_err(|error| ControlError::Folder {
            folder: folder.path.clone(),
            reason: error.to_string(),
        })?;
        let found = (metadata.dev(), metadata.ino());
        if folder.watched == Some(found) {
            return Ok(());
        }
        if folder.watched.take().is_some() {
            // The old folder may be gone already; then the kernel has dropped its watch itself.
            let _ = self.watcher.unwatch(&folder.path);
        }
        self.watcher
            .watch(&folder.path, RecursiveMode::Recursive)
            .map_err(|error| cannot_watch(&folder.path, &error))?;
        folder.watched = Some(found);
        Ok(())
    }
}

fn cannot_watch(folder: &Path, error: &notify::Error) -> ControlError {
    ControlError::Folder {
        folder: folder.to_owned(),
        reason: format!("cannot be watched: {error}"),
    }
}

/// On notify's thread: is it about us, and is it more than somebody reading?
fn tell(shared: &Shared, event: notify::Result<Event>) {
    let now = Instant::now();
    let roots = shared.roots().clone();
    let mut burst = shared.burst.lock().unwrap_or_else(PoisonError::into_inner);
    let mut news = false;
    match event {
        Ok(event) => {
            let Some(happening) = happening(event.kind) else {
                return;
            };
            for path in &event.paths {
                if roots.iter().any(|root| path.starts_with(root)) {
                    burst.event(path, happening, now);
                    news = true;
                }
            }
            // An event without a path is the kernel's queue overflowing.
            if event.need_rescan() {
                burst.event(Path::new(""), Happening::Done, now);
                news = true;
            }
        }
        Err(error) => {
            tracing::warn!(%error, "watching the configuration");
            burst.event(Path::new(""), Happening::Done, now);
            news = true;
        }
    }
    drop(burst);
    if news {
        shared.news.notify_one();
    }
}

fn happening(kind: EventKind) -> Option<Happening> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Happening::Done),
        EventKind::Access(_) => None,
        EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any) => Some(Happening::Written),
        EventKind::Create(_)
        | EventKind::Modify(_)
        | EventKind::Remove(_)
        | EventKind::Any
        | EventKind::Other => Some(Happening::Done),
    }
}

impl Shared {
    fn roots(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What Kubernetes replaces when the files of a mounted ConfigMap or Secret change, all at once.
const MOUNTED: &str = "..data";

impl Source for FilesSource {
    fn follow_file(&mut self, file: &Path) -> Result<(), ControlError> {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
        let Some(folder) = file.parent() else {
            return Ok(());
        };
        self.shared
            .roots()
            .extend([file.clone(), folder.join(MOUNTED)]);
        let watched = self.watcher.watch(folder, RecursiveMode::NonRecursive);
        watched.map_err(|error| cannot_watch(folder, &error))
    }

    fn load(&mut self) -> Result<Vec<SourceFile>, ControlError> {
        let mut files = Vec::new();
        for index in 0..self.folders.len() {
            // Watch first, read then: what changes in between is told.
            self.watch(index)?;
            let path = &self.folders[index].path;
            let read = voile_model::files::read_directory(path);
            files.extend(read.map_err(|error| ControlError::Folder {
                folder: path.clone(),
                reason: error.to_string(),
            })?);
        }
        Ok(files)
    }

    async fn changed(&mut self) {
        loop {
            let due = self
                .shared
                .burst
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .due();
            match due {
                None => self.shared.news.notified().await,
                Some(due) if due > Instant::now() => {
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => {}
                        () = self.shared.news.notified() => {}
                    }
                }
                Some(_) => {
                    *self
                        .shared
                        .burst
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner) = Burst::default();
                    return;
                }
            }
        }
    }
}

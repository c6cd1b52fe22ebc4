//! Folders of YAML, watched by the kernel's events, without a timer. Each folder and its parent are watched, so that a folder
//! which is renamed away and replaced is found again. A missing folder is looked for every second, since no event tells of a
//! mounted volume. Swap files and our own reading are no news. If the kernel names files, only these are read again. For all
//! other events, and for links to elsewhere, the whole folder is read.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use voile_model::{SourceFile, files};

use crate::settle::{Burst, FileEvent, rest_after};
use crate::unfinished::FileWaits;

/// Interval between looks for a missing folder.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A folder cannot be watched or read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", .folder.display())]
pub struct WatchError {
    /// Which.
    pub folder: PathBuf,
    /// Why not.
    pub reason: String,
}

/// Watched folders.
pub struct FolderWatch {
    folders: Vec<Folder>,
    watcher: RecommendedWatcher,
    shared: Arc<WatcherState>,
    /// Time at which the last events were taken: the caller works on them until its next call.
    taken: Option<Instant>,
    /// Until then we rest.
    resting: Option<Instant>,
    /// Time of the first of the events that were taken.
    happened: Option<Instant>,
    /// Folder that could not be read the last time, because it is missing or not readable.
    away: Option<PathBuf>,
    /// When what is away was last looked for by `is_due`.
    looked: Option<Instant>,
    /// Notes for people on the last reading.
    notes: Vec<String>,
}

/// Device and inode of a file: other values at the same path mean that it was replaced as a whole.
type FileId = (u64, u64);

/// A file as it is in force.
struct WatchedFile {
    file: Arc<SourceFile>,
    id: Option<FileId>,
    digest: u64,
}

/// State at the start of one reading.
struct FolderReading<'a> {
    /// Paths of the kernel's events.
    paths: BTreeSet<PathBuf>,
    /// True if the kernel could not name the paths.
    all: bool,
    /// Something in the folders was a link.
    links: bool,
    /// Files that another process has open for writing.
    open: BTreeSet<PathBuf>,
    now: Instant,
    notes: &'a mut Vec<String>,
}

struct Folder {
    path: PathBuf,
    /// Device and inode that are watched; other values at the same path mean that it was replaced.
    watched: Option<FileId>,
    /// Files in force; None: the whole folder has to be read.
    files: Option<BTreeMap<PathBuf, WatchedFile>>,
    /// Files that another process is writing: their contents are not in force.
    waits: FileWaits,
}

impl Folder {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            watched: None,
            files: None,
            waits: FileWaits::default(),
        }
    }
}

#[derive(Default)]
struct WatcherState {
    /// Paths whose changes are news, with all that is below them.
    roots: Mutex<Vec<PathBuf>>,
    told: Mutex<KernelEvents>,
    news: Notify,
    /// Something in the folders is a link: its target may change when a hidden file does.
    links: AtomicBool,
}

/// Events of the kernel since the last reading.
#[derive(Default)]
struct KernelEvents {
    burst: Burst,
    paths: BTreeSet<PathBuf>,
    /// True if the kernel could not name the paths.
    all: bool,
    /// Files that another process has written into and not closed.
    open: BTreeSet<PathBuf>,
}

impl WatcherState {
    fn told(&self) -> MutexGuard<'_, KernelEvents> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FolderWatch {
    /// Watches the folders. One that is not there is waited for; until it comes `load` fails.
    ///
    /// # Errors
    /// The kernel has no watches left.
    pub fn new(folders: &[PathBuf]) -> Result<Self, WatchError> {
        let shared = Arc::new(WatcherState::default());
        let folders: Vec<Folder> = folders
            .iter()
            .map(|path| Folder::new(std::path::absolute(path).unwrap_or_else(|_| path.clone())))
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
            taken: None,
            resting: None,
            happened: None,
            away: None,
            looked: None,
            notes: Vec::new(),
        };
        for index in 0..source.folders.len() {
            if source.folders[index].path.exists() {
                source.watch_parent(index)?;
                source.watch(index)?;
            }
        }
        Ok(source)
    }

    fn watch_parent(&mut self, index: usize) -> Result<(), WatchError> {
        let path = &self.folders[index].path;
        match path.parent() {
            Some(parent) => self
                .watcher
                .watch(parent, RecursiveMode::NonRecursive)
                .map_err(|error| cannot_watch(path, &error)),
            None => Ok(()),
        }
    }

    /// Watches the folder now at the path, if it is not watched already.
    fn watch(&mut self, index: usize) -> Result<(), WatchError> {
        let folder = &mut self.folders[index];
        let metadata = std::fs::metadata(&folder.path).map_err(|error| WatchError {
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
        folder.files = None;
        Ok(())
    }
}

fn cannot_watch(folder: &Path, error: &notify::Error) -> WatchError {
    WatchError {
        folder: folder.to_owned(),
        reason: format!("cannot be watched: {error}"),
    }
}

/// Handles an event on notify's thread: does it concern the folders, and is it more than a read?
fn tell(shared: &WatcherState, event: notify::Result<Event>) {
    let now = Instant::now();
    let roots = shared.roots();
    let mut told = shared.told();
    let mut news = false;
    match event {
        Ok(event) => {
            for (index, path) in event.paths.iter().enumerate() {
                let Some(happening) = happening(event.kind, index) else {
                    continue;
                };
                let Some(inner) = roots.iter().find_map(|root| path.strip_prefix(root).ok()) else {
                    continue;
                };
                let hidden = files::is_hidden(inner);
                if hidden && !shared.links.load(Ordering::Relaxed) {
                    continue;
                }
                let happening = awaited(path, hidden, happening);
                match happening {
                    FileEvent::Written => {
                        told.open.insert(path.clone());
                    }
                    // Its mode or times do not say that its writer is done.
                    FileEvent::Done if is_metadata(event.kind) => {}
                    FileEvent::Done | FileEvent::Gone => {
                        told.open.remove(path);
                    }
                }
                told.burst.event(path, happening, now);
                told.paths.insert(path.clone());
                news = true;
            }
            // An event without a path is the kernel's queue overflowing.
            if event.need_rescan() {
                told.burst.event(Path::new(""), FileEvent::Done, now);
                told.all = true;
                news = true;
            }
        }
        Err(error) => {
            tracing::warn!(%error, "watching the configuration");
            told.burst.event(Path::new(""), FileEvent::Done, now);
            told.all = true;
            news = true;
        }
    }
    drop(told);
    if news {
        shared.news.notify_one();
    }
}

fn is_metadata(kind: EventKind) -> bool {
    matches!(kind, EventKind::Modify(ModifyKind::Metadata(_)))
}

/// Turns events that are not worth a wait into `Done`: events of hidden files, and writes to files that are no configuration.
/// An application's log may be open for as long as it runs.
fn awaited(path: &Path, hidden: bool, happening: FileEvent) -> FileEvent {
    let never = hidden || (happening == FileEvent::Written && !files::is_configuration(path));
    if never { FileEvent::Done } else { happening }
}

/// Meaning of an event for the path at this index in it.
fn happening(kind: EventKind, index: usize) -> Option<FileEvent> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(FileEvent::Done),
        EventKind::Access(_) => None,
        // The file is empty yet; its writer fills or closes it.
        EventKind::Create(CreateKind::File)
        | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any) => Some(FileEvent::Written),
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => {
            Some(FileEvent::Gone)
        }
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) if index == 0 => {
            Some(FileEvent::Gone)
        }
        EventKind::Create(_) | EventKind::Modify(_) | EventKind::Any | EventKind::Other => {
            Some(FileEvent::Done)
        }
    }
}

impl Folder {
    /// Updates the files in force by the events; returns true if some of them are links.
    fn refresh(&mut self, reading: &mut FolderReading<'_>) -> Result<bool, WatchError> {
        let mut paths: BTreeSet<PathBuf> = self.waits.paths().cloned().collect();
        paths.extend(reading.paths.iter().cloned());
        let whole = reading.all || reading.links;
        let single = !whole && paths.iter().all(|path| self.read_again(path, reading));
        if let (true, Some(_)) = (single, &self.files) {
            return Ok(reading.links);
        }
        let listing = files::list_directory(&self.path).map_err(|error| WatchError {
            folder: self.path.clone(),
            reason: error.to_string(),
        })?;
        let before = self.files.take();
        let first = before.is_none();
        let mut before = before.unwrap_or_default();
        let mut now = BTreeMap::new();
        for (path, file) in listing.files {
            let old = before.remove(&path);
            if let Some(known) = self.admit(&path, old, file, first, reading) {
                now.insert(path, known);
            }
        }
        for path in before.keys() {
            self.waits.forget(path);
        }
        self.files = Some(now);
        Ok(listing.links)
    }

    /// Selects the text in force after a file was read: the new text, or the old one while another process
    /// is writing.
    fn admit(
        &mut self,
        path: &Path,
        old: Option<WatchedFile>,
        file: SourceFile,
        first: bool,
        reading: &mut FolderReading<'_>,
    ) -> Option<WatchedFile> {
        let id = file_id(path);
        let replaced = old.as_ref().is_some_and(|old| old.id != id);
        if first || replaced {
            self.waits.forget(path);
        } else {
            let open = reading.open.contains(path);
            let in_force = old.as_ref().map(|old| &*old.file);
            let at = (reading.now, &mut *reading.notes);
            if !self.waits.admits((path, open), in_force, &file, at) {
                return old;
            }
        }
        match old {
            Some(old) if *old.file == file => Some(WatchedFile { id, ..old }),
            _ => Some(WatchedFile {
                id,
                digest: digest(&file),
                file: Arc::new(file),
            }),
        }
    }

    /// Reads one path again if it is, or was, a file like any other; otherwise all has to be read.
    fn read_again(&mut self, path: &Path, reading: &mut FolderReading<'_>) -> bool {
        let Ok(inner) = path.strip_prefix(&self.path) else {
            return true;
        };
        let Some(known) = &mut self.files else {
            return false;
        };
        if inner.as_os_str().is_empty() || known.len() >= files::MAX_FILES {
            return false;
        }
        if files::is_hidden(inner) {
            return true;
        }
        let below = || known.range(path.to_owned()..).find(|(at, _)| *at != path);
        if below().is_some_and(|(at, _)| at.starts_with(path)) {
            return false;
        }
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_file() => false,
            Ok(_) if !files::is_configuration(path) => true,
            Ok(_) => {
                let old = known.remove(path);
                let admitted = self.admit(path, old, files::read_file(path), false, reading);
                if let (Some(files), Some(admitted)) = (&mut self.files, admitted) {
                    files.insert(path.to_owned(), admitted);
                }
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                known.remove(path);
                self.waits.forget(path);
                true
            }
            Err(_) => false,
        }
    }
}

/// The digest of a folder that holds these files; see [`FolderWatch::digests`].
#[must_use]
pub fn digest_of(files: &[SourceFile]) -> String {
    joined(files.iter().map(digest))
}

/// The order of files does not count.
fn joined(digests: impl Iterator<Item = u64>) -> String {
    format!("{:016x}", digests.fold(0, u64::wrapping_add))
}

/// FNV-1a of a file's name and text: the same in every build, since two processes compare it. It tells edits apart, not attackers.
fn digest(file: &SourceFile) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let (Ok(text) | Err(text)) = &file.text;
    let bytes = file.name.bytes().chain([0]).chain(text.bytes());
    bytes.fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

fn file_id(path: &Path) -> Option<FileId> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

impl WatcherState {
    fn roots(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Link that Kubernetes replaces when the files of a mounted ConfigMap or Secret change, all at
/// once.
const MOUNTED: &str = "..data";

impl FolderWatch {
    /// Wakes `changed` for one more file, which is not part of `load`.
    ///
    /// # Errors
    /// It cannot be watched.
    pub fn follow_file(&mut self, file: &Path) -> Result<(), WatchError> {
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

    /// Holds what is in one more folder, too.
    ///
    /// # Errors
    /// It cannot be watched.
    pub fn follow_folder(&mut self, folder: &Path) -> Result<(), WatchError> {
        let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
        let inside = |known: &Folder| {
            let inner = path.strip_prefix(&known.path).ok();
            inner.is_some_and(|inner| !files::is_hidden(inner))
        };
        // Nothing is read twice.
        if self.folders.iter().any(inside) {
            return Ok(());
        }
        self.shared.roots().push(path.clone());
        self.folders.push(Folder::new(path));
        let index = self.folders.len() - 1;
        self.watch_parent(index)?;
        self.watch(index)
    }

    /// Every file that is in force now, in an order that does not change; what did not change since the last call is the
    /// same `Arc`.
    ///
    /// # Errors
    /// A folder cannot be read at all; what was read before stays in force.
    pub fn load(&mut self) -> Result<Vec<Arc<SourceFile>>, WatchError> {
        let mut notes = std::mem::take(&mut self.notes);
        let mut reading = {
            let mut told = self.shared.told();
            FolderReading {
                paths: std::mem::take(&mut told.paths),
                all: std::mem::take(&mut told.all),
                links: self.shared.links.load(Ordering::Relaxed),
                open: told.open.clone(),
                now: Instant::now(),
                notes: &mut notes,
            }
        };
        let read = self.read(&mut reading);
        self.notes = notes;
        read
    }

    fn read(
        &mut self,
        reading: &mut FolderReading<'_>,
    ) -> Result<Vec<Arc<SourceFile>>, WatchError> {
        let mut found = Vec::new();
        let mut links = false;
        let was_away = self.away.take().is_some();
        for index in 0..self.folders.len() {
            if was_away {
                // The parent folder may be another one, too.
                self.folders[index].watched = None;
                let _ = self.watch_parent(index);
            }
            // Watch first, read then: a change in between causes an event.
            let watched = self.watch(index);
            let folder = &mut self.folders[index];
            match watched.and_then(|()| folder.refresh(reading)) {
                Ok(has_links) => links |= has_links,
                Err(error) => {
                    self.away = Some(folder.path.clone()).filter(|path| !is_there(path));
                    // The events taken for this reading are lost.
                    self.folders
                        .iter_mut()
                        .for_each(|folder| folder.files = None);
                    return Err(error);
                }
            }
            let files = folder.files.iter().flat_map(BTreeMap::values);
            found.extend(files.map(|known| known.file.clone()));
        }
        self.shared.links.store(links, Ordering::Relaxed);
        Ok(found)
    }

    /// Digest of the files in force, by folder. Readers of the same files have the same digest.
    #[must_use]
    pub fn digests(&self) -> BTreeMap<PathBuf, String> {
        let of = |folder: &Folder| {
            let files = folder.files.iter().flat_map(BTreeMap::values);
            (folder.path.clone(), joined(files.map(|known| known.digest)))
        };
        self.folders.iter().map(of).collect()
    }

    /// Returns the notes for people since the last call: files that are waited for, and files that were taken.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Time of the first event that `load` will handle; None if there was none.
    #[must_use]
    pub fn changed_at(&self) -> Option<Instant> {
        self.happened
    }

    /// Returns when `load` may answer differently than last time: at once for the first change, less often the more there
    /// are. May be dropped at any time.
    pub async fn changed(&mut self) {
        if let Some(taken) = self.taken.take() {
            let now = Instant::now();
            self.resting = Some(now + rest_after(now - taken));
        }
        let again = self.due_again();
        self.happened = tokio::select! {
            first = told(&self.shared, self.resting) => first,
            () = back(self.away.as_deref()) => None,
            () = until(again) => None,
        };
        self.taken = Some(Instant::now());
    }

    /// As `changed`, for a caller that has a loop of its own: whether it is time to `load`.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if self.due_again().is_some_and(|due| due <= now) {
            return true;
        }
        if let Some(away) = &self.away {
            let looked = self.looked.is_some_and(|then| now < then + LOOK_AGAIN);
            if !looked {
                self.looked = Some(now);
                return is_there(away);
            }
        }
        let mut told = self.shared.told();
        let due = told.burst.due().is_some_and(|due| due <= now);
        if due {
            told.burst = Burst::default();
        }
        due
    }

    /// When a file that is waited for is read again.
    fn due_again(&self) -> Option<Instant> {
        self.folders
            .iter()
            .filter_map(|folder| folder.waits.due())
            .min()
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Takes what was told when it is time; when the first of it happened.
async fn told(shared: &WatcherState, resting: Option<Instant>) -> Option<Instant> {
    loop {
        let due = shared.told().burst.due();
        let due = due.map(|due| resting.map_or(due, |rested| due.max(rested)));
        match due {
            None => shared.news.notified().await,
            Some(due) if due > Instant::now() => {
                tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => {}
                    () = shared.news.notified() => {}
                }
            }
            Some(_) => return std::mem::take(&mut shared.told().burst).first(),
        }
    }
}

/// Returns when what was away is there; never where nothing was.
async fn back(away: Option<&Path>) {
    let Some(away) = away else {
        return std::future::pending().await;
    };
    while !is_there(away) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn is_there(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_read_is_waited_for_while_somebody_writes_it() {
        use FileEvent::{Done, Gone, Written};
        for (path, hidden, happening, expected) in [
            ("/mesh/shop.yaml", false, Written, Written),
            ("/mesh/shop.yaml", false, Gone, Gone),
            ("/mesh/shop.yaml", true, Written, Done),
            ("/mesh/app.log", false, Written, Done),
            ("/mesh/result", false, Written, Done),
            // It may have been a folder that is about to come back.
            ("/mesh/shop", false, Gone, Gone),
        ] {
            let found = awaited(Path::new(path), hidden, happening);
            assert_eq!(found, expected, "{path} {happening:?}");
        }
    }

    #[tokio::test]
    async fn a_folder_that_is_away_is_found_when_it_comes_with_what_is_above_it() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("volume/of/mesh");
        let mut source = FolderWatch::new(std::slice::from_ref(&path)).expect("waits for it");
        let refused = source.load().expect_err("nothing is there");
        assert!(refused.to_string().contains("volume/of/mesh"), "{refused}");
        // Twice: the folder may go again, and its parent too.
        for _ in 0..2 {
            std::fs::create_dir_all(&path).expect("made");
            source.changed().await;
            assert_eq!(source.load().expect("there").len(), 0);
            std::fs::write(path.join("a.yaml"), "kind: Namespace").expect("written");
            while source.load().expect("there").is_empty() {
                source.changed().await;
            }
            std::fs::remove_dir_all(root.path().join("volume")).expect("gone");
            while source.load().is_ok() {
                source.changed().await;
            }
        }
    }
}

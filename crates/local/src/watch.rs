//! Notices edits of the folder. It looks at names, sizes and times, and waits until a change has settled, so that an
//! editor's half-written file is not read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Between two looks. One look costs a `stat` per file.
const LOOK_EVERY: Duration = Duration::from_millis(250);

type State = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// The folder as last seen.
#[derive(Debug)]
pub struct FolderWatch {
    folder: PathBuf,
    /// What was last reported.
    known: State,
    /// What was there at the last look.
    last: State,
    looked: Instant,
}

impl FolderWatch {
    /// From now on.
    pub fn new(folder: &Path, now: Instant) -> Self {
        let known = state(folder);
        Self {
            folder: folder.to_owned(),
            last: known.clone(),
            known,
            looked: now,
        }
    }

    /// Whether there is a change that has settled since the last `true`.
    pub fn changed(&mut self, now: Instant) -> bool {
        if now.duration_since(self.looked) < LOOK_EVERY {
            return false;
        }
        self.looked = now;
        let state = state(&self.folder);
        let settled = state == self.last;
        self.last = state;
        if settled && self.last != self.known {
            self.known = self.last.clone();
            return true;
        }
        false
    }
}

fn state(folder: &Path) -> State {
    let mut found = State::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            let Ok(metadata) = std::fs::metadata(&path) else {
                continue;
            };
            if metadata.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
            {
                found.insert(path, (metadata.len(), metadata.modified().ok()));
            }
        }
    }
    found
}

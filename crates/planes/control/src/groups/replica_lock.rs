//! Which control plane holds a member's stream, and whether it still runs: each locks a file of its own as long as it lives, and the
//! kernel lets go of the lock however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The folder of locks, beside the entries; hidden, so that nobody reads it as configuration.
const FOLDER: &str = ".holders";

/// One control plane's name among those on its state directory.
#[derive(Debug)]
pub(super) struct ReplicaName {
    folder: PathBuf,
    name: String,
    _lock: File,
}

impl ReplicaName {
    /// A new name, locked.
    pub(super) fn new(entries: &Path) -> io::Result<Self> {
        let folder = entries.join(FOLDER);
        let mut made = std::fs::DirBuilder::new();
        made.recursive(true).mode(0o700).create(&folder)?;
        let name = format!("{:016x}", fastrand::u64(..));
        let mut options = OpenOptions::new();
        let lock = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(folder.join(&name))?;
        lock.lock()?;
        Ok(Self {
            folder,
            name,
            _lock: lock,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the control plane of this name runs. Returns true as well if that cannot be known.
    pub(super) fn is_alive(&self, other: &str) -> bool {
        if other == self.name {
            return true;
        }
        // A name in a document is hexadecimal if a control plane wrote it. Any other name belongs to no control plane.
        if other.is_empty() || !other.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        let path = self.folder.join(other);
        match File::open(&path) {
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(file) => match file.try_lock() {
                Ok(()) => {
                    // Nobody will have this name again.
                    let _ = std::fs::remove_file(&path);
                    false
                }
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
            },
        }
    }
}

impl Drop for ReplicaName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.folder.join(&self.name));
    }
}

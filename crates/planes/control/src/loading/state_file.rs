//! One file of the state directory that control planes share: replaced whole, by one of them at a time, so that none reads half of
//! it and a crash leaves the old one or the new one. The lock is the kernel's: it goes with the process that held it.

use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Lock for writing the state directory. The process that makes keys holds it, too.
const LOCK: &str = ".lock";

/// Change of a file.
pub(crate) enum Change {
    /// It says this.
    Write(Vec<u8>),
    /// It goes.
    Remove,
    /// It stays as it is.
    Leave,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The file of this name in a state directory.
    pub(crate) fn new(state: &Path, name: &str) -> Self {
        Self {
            path: state.join(name),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Content of the file; `None` if there is no file.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes what `make` makes of what it says now, and nobody else writes in between. A file that cannot be read is one that says
    /// nothing: whoever reads it says so.
    pub(crate) fn update(&self, make: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>) -> io::Result<()> {
        self.change(|there| (Change::Write(make(there)), ()))
    }

    /// Makes of what it says now what it shall say, if anything, and nobody else writes in between; what `make` says of it.
    pub(crate) fn change<T>(
        &self,
        make: impl FnOnce(Option<Vec<u8>>) -> (Change, T),
    ) -> io::Result<T> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut made = std::fs::DirBuilder::new();
        made.recursive(true).mode(0o700).create(folder)?;
        let mut options = std::fs::OpenOptions::new();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join(LOCK))?;
        lock.lock()?;
        let (change, said) = make(self.read().unwrap_or_default());
        let text = match change {
            Change::Leave => return Ok(said),
            Change::Remove => {
                return match std::fs::remove_file(&self.path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(said),
                };
            }
            Change::Write(text) => text,
        };
        let draft = self.path.with_extension("draft");
        // One that a crash left behind would keep its mode.
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(draft, &self.path)?;
        Ok(said)
    }

    /// Writes this.
    pub(crate) fn replace(&self, text: Vec<u8>) -> io::Result<()> {
        self.update(|_| text)
    }
}

//! The state directory: secrets on disk that only their owner may read. Writing is atomic and never overwrites:
//! a crash leaves either nothing or the whole file, and of two starters one wins and the other reads its work.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

/// Mode of the directory: its owner only.
pub const DIRECTORY_MODE: u32 = 0o700;
/// Mode of a secret file: its owner only.
pub const SECRET_MODE: u32 = 0o600;
/// Mode of a public file (a root certificate); the directory above still hides it from others.
pub const PUBLIC_MODE: u32 = 0o644;
/// Largest state file read, in bytes: keys and certificates are a few kilobytes; more is not ours.
pub const MAX_STATE_FILE_BYTES: u64 = 64 * 1024;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system said no.
    #[error("{}: cannot {doing}: {source}", .path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Others may read or write a secret.
    #[error("{path}: mode {mode:04o} gives access to other users; run `chmod {wanted:04o} {path}`", path = .path.display())]
    TooOpen {
        /// The directory or file.
        path: PathBuf,
        /// The mode found.
        mode: u32,
        /// The mode that would be right.
        wanted: u32,
    },
    /// Somebody else owns a secret.
    #[error("{}: belongs to user {owner}, but this process runs as user {wanted}", .path.display())]
    ForeignOwner {
        /// The directory or file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who runs.
        wanted: u32,
    },
    /// The file cannot be one of ours.
    #[error("{}: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
}

impl StateError {
    fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            path,
            doing,
            source,
        }
    }
}

/// An open, checked state directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
}

/// The right to create state; others wait until it is dropped (or its process dies).
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateDir {
    /// Opens `path`, creating it with [`DIRECTORY_MODE`] if missing; refuses one that others may enter.
    ///
    /// # Errors
    /// The directory cannot be made or read, is open to others, or belongs to somebody else.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(path);
        made.map_err(StateError::io(path, "create the directory"))?;
        let metadata = fs::metadata(path).map_err(StateError::io(path, "read its metadata"))?;
        check_private(path, &metadata, DIRECTORY_MODE)?;
        Ok(Self {
            path: path.to_path_buf(),
        })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A checked directory inside.
    ///
    /// # Errors
    /// As [`StateDir::open`].
    pub fn subdirectory(&self, name: &str) -> Result<Self, StateError> {
        Self::open(&self.path.join(name))
    }

    /// Waits for the sole right to create state, so that two starters do not make two roots.
    ///
    /// # Errors
    /// The lock file cannot be made or locked.
    pub fn lock(&self) -> Result<StateLock, StateError> {
        let path = self.path.join(".lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(SECRET_MODE)
            .open(&path)
            .map_err(StateError::io(&path, "open the lock"))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| StateError::io(&path, "lock")(error.into()))?;
        Ok(StateLock { _file: file })
    }

    /// The text of a secret, or `None` when there is none. Symbolic links are not followed.
    ///
    /// # Errors
    /// The file is open to others, foreign, too large, not text, or cannot be read.
    pub fn read_secret(&self, name: &str) -> Result<Option<String>, StateError> {
        self.read(name, Some(SECRET_MODE))
    }

    /// The text of a public file, or `None` when there is none.
    ///
    /// # Errors
    /// The file is too large, not text, or cannot be read.
    pub fn read_public(&self, name: &str) -> Result<Option<String>, StateError> {
        self.read(name, None)
    }

    fn read(&self, name: &str, private: Option<u32>) -> Result<Option<String>, StateError> {
        let path = self.path.join(name);
        let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(no_follow)
            .open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateError::io(&path, "open")(error)),
        };
        let metadata = file
            .metadata()
            .map_err(StateError::io(&path, "read its metadata"))?;
        if let Some(mode) = private {
            check_private(&path, &metadata, mode)?;
        }
        let mut text = String::new();
        file.take(MAX_STATE_FILE_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(StateError::io(&path, "read"))?;
        if text.len() as u64 > MAX_STATE_FILE_BYTES {
            let reason =
                format!("larger than {MAX_STATE_FILE_BYTES} bytes, so not a state file of Voile");
            return Err(StateError::Malformed { path, reason });
        }
        Ok(Some(text))
    }

    /// Writes a new file durably; `false` when somebody else made one of that name first (theirs stays).
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_new(&self, name: &str, text: &str, mode: u32) -> Result<bool, StateError> {
        let path = self.path.join(name);
        // A link, unlike a rename, fails when the name is taken: nobody's key is ever replaced.
        let written = self.draft(name, text, mode, |draft| fs::hard_link(draft, &path));
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(StateError::io(&path, "write")(error)),
        }
        self.sync()?;
        Ok(true)
    }

    /// Writes a file durably in the place of one that may be there: who reads sees the old one or the new one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn replace(&self, name: &str, text: &str, mode: u32) -> Result<(), StateError> {
        let path = self.path.join(name);
        self.draft(name, text, mode, |draft| fs::rename(draft, &path))
            .map_err(StateError::io(&path, "write"))?;
        self.sync()
    }

    /// Writes a file durably under a name that nobody looks for, and lets it be given its own; nothing is left of it where that fails.
    fn draft(
        &self,
        name: &str,
        text: &str,
        mode: u32,
        name_it: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let draft = self
            .path
            .join(format!(".{name}.{:016x}", fastrand::u64(..)));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let written = options.open(&draft).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            name_it(&draft)
        });
        // After the rename there is no draft.
        let _ = fs::remove_file(&draft);
        written
    }

    /// Makes renames and new names survive a power cut.
    fn sync(&self) -> Result<(), StateError> {
        let opened = File::open(&self.path).and_then(|folder| folder.sync_all());
        opened.map_err(StateError::io(&self.path, "sync the directory"))
    }

    /// Takes a file away for good: of many takers exactly one is told `true`.
    ///
    /// # Errors
    /// The file system refuses for another reason than that the file is gone.
    pub fn take(&self, name: &str) -> Result<bool, StateError> {
        let from = self.path.join(name);
        let to = self.path.join(format!(".used.{name}"));
        match fs::rename(&from, &to) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StateError::io(&from, "take away")(error)),
        }
        self.sync()?;
        let _ = fs::remove_file(&to);
        Ok(true)
    }
}

fn check_private(path: &Path, metadata: &fs::Metadata, wanted: u32) -> Result<(), StateError> {
    const OTHERS: u32 = 0o077;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(StateError::TooOpen {
            path: path.to_path_buf(),
            mode,
            wanted,
        });
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && user != 0 {
        let path = path.to_path_buf();
        return Err(StateError::ForeignOwner {
            path,
            owner: metadata.uid(),
            wanted: user,
        });
    }
    Ok(())
}

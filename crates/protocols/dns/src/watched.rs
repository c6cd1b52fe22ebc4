//! A small system file (resolv.conf, hosts), read again when it changed. It is checked on use and at most once a
//! second; no watcher runs meanwhile.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Time for which a file counts as unchanged after a look.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Larger files are none that a resolver should obey; 1 MiB is far above any hosts file by hand.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Stamp that differs between two states of a file; renamed-in files have another inode.
type Stamp = (Option<SystemTime>, u64, u64);

/// See the module.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    path: PathBuf,
    parse: fn(&str) -> T,
    looked: Option<Instant>,
    stamp: Option<Stamp>,
    value: T,
}

impl<T> Watched<T> {
    pub(crate) fn new(path: &Path, parse: fn(&str) -> T) -> Self {
        Self {
            path: path.to_owned(),
            parse,
            looked: None,
            stamp: None,
            value: parse(""),
        }
    }

    /// Returns the file's current content. A file that vanished or cannot be read keeps its last content.
    pub(crate) fn get(&mut self, now: Instant) -> &T {
        let recent = |looked: Instant| now.saturating_duration_since(looked) < LOOK_AGAIN_AFTER;
        if !self.looked.is_some_and(recent) {
            self.looked = Some(now);
            self.look();
        }
        &self.value
    }

    fn look(&mut self) {
        use std::os::unix::fs::MetadataExt;
        let Ok(metadata) = std::fs::metadata(&self.path) else {
            return;
        };
        let stamp = (metadata.modified().ok(), metadata.len(), metadata.ino());
        if self.stamp == Some(stamp) || metadata.len() > MAX_FILE_BYTES || !metadata.is_file() {
            return;
        }
        match std::fs::read(&self.path) {
            Ok(bytes) => {
                self.stamp = Some(stamp);
                self.value = (self.parse)(&String::from_utf8_lossy(&bytes));
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot read the file; its previous content stays in use");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_when_it_changed_and_believed_when_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut file = Watched::new(&path, ToOwned::to_owned);
        assert_eq!(file.get(at(0)), "");
        std::fs::write(&path, "one").unwrap();
        assert_eq!(file.get(at(0)), "", "looked at a moment ago");
        assert_eq!(file.get(at(1)), "one");
        std::fs::write(folder.path().join("new"), "two").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(file.get(at(2)), "two");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.get(at(3)), "two");
    }
}

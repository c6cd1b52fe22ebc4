//! Key sets in the state directory: a control plane that is started again while a key server is down believes what it
//! believed before.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use super::Origin;
use super::key_set::key_set;
use crate::state_file::StateFile;

/// Time for which unwanted keys are kept. A policy that was removed by mistake and is restored finds its keys.
const UNWANTED: Duration = Duration::from_secs(30 * 24 * 3600);
/// The largest file read, in bytes: a key set and its origin.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The folder.
#[derive(Debug)]
pub(super) struct KeySetFolder(PathBuf);

#[derive(serde::Serialize, serde::Deserialize)]
struct Written {
    origin: String,
    fetched_at: u64,
    keys: String,
}

impl KeySetFolder {
    pub(super) fn new(state: &Path) -> Self {
        Self(state.join("keys"))
    }

    fn path(&self, origin: &Origin) -> PathBuf {
        self.0.join(name(origin))
    }

    /// The keys that were kept, and since when they were good.
    pub(super) fn load(&self, origin: &Origin) -> Option<(Arc<str>, SystemTime)> {
        let path = self.path(origin);
        match read(&path, origin) {
            Ok(found) => found,
            Err(why) => {
                tracing::warn!(path = %path.display(), why, "cannot read saved key sets");
                None
            }
        }
    }

    /// Keeps keys. Failing is no reason to stop: it is said.
    pub(super) fn keep(&self, origin: &Origin, keys: &str, at: SystemTime) {
        if let Err(error) = self.write(origin, keys, at) {
            tracing::warn!(folder = %self.0.display(), %error, "cannot save key sets");
        }
    }

    fn write(&self, origin: &Origin, keys: &str, at: SystemTime) -> io::Result<()> {
        let written = Written {
            origin: origin.to_string(),
            fetched_at: seconds(at),
            keys: keys.to_owned(),
        };
        StateFile::new(&self.0, &name(origin)).replace(serde_json::to_vec(&written)?)
    }

    /// Removes what nobody has wanted for long.
    pub(super) fn sweep<'a>(&self, wanted: impl Iterator<Item = &'a Origin>) {
        let wanted: BTreeSet<String> = wanted.map(name).collect();
        let Ok(entries) = std::fs::read_dir(&self.0) else {
            return; // Nothing was ever kept.
        };
        for entry in entries.flatten() {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|at| at.elapsed().ok());
            let unwanted = !wanted.contains(&*entry.file_name().to_string_lossy());
            if unwanted && age.is_some_and(|age| age > UNWANTED) {
                // A file that cannot be removed is tried again next time.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn read(path: &Path, origin: &Origin) -> Result<Option<(Arc<str>, SystemTime)>, String> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if metadata.len() > MAX_FILE_BYTES {
        return Err(format!("the file is larger than {MAX_FILE_BYTES} bytes"));
    }
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let written: Written = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if written.origin != origin.to_string() {
        return Err(format!("the file belongs to `{}`", written.origin));
    }
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(written.fetched_at));
    let keys = key_set(&written.keys)?;
    Ok(Some((keys, at.unwrap_or(UNIX_EPOCH))))
}

/// A file's name: origins may be long, and hold anything.
fn name(origin: &Origin) -> String {
    const BYTES: usize = 16;
    let hash = Sha256::digest(format!("{origin:?}"));
    let digits: String = hash
        .iter()
        .take(BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{digits}.json")
}

pub(super) fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = super::super::tests::KEYS;

    #[test]
    fn what_is_kept_is_found_again_by_its_own_origin_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = KeySetFolder::new(folder.path());
        let origin = Origin::Uri("https://a.example/k".into());
        assert_eq!(kept.load(&origin), None);
        let at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        kept.keep(&origin, KEYS, at);
        assert_eq!(kept.load(&origin), Some((KEYS.into(), at)));
        assert_eq!(
            kept.load(&Origin::Discovery("https://a.example/k".into())),
            None
        );
        kept.sweep(std::iter::empty());
        assert!(kept.load(&origin).is_some(), "young files stay");
        // A file that was damaged, or put under another's name, is no key set.
        let path = kept.path(&origin);
        for damage in [
            "",
            "{}",
            r#"{"origin":"https://b/","fetched_at":0,"keys":"{}"}"#,
        ] {
            std::fs::write(&path, damage).expect("written");
            assert_eq!(kept.load(&origin), None, "{damage}");
        }
    }
}

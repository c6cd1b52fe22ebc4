//! The last configuration without errors, kept in the state directory: a control plane that is started again beside a
//! broken folder holds what was good before, like one that kept running.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use voile_model::{Mesh, SourceFile};

/// Name in the state directory. Secrets are resources too, so it is for its owner only.
const FILE: &str = "last-good.json";

/// See the module.
#[derive(Debug)]
pub(crate) struct LastGood {
    path: PathBuf,
}

impl LastGood {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            path: state.join(FILE),
        }
    }

    /// The mesh that was kept; nothing when there is none or it cannot be read, which is said.
    pub(crate) fn load(&self) -> Option<Mesh> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the last good configuration cannot be read");
                return None;
            }
        };
        match serde_json::from_str::<Vec<(String, String)>>(&text) {
            Ok(files) => {
                let files: Vec<SourceFile> = files
                    .into_iter()
                    .map(|(name, text)| SourceFile::new(name, text))
                    .collect();
                Some(voile_model::check(&files, None).0)
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the last good configuration is damaged");
                None
            }
        }
    }

    /// Keeps these files. Failing is no reason to stop: it is said, and what is in force stays.
    pub(crate) fn keep(&self, files: &[SourceFile]) {
        if let Err(error) = self.write(files) {
            tracing::warn!(path = %self.path.display(), %error, "the last good configuration cannot be kept");
        }
    }

    fn write(&self, files: &[SourceFile]) -> std::io::Result<()> {
        let texts: Vec<(&str, &str)> = files
            .iter()
            .filter_map(|file| Some((&*file.name, file.text.as_deref().ok()?)))
            .collect();
        let draft = self.path.with_extension("draft");
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(&serde_json::to_vec(&texts)?)?;
        file.sync_all()?;
        std::fs::rename(draft, &self.path)
    }
}

//! Sources of resources. Files are the first; Kubernetes will be the second.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use voile_model::SourceFile;
use voile_watch::{FolderWatch, WatchError};

use crate::error::ControlError;

/// Something that holds resources and tells when they change.
pub trait Source: Send + 'static {
    /// Everything it holds now, in an order that does not change; what did not change since the last call is the same `Arc`. May block
    /// on a disk.
    ///
    /// # Errors
    /// Nothing can be read at all; what was read before stays in force.
    fn load(&mut self) -> Result<Vec<Arc<SourceFile>>, ControlError>;

    /// When the first of what `load` is about to bring was told; none when nothing was.
    fn changed_at(&self) -> Option<Instant> {
        None
    }

    /// By folder, a digest of the files that `load` gave last.
    fn digests(&self) -> BTreeMap<PathBuf, String> {
        BTreeMap::new()
    }

    /// Wakes `changed` for one more file, which is not part of `load`.
    ///
    /// # Errors
    /// It cannot be watched.
    fn follow_file(&mut self, file: &Path) -> Result<(), ControlError>;

    /// Holds what is in one more folder, too: what the control plane writes down itself.
    ///
    /// # Errors
    /// It cannot be watched.
    fn follow_folder(&mut self, folder: &Path) -> Result<(), ControlError>;

    /// Returns when `load` may answer differently than last time: at once for the first change, less often the more there are. May be
    /// dropped at any time.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

impl From<WatchError> for ControlError {
    fn from(error: WatchError) -> Self {
        Self::Folder {
            folder: error.folder,
            reason: error.reason,
        }
    }
}

impl Source for FolderWatch {
    fn load(&mut self) -> Result<Vec<Arc<SourceFile>>, ControlError> {
        let files = Self::load(self);
        for note in self.take_notes() {
            tracing::warn!("{note}");
        }
        Ok(files?)
    }

    fn digests(&self) -> BTreeMap<PathBuf, String> {
        Self::digests(self)
    }

    fn changed_at(&self) -> Option<Instant> {
        Self::changed_at(self)
    }

    fn follow_file(&mut self, file: &Path) -> Result<(), ControlError> {
        Ok(Self::follow_file(self, file)?)
    }

    fn follow_folder(&mut self, folder: &Path) -> Result<(), ControlError> {
        Ok(Self::follow_folder(self, folder)?)
    }

    async fn changed(&mut self) {
        Self::changed(self).await;
    }
}

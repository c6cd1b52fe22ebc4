//! The cluster as a source of resources: each object is a file.
//!
//! ```text
//! API server ─watch─▶ KindWatches ─▶ ObjectStore ─load─▶ voile_control
//! ```

pub(crate) mod backoff;
mod cluster_objects;
mod discovery;
mod scope;
mod store;
pub(crate) mod trim;
mod watches;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use voile_control::ControlError;
use voile_control::source::Source;
use voile_model::SourceFile;
use voile_watch::FolderWatch;

pub use cluster_objects::{ClusterObjects, namespace_of};
pub(crate) use scope::Scope;
pub(crate) use store::{ObjectStore, ReportedObject};
use watches::{KindWatches, Selection, follow, follow_named};

use crate::error::ClusterError;

/// Time between two messages about lists that have not come.
const WAITING: Duration = Duration::from_secs(5);
/// A reading is followed by at least so many times its own duration without one: a busy cluster is read in batches.
const REST: u32 = 2;
/// Longest rest.
const MAX_REST: Duration = Duration::from_secs(1);

/// Objects of a cluster, and the files of the state directory that the control plane writes itself.
pub(crate) struct ClusterSource {
    store: Arc<ObjectStore>,
    changes: watch::Receiver<u64>,
    /// Files beside the cluster.
    files: FolderWatch,
    /// Begin of the last reading, until its end is known.
    read_at: Option<Instant>,
    /// No reading before.
    rest_until: Instant,
    /// They end with it.
    _tasks: JoinSet<()>,
}

impl ClusterSource {
    /// Watches the cluster, and waits until every list has come: a policy that is not there yet must not be missing in the first
    /// configuration. `mesh_config` is the namespace and name of the ConfigMap with the mesh's settings.
    ///
    /// # Errors
    /// The API server does not answer discovery.
    pub(crate) async fn start(
        client: Client,
        mesh_config: (&str, &str),
    ) -> Result<Self, ClusterError> {
        let (namespace, name) = mesh_config;
        let settings = Selection::mesh_config(namespace, name);
        let store = Arc::new(ObjectStore::new(settings.scope.to_string()));
        let mut tasks = JoinSet::new();
        store.expect(&settings.scope);
        tasks.spawn(follow(client.clone(), settings, store.clone()));
        tasks.spawn(follow_named(client.clone(), store.clone()));
        let mut kinds = KindWatches::new(client, store.clone());
        kinds.discover().await?;
        tasks.spawn(kinds.run());
        let mut changes = store.changes();
        loop {
            let missing = store.missing();
            if missing.is_empty() {
                break;
            }
            if tokio::time::timeout(WAITING, changes.changed())
                .await
                .is_err()
            {
                tracing::warn!("waiting for the lists of {}", missing.join(", "));
            }
        }
        let files = FolderWatch::new(&[]).map_err(|error| ClusterError::Config(error.reason))?;
        Ok(Self {
            changes,
            store,
            files,
            read_at: None,
            rest_until: Instant::now(),
            _tasks: tasks,
        })
    }

    /// The objects, for others than the control plane.
    pub(crate) fn store(&self) -> Arc<ObjectStore> {
        self.store.clone()
    }
}

impl fmt::Debug for ClusterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSource(..)")
    }
}

impl Source for ClusterSource {
    fn load(&mut self) -> Result<Vec<Arc<SourceFile>>, ControlError> {
        self.changes.mark_unchanged();
        self.read_at = Some(Instant::now());
        let mut all = self.store.files();
        all.extend(self.files.load()?);
        Ok(all)
    }

    fn changed_at(&self) -> Option<Instant> {
        let times = [self.store.changed_at(), self.files.changed_at()];
        times.into_iter().flatten().min()
    }

    fn follow_file(&mut self, file: &Path) -> Result<(), ControlError> {
        Ok(self.files.follow_file(file)?)
    }

    fn follow_folder(&mut self, folder: &Path) -> Result<(), ControlError> {
        Ok(self.files.follow_folder(folder)?)
    }

    async fn changed(&mut self) {
        if let Some(begun) = self.read_at.take() {
            let now = Instant::now();
            self.rest_until = now + ((now - begun) * REST).min(MAX_REST);
        }
        tokio::time::sleep_until(self.rest_until.into()).await;
        tokio::select! {
            // The store lives as long as this source: there is no error.
            _ = self.changes.changed() => {}
            () = self.files.changed() => {}
        }
    }
}

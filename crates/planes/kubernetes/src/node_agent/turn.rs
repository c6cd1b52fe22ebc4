//! Which agent of a node acts. While a DaemonSet is updated a node has two agents for a moment, and both would write the same rules.
//! The newer asks for the turn and waits until the older has stopped. The older waits, in case the newer goes first.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::RecommendedWatcher;
use tokio::sync::Notify;

use crate::cni::watch;

/// Pause before the lock is tried again by an agent that has asked for it.
const ASKING: Duration = Duration::from_millis(20);
/// The same, by an agent that has stopped.
const WAITING: Duration = Duration::from_secs(1);
/// Time that whoever asked has to take the lock.
const YIELD: Duration = Duration::from_secs(5);

/// How an agent comes to its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// The agent that acts is asked to stop.
    Ask,
    /// Another agent acts until it ends.
    Wait,
}

/// The turn of an agent, until it is dropped. The kernel takes it from a process that dies.
#[derive(Debug)]
pub(super) struct Turn {
    /// Locked by the agent that acts. It is not empty while another asks.
    file: File,
    changed: Arc<Notify>,
    _watcher: RecommendedWatcher,
}

impl Turn {
    /// Waits for the turn. `path` is the same for all agents of a node.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) async fn take(path: &Path, manner: Manner) -> io::Result<Self> {
        if manner == Manner::Wait {
            tokio::time::sleep(YIELD).await;
        }
        let mut options = File::options();
        let options = options.read(true).write(true).create(true);
        let file = options.truncate(false).mode(0o600).open(path)?;
        let mut told = false;
        loop {
            match (file.try_lock(), manner) {
                (Ok(()), _) => break,
                (Err(TryLockError::Error(error)), _) => return Err(error),
                (Err(TryLockError::WouldBlock), Manner::Wait) => {
                    tokio::time::sleep(WAITING).await;
                }
                (Err(TryLockError::WouldBlock), Manner::Ask) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!("another agent of this node acts; it is asked to stop");
                    }
                    // Another that asked, and has the turn now, has taken our question for its own.
                    file.set_len(1)?;
                    tokio::time::sleep(ASKING).await;
                }
            }
        }
        file.set_len(0)?;
        let changed = Arc::new(Notify::new());
        let watcher = watch(path, Arc::clone(&changed))?;
        Ok(Self {
            file,
            changed,
            _watcher: watcher,
        })
    }

    /// Waits until another agent asks for the turn.
    pub(super) async fn asked(&self) {
        while self.file.metadata().is_ok_and(|file| file.len() == 0) {
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newer_acts_once_the_older_has_stopped_and_the_older_once_the_newer_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let older = Turn::take(&path, Manner::Ask).await.expect("a turn");
        let asking = tokio::spawn({
            let path = path.clone();
            async move { Turn::take(&path, Manner::Ask).await }
        });
        older.asked().await;
        assert!(!asking.is_finished(), "two act");
        drop(older);
        let newer = asking.await.expect("no panic").expect("a turn");
        let waiting = Turn::take(&path, Manner::Wait);
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            () = newer.asked() => panic!("who waits does not ask"),
            _ = &mut waiting => panic!("two act"),
            () = tokio::time::sleep(YIELD + WAITING) => {}
        }
        drop(newer);
        waiting.await.expect("a turn");
    }
}

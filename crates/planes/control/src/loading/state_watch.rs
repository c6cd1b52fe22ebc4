//! Looks after the state folder while the control plane runs: it signs with the root in memory, so a folder that was deleted or
//! replaced is noticed only at the next start, when it is too late. Reports to the status page and the events; changes nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use voile_identity::{RootFingerprint, RootPolicy, check_root};

use crate::status::Status;

/// Between two looks. `voile up` shows what is wrong within two seconds.
const EVERY: Duration = Duration::from_secs(1);

/// Compares the folder with the root that is served, for ever.
pub(crate) async fn watch(folder: PathBuf, served: RootFingerprint, status: Arc<Status>) {
    let policy = RootPolicy {
        expected: Some(served),
        new_root: false,
    };
    loop {
        tokio::time::sleep(EVERY).await;
        let folder = folder.clone();
        // A disk that hangs must not hold up edits.
        let checked = tokio::task::spawn_blocking(move || check_root(&folder, &policy)).await;
        if let Ok(checked) = checked {
            status.state_is(checked.err().map(|lost| lost.to_string()));
        }
    }
}

//! The proxies of a mesh, each asked for its live records by a thread of its own. Pods come and go meanwhile.
//!
//! ```text
//! mesh ── listed every two seconds ─────────────────────────┐
//! proxy ─ asked by a thread of its own, again and again ────┤
//! proxy ─ … ────────────────────────────────────────────────┴▶ news, as they come
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::Value;

use crate::commands::inspect::monitoring::{PageServer, WatchedMesh, ask_again};

/// Proxies that are watched at a time.
pub(crate) const MAX_PROXIES: usize = 64;
/// Pauses between two lists of the proxies that run: of a mesh on this machine, and of a cluster, which lists all of its pods.
const LIST_AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// Longest time that one question waits for a record.
const WAIT_SECONDS: u64 = 20;
/// Pause between two questions to a proxy, in which records gather.
const GATHER: Duration = Duration::from_millis(100);
/// Pause before a proxy that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// News that wait to be taken.
const MAX_WAITING: usize = 16;

/// What a watch has to say.
#[derive(Debug)]
pub(crate) enum WatchNews {
    /// The proxies that are watched from now on, or why they are not known. The others are as they were.
    Listed(Result<BTreeSet<String>, String>),
    /// The answer of a proxy: `records` and how many it `missed`.
    Answered(String, Result<Value, String>),
}

/// Query of a proxy's page, which begins with `&` unless it is empty; none if the proxy is not meant.
pub(crate) type RecordFilter = Box<dyn Fn(&PageServer) -> Option<String> + Send>;

/// Which proxies are watched, and for which records.
pub(crate) struct WatchedRecords {
    pub(crate) mesh: WatchedMesh,
    pub(crate) filter: RecordFilter,
}

impl WatchedRecords {
    /// Begins. The threads end when the receiver is dropped; one that waits for an answer then stops with the process.
    pub(crate) fn watch(self) -> Receiver<WatchNews> {
        let (tell, told) = sync_channel(MAX_WAITING);
        let to_proxies = tell.clone();
        let mut asked: BTreeMap<String, Arc<AtomicBool>> = BTreeMap::new();
        let pause = LIST_AGAIN[usize::from(self.mesh.is_cluster())];
        ask_again(tell, move || {
            let listed = self.list();
            if let Ok(proxies) = &listed {
                self.follow(proxies, &mut asked, &to_proxies);
            }
            let names =
                |proxies: Vec<PageServer>| proxies.iter().map(ToString::to_string).collect();
            Some((WatchNews::Listed(listed.map(names)), pause))
        });
        told
    }

    fn list(&self) -> Result<Vec<PageServer>, String> {
        let mut proxies = self.mesh.proxies()?;
        proxies.retain(|proxy| (self.filter)(proxy).is_some());
        match proxies.len() {
            0..=MAX_PROXIES => Ok(proxies),
            many => Err(format!(
                "{many} proxies are too many to watch; name a NAMESPACE or NAMESPACE/NAME with at most {MAX_PROXIES} (voile tap)"
            )),
        }
    }

    /// Asks proxies that are new, and no longer those that are gone.
    fn follow(
        &self,
        proxies: &[PageServer],
        asked: &mut BTreeMap<String, Arc<AtomicBool>>,
        tell: &SyncSender<WatchNews>,
    ) {
        let now: BTreeMap<String, &PageServer> =
            proxies.iter().map(|one| (one.to_string(), one)).collect();
        asked.retain(|name, gone| {
            let stays = now.contains_key(name);
            gone.store(!stays, Ordering::Relaxed);
            stays
        });
        for (name, proxy) in now {
            asked.entry(name.clone()).or_insert_with(|| {
                let gone = Arc::new(AtomicBool::new(false));
                let filter = (self.filter)(proxy).unwrap_or_default();
                listen(
                    name,
                    proxy.clone(),
                    filter,
                    (Arc::clone(&gone), tell.clone()),
                );
                gone
            });
        }
    }
}

/// Asks one proxy until it is gone, or nobody takes its answers.
fn listen(
    name: String,
    proxy: PageServer,
    filter: String,
    (gone, tell): (Arc<AtomicBool>, SyncSender<WatchNews>),
) {
    let session = fastrand::u64(..);
    let (mut after, mut wait) = (0, 0);
    ask_again(tell, move || {
        let path = format!("/tap?session={session}&after={after}&wait={wait}{filter}");
        let answer = proxy.json("POST", &path, Duration::from_secs(wait));
        if gone.load(Ordering::Relaxed) {
            return None;
        }
        let pause = match &answer {
            Ok(page) => {
                after = page["next"].as_u64().unwrap_or(after);
                wait = WAIT_SECONDS;
                GATHER
            }
            Err(_) => AGAIN,
        };
        Some((WatchNews::Answered(name.clone(), answer), pause))
    });
}

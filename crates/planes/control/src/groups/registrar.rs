//! The thread that keeps members' documents as they should be: what streams say arrives under a lock that is never held over a write, and
//! the thread does one thing after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tonic::Status;
use voile_proto::discovery::Node;
use voile_xds::server::{Admission, StreamId};

use super::FOLDER;
use super::claim::{Claim, taken};
use super::entry::{GroupDocument, MAX_COMPLAINT};
use super::members::{Key, MemberAction, MemberList};
use super::replica_lock::ReplicaName;
use crate::snapshot::{MeshSnapshot, SnapshotCaller};
use crate::state_file::{Change, StateFile};

/// Time in which members of an ended control plane must reach another one, or the same one after its restart. A proxy waits at
/// most 15 s between two attempts, so several fit.
pub(super) const ORPHANED: Duration = Duration::from_secs(60);

/// State that the registrar's thread shares with its callers.
struct RegistrarState {
    desk: Mutex<RegistrarThread>,
    wake: Condvar,
}

struct RegistrarThread {
    roll: MemberList,
    snapshot: Arc<MeshSnapshot>,
    ending: bool,
}

impl RegistrarState {
    fn desk(&self) -> MutexGuard<'_, RegistrarThread> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(crate) struct Registrar {
    shared: Arc<RegistrarState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registrar").finish_non_exhaustive()
    }
}

impl Registrar {
    /// Keeps entries in a folder of the state directory, and makes the folder. A member that is gone for `grace` has left.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn start(state: &Path, grace: Duration) -> io::Result<Self> {
        let folder = state.join(FOLDER);
        let mut made = std::fs::DirBuilder::new();
        made.recursive(true).mode(0o700).create(&folder)?;
        let mut files = GroupFiles {
            holder: ReplicaName::new(&folder)?,
            folder,
            grace,
            orphans: BTreeMap::new(),
        };
        let shared = Arc::new(RegistrarState {
            desk: Mutex::new(RegistrarThread {
                roll: MemberList::new(grace, Instant::now()),
                snapshot: Arc::default(),
                ending: false,
            }),
            wake: Condvar::new(),
        });
        let mine = shared.clone();
        let thread = std::thread::Builder::new()
            .name("groups".to_owned())
            .spawn(move || work(&mine, &mut files))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// There is a new snapshot: groups may say something else, and others may have written.
    pub(crate) fn published(&self, snapshot: &Arc<MeshSnapshot>) {
        let mut desk = self.shared.desk();
        if desk.snapshot.groups != snapshot.groups {
            desk.roll.groups_changed();
        }
        desk.snapshot = snapshot.clone();
        desk.roll.others_changed(Instant::now());
        drop(desk);
        self.shared.wake.notify_one();
    }

    /// Returns the admission that a stream waits for if its caller asks to join; `None` for other callers.
    pub(crate) fn admit(
        &self,
        id: StreamId,
        caller: &SnapshotCaller,
        peer: Option<IpAddr>,
        node: &Node,
    ) -> Option<Admission> {
        let claim = Claim::of(caller, peer, node)?;
        let mut desk = self.shared.desk();
        let claim = claim.and_then(|claim| {
            claim.check(caller, &desk.snapshot)?;
            match desk.ending {
                true => Err(ending()),
                false => Ok(claim),
            }
        });
        let claim = match claim {
            Ok(claim) => claim,
            Err(refusal) => {
                tracing::warn!(stream = id.0, %caller, "refused: {}", refusal.message());
                return Some(Box::pin(std::future::ready(Err(refusal))));
            }
        };
        let (answer, answered) = oneshot::channel();
        desk.roll.joins(id.0, claim, answer, Instant::now());
        drop(desk);
        self.shared.wake.notify_one();
        Some(Box::pin(async {
            answered.await.unwrap_or_else(|_| Err(ending()))
        }))
    }

    /// A stream says how its application is.
    pub(crate) fn health(&self, id: StreamId, complaint: Option<&str>) {
        let shown = |complaint: &str| complaint.chars().take(MAX_COMPLAINT).collect();
        let health = complaint.map_or(Ok(()), |complaint| Err(shown(complaint)));
        self.shared.desk().roll.is(id.0, health);
        self.shared.wake.notify_one();
    }

    /// A stream ended.
    pub(crate) fn closed(&self, id: StreamId) {
        self.shared.desk().roll.ended(id.0, Instant::now());
        self.shared.wake.notify_one();
    }

    /// Number of members that joined at this control plane.
    pub(crate) fn len(&self) -> usize {
        self.shared.desk().roll.len()
    }

    /// Ends; what joined stays in the folder, for who comes after.
    pub(crate) fn stop(&self) {
        self.shared.desk().ending = true;
        self.shared.wake.notify_one();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.stop();
    }
}

fn ending() -> Status {
    Status::unavailable("the control plane is shutting down")
}

fn work(shared: &RegistrarState, files: &mut GroupFiles) {
    let mut desk = shared.desk();
    loop {
        if desk.ending {
            desk.roll.give_up();
            return;
        }
        let now = Instant::now();
        let Some(act) = desk.roll.next(now) else {
            let due = desk.roll.due();
            desk = match due {
                None => shared
                    .wake
                    .wait(desk)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let left = due.saturating_duration_since(now);
                    let woken = shared.wake.wait_timeout(desk, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            continue;
        };
        match act {
            MemberAction::Remove(file) => {
                drop(desk);
                files.remove(&file);
                desk = shared.desk();
            }
            MemberAction::Look => {
                drop(desk);
                let (found, next) = files.look(now);
                desk = shared.desk();
                desk.roll.looked(&found, next);
            }
            MemberAction::Write(key) => {
                let wanted = wanted(&desk, &key);
                drop(desk);
                let wrote = wanted.map(|wanted| files.put(wanted));
                desk = shared.desk();
                if let Some(wrote) = wrote {
                    desk.roll.wrote(&key, wrote, Instant::now());
                }
            }
        }
    }
}

/// The wanted document of a member, if it shall have one, and the file that the member has now.
struct WantedDocument {
    claim: Claim,
    entry: Option<GroupDocument>,
    before: Option<String>,
}

fn wanted(desk: &RegistrarThread, key: &Key) -> Option<WantedDocument> {
    let member = desk.roll.member(key)?;
    let claim = member.claim.clone();
    let group = desk.snapshot.groups.get(&claim.group);
    let group = group.filter(|group| claim.check_group(group).is_ok());
    Some(WantedDocument {
        entry: group.map(|group| GroupDocument::of(group, &claim, member.health.as_ref())),
        before: member.file.clone(),
        claim,
    })
}

/// The folder, and what is known of those in it that are not ours.
struct GroupFiles {
    folder: PathBuf,
    holder: ReplicaName,
    grace: Duration,
    /// Files of those whose control plane has ended, and when they go.
    orphans: BTreeMap<String, Instant>,
}

impl GroupFiles {
    fn file(&self, name: &str) -> StateFile {
        StateFile::new(&self.folder, name)
    }

    /// Makes it so; the file that the member has now.
    fn put(&self, wanted: WantedDocument) -> Result<Option<String>, Status> {
        let WantedDocument {
            claim,
            entry,
            before,
        } = wanted;
        let Some(mut entry) = entry else {
            // The group is gone or does not take the member any more.
            return match before {
                Some(file) => {
                    self.remove(&file);
                    Ok(None)
                }
                None => Err(Status::permission_denied(format!(
                    "WorkloadGroup {} no longer exists, or no longer accepts this workload",
                    claim.group
                ))),
            };
        };
        entry.set_holder(self.holder.name());
        let name = entry.file();
        let called = entry.called();
        let written = self.file(&name).change(|there| {
            let there = there.as_deref().and_then(GroupDocument::parse);
            match there {
                Some(there) if !entry.is_same_member(&there) => {
                    let owner = format!("{}, which has already joined", there.called());
                    (
                        Change::Leave,
                        Err(taken(&claim.group, claim.address, &owner)),
                    )
                }
                there => {
                    if let Some(there) = &there {
                        entry.keep_health(there);
                    }
                    let change = match there.as_ref() == Some(&entry) {
                        true => Change::Leave,
                        false => Change::Write(entry.text()),
                    };
                    (change, Ok(()))
                }
            }
        });
        written.map_err(|error| {
            tracing::error!(file = %self.folder.join(&name).display(), %error, "cannot write the WorkloadEntry of a workload that joined");
            Status::unavailable(format!("WorkloadGroup {}: {error}", claim.group))
        })??;
        tracing::info!(workload = called, group = %claim.group, address = %claim.address, "workload joined the mesh");
        if let Some(before) = before.filter(|before| *before != name) {
            self.remove(&before);
        }
        Ok(Some(name))
    }

    /// Takes away a file that is ours.
    fn remove(&self, name: &str) {
        self.remove_if(name, |entry| entry.holder() == self.holder.name());
    }

    fn remove_if(&self, name: &str, may: impl FnOnce(&GroupDocument) -> bool) {
        let removed =
            self.file(name).change(
                |there| match there.as_deref().and_then(GroupDocument::parse) {
                    Some(entry) if may(&entry) => (Change::Remove, Some(entry.called())),
                    _ => (Change::Leave, None),
                },
            );
        match removed {
            Ok(None) => {}
            Ok(Some(workload)) => tracing::info!(workload, "workload left the mesh"),
            Err(error) => {
                tracing::error!(file = %self.folder.join(name).display(), %error, "cannot remove the WorkloadEntry of a workload that left");
            }
        }
    }

    /// Lists the files of the folder, and gives the time of the next look. There is a next look while documents of other control
    /// planes exist, since those control planes may end.
    fn look(&mut self, now: Instant) -> (BTreeSet<String>, Option<Instant>) {
        let mut found = BTreeSet::new();
        let mut alive: BTreeMap<String, bool> = BTreeMap::new();
        let mut foreign = BTreeSet::new();
        for file in std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = file.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".json") {
                continue;
            }
            let text = self.file(&name).read().ok().flatten();
            let entry = text.as_deref().and_then(GroupDocument::parse);
            found.insert(name.clone());
            let Some(entry) = entry else { continue };
            let holder = entry.holder();
            if holder == self.holder.name() {
                continue;
            }
            let runs = alive.entry(holder.to_owned());
            let runs = *runs.or_insert_with(|| self.holder.is_alive(holder));
            foreign.insert(name.clone());
            match runs {
                true => drop(self.orphans.remove(&name)),
                false => drop(self.orphans.entry(name).or_insert(now + ORPHANED)),
            }
        }
        self.orphans.retain(|name, _| foreign.contains(name));
        let over: Vec<String> = self
            .orphans
            .extract_if(.., |_, at| *at <= now)
            .map(|(name, _)| name)
            .collect();
        for name in &over {
            // It may have come back since.
            self.remove_if(name, |entry| !self.holder.is_alive(entry.holder()));
            foreign.remove(name);
        }
        let again = now + self.grace.max(Duration::from_secs(1));
        (found, (!foreign.is_empty()).then_some(again))
    }
}

#[cfg(test)]
mod tests;
